// SPDX-License-Identifier: Apache-2.0

//go:build pins

// Package kubectl136 names the kubectl v1.36 that is built, unmodified, from the
// module that publishes it.
package kubectl136

import _ "k8s.io/kubernetes/cmd/kubectl"
