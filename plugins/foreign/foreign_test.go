// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/foreign"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

var built sync.Map // name -> func() ([]byte, error)

// guest builds one of the guests in testdata, once.
func guest(tb testing.TB, name string, flags ...string) []byte {
	tb.Helper()
	build, _ := built.LoadOrStore(name, sync.OnceValues(func() ([]byte, error) {
		dir, err := os.MkdirTemp("", "foreign") //nolint:usetesting // it is for all tests of the process
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		out := filepath.Join(dir, "guest.wasm")
		args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", out}, flags...)
		cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), "go", append(args, "./testdata/"+name)...)
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			tb.Logf("%s", text)
			return nil, err
		}
		return os.ReadFile(out)
	}))
	wasm, err := build.(func() ([]byte, error))()
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}

func wapcGuest(tb testing.TB) []byte { tb.Helper(); return guest(tb, "wapc", "-buildmode=c-shared") }

func assemble(tb testing.TB, source string) []byte {
	tb.Helper()
	wasm, err := wat.Assemble(source)
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}

// section is a module with a custom section more.
func section(wasm []byte, name, content string) []byte {
	body := append([]byte{byte(len(name))}, name...)
	body = append(body, content...)
	n := len(body)
	return append(append(slices.Clone(wasm), 0, byte(n&0x7f|0x80), byte(n>>7&0x7f|0x80), byte(n>>14)), body...)
}

// tryLoad loads one plugin; more are lines of its entry.
func tryLoad(tb testing.TB, wasm []byte, f *hostfn.Functions, more string) (*loader.Loader, error) {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.wasm"), wasm, 0o600); err != nil {
		tb.Fatal(err)
	}
	l, err := loader.New(tb.Context(), loader.Config{
		InProcess: true,
		Dir:       dir, CacheDir: filepath.Join(plugintest.Root(tb), "build", "plugin-cache"), Functions: f, Entries: entry(tb, more),
		Namespaces: func(_ context.Context, name string) (map[string]string, bool) {
			return map[string]string{"name": name}, true
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	return l, l.Load(tb.Context())
}

func entry(tb testing.TB, more string) []manifest.Entry {
	tb.Helper()
	var doc struct {
		Plugins []yaml.Node `yaml:"plugins"`
	}
	text := "plugins:\n- name: policy\n  source: file:p.wasm\n"
	for line := range strings.Lines(more) {
		text += "  " + line
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		tb.Fatalf("%v in\n%s", err, text)
	}
	out, err := manifest.ParseAll(doc.Plugins)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range out { // how busy this machine is decides nothing: fuel bounds the calls
		limits := &out[i].Limits
		limits.Deadline = max(limits.Deadline, manifest.Duration(time.Minute))
		limits.StartDeadline = max(limits.StartDeadline, manifest.Duration(time.Minute))
	}
	return out
}

func load(tb testing.TB, wasm []byte, f *hostfn.Functions, more string) *loader.Loader {
	tb.Helper()
	l, err := tryLoad(tb, wasm, f, more)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// apply runs a request through a loaded plugin as an apiserver does.
func apply(tb testing.TB, l *loader.Loader, r *admission.Request) error {
	tb.Helper()
	c, err := admission.NewChain(l.AdmissionPlugins()...)
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.Mutate(tb.Context(), r); err != nil {
		return err
	}
	return c.Validate(tb.Context(), r)
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:latest"}}},
	}
}

func creating() *admission.Request { return admissiontest.Creating("pods", pod()) }

func labelOf(tb testing.TB, r *admission.Request) string {
	tb.Helper()
	m, err := r.Object.Meta()
	if err != nil {
		tb.Fatal(err)
	}
	return m.GetLabels()["label"]
}

func TestRecognise(t *testing.T) {
	function := func(names ...string) string {
		text := `(module (memory (export "memory") 1)`
		for _, n := range names {
			text += `(func (export "` + n + `"))`
		}
		return text + ")"
	}
	for name, c := range map[string]struct {
		source, metadata, abi string
		want                  manifest.ABI
		err                   string
	}{
		"ours":               {source: function("describe", "alloc", "call"), want: manifest.Wasmplane},
		"wapc":               {source: function("__guest_call"), want: manifest.KubewardenWaPC},
		"nothing known":      {source: function("f"), want: manifest.Wasmplane},
		"scheduler":          {source: function("_start", "filter", "score"), want: manifest.KubeSchedulerWasm},
		"scheduler's import": {source: `(module (import "k8s.io/scheduler" "get_config" (func (param i32 i32) (result i32))) (memory (export "memory") 1))`, want: manifest.KubeSchedulerWasm},
		"rego":               {source: function("opa_json_parse", "builtins", "eval"), err: "abi: opa or abi: gatekeeper"},
		"rego, said":         {source: function("opa_json_parse", "builtins", "eval"), abi: "gatekeeper", want: manifest.Gatekeeper},
		"rego, metadata":     {source: function("opa_json_parse", "builtins"), metadata: `{"executionMode":"opa"}`, want: manifest.OPA},
		"command":            {source: function("_start"), err: "abi: kubewarden-wasi"},
		"command, metadata":  {source: function("_start"), metadata: `{"executionMode":"wasi"}`, want: manifest.KubewardenWASI},
		"command that calls": {source: `(module (import "host" "call" (func (param i32))) (memory (export "memory") 1) (func (export "_start")))`, want: manifest.KubewardenWASI},
		"javascript":         {source: `(module (import "kubewarden:javy/host" "call" (func (param i32))) (memory (export "memory") 1) (func (export "_start")))`, want: manifest.KubewardenWASI},
		"unknown mode":       {source: function("_start"), metadata: `{"executionMode":"future"}`, err: `execution mode "future"`},
		"broken metadata":    {source: function("_start"), metadata: `{`, err: "no metadata"},
		"the entry decides":  {source: function("__guest_call"), abi: "wasmplane", want: manifest.Wasmplane},
	} {
		t.Run(name, func(t *testing.T) {
			wasm := assemble(t, c.source)
			if c.metadata != "" {
				wasm = section(wasm, "io.kubewarden.metadata", c.metadata)
			}
			got, err := foreign.Recognise(wasm, &manifest.Entry{ABI: manifest.ABI(c.abi)})
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || c.err == "" && err != nil {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if got != c.want {
				t.Errorf("recognised %q, want %q", got, c.want)
			}
		})
	}
	if _, err := foreign.Recognise([]byte("\x00asm\x01\x00\x00\x00\x02\x7f"), &manifest.Entry{}); err == nil {
		t.Error("a truncated module was recognised")
	}
}
