// SPDX-License-Identifier: Apache-2.0

// Package differential asks our API server and upstream's kube-apiserver the
// same questions and compares what they answer: status, headers, and the body
// to the last field, after putting placeholders for what differs by nature
// (identifiers, revisions, times, addresses).
//
// The questions are stories: requests in an order, on state that only the story
// touches. Most are made from tables: each kind's valid object (valid_test.go),
// that object broken in every leaf, that object with every further field that
// its API has, and reads, writes, patches and deletes with every option wrong.
//
// A difference is our bug, or it stands in decided_test.go with the reason.
//
// `make differential` builds upstream from its published modules, outside the
// repository, and compares everything. `make differential RECORD=1` writes sums of
// our answers to some stories to testdata, if nothing in them differs from
// upstream's; without upstream, TestAnswers compares ours with these.
package differential
