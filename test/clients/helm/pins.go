// SPDX-License-Identifier: Apache-2.0

//go:build pins

// Package helm names the Helm that is built, unmodified, from the module that publishes it.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
