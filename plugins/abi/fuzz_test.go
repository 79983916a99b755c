// SPDX-License-Identifier: Apache-2.0

package abi_test

import (
	"bytes"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// FuzzManifest: what a module says of itself is read or refused; what is read can be used.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"abi":1,"name":"x","settings":true,"needs":["log"],"hooks":[{"op":2,"point":"admission.validate","fields":["object.@podSpec.containers[*].image"],"encoding":"flat","match":[{"resources":["pods"]}]}]}`))
	f.Add([]byte(`{"abi":1,"hooks":[{"op":6,"point":"scheduling.table","columns":[{"path":"allocatable.milliCPU","type":"int"}],"pod":[{"path":"requests.memory","type":"milli"}],"reasons":["full"]}]}`))
	f.Add([]byte(`{"abi":1,"hooks":[{"op":7,"point":"reconcile","primary":{"version":"v1","resource":"pods","kind":"Pod"},"owned":[{}]}]}`))
	f.Add([]byte(`{"abi":1,"hooks":[{"op":1,"point":"authorization","alternatives":{"@a":{"*":"x.y"}},"fields":["@a[\"b\"][*]"],"pure":true}]}`))
	f.Add([]byte(`{"abi":1,"settings":true,"groups":{"of":"pod.metadata.labels[\"team\"]","names":{"red":"a"},"other":"b"}}`))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	f.Fuzz(func(_ *testing.T, data []byte) {
		m, err := abi.ParseManifest(data)
		if err != nil {
			return
		}
		if m.Groups != nil {
			_ = m.Groups.Of(pod)
		}
		for i := range m.Hooks {
			w := &abi.Writer{}
			abi.NewProjection(&m.Hooks[i]).Write(w, &struct {
				Object abi.Object `json:"object"`
			}{abi.Object{Object: pod, GVK: corev1.SchemeGroupVersion.WithKind("Pod")}}, "Pod")
		}
	})
}

// FuzzAnswers: what a guest answers is read or refused, at every point.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{
		`{"allowed":false,"message":"m","code":422,"patch":[{"op":"add","path":"/metadata/labels/a","value":"b"}]}`, `{"decision":"deny","reason":"r"}`,
		`{"fits":false,"reasons":["x"],"nodes":["n"],"state":{"a":[1]}}`, `99`, `[1,2]`, `{"nominated":"n","evict":[{"name":"p"}]}`,
		`{"reclaim":[{"group":"a","keep":{"milliCPU":4000,"scalar":{"nvidia.com/gpu":8}}},{"group":"b","below":5}]}`,
		`{"decision":"wait","waitSeconds":1e300}`,
		`{"apply":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}],"patch":[{"apiVersion":"v1","kind":"x","name":"y","patch":[{}]}],"requeueSeconds":1}`, ``, `null`, `"`,
	} {
		f.Add([]byte(s))
	}
	hook := &abi.Hook{Point: abi.AdmissionMutate, Reasons: []string{"r"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := abi.ParseAdmission(data, hook); err == nil && a == nil {
			t.Error("neither an answer nor an error")
		}
		if a, err := abi.ParseAuthorization(data); err == nil && a.Decision == "" {
			t.Error("an authorization answer without a decision")
		}
		if s, err := abi.ParseScore(data); err == nil && (s < 0 || s > 100) {
			t.Errorf("score %d", s)
		}
		if a, err := abi.ParsePermit(data); err == nil && a.Decision == "wait" && (a.WaitSeconds <= 0 || a.WaitSeconds > 900) {
			t.Errorf("it waits for %v seconds", a.WaitSeconds)
		}
		if s, err := abi.ParseScores(data, 2); err == nil && len(s) != 2 && len(s) != 0 {
			t.Errorf("%d scores for 2 nodes", len(s))
		}
		_, _ = abi.ParseFilter(data)
		_, _ = abi.ParseNodeAdmission(data)
		_, _ = abi.ParsePlan(data)
		_, _ = abi.ParseGate(data)
		_, _ = abi.ParseRank(data)
		_, _ = abi.ParsePreFilter(data)
		_, _ = abi.ParsePostFilter(data)
		_, _ = abi.ParseBind(data)
		for _, b := range data[:min(len(data), 8)] {
			_, _ = hook.ParseVerdict(b)
		}
	})
}

