// SPDX-License-Identifier: Apache-2.0

//go:build pins

package main

// What is built from modules by name only, so that go.mod keeps them.
import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubectl-convert"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e_node"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/kubernetes/test/images/nonewprivs"
	_ "k8s.io/kubernetes/test/images/regression-issue-74839"
	_ "k8s.io/kubernetes/test/images/resource-consumer"
	_ "k8s.io/kubernetes/test/images/resource-consumer/consume-cpu"
	_ "k8s.io/kubernetes/test/images/sample-device-plugin"
	_ "k8s.io/sample-apiserver"
	_ "sigs.k8s.io/network-policy-api/conformance"
)
