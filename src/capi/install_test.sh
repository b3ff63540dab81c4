#!/usr/bin/env bash
# Installs libcarpool_routing into a folder of its own and builds a program in C against it, once with pkg-config and
# once with CMake; both must print the same batch as expected. Also: what the library exports and needs.
#
#   src/capi/install_test.sh BUILD SOURCE
set -euo pipefail
build=$(realpath "$1") source=$(realpath "$2")
for tool in cc pkg-config cmake nm readelf; do
  command -v $tool >/dev/null || { echo "SKIPPED: no $tool here"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix
cmake --install "$build" --component routing --prefix "$prefix" >/dev/null
# The prefix of the .pc file is fixed when the build is configured, so it is given here as packagers give it.
libdir=$(dirname "$(find "$prefix" -name carpool-routing.pc)")
export PKG_CONFIG_PATH=$libdir PKG_CONFIG_SYSROOT_DIR=
variables=(--define-variable=prefix="$prefix")
example=$source/examples/routing.c
lib=$(dirname "$(find "$prefix" -name libcarpool_routing.so)")
# What a tool prints is read to its end: grep -q leaves early, the tool dies of the closed pipe, and pipefail reports it.

cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$example" -o "$folder/by_pkg_config" \
  $(pkg-config "${variables[@]}" --cflags --libs carpool-routing) -lm
LD_LIBRARY_PATH=$lib "$folder/by_pkg_config" >"$folder/one"

mkdir "$folder/project"
cat >"$folder/project/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(example LANGUAGES C)
find_package(carpool_routing 0.1 REQUIRED)
add_executable(example ${EXAMPLE})
target_link_libraries(example PRIVATE carpool::routing m)
CMAKE
cmake -S "$folder/project" -B "$folder/project/build" -DCMAKE_PREFIX_PATH="$prefix" -DEXAMPLE="$example" >/dev/null
cmake --build "$folder/project/build" >/dev/null
"$folder/project/build/example" >"$folder/two"
cmp "$folder/one" "$folder/two"
diff <(sed 's/; its arguments are .*//' "$folder/one") - <<'EXPECTED'
policy oea:k0=1,guard=off, 3 columns
row 0: 0 (0.462) 1 (0.385) 3 (0.154)
row 1: 1 (0.833) 0 (0.104) 3 (0.062)
row 2: 3 (0.700) 0 (0.200) 1 (0.100)
3 distinct experts instead of 6
refused: policy oea: argument "k0" must be 0 to 1048576, got -1
EXPECTED

defined=$(nm -D --defined-only "$lib/libcarpool_routing.so")
if grep -v ' carpool_routing_\| CARPOOL_ROUTING_1' <<<"$defined"; then
  echo "the library exports more than its functions" >&2
  exit 1
fi
dynamic=$(readelf -d "$lib/libcarpool_routing.so")
if [[ $dynamic != *'soname: [libcarpool_routing.so.1]'* ]]; then
  echo "the library's soname is not libcarpool_routing.so.1" >&2
  exit 1
fi
needed=$(grep NEEDED <<<"$dynamic" || true)
if grep -v '\[lib[cm]\.so\|\[ld-linux' <<<"$needed"; then
  echo "the library needs more than libc" >&2
  exit 1
fi
echo OK
