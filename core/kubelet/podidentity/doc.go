// SPDX-License-Identifier: Apache-2.0

// Package podidentity obtains what a pod shows who it is with, and whom it trusts:
// tokens of its service account, certificates for keys that are made on the node,
// and the certificates of ClusterTrustBundles. What was obtained is kept in memory
// until it should be replaced, or its pod is forgotten. All errors are written for
// the pod's events.
package podidentity
