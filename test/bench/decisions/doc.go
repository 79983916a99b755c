// SPDX-License-Identifier: Apache-2.0

// Package decisions measures one policy in every form in which it can be had: native
// Go, a plugin in each SDK's language, a plugin that decodes the whole object, a
// waPC module, CEL, an https webhook. All of them stand in core's admission contract and
// get the same request (a review of 4.7 KB), turn by turn in one process; nothing is
// called directly. Beside it: one pod over 5,000 nodes, and guests that burn
// everything they are given.
//
// The policy: a container that is privileged, or whose image has no tag or the tag
// latest, is refused; else the pod gets a label. Each form is asked twice: for the decision (validating), and
// for the mutated object (mutating: the decision and the label).
//
// The guests are built from testdata, as an author's are. A language whose toolchain
// is not there is said to be missing in the table. `make bench-plugins` runs all of it.
package decisions
