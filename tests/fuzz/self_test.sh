#!/usr/bin/env bash
# self_test.sh FUZZ_SELF_TEST: a fault that only a mutation reaches is found, its input is kept, and without it all is well.
set -euo pipefail
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir corpus
printf 'harmless' > corpus/a
printf 'word="fau\\x6ct"\n' > words.dict
"$program" corpus --seconds 0.1
if "$program" corpus --seconds 60 --dict words.dict; then
  echo "the fault was not found" >&2
  exit 1
fi
grep -q fault fuzz-failure-fuzz_self_test
if "$program" fuzz-failure-fuzz_self_test; then
  echo "the input that was kept does not fail again" >&2
  exit 1
fi
