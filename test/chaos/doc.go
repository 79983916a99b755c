// SPDX-License-Identifier: Apache-2.0

// Package chaos checks what the API promises under concurrent load while the
// process is killed at random points, over and over:
//
//   - Linearizability: every get, consistent list, create, update (compare and
//     swap), delete and patch of an object fits one order that respects real time;
//     what was acknowledged is never lost, what failed with a conflict did nothing,
//     and what nobody was answered may have happened once or not at all. The
//     histories are judged by porcupine.
//   - Watches: whoever follows from a list sees every acknowledged write after it,
//     once, in order; a bookmark never claims more than was sent. A server that was
//     just started has no history from before, says 410, and the follower lists again.
//
// The server is the real binary with etcd inside, killed with SIGKILL, so etcd is
// killed with it. `make test` runs a short round; `make chaos` runs
// CHAOS_KILLS of them (default 40). A history that is not linearizable is drawn
// into a file that the failure names.
package chaos
