#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first process in the namespaces of a new root: mounts what a machine has, and
# runs one command in it. Called by test/fresh/run.sh, which says by FRESH_GO when
# the network is there.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
root=$FRESH_ROOT
ip link set lo up
mount --make-rprivate /
# As on a machine: the root is a mount point, and in the end the namespace's own root.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"

if [ "$FRESH_USER" = root ]; then home=/root; else home=/home/$FRESH_USER; fi
mkdir -p "$root$GOROOT"
mount --bind "$GOROOT" "$root$GOROOT"
mount -o remount,bind,ro "$root$GOROOT"
# below LOWER FOLDER: what is written goes elsewhere. The user is the owner of the folders into
# which a build or a download writes; the files are for reading.
below() {
  local upper=$FRESH_UPPER/${2//\//-}
  mkdir -p "$1" "$root$2" "$upper/files" "$upper/work"
  mount -t overlay -o "lowerdir=$1,upperdir=$upper/files,workdir=$upper/work" overlay "$root$2"
  [ "$FRESH_USER" = root ] || find "$root$2" -maxdepth 1 -type d -exec chroot "$root" chown "$FRESH_USER:" {} + 2>/dev/null || true
}
below "$GOMODCACHE" "$home/go/pkg/mod"
below "$GOCACHE" "$home/.cache/go-build"
if [ "$FRESH_USER" != root ]; then
  chroot "$root" find "$home" -xdev -exec chown -h "$FRESH_USER:" {} +
  # Modules that this host does not have are downloaded beside those that it has: HOST/OWNER/MODULE@VERSION.
  for f in "$home/.cache/go-build" "$home/go/pkg/mod"; do
    chroot "$root" find "$f" -maxdepth 3 -type d ! -name '*@*' -exec chown "$FRESH_USER:" {} +
  done
  [ ! -d "$root$home/go/pkg/mod/cache" ] || chroot "$root" find "$home/go/pkg/mod/cache" -type d -exec chown "$FRESH_USER:" {} +
fi

# What this host needs to reach mirrors and registries, and nothing else of its environment.
env=("HOME=$home" "USER=$FRESH_USER" "PATH=$GOROOT/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "TERM=dumb" "LANG=C.UTF-8" "CLUSTER=$CLUSTER")
for name in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy GOPROXY GOSUMDB GONOSUMDB npm_config_registry PIP_INDEX_URL; do
  [ -z "${!name+set}" ] || env+=("$name=${!name}")
done
certificates=${SSL_CERT_FILE:-${NODE_EXTRA_CA_CERTS:-}}
if [ -n "$certificates" ] && [ -e "$certificates" ]; then
  touch "$root/run/host-certificates.pem"
  mount --bind "$certificates" "$root/run/host-certificates.pem"
  for name in SSL_CERT_FILE NODE_EXTRA_CA_CERTS PIP_CERT REQUESTS_CA_BUNDLE; do env+=("$name=/run/host-certificates.pem"); done
fi

if ! read -rn1 <"$FRESH_GO"; then
  echo "slirp4netns gave this namespace no network" >&2
  exit 1
fi
# A chroot is no machine: runc's exec would end up outside of it.
mkdir -p "$root/.host"
cd "$root"
pivot_root . .host
umount -l /.host
rmdir /.host
mount --make-rshared /
as=()
# This shell stays the first process: it collects those whose parents have ended.
[ "$FRESH_USER" = root ] || as=(setpriv --reuid "$FRESH_USER" --regid "$FRESH_USER" --init-groups)
exec "${as[@]}" env -i "${env[@]}" bash -c 'cd "$0" || exit; eval "$1"; exit $?' "$FRESH_FOLDER" "$FRESH_COMMAND"
