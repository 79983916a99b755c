// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"log/slog"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Sample is a document of a point.
type Sample struct {
	Name     string
	Kind     string
	Document map[string]any
}

// sampleNodes is how many nodes the documents name that list some.
const sampleNodes = 2

// Documents are samples of what hooks at a point get: a usual one, one in which
// everything is missing, one of nulls, and a large one.
func Documents(p abi.Point) []Sample {
	kind, usual := usualDocument(p)
	nulls := map[string]any{}
	for key := range usual {
		nulls[key] = nil
	}
	return []Sample{
		{"a usual document", kind, usual},
		{"an empty document", kind, map[string]any{}},
		{"a document of nulls", kind, nulls},
		{"a large document", kind, enlarge(usual)},
	}
}

func usualDocument(p abi.Point) (kind string, doc map[string]any) {
	switch p.Form() {
	case abi.AdmissionMutate:
		return "Pod", map[string]any{
			"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "UPDATE", "name": "web", "namespace": "default", "dryRun": false,
			"kind":     map[string]any{"group": "", "version": "v1", "kind": "Pod"},
			"resource": map[string]any{"group": "", "version": "v1", "resource": "pods"},
			"userInfo": map[string]any{"username": "jane", "groups": []any{"devs", "system:authenticated"}},
			"object":   samplePod(), "oldObject": samplePod(), "options": map[string]any{"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"},
		}
	case abi.CustomResourceConvert:
		return "CronTab", map[string]any{
			"kind": map[string]any{"group": "example.com", "version": "v1", "kind": "CronTab"}, "name": "nightly", "namespace": "default",
			"object": sampleCustom(), "desiredAPIVersion": "example.com/v2",
		}
	case abi.CustomResourceValidate:
		return "CronTab", map[string]any{
			"operation": "UPDATE", "name": "nightly", "namespace": "default", "dryRun": false,
			"kind":     map[string]any{"group": "example.com", "version": "v1", "kind": "CronTab"},
			"resource": map[string]any{"group": "example.com", "version": "v1", "resource": "crontabs"},
			"userInfo": map[string]any{"username": "jane", "groups": []any{"devs", "system:authenticated"}},
			"object":   sampleCustom(), "oldObject": sampleCustom(),
		}
	case abi.Authorization:
		return "", map[string]any{
			"user": "jane", "groups": []any{"devs", "system:authenticated"},
			"resourceAttributes": map[string]any{"namespace": "default", "verb": "delete", "version": "v1", "resource": "pods", "name": "web"},
		}
	case abi.Reconcile:
		return "ConfigMap", map[string]any{
			"namespace": "default", "name": "web", "now": "2026-01-02T15:04:05Z", "owned": []any{},
			"primary": map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"name": "web", "namespace": "default", "uid": "u-1"},
			},
		}
	case abi.NodeAdmission:
		return "Pod", map[string]any{"pod": samplePod(), "node": sampleNode()}
	default: // all points of scheduling
	}
	amounts := map[string]any{"milliCPU": int64(4000), "memory": int64(8 << 30), "ephemeralStorage": int64(1 << 30), "pods": int64(110)}
	usage := map[string]any{"requested": amounts, "leaving": amounts, "promised": amounts}
	return "Pod", map[string]any{
		"group": "a", "usage": usage, "groups": map[string]any{"a": usage}, "others": usage, "total": amounts,
		"gang": map[string]any{"name": "training", "need": int64(8), "requests": amounts},
		"pod":  samplePod(), "requests": amounts, "node": sampleNode(), "allocatable": amounts, "requested": amounts, "nonZero": amounts,
		"pods": int64(3), "nodes": []any{"node-1", "node-2"}, "scores": []any{int64(3), int64(70)}, "nodeName": "node-1",
		"added": "2026-01-02T15:04:05Z", "waitedSeconds": int64(0), "state": map[string]any{"any": "thing"},
		"failed": []any{map[string]any{"node": "node-1", "reasons": []any{"Insufficient cpu"}, "unresolvable": false}},
	}
}

func samplePod() map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"name": "web", "namespace": "default", "uid": "u-1", "resourceVersion": "42", "creationTimestamp": nil,
			"labels": map[string]any{"app": "web"}, "annotations": map[string]any{"example.com/owner": "jäne \"quoted\" \u2028"},
		},
		"spec": map[string]any{
			"containers": []any{
				map[string]any{"name": "web", "image": "nginx:latest", "securityContext": map[string]any{"privileged": true}},
				map[string]any{
					"name": "side", "image": "example.com:5000/side@sha256:0",
					"resources": map[string]any{"requests": map[string]any{"cpu": "100m"}},
				},
			},
			"nodeSelector": map[string]any{"disk": "ssd"},
		},
		"status": map[string]any{"phase": "Pending"},
	}
}

func sampleCustom() map[string]any {
	return map[string]any{
		"apiVersion": "example.com/v1", "kind": "CronTab",
		"metadata": map[string]any{"name": "nightly", "namespace": "default", "uid": "u-2", "labels": map[string]any{"app": "web"}},
		"spec":     map[string]any{"schedule": "0 3 * * *", "image": "example.com/job:1", "replicas": int64(2), "factor": 0.5},
		"status":   map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}
}

func sampleNode() map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-1", "labels": map[string]any{"disk": "ssd"}},
		"status": map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "8Gi"}},
	}
}

// enlarge copies a document with a long string and many items everywhere where
// there are some.
func enlarge(doc map[string]any) map[string]any {
	out := make(map[string]any, len(doc))
	for k, v := range doc {
		switch v := v.(type) {
		case map[string]any:
			out[k] = enlarge(v)
		case []any:
			if k == "nodes" || k == "scores" {
				out[k] = v // the answer has as many
				continue
			}
			var many []any
			for range 50 {
				many = append(many, v...)
			}
			out[k] = many
		default:
			out[k] = v
		}
	}
	if labels, ok := out["labels"].(map[string]any); ok {
		labels["long"] = strings.Repeat("\u00e9\u4e16", 8<<10)
	}
	return out
}

// Funcs are the host functions that an entry grants, for modules outside of a cluster.
func Funcs(e *manifest.Entry) map[string]host.Func {
	return hostfn.Set(e, slog.New(slog.DiscardHandler))
}
