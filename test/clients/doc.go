// Package clients runs software that other people wrote for Kubernetes, as they
// publish it, against the real binary: operators of controller-runtime with
// webhooks and a definition of their own, Helm with a chart that has everything a
// chart can have, and the Python client.
//
// Operators and Helm are built from their published modules (see operators/go.mod
// and helm/go.mod), the Python client is installed from the package index into a folder of the test.
package clients
