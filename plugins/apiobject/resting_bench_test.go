// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// restingSample is a Plugin of the API server's for a reconciler of the configuration file.
const restingSample = `{"apiVersion":"plugins.wasmplane.dev/v1","kind":"Plugin","metadata":{"creationTimestamp":"2026-11-23T10:00:00Z","generation":1,
"labels":{"plugins.wasmplane.dev/origin":"file"},"managedFields":[
{"apiVersion":"plugins.wasmplane.dev/v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:plugins.wasmplane.dev/origin":{}}},"f:spec":{}},
"manager":"wasmplane","operation":"Update","time":"2026-11-23T10:00:00Z"},
{"apiVersion":"plugins.wasmplane.dev/v1","fieldsType":"FieldsV1","fieldsV1":{"f:status":{".":{},"f:calls":{},"f:conditions":{},"f:denials":{},"f:digest":{},
"f:failures":{},"f:instances":{},"f:kinds":{".":{},"f:watches":{},"f:writes":{}},"f:mode":{},
"f:observedGeneration":{},"f:origin":{},"f:points":{},"f:source":{},"f:version":{}}},
"manager":"wasmplane","operation":"Update","subresource":"status","time":"2026-11-23T10:00:01Z"}],
"name":"r%03d","resourceVersion":"%d","uid":"6d5d1c3c-0c5a-4e4c-8d5f-0d0d0d0d%04d"},"spec":{},"status":{"calls":0,"conditions":[
{"lastTransitionTime":"2026-11-23T10:00:01Z","message":"a version answers in every process that asks it","observedGeneration":1,
"reason":"Loaded","status":"True","type":"Ready"},
{"lastTransitionTime":"2026-11-23T10:00:01Z","message":"the version in force is the spec's","observedGeneration":1,
"reason":"Loaded","status":"True","type":"Updated"}],
"denials":0,"digest":"sha256:0c6b2d3f8d5f2c1b7a9e4c6d8e0f1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b","failures":0,"instances":[
{"calls":0,"denials":0,"digest":"sha256:0c6b2d3f8d5f2c1b7a9e4c6d8e0f1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b","failures":0,"generation":1,
"kinds":{"watches":["jobs.batch"],"writes":["jobs.batch"]},"meanFuel":0,"meanNanoseconds":0,"mode":"Enforce",
"name":"apiserver-node","points":["reconcile"],
"ready":true,"since":"2026-11-23T10:00:01Z","source":"file:ttl-after-finished.wasm","updated":"2026-11-23T10:00:01Z","version":"1.0.0"}],
"kinds":{"watches":["jobs.batch"],"writes":["jobs.batch"]},"mode":"Enforce","observedGeneration":1,"origin":"file","points":["reconcile"],
"source":"file:ttl-after-finished.wasm","version":"1.0.0"}}`

// BenchmarkResting is the memory of a Plugin in the informer, at rest and as a tree,
// and the time of waking it.
func BenchmarkResting(b *testing.B) {
	const n = 1000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	kept := make([]any, n)
	before := heap()
	for i := range kept {
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(fmt.Appendf(nil, restingSample, i, i, i)); err != nil {
			b.Fatal(err)
		}
		kept[i] = o
	}
	trees := heap()
	for i := range kept {
		r, err := toRest(kept[i])
		if err != nil {
			b.Fatal(err)
		}
		kept[i] = r
	}
	resting := heap()
	for i := 0; b.Loop(); i++ {
		if _, err := restingOf(kept[i%n]).wake(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(trees-before)/n, "B/tree")
	b.ReportMetric(float64(resting-before)/n, "B/resting")
}
