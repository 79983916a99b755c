// Package clients runs software that other people wrote for Kubernetes, as they
// publish it, against the real binary: operators of controller-runtime with
// webhooks and a definition of their own, and the Python client.
//
// The operators are built from their published module (see operators/go.mod),
// the Python client is installed from the package index into a folder of the test.
package clients
