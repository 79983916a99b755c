// SPDX-License-Identifier: Apache-2.0

// Command conformance runs the upstream conformance suite against wasmplane: it
// builds what the suite needs (the suite itself, the programs of its images, the
// images), starts a cluster of its own on a real node of this machine, runs the
// tests that match a focus, and reports by SIG what passed, what failed and why.
//
// It is a module of its own: the suite depends on half of Kubernetes, and
// nothing of that may get into the control plane's build. What it builds lies in
// a cache outside the repository.
package main
