// SPDX-License-Identifier: Apache-2.0

// Package faults is a catalogue of what breaks: each class of faults has a name, what is done to
// a cluster of real processes in network namespaces, and what a client of the cluster may
// notice of it. Observers run all the time, whatever breaks: clients that write and
// try again once, watchers that follow from a list, a client of a Service with living pods,
// pods that are to be bound, a Deployment that changes.
//
// One cluster lives through the classes of its topology one after another. Each class ends when the
// cluster is as it was: nodes ready, pods ready and in the Service, every server
// answers, every watcher has seen a last write. Then it is judged: no acknowledged
// write may be lost and no watch may be wrong, ever; everything else is held
// against the bounds of the class.
//
// `make test` runs the classes of the smoke on one machine. `make chaos` runs all, prints
// one table, and keeps the results in build/chaos: a run that was interrupted goes on where it was, for
// the same binary. CHAOS_CLASSES is a regular expression that chooses among "TOPOLOGY/NAME".
// /docs/OPERATING.md tells operators what was found.
package faults
