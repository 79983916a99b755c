#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what the API is compared with, from its published modules into a cache
# outside of the repository, and compares.
# Usage: test/bench/upstream/run.sh KUBERNETES_VERSION
# BENCH_ONLY=Writes, Lists or FanOut measures that part alone.
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=${1:?KUBERNETES_VERSION, such as v1.37.1}
cache=$(test/internal/sides/build.sh "$version")
export WASMPLANE_BIN="$PWD/bin/wasmplane" KUBE_APISERVER_BIN="$cache/kube-apiserver" ETCD_BIN="$cache/etcd"
go test -v -run '^$' -bench "${BENCH_ONLY:-API}" -benchtime 1x -timeout 120m ./test/bench/upstream/
