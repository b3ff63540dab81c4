#!/usr/bin/env bash
# Installs the Debian 12 packages that building carpool needs, if any is missing. Usage: tools/setup.sh [clang]
#   clang: also the second compiler and its sanitizer runtimes.
set -euo pipefail
packages=(g++ cmake ninja-build pkg-config git python3 ccache
          libboost1.81-dev libboost-json1.81-dev libcli11-dev libfmt-dev libpcre2-dev libutf8proc-dev
          libgtest-dev libsimde-dev clang-format-19)
if [ "${1:-}" = clang ]; then packages+=(clang-19 libclang-rt-19-dev); fi
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}"
sudo=""
if [ "$(id -u)" -ne 0 ]; then sudo=sudo; fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
