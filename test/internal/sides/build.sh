#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds upstream's kube-apiserver, and etcd, from their published modules into a
# cache outside of the repository, and prints the cache's folder.
# Usage: test/internal/sides/build.sh KUBERNETES_VERSION [COMMAND...]: further commands of upstream's
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=${1:?KUBERNETES_VERSION, such as v1.37.1}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/wasmplane/upstream-$version
mkdir -p "$cache"
build() { # NAME PACKAGE: through a temporary file, so that an interrupted build leaves nothing
  [ -x "$cache/$1" ] && return
  echo "building $1 from its published module; the first time this takes long" >&2
  CGO_ENABLED=0 go build -C test/conformance -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$cache/$1.new" "$2"
  mv "$cache/$1.new" "$cache/$1"
}
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
build etcd go.etcd.io/etcd/server/v3
for command in "${@:2}"; do build "$command" "k8s.io/kubernetes/cmd/$command"; done
echo "$cache"
