// SPDX-License-Identifier: Apache-2.0

// Package realtest holds the stories of the kubelet on a real node: containerd,
// cgroups, mounts and a network, as root. It has tests and nothing else.
package realtest
