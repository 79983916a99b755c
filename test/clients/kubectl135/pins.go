// SPDX-License-Identifier: Apache-2.0

//go:build pins

// Package kubectl135 names the kubectl v1.35 that is built, unmodified, from the
// module that publishes it.
package kubectl135

import _ "k8s.io/kubernetes/cmd/kubectl"
