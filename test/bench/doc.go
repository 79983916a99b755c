// SPDX-License-Identifier: Apache-2.0

// Package bench measures what a user waits for and what the process costs, on the
// real binary as a process of its own. `make bench` runs it as root, and
// docs/BENCHMARKS.md says what each figure means and what was measured.
//
// Figures of a busy machine are worth little by themselves, so whatever has
// something to be compared with is measured side by side with it in one run,
// turn by turn, and every table names the machine's load. Nothing here fails
// because something was slow; TestBenchSmoke runs each measurement once, small, to
// see that it still measures.
//
// Variables of the environment:
//
//	WASMPLANE_BIN            the binary to measure (default: what `make build` makes)
//	WASMPLANE_BENCH_PROFILE  a directory: measure a build that writes profiles there
//	                         (see package profiled); its figures are not to be quoted
//	WASMPLANE_BENCH_HEAPS    a directory: keep the profiles of the heap and of the goroutines
//	                         that Reconcilers takes at rest
//	WASMPLANE_BENCH_CLASS    runc, wasm or wasm-only: the only row of Wasm
//	HOSTILE                  a text: HostileRequests sends only the shapes whose names contain it
package bench
