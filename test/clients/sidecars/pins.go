// SPDX-License-Identifier: Apache-2.0

//go:build pins

// Package sidecars names the programs that stand beside storage drivers, which are
// built, unmodified, from the modules that publish them.
package sidecars

import (
	_ "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"
	_ "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"
)
