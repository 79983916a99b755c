// SPDX-License-Identifier: Apache-2.0

// The web-app plugin is the control loop of a custom resource, WebApp: it makes a
// Deployment and a Service of each, and keeps them so.
package main

import wasmplane "github.com/wasmplane/wasmplane/sdk/go"

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "web-app", Version: "1.0.0",
	Reconcile: &wasmplane.Reconciler{
		Primary: wasmplane.Watch{Group: "example.wasmplane.dev", Version: "v1", Resource: "webapps", Kind: "WebApp"},
		Owned: []wasmplane.Watch{
			{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
			{Version: "v1", Resource: "services", Kind: "Service"},
		},
		Fields: []string{
			"namespace", "name", "primary.metadata.deletionTimestamp", "primary.spec.image", "primary.spec.replicas",
			"primary.spec.port",
		},
		Plan: plan,
	},
})

func plan(in wasmplane.Input, out *wasmplane.Plan) error {
	if in.Get("primary.metadata.deletionTimestamp").Exists() {
		return nil // what belongs to it goes with it
	}
	namespace, name := in.Get("namespace").String(), in.Get("name").String()
	image, port, replicas := in.Get("primary.spec.image").String(), int64(80), int64(1)
	if v := in.Get("primary.spec.port"); v.Exists() {
		port = v.Int()
	}
	if v := in.Get("primary.spec.replicas"); v.Exists() {
		replicas = v.Int()
	}
	if image == "" {
		out.Condition("Ready", "False", "NoImage", "spec.image is empty")
		return nil
	}
	labels := wasmplane.Object{"app": name}
	metadata := wasmplane.Object{"name": name, "namespace": namespace, "labels": labels}
	out.Apply(wasmplane.Object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
		"spec": wasmplane.Object{
			"replicas": replicas,
			"selector": wasmplane.Object{"matchLabels": labels},
			"template": wasmplane.Object{
				"metadata": wasmplane.Object{"labels": labels},
				"spec": wasmplane.Object{"containers": []any{wasmplane.Object{
					"name": "web", "image": image, "ports": []any{wasmplane.Object{"containerPort": port, "protocol": "TCP"}},
				}}},
			},
		},
	})
	out.Apply(wasmplane.Object{
		"apiVersion": "v1", "kind": "Service", "metadata": metadata,
		"spec": wasmplane.Object{
			"selector": labels,
			"ports":    []any{wasmplane.Object{"name": "http", "port": 80, "targetPort": port, "protocol": "TCP"}},
		},
	})
	out.Condition("Ready", "True", "Applied", "its Deployment and its Service are as they should be")
	return nil
}

func main() {}
