#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment and runs the example of the README there. Needs a
# package index; where none answers it says so and ends with 77.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${CARPOOL_PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv" >"$folder/log" 2>&1 || { cat "$folder/log"; echo "SKIPPED: $python makes no environments"; exit 77; }
pip=("$folder/venv/bin/python" -m pip --disable-pip-version-check -q --retries 0 --timeout 20)
if ! "${pip[@]}" download --no-deps -d "$folder/probe" scikit-build-core >"$folder/log" 2>&1; then
  tail -n 1 "$folder/log"
  echo "SKIPPED: no package index answers"
  exit 77
fi
"${pip[@]}" wheel --no-deps -w "$folder" "$here"
start=$SECONDS
"${pip[@]}" install "$folder"/carpool_routing-*.whl
# The first block of code of the README, as it stands there.
awk '/^```python/ {on = 1; next} /^```/ {if (on) exit} on' "$here/README.md" >"$folder/example.py"
[ -s "$folder/example.py" ]
cd "$folder"
venv/bin/python example.py >out
cat out
grep -q 'distinct experts' out
echo "installed and ran the example in $((SECONDS - start)) s"
