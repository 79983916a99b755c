#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the README's commands where nothing of this project was ever used: in new
# roots of Debian (and of Ubuntu, where a mirror is known) with nothing but Go, git
# and make. Called by `make fresh`.
#   ALL=1              both commands, all releases, as root and as a user with sudo
#   RELEASES="trixie"  these releases; without it the oldest, with ALL=1 all
#   FRESH_AS=walker    as a user with sudo, in a folder whose name has a space; with ALL=1 as this user alone
#   COMMAND="make build"   this shell command in place of them, two hours at most: to find out what one package lacks
#   UBUNTU_MIRROR=URL, DEBIAN_MIRROR=URL   where this host's apt knows none
# The mirror, proxies and certificates are those of this host. Its Go toolchain is
# mounted read-only; its module and build caches are mounted below folders that take
# what is written. Each root is a mount point in namespaces of mounts, processes and
# network of its own, and is removed in the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || exec test/as-root.sh test/fresh/run.sh
export PATH="$PATH:/usr/sbin:/sbin"
test/deps.sh fresh

logs=$PWD/build/fresh
rm -rf "$logs"
mkdir -p "$logs"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/wasmplane-fresh.XXXXXX")
cluster=fresh$((BASHPID % 100000))
rows=("root|user|command|result|apt fetched|apt installed|minutes")
failed=0 namespace= network= watch=

