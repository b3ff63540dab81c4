#!/usr/bin/env bash
# Measures both sides of the campaign on one live server: plain routing and POLICY take turns, request by request labelled
# with what they were routed by, with medians, intervals, the server's own expert counters and the prediction beside them.
#
#   [MODEL=...] [POLICY=oea:k0=5,min_batch=2] [CONCURRENCY=1,10,64] [INPUT_LEN=128] [OUTPUT_LEN=64] [REPEAT=5]
#   [CARPOOL=build/release/carpool] [URL=http://...] examples/ab.sh [OPTION...]
#
# Without URL it starts serve-baseline.sh on a free port and ends it afterwards; a server at URL must have been started
# with --allow-policy POLICY. Options are appended: any of `carpool bench-serve --help`, for instance
# --dataset-name custom --dataset-path PROMPTS.jsonl, --json FILE. The small model of this repository stays in the
# cache, so with it the counters mean something and the speed does not.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
carpool=${CARPOOL:-$root/build/release/carpool}
policy=${POLICY:-oea:k0=5,min_batch=2}
url=${URL:-}

if [ -z "$url" ]; then
  folder=$(mktemp -d)
  HOST=127.0.0.1 PORT=0 "$root/examples/serve-baseline.sh" --allow-policy "$policy" 2>"$folder/log" &
  server=$!
  trap 'kill "$server" 2>/dev/null || true; wait "$server" || true; rm -rf "$folder"' EXIT
  until grep -q ' ready: ' "$folder/log"; do
    if ! kill -0 "$server" 2>/dev/null; then
      cat "$folder/log" >&2
      exit 1
    fi
    sleep 0.1
  done
  url=$(grep -o -m 1 'http://[0-9.:]*' "$folder/log")
  url=${url%%$'\n'*}
fi

"$carpool" bench-serve "$url" --ab topk --ab "$policy" --concurrency "${CONCURRENCY:-1,10,64}" \
  --repeat "${REPEAT:-5}" --random-range-ratio 1 --random-input-len "${INPUT_LEN:-128}" \
  --random-output-len "${OUTPUT_LEN:-64}" ${CARPOOL_API_KEY:+--api-key "$CARPOOL_API_KEY"} "$@"
