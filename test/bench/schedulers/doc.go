// SPDX-License-Identifier: Apache-2.0

// Package schedulers measures schedulers from a pod's creation to its binding, through
// the API: ours whole, upstream's kube-scheduler on our API server, and upstream whole (its
// apiserver, etcd and scheduler), one after the other for each row. `make
// bench-scheduler` builds them and runs it; docs/BENCHMARKS.md has what it printed.
//
// Rows are the workloads of upstream's scheduler_perf that have a threshold, read by name from the
// published module when the test runs, and those of testdata/rows.yaml, in the same form.
// What a row needs and this package does not do is named, and the row is not run.
// Nodes are objects whose leases are renewed every ten seconds; nothing runs on them.
// Each row begins on an empty cluster. CPU and memory are of all processes of a side, not
// of the load, which takes its share of the machine beside them.
//
// Variables of the environment:
//
//	WASMPLANE_BIN       our binary
//	KUBE_APISERVER_BIN  upstream's
//	KUBE_SCHEDULER_BIN  upstream's
//	ETCD_BIN            etcd, in the version that ours has inside
//	ROWS                a pattern of the names of rows (default all)
//	NODES               rows with more nodes are not run (default all)
//	SCALE               a part of each row's objects, such as 0.1; what it prints is no row of upstream's then
//	SIDES               a pattern of the names of sides (default all)
//
// BenchmarkWasmScheduling compares our scheduler with itself: native plugins alone, and a Wasm
// plugin in C, Rust and Go beside them that filters and scores all nodes, by turns. It needs
// WASMPLANE_BIN alone, and reads ROWS (default Plain/5000Nodes), SCALE and
//
//	ROUNDS              how often each has its turn (default 3)
package schedulers
