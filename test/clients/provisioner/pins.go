// SPDX-License-Identifier: Apache-2.0

//go:build pins

// Package provisioner names the program that makes the volumes of storage drivers. It is
// of an older minor version of Kubernetes than the other sidecars, and so a module apart.
package provisioner

import (
	_ "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"
)
