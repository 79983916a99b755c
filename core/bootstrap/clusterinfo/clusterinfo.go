// SPDX-License-Identifier: Apache-2.0

// Package clusterinfo names what a cluster publishes of itself: the config map that machines which join it, and its nodes, read.
package clusterinfo

// ConfigMap of kube-system says what a machine that joins must know of the
// cluster, and which authority it has. Bootstrap tokens and nodes may read it.
const ConfigMap = "wasmplane-cluster"

// Keys of the ConfigMap.
const (
	Name        = "name"
	Domain      = "domain"
	PodCIDR     = "podCIDR"
	ServiceCIDR = "serviceCIDR"
	// Authority is the pin of the authority of serving and client certificates.
	Authority = "authority"
	// Authorities are all that are trusted, in PEM, the one that signs first.
	Authorities = "authorities"
)
