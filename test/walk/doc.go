// SPDX-License-Identifier: Apache-2.0

// Package walk lets a tenant try: with `edit` and the right to write TenantPlugins in one
// namespace it does whatever chance says, verbs, kinds, namespaces, plugins and their answers,
// against a running control plane whose administrator goes on working beside it. Afterwards
// nothing outside of its namespace is another, nobody has a right more, and the server is the
// same process.
//
// WALK_TIME is how long it walks (20s), WALK_SEED what its choices are made from (1, so that a
// test of every day tries the same; `make random-walk` takes the time), WALK_PACE how long each of
// its four walkers rests between two requests (0s): a long walk beside other work needs a pause.
package walk
