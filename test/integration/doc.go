// SPDX-License-Identifier: Apache-2.0

// Command integration runs upstream's own integration tests (test/integration of
// k8s.io/kubernetes) against wasmplane. The tests come from the published module; the two
// functions with which they start kube-apiserver in their own process are replaced while
// they are built, by files in testdata/overlay, and start `wasmplane apiserver` instead,
// with the same settings and an etcd of its own. Controllers and schedulers that a test
// starts are upstream's, in the test's process, as clients of our API.
//
// A test that changes upstream's server in ways that only code in its process can, or that
// wants a flag without an equivalent, is skipped and counted as such. Nothing of upstream's
// is kept in this repository. Results are kept by the binary's digest: what has passed is
// not run again.
package main