end_namespace() {
  [ -z "$network" ] || kill "$network" 2>/dev/null || true
  [ -z "$namespace" ] || kill -KILL "$namespace" 2>/dev/null || true # and so everything in it
  [ -z "$watch" ] || kill "$watch" 2>/dev/null || true
  wait $network $namespace $watch 2>/dev/null || true
  namespace= network= watch=
  # Cgroups outlive their processes, and bear the cluster's name.
  find /sys/fs/cgroup -depth -type d -path "*/wp-$cluster*" -exec rmdir {} + 2>/dev/null || true
}
finish() {
  status=$?
  trap - EXIT INT TERM
  end_namespace
  rm -rf --one-file-system "$work"
  exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

# mirror_of DISTRIBUTION: the URL that this host's own apt has for it.
mirror_of() {
  local variable=${1^^}_MIRROR
  if [ -n "${!variable:-}" ]; then
    echo "${!variable}"
  else
    apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
      awk -v of="$1" 'tolower($1) == of && $2 == "main" && !/security/ {print $3; exit}'
  fi
}

# make_root DISTRIBUTION RELEASE: a new root at $work/RELEASE.
make_root() {
  local root=$work/$2 mirror
  mirror=$(mirror_of "$1")
  if [ -z "$mirror" ]; then
    echo "this host's apt has no mirror of $1, so there is no root of $2: name one, ${1^^}_MIRROR=URL"
    return 1
  fi
  echo "making a root of $1 $2 from this host's mirror"
  # In mounts of its own: what debootstrap mounts ends with it.
  if ! timeout -k 10 1200 unshare --mount debootstrap --variant=minbase --include=git,make,sudo "$2" "$root" "$mirror" >"$logs/$2-debootstrap.log" 2>&1; then
    tail -n 20 "$logs/$2-debootstrap.log"
    echo "debootstrap made no root of $1 $2: is the mirror reachable from here?"
    return 1
  fi
  apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|ForceIPv)' >"$root/etc/apt/apt.conf.d/00host" || true
  grep -v "[[:space:]]$(hostname)\$" /etc/hosts >"$root/etc/hosts" || true
  echo "127.0.0.1 $(hostname)" >>"$root/etc/hosts"
  echo "nameserver 10.0.2.3" >"$root/etc/resolv.conf" # slirp4netns asks whom this host asks
  chroot "$root" useradd -m -s /bin/bash walker
  echo "walker ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/walker"
  rm -f "$root"/var/cache/apt/archives/*.deb
}

# run RELEASE USER COMMAND LIMIT
run() {
  local release=$1 user=$2 command=$3 limit=$4 root=$work/$1 log began status=0 words
  words=${command%% [A-Z]*}
  words=${words//[^A-Za-z0-9.-]/-}
  log=$logs/$release-$user-${words:0:80}.log
  if [ $user = root ]; then
    local folder=/root/wasmplane
  else
    local folder="/home/$user/a folder/wasmplane" # paths have spaces
  fi
  echo "$release, $user: $command (log: ${log#"$PWD"/})"
  rm -rf "$root$folder" "$work/upper"
  mkdir -p "$root$folder" "$work/upper"
  git clone -q "$work/clone.git" "$root$folder"
  packages "$root" >"$work/before"
  began=$SECONDS
  mkfifo "$work/go"
  # unshare's first child is waited for: nothing else may run in this job.
  FRESH_USER=$user FRESH_FOLDER=$folder FRESH_COMMAND=$command FRESH_ROOT=$root FRESH_UPPER=$work/upper FRESH_GO=$work/go CLUSTER=$cluster \
    unshare --mount --pid --net --fork --kill-child test/fresh/inside.sh >"$log" 2>&1 &
  namespace=$!
  await_child
  slirp4netns --configure --enable-ipv6 --mtu=65520 --disable-host-loopback --ready-fd=3 "$child" tap0 >"$logs/slirp4netns.log" 2>&1 3>"$work/go" &
  network=$!
  sleep "$limit" >/dev/null 2>&1 & # it holds nobody's output open
  watch=$!
  wait -n "$namespace" "$watch" || status=$?
  if kill -0 "$namespace" 2>/dev/null; then
    echo "the limit of $limit s is over" >>"$log"
    status=124
  fi
  end_namespace
  rm -f "$work/go"
  packages "$root" >"$work/after"
  local fetched installed names result=passed
  fetched=$(find "$root/var/cache/apt/archives" -name '*.deb' -printf '%s\n' | awk '{s += $1} END {printf "%.1f MB", s / 1e6}')
  installed=$(comm -13 "$work/before" "$work/after" | awk '{n++; s += $2} END {printf "%d packages, %.0f MB", n, s / 1e3}')
  names=$(comm -13 "$work/before" "$work/after" | cut -d' ' -f1 | tr '\n' ' ')
  if [ $status != 0 ]; then
    result="FAILED ($status)"
    failed=$((failed + 1))
    echo "--- the end of ${log#"$PWD"/}"
    tail -n 60 "$log"
    echo "---"
  fi
  echo "  apt installed: ${names:-nothing}"
  rows+=("$release|$user|${command//|//}|$result|$fetched|$installed|$(awk -v s=$((SECONDS - began)) 'BEGIN {printf "%.1f", s / 60}')")
}
packages() { chroot "$1" dpkg-query -W -f '${Package} ${Installed-Size}\n' | LC_ALL=C sort; }
# await_child finds the first process of the namespace: unshare's child.
await_child() {
  child=
  until [ -n "$child" ]; do
    kill -0 "$namespace" # or it has ended, and its log says why
    child=$(cat "/proc/$namespace/task/$namespace/children" 2>/dev/null || true)
    child=${child%% *}
    read -rt 0.1 <> <(:) || true
  done
}

GOROOT=$(go env GOROOT) GOMODCACHE=$(go env GOMODCACHE) GOCACHE=$(go env GOCACHE)
export GOROOT GOMODCACHE GOCACHE
# A clean clone of what is committed.
export GIT_CONFIG_GLOBAL=$work/gitconfig
git config --global safe.directory '*'
[ -z "$(git status --porcelain)" ] || echo "uncommitted changes are not in the clone"
git clone -q --bare . "$work/clone.git"

distributions="debian:bookworm debian:trixie"
if [ -n "$(mirror_of ubuntu)" ]; then distributions+=" ubuntu:noble"; fi
if [ -n "${RELEASES:-}" ]; then
  chosen=
  for d in $distributions; do [[ " $RELEASES " != *" ${d#*:} "* ]] || chosen+=" $d"; done
elif [ -n "${ALL:-}" ]; then
  chosen=$distributions
else
  chosen=${distributions%% *}
fi
[ -n "$chosen" ] || { echo "none of $distributions is in RELEASES=$RELEASES"; exit 2; }
for d in $chosen; do
  if ! make_root "${d%:*}" "${d#*:}"; then
    failed=$((failed + 1))
    rows+=("${d#*:}|-|-|FAILED: no root|-|-|-")
    continue
  fi
  if [ -n "${COMMAND:-}" ]; then
    run "${d#*:}" "${FRESH_AS:-root}" "$COMMAND" 7200
  elif [ -z "${ALL:-}" ]; then
    run "${d#*:}" "${FRESH_AS:-root}" "make run ONCE=1" 1200
  else
    for user in ${FRESH_AS:-root walker}; do
      # What one has installed is not there for the next.
      [ "$user" = root ] || { rm -rf --one-file-system "${work:?}/${d#*:}"; make_root "${d%:*}" "${d#*:}"; }
      run "${d#*:}" $user "make run ONCE=1" 1200
      run "${d#*:}" $user "make test" 7200
    done
  fi
  rm -rf --one-file-system "${work:?}/${d#*:}"
done
echo
printf '%s\n' "${rows[@]}" | awk -F'|' '{for (i = 1; i <= NF; i++) {cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i)}}
  END {for (r = 1; r <= NR; r++) {line = ""; for (i = 1; i <= NF; i++) line = line sprintf("%-" width[i] + 2 "s", cell[r, i]); sub(/ +$/, "", line); print line}}'
[ $failed = 0 ] || { echo "$failed failed in fresh roots"; exit 1; }
