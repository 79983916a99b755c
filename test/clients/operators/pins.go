// SPDX-License-Identifier: Apache-2.0

//go:build pins

// Package operators names the operators that are built, unmodified, from the
// module that publishes them.
package operators

import (
	_ "sigs.k8s.io/controller-runtime/examples/builtins"
	_ "sigs.k8s.io/controller-runtime/examples/crd"
)