// FuzzPatch: a guest's patch changes a tree and a struct alike, or neither, and
// never panics.
func FuzzPatch(f *testing.F) {
	f.Add([]byte(`[{"op":"add","path":"/metadata/labels/team","value":"blue"}]`))
	f.Add([]byte(`[{"op":"replace","path":"/spec/containers/[name=a]/image","value":"b:2"},{"op":"remove","path":"/spec/containers/0"}]`))
	f.Add([]byte(`[{"op":"move","from":"/metadata/name","path":"/metadata/generateName"},{"op":"copy","from":"","path":"/metadata"}]`))
	f.Add([]byte(`[{"op":"test","path":"/spec/containers/-","value":null},{"op":"add","path":"/@podSpec/nodeSelector/a~1b~0c","value":"x"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var ops []abi.PatchOp
		if json.Unmarshal(data, &ops) != nil || len(ops) > 20 {
			return
		}
		m, err := abi.ParseManifest([]byte(`{"abi":1,"hooks":[{"op":1,"point":"admission.mutate"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		h := &m.Hooks[0]
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a:1"}, {Name: "b"}}},
		}
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := abi.Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = h.Patch(tree.(map[string]any), "Pod", ops)
		_ = h.PatchStruct(pod, "Pod", ops)
	})
}

// FuzzPath: a path is read or refused; one that is read points at what it says.
func FuzzPath(f *testing.F) {
	for _, p := range []string{
		`object.metadata.annotations["example.com/owner"]`, `object.@podSpec.containers[*].image`, `a.b[*][*]`,
		`["a\"b"]`, `a..b`, `[`, `@`,
	} {
		f.Add(p)
	}
	f.Fuzz(func(_ *testing.T, text string) { _, _ = abi.ParsePath(text) })
}

// FuzzProjection: any document projects onto any fields, in both encodings, and the
// flat form points nowhere outside of itself.
func FuzzProjection(f *testing.F) {
	f.Add([]byte(`{"object":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"image":"x"},{}],"n":null,"f":1.5,"i":-3}}}`), `object.spec.containers[*].image`)
	f.Add([]byte(`{"a":[[1,[2]],{"b":"\u0000\ud800"}]}`), `a[*][*].b`)
	f.Fuzz(func(t *testing.T, data []byte, field string) {
		doc, err := abi.Decode(data)
		if err != nil {
			return
		}
		tree, ok := doc.(map[string]any)
		if !ok {
			return
		}
		for _, e := range []abi.Encoding{abi.JSON, abi.Flat} {
			for _, fields := range [][]string{nil, {field, field}} {
				h, err := hook(t, fields, nil, e)
				if err != nil {
					continue
				}
				w := &abi.Writer{}
				abi.NewProjection(h).Write(w, tree, "Pod")
				if e == abi.Flat {
					inside(t, w.Bytes(), 0, 0)
				} else if b := bytes.TrimSpace(w.Bytes()); !json.Valid(b) {
					t.Fatalf("%q is no JSON", b)
				}
			}
		}
	})
}

// inside follows every cell of a flat table.
func inside(t *testing.T, b []byte, at, depth int) {
	t.Helper()
	if at+8 > len(b) || depth > 1000 {
		t.Fatalf("a cell at %d of %d bytes, %d deep", at, len(b), depth)
	}
	var cell uint64
	for i := range 8 {
		cell |= uint64(b[at+i]) << (8 * i)
	}
	kind, length, offset := cell>>60, int(cell>>32&(1<<28-1)), int(uint32(cell))
	switch kind {
	case 3, 4:
		if offset+8 > len(b) || offset%8 != 0 {
			t.Fatalf("a number at %d of %d bytes", offset, len(b))
		}
	case 5:
		if offset+length > len(b) {
			t.Fatalf("a string of %d at %d of %d bytes", length, offset, len(b))
		}
	case 6, 7:
		n := length
		if kind == 7 {
			n *= 2
		}
		for i := range n {
			inside(t, b, offset+8*i, depth+1)
		}
	}
}
