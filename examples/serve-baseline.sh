#!/usr/bin/env bash
# Serves a model for an OEA campaign. serve-baseline.sh and serve-oea.sh differ in the line `routing=` alone, so that
# whatever differs between two measurements is the routing. One server can also serve both sides: ab.sh.
#
#   [MODEL=...] [HOST=127.0.0.1] [PORT=8080] [CARPOOL=build/release/carpool] examples/serve-(baseline|oea).sh [OPTION...]
#
# Options are appended: any of `carpool serve --help`. Which option of SGLang's launch line became what, and which have
# nothing to act on here, is in docs/from-sglang.md. That the routing ran: GET /server_info, internal_states[0].
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

# --policy wins over CARPOOL_OEA_K0, so what a shell happens to export cannot turn one side into the other.
routing=(--policy topk)

exec "${CARPOOL:-$root/build/release/carpool}" serve "${MODEL:-$root/models/books-qwen3}" \
  "${routing[@]}" \
  --host "${HOST:-127.0.0.1}" \
  --port "${PORT:-8080}" \
  --max-running-requests 2048 \
  --kv-cache-dtype auto \
  --disable-radix-cache \
  "$@"
