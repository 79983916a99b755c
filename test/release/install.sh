#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a Debian package into a new root of Debian, starts the cluster by the command of its
# unit, waits until the node is Ready, and removes and purges the package: nothing may be left.
# Usage, as root: test/release/install.sh FILE.deb [RELEASE]
# It needs debootstrap and a mirror; the root has namespaces of mounts, processes and network of its own.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
if [ "${1:-}" = inside ]; then
  root=$2
  ip link set lo up
  # A node needs an address and a route; nobody is at the other end.
  ip link add eth0 type veth peer name eth1
  ip addr add 10.99.0.2/24 dev eth0
  ip link set eth0 up
  ip link set eth1 up
  ip route add default via 10.99.0.1
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mkdir -p "$root/.host"
  cd "$root"
  pivot_root . .host
  umount -l /.host
  rmdir /.host
  mount --make-rshared /
  exec bash -euo pipefail -c '
    command=$(sed -n "s/^ExecStart=//p" /usr/lib/systemd/system/wasmplane.service)
    sed -i "s/name: wasmplane/name: installed/" /etc/wasmplane/config.yaml # apart from clusters of this host
    $command >/up.log 2>&1 &
    pid=$!
    export KUBECONFIG=/var/lib/wasmplane/kubeconfig
    for i in $(seq 240); do
      ! grep -q "^Ready in" /up.log || break
      kill -0 $pid 2>/dev/null || break
      sleep 0.5
    done
    cat /up.log
    grep -q "^Ready in" /up.log || { echo "the cluster is not ready after two minutes"; exit 1; }
    wasmplane kubectl wait --for=condition=Ready node --all --timeout=2m
    kill -TERM $pid
    wait $pid
    dpkg --remove wasmplane
    left=$(ip -o link | grep -E "wp-" || true; nft list tables | grep wp- || true)
    [ -z "$left" ] || { echo "dpkg --remove has left: $left"; exit 1; }
    [ -d /var/lib/wasmplane/etcd ] || { echo "dpkg --remove has removed the data"; exit 1; }
    dpkg --purge wasmplane
    for path in /var/lib/wasmplane /etc/wasmplane /usr/bin/wasmplane; do
      [ ! -e $path ] || { echo "dpkg --purge has left $path"; exit 1; }
    done
    echo "installed, started, removed and purged"'
fi
deb=$(readlink -f "$1")
release=${2:-bookworm}
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" && $2 == "main" {print $3; exit}')}
[ -n "$mirror" ] || { echo "this host's apt has no mirror of Debian: DEBIAN_MIRROR=URL" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/var/tmp}/wasmplane-install.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
unshare --mount debootstrap --variant=minbase "$release" "$work/root" "$mirror" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|ForceIPv)' >"$work/root/etc/apt/apt.conf.d/00host" || true
cp /etc/resolv.conf /etc/hosts "$work/root/etc/"
cp "$deb" "$work/root/tmp/wasmplane.deb"
chroot "$work/root" apt-get install -qy --no-install-recommends /tmp/wasmplane.deb >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
timeout 600 unshare --mount --pid --net --fork --kill-child "$0" inside "$work/root"
