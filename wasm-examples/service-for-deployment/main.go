// SPDX-License-Identifier: Apache-2.0

// The service-for-deployment plugin makes a Service for each Deployment that
// carries the annotation wasmplane.dev/expose: "80".
package main

import (
	"strconv"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

const annotation = "wasmplane.dev/expose"

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "service-for-deployment", Version: "1.0.0",
	Reconcile: &wasmplane.Reconciler{
		Primary: wasmplane.Watch{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
		Owned:   []wasmplane.Watch{{Version: "v1", Resource: "services", Kind: "Service"}},
		Fields: []string{
			"namespace", "name", "primary.metadata.annotations", "primary.metadata.deletionTimestamp",
			"primary.spec.selector.matchLabels", "primary.spec.template.spec.containers[*].ports", "owned[*].metadata.name",
		},
		Plan: plan,
	},
})

func plan(in wasmplane.Input, out *wasmplane.Plan) error {
	namespace, name := in.Get("namespace").String(), in.Get("name").String()
	expose := in.Get("primary.metadata.annotations").Get(annotation)
	if !expose.Exists() || in.Get("primary.metadata.deletionTimestamp").Exists() {
		for _, service := range in.Get("owned[*].metadata.name").Strings() {
			out.Delete("v1", "Service", namespace, service)
		}
		return nil
	}
	port, _ := strconv.Atoi(expose.String()) // 0 where it is no number
	if port < 1 || port > 65535 {
		out.Event("Warning", "InvalidPort", "annotation "+annotation+" is "+strconv.Quote(expose.String())+": a port was expected")
		return nil
	}
	target := port // the first port that a container names, or the same
	for i := range in.Get("primary.spec.template.spec.containers[*].ports").Len() {
		if p := in.Get("primary.spec.template.spec.containers[*].ports").At(i).At(0).Get("containerPort"); p.Exists() {
			target = int(p.Int())
			break
		}
	}
	out.Apply(wasmplane.Object{
		"apiVersion": "v1", "kind": "Service",
		"metadata": wasmplane.Object{"name": name, "namespace": namespace},
		"spec": wasmplane.Object{
			"selector": in.Get("primary.spec.selector.matchLabels"),
			"ports":    []any{wasmplane.Object{"name": "http", "port": port, "targetPort": target, "protocol": "TCP"}},
		},
	})
	return nil
}

func main() {}
