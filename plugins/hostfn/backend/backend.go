// SPDX-License-Identifier: Apache-2.0

// Package backend serves the host functions of plugins: the objects of a cluster, its
// authorizers, its events, and storage for plugins' state. Each has one implementation for
// the API server's own process and one for a process that is a client of the API. Host
// functions decide what a plugin may do; nothing here does, so nothing here is handed to a
// plugin without them.
package backend
