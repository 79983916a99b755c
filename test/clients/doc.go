// SPDX-License-Identifier: Apache-2.0

// Package clients runs software that other people wrote for Kubernetes, as they
// publish it, against the real binary: operators of controller-runtime with
// webhooks and a definition of their own, the sidecars of storage drivers, Helm with a chart that has everything a
// chart can have, kubectl, PostgreSQL with a replica on nodes of their own, and the Python and the JavaScript client.
//
// Operators, sidecars and Helm are built from their published modules (see operators/go.mod
// and helm/go.mod), servers are Debian's, in images that test/conformance/debianimage makes, the
// other clients are installed from their package indexes into a folder of the test.
// Projects that extend a cluster (docs/SOFTWARE.md) are built from their modules with the go.mod of their
// authors, into the user's cache, and installed by the manifests that are in the modules, in images
// as their Dockerfiles make them. Files of those that take minutes to build have the build tag software.
// `make clients` adds these, and the two minor versions of kubectl before the binary's own: all take
// minutes to build.
package clients
