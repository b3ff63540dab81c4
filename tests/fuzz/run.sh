#!/usr/bin/env bash
# run.sh TARGET SECONDS: builds one target with libFuzzer and sanitizers and runs it on its corpus and on what earlier runs
# found. New inputs go to build/fuzz/found/TARGET; an input that fails is build/fuzz/failure-TARGET-..., and the exit code
# is not 0. Further arguments are libFuzzer's.
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 64
fi
target=$1 seconds=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target "fuzz_$target"
mkdir -p "build/fuzz/found/$target"
dictionary=()
if [ -e "$here/data/$target.dict" ]; then dictionary=("-dict=$here/data/$target.dict"); fi
exec "build/fuzz/tests/fuzz/fuzz_$target" "build/fuzz/found/$target" "$here/data/$target" -max_total_time="$seconds" -timeout=30 \
  -rss_limit_mb=3000 -max_len=16384 -print_final_stats=1 -artifact_prefix="build/fuzz/failure-$target-" "${dictionary[@]}" "$@"
