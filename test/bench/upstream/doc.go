// SPDX-License-Identifier: Apache-2.0

// Package upstream measures our apiserver against upstream's kube-apiserver:
// the same machine, the same run, turn by turn, and the same etcd version with
// fsync. `make bench-api` builds both (upstream's from its published modules,
// outside the repository) and runs it; docs/BENCHMARKS.md has what it printed.
//
// Both sides serve their API over TLS to clients that each have a connection of
// their own and a client certificate. Upstream's side is kube-apiserver and
// etcd, ours is `wasmplane apiserver` with its etcd inside, so CPU and memory are
// of everything that a side consists of. Both run with audit off, without
// compression (the clients don't ask for it), and with the defaults otherwise.
// No controller and no scheduler runs: what is measured is the API.
//
// Variables of the environment:
//
//	WASMPLANE_BIN       our binary
//	KUBE_APISERVER_BIN  upstream's
//	ETCD_BIN            etcd, in the version that ours has inside
//	BENCH_SCALE         share of the full size, such as 0.1 (default 1)
package upstream
