// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// entries reads entries as they stand in a configuration.
func entries(tb testing.TB, text string) []manifest.Entry {
	tb.Helper()
	var doc struct {
		Plugins []yaml.Node `yaml:"plugins"`
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		tb.Fatal(err)
	}
	out, err := manifest.ParseAll(doc.Plugins)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func newLoader(tb testing.TB, cfg loader.Config) *loader.Loader {
	tb.Helper()
	cfg.CacheDir = filepath.Join(plugintest.Root(tb), "build", "plugin-cache")
	l, err := loader.New(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(tb.Context()); err != nil {
			tb.Error(err)
		}
	})
	return l
}

func pod(image string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func creating(p *corev1.Pod) func() *admission.Request {
	return func() *admission.Request { return admissiontest.Creating("pods", p) }
}

func TestTheExamplesTakePartInAdmission(t *testing.T) {
	plugintest.Example(t, "add-label")
	plugintest.Example(t, "no-latest")
	l := newLoader(t, loader.Config{InProcess: true, Dir: plugintest.Root(t), Entries: entries(t, `
plugins:
  - name: add-label
    source: file:build/wasm/add-label.wasm
    settings: {label: team, value: blue}
  - name: no-latest
    source: file:build/wasm/no-latest.wasm
`)})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	plugins := l.AdmissionPlugins()
	if len(plugins) != 2 {
		t.Fatalf("%d plugins, status %+v", len(plugins), l.Status())
	}
	admissiontest.Run(t, plugins[0],
		admissiontest.Case{Name: "labels a pod", Request: creating(pod("a:1", nil)), Check: func(t *testing.T, o runtime.Object) {
			t.Helper()
			if got := o.(*corev1.Pod).Labels["team"]; got != "blue" {
				t.Errorf("label %q", got)
			}
		}},
		admissiontest.Case{Name: "leaves a label alone", Request: creating(pod("a:1", map[string]string{"team": "red"}))},
	)
	admissiontest.Run(t, plugins[1],
		admissiontest.Case{Name: "lets a version in", Request: creating(pod("nginx:1.14.2", nil))},
		admissiontest.Case{Name: "refuses latest", Request: creating(pod("nginx:latest", nil)), Denied: `image "nginx:latest" has no fixed tag`},
		admissiontest.Case{Name: "refuses no tag behind a port", Request: creating(pod("localhost:5000/nginx", nil)), Denied: "has no fixed tag"},
	)
	for _, s := range l.Status() {
		t.Logf("%+v", s)
		if !s.Ready || s.Failures > 0 || strings.Contains(s.Error, "x") {
			t.Errorf("status %+v", s)
		}
	}
}

func BenchmarkAdmission(b *testing.B) {
	plugintest.Example(b, "add-label")
	plugintest.Example(b, "no-latest")
	l := newLoader(b, loader.Config{InProcess: true, Dir: plugintest.Root(b), Entries: entries(b, `
plugins:
  - {name: add-label, source: "file:build/wasm/add-label.wasm"}
  - {name: no-latest, source: "file:build/wasm/no-latest.wasm"}
`)})
	if err := l.Load(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, p := range l.AdmissionPlugins() {
		b.Run(p.Name(), func(b *testing.B) {
			labelled := pod("nginx:1.14.2", map[string]string{"team": "x", "app": "web"})
			r := admissiontest.Creating("pods", labelled)
			b.ReportAllocs()
			defer cpuTime(b)()
			for b.Loop() {
				var err error
				if m, ok := p.(admission.Mutator); ok {
					err = m.Mutate(b.Context(), r)
				} else {
					err = p.(admission.Validator).Validate(b.Context(), r)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
