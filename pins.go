// SPDX-License-Identifier: Apache-2.0

//go:build pins

// Package wasmplane at the module's root holds no code. This file keeps
// modules in go.mod that k8s.io/kubernetes requires at v0.0.0 and that
// `go mod tidy` would otherwise drop.
package wasmplane

import (
	_ "k8s.io/cloud-provider"
	_ "k8s.io/cluster-bootstrap/token/api"
	_ "k8s.io/code-generator"
	_ "k8s.io/csi-translation-lib"
	_ "k8s.io/endpointslice/util"
	_ "k8s.io/externaljwt/apis/v1"
	_ "k8s.io/mount-utils"
	_ "k8s.io/pod-security-admission/api"
	_ "k8s.io/sample-apiserver/pkg/apis/wardle"
)
