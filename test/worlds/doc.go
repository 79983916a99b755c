// SPDX-License-Identifier: Apache-2.0

// Package worlds runs whole control planes on virtual time, one request at a time: two
// apiservers over one store in memory, all controllers and the scheduler, each twice and one
// of them leading, and kubelets with simulated engines. Every request and every delivery of a watch waits until it is chosen,
// by a seed; between any two of them something may fail: a request is refused, its answer is
// lost, a watch breaks or shows the past, a server lags, a node is cut off or loses its
// power, a component dies and comes back. Meanwhile a user creates, changes and deletes
// workloads. What must never be is looked for at every write; at the end everything is
// healed, and what the user asked for has to come about.
//
// WORLD_SEEDS is how many seeds are tried, from WORLD_SEED on (1), each with WORLD_STEPS
// steps (2000); a test of every day runs eight, one in which nothing fails, and stories, in
// which what happens is written down. A seed that fails is tried again with fewer and fewer
// faults, and those that are needed are printed (WORLD_SHRINK=0: it is not). WORLD_LOG=FILE
// has all that happened written to FILE.SEED. README.md has the faults, what must hold, and
// what was found. The same seed makes nearly the same world: which of several
// goroutines that are ready Go runs first, no seed decides.
//
// `make worlds` takes more seeds, and `make world-bugs` puts known bugs back, of
// testdata/bugs, and says which of them are found.
package worlds
