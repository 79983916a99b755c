#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds upstream's binaries from their published modules into a cache outside of
# the repository, and compares the schedulers.
# Usage: test/bench/schedulers/run.sh KUBERNETES_VERSION
# ROWS is a pattern of the rows' names, NODES the most nodes, SCALE a part of each row's objects, SIDES those that take part.
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=${1:?KUBERNETES_VERSION, such as v1.37.1}
cache=$(test/internal/sides/build.sh "$version" kube-scheduler)
export WASMPLANE_BIN="$PWD/bin/wasmplane" KUBE_APISERVER_BIN="$cache/kube-apiserver" ETCD_BIN="$cache/etcd" KUBE_SCHEDULER_BIN="$cache/kube-scheduler"
go test -v -run '^$' -bench '^BenchmarkScheduling$' -benchtime 1x -timeout 600m ./test/bench/schedulers/
