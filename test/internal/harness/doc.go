// SPDX-License-Identifier: Apache-2.0

// Package harness runs the binary, and programs beside it, for the tests that use
// it as its users do. Each [Cluster] has names, a directory and a port that no
// other cluster of this host has. When a test ends its processes end, what it made
// on the host is removed, and what is left over nevertheless is a failure; when it
// failed, the log has what its processes printed last. Nothing here sleeps: waits
// are for lines, for the ends of processes, or for conditions that are asked again
// and again within a limit that is generous, because test machines are busy.
package harness
