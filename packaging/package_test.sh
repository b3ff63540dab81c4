#!/usr/bin/env bash
# Packs the Debian package of a finished build and looks at it: its files, what it needs, its configuration file, and
# that the program from it runs. Verifies the unit where systemd-analyze is installed.
#
#   packaging/package_test.sh BUILD
#
# As root on a machine with debootstrap, `packaging/package_test.sh BUILD --chroot` also installs the package with apt in
# a bare Debian 12, answers a request from it, and looks that uninstalling leaves nothing.
set -euo pipefail
build=$(realpath "$1") here=$(dirname "$(realpath "$0")")
for tool in cpack dpkg-deb dpkg-shlibdeps; do
  command -v $tool >/dev/null || { echo "SKIPPED: no $tool here"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && cpack --config "$build/CPackConfig.cmake" -B "$folder" >/dev/null)
package=$(echo "$folder"/carpool_*.deb)
[ -f "$package" ] || { echo "one package was expected, got: $package" >&2; exit 1; }
dpkg-deb -x "$package" "$folder/files"
dpkg-deb -e "$package" "$folder/control"
(cd "$folder/files" && find . -type f -not -path './usr/share/doc/*' | sort) >"$folder/list"
diff "$folder/list" - <<'EXPECTED'
./etc/default/carpool
./usr/bin/carpool
./usr/lib/systemd/system/carpool.service
EXPECTED
grep -Fx /etc/default/carpool "$folder/control/conffiles" >/dev/null
grep 'Depends:.*libc6' "$folder/control/control" >/dev/null
for script in postinst prerm postrm; do sh -n "$folder/control/$script"; done
"$folder/files/usr/bin/carpool" --version

# The unit gives draining the time that it takes, and the keys of the example are those that systemd hands over.
unit=$folder/files/usr/lib/systemd/system/carpool.service
drain=$("$folder/files/usr/bin/carpool" serve --help | sed -n 's/.*--drain-timeout FLOAT=\([0-9]*\) .*/\1/p')
stop=$(sed -n 's/^TimeoutStopSec=//p' "$unit")
[ "$stop" -ge $((drain + 30)) ] || { echo "TimeoutStopSec=$stop, --drain-timeout is $drain" >&2; exit 1; }
grep '^LoadCredential=keys:/etc/carpool.keys$' "$unit" >/dev/null
grep -- '--api-key-file /run/credentials/carpool.service/keys' "$folder/files/etc/default/carpool" >/dev/null

# Maintainer scripts, with a systemctl that writes down what it is asked. An upgrade restarts what runs, a first
# installation nothing.
cat >"$folder/systemctl" <<'FAKE'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/asked"
FAKE
chmod +x "$folder/systemctl"
postinst() {
  rm -f "$folder/asked"
  sed "s|/run/systemd/system|$folder|" "$folder/control/postinst" | PATH="$folder:$PATH" sh -s -- "$@"
  touch "$folder/asked"
}
postinst configure ""
diff "$folder/asked" - <<<"daemon-reload"
postinst configure 0.0.9
diff "$folder/asked" - <<<$'daemon-reload\ntry-restart carpool.service'
postinst abort-upgrade 0.0.9
diff "$folder/asked" /dev/null
if command -v systemd-analyze >/dev/null; then
  sed "s|/usr/bin/carpool|$folder/files/usr/bin/carpool|" "$here/carpool.service" >"$folder/carpool.service"
  systemd-analyze verify "$folder/carpool.service"
  echo "systemd-analyze verify: OK"
fi
[ "${2:-}" = --chroot ] || exit 0

root=$folder/root
debootstrap --variant=minbase bookworm "$root" ${MIRROR:-} >/dev/null
(cd "$root" && find . -xdev -not -path './proc/*' -not -path './var/lib/*' -not -path './var/cache/*' -not -path './var/log/*' | sort) >"$folder/before"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
cp "$package" "$root/carpool.deb"
chroot "$root" dpkg-query -W -f='${Package}\n' | sort >"$folder/packages"
chroot "$root" sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends /carpool.deb' >/dev/null 2>&1
chroot "$root" carpool --version
chroot "$root" sh -c 'timeout 120 carpool serve dummy:canary --port 18100 & server=$!
  carpool bench-serve http://127.0.0.1:18100 --dataset-name random-ids --num-prompts 4 --ready-check-timeout-sec 60
  status=$?; kill $server; wait $server; exit $status'
chroot "$root" apt-get purge -y -qq carpool >/dev/null 2>&1
chroot "$root" dpkg-query -W -f='${Package}\n' | sort | comm -13 "$folder/packages" - | xargs chroot "$root" apt-get purge -y -qq >/dev/null 2>&1
rm "$root/carpool.deb"
(cd "$root" && find . -xdev -not -path './proc/*' -not -path './var/lib/*' -not -path './var/cache/*' -not -path './var/log/*' | sort) >"$folder/after"
diff "$folder/before" "$folder/after" && echo "uninstalled without a trace"
