// SPDX-License-Identifier: Apache-2.0

// Package clients runs software that other people wrote for Kubernetes, as they
// publish it, against the real binary: operators of controller-runtime with
// webhooks and a definition of their own, the sidecars of storage drivers, Helm with a chart that has everything a
// chart can have, kubectl, and the Python and the JavaScript client.
//
// Operators, sidecars and Helm are built from their published modules (see operators/go.mod
// and helm/go.mod), the other clients are installed from their package indexes into
// a folder of the test. `make clients` adds the two minor versions of kubectl before
// the binary's own, which take minutes to build.
package clients
