// SPDX-License-Identifier: Apache-2.0

// Command kubectlcmd runs upstream's own tests of kubectl against wasmplane: the
// groups of shell functions in test/cmd of k8s.io/kubernetes, which ask a running
// API server and compare what kubectl prints. It takes the scripts from the
// published module, builds kubectl and kubectl-convert from it, starts `wasmplane
// apiserver` and `wasmplane controllers` as upstream starts its own (the same token,
// the same admission plugins left out, no scheduler, one Node object and no
// kubelet), and runs each group in a process of its own with a bound of time.
//
// Everything that a group touches lies in a temporary folder: its home directory,
// its kubeconfig, the copy of the scripts, and what these write to /tmp. It needs no
// root. Results are kept by the binary's digest: what has passed is not run again.
package main
