#!/usr/bin/env bash
# Builds what the API is compared with, from its published modules into a cache
# outside of the repository, and compares.
# Usage: test/bench/upstream/run.sh KUBERNETES_VERSION
# BENCH_ONLY=Writes, Lists or FanOut measures that part alone.
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=${1:?KUBERNETES_VERSION, such as v1.37.1}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/upstream-$version
mkdir -p "$cache"
build() { # NAME PACKAGE: through a temporary file, so that an interrupted build leaves nothing
  [ -x "$cache/$1" ] && return
  echo "building $1 from its published module; the first time this takes long"
  CGO_ENABLED=0 go build -C test/conformance -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$cache/$1.new" "$2"
  mv "$cache/$1.new" "$cache/$1"
}
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
build etcd go.etcd.io/etcd/server/v3
export WASMPLANE_BIN="$PWD/bin/wasmplane" KUBE_APISERVER_BIN="$cache/kube-apiserver" ETCD_BIN="$cache/etcd"
go test -v -run '^$' -bench "${BENCH_ONLY:-API}" -benchtime 1x -timeout 120m ./test/bench/upstream/
