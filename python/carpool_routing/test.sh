#!/usr/bin/env bash
# Runs the package's tests on its sources and a libcarpool_routing.so. Without pytest, numpy and torch it says so and
# ends with 77. The interpreter is $CARPOOL_PYTHON, else that of .venv, else python3.
#
#   python/carpool_routing/test.sh LIBRARY [PYTEST OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
library=$(realpath "$1")
shift
python=${CARPOOL_PYTHON:-}
if [ -z "$python" ]; then
  python=$here/../../.venv/bin/python
  [ -x "$python" ] || python=python3
fi
if ! "$python" -c 'import numpy, pytest, torch' 2>/dev/null; then
  echo "SKIPPED: $python lacks numpy, pytest or torch of python/requirements.txt; CARPOOL_PYTHON names an interpreter" \
       "that has them"
  exit 77
fi
# A sanitizer's runtime must be loaded before the interpreter; its checks are for the tests in C++.
undefined=$(nm -D --undefined-only "$library" 2>/dev/null || true)
if [[ $undefined == *__asan_init* || $undefined == *__tsan_init* ]]; then
  echo "SKIPPED: $library is built with a sanitizer, which Python does not load"
  exit 77
fi
cd "$here"
export CARPOOL_ROUTING_LIBRARY=$library PYTHONPATH=$here/src PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
if [ -x "$(dirname "$library")/carpool" ]; then export CARPOOL_BINARY=$(dirname "$library")/carpool; fi
exec "$python" -m pytest -q -p no:cacheprovider "$@"
