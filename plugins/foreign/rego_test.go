// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/fence"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

var compiled sync.Map // name -> func() ([]byte, error)

// rego compiles a policy with Open Policy Agent's own compiler, once.
func rego(tb testing.TB, name string, entrypoints ...string) []byte {
	tb.Helper()
	tool := plugintest.Regotool(tb)
	build, _ := compiled.LoadOrStore(name, sync.OnceValues(func() ([]byte, error) {
		var out, complaints bytes.Buffer
		cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), tool,
			append([]string{"compile", filepath.Join("testdata", name)}, entrypoints...)...)
		cmd.Stdout, cmd.Stderr = &out, &complaints
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, complaints.String())
		}
		return out.Bytes(), nil
	}))
	wasm, err := build.(func() ([]byte, error))()
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}

func mainPolicy(tb testing.TB) []byte {
	tb.Helper()
	return rego(tb, "main.rego", "policy/main", "policy/allow")
}

func gatekeeperPolicy(tb testing.TB) []byte {
	tb.Helper()
	return rego(tb, "gatekeeper.rego", "k8suniquehost/violation")
}

func TestAPolicyOfOpenPolicyAgent(t *testing.T) {
	for name, c := range map[string]struct {
		more     string
		image    string
		code     int32
		message  string
		label    string
		warnings string
	}{
		"refused":             {more: "abi: opa", code: 418, message: `container "c" uses nginx:latest (1 of 1)`},
		"allowed":             {more: "abi: opa", image: "nginx:1"},
		"settings are data":   {more: "abi: opa\nsettings: {latest: true}"},
		"changed":             {more: "abi: opa\npoints: [admission.mutate]\nsettings: {latest: true, label: blue, zones: [a, {b: 1}]}", label: "blue", warnings: `web in ["a", {"b": 1}]`},
		"change refused":      {more: "abi: opa\nsettings: {latest: true, label: blue, zones: []}", code: 500, message: "configured not to mutate"},
		"undefined":           {more: "abi: opa\nsettings: {latest: true, label: blue}\npoints: [admission.mutate]", code: 500, message: "undefined"},
		"entrypoint":          {more: "abi: opa\nentrypoint: policy/main", code: 418, message: "nginx:latest"},
		"entrypoint, dotted":  {more: "abi: opa\nentrypoint: data.policy.main", code: 418, message: "nginx:latest"},
		"entrypoint, another": {more: "abi: opa\nentrypoint: policy/allow", code: 403, message: "denied the request"},
		"floods of built-ins": {more: "abi: opa\nsettings: {flood: true}\nlimits: {startFuel: 50000000, fuel: 50000000}", image: "nginx:1", code: 500, message: "(fuel)"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod()
			if c.image != "" {
				p.Spec.Containers[0].Image = c.image
			}
			r := admissiontest.Creating("pods", p)
			err := apply(t, load(t, mainPolicy(t), nil, c.more), r)
			if c.code == 0 && err != nil {
				t.Fatal(err)
			}
			var status apierrors.APIStatus
			if c.code != 0 && (!errors.As(err, &status) || status.Status().Code != c.code || !strings.Contains(err.Error(), c.message)) {
				t.Fatalf("error %v, want %d %q", err, c.code, c.message)
			}
			if got := labelOf(t, r); got != c.label {
				t.Errorf("label %q", got)
			}
			if got := strings.Join(r.Warnings(), "\n"); got != c.warnings {
				t.Errorf("warnings %q, want %q", got, c.warnings)
			}
		})
	}
}

// An instance is used again and again: neither its heap nor what it knew grows.
func TestAPolicyKeepsNothing(t *testing.T) {
	l := load(t, mainPolicy(t), nil, "abi: opa\nlimits: {instances: 1, memory: 2Mi}")
	for i := range 300 {
		p := pod()
		p.Annotations = map[string]string{"padding": strings.Repeat("x", 10000)}
		want := i%2 == 0
		if want {
			p.Spec.Containers[0].Image = "nginx:1"
		}
		if err := apply(t, l, admissiontest.Creating("pods", p)); (err == nil) != want {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if s := l.Status()[0]; s.Failures != 0 || s.Calls != 300 {
		t.Errorf("status %+v", s)
	}
}

func TestWhatAPolicyNeeds(t *testing.T) {
	for source, want := range map[string]string{
		`allow if http.send({"url": "http://example.com", "method": "get"}).status_code == 200`: "built-in function http.send, which policies do not have here",
		`allow if time.now_ns() > 0`:                 "grant it with grants.clock: true",
		`allow if rand.intn("a", 10) > 5`:            "grant it with grants.random: true",
		`allow if opa.runtime().env.HOME == "/root"`: "opa.runtime",
	} {
		file := filepath.Join(t.TempDir(), "p.rego")
		if err := os.WriteFile(file, []byte("package p\n"+source+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		wasm, err := exec.CommandContext(t.Context(), plugintest.Regotool(t), "compile", file, "p/allow").Output()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tryLoad(t, wasm, nil, "abi: opa"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
	if _, err := tryLoad(t, mainPolicy(t), nil, "abi: opa\nentrypoint: nothing"); err == nil || !strings.Contains(err.Error(),
		"it has policy/allow, policy/main") {
		t.Errorf("error %v", err)
	}
	if _, err := tryLoad(t, mainPolicy(t), nil, ""); err == nil || !strings.Contains(err.Error(), "abi: opa or abi: gatekeeper") {
		t.Errorf("error %v", err)
	}
}

// stock is a cluster whose pods change.
type stock struct {
	cluster
	pods []runtime.Object
	rv   int
	// fresh: the newest state was asked for, each time.
	fresh bool
	// listed is called when objects are read; nil = nobody wants to know.
	listed func()
}

func (s *stock) List(ctx context.Context, r hostfn.Resource, q hostfn.Selection) (hostfn.Page, error) {
	if r.Kind != "Pod" {
		return s.cluster.List(ctx, r, q)
	}
	if q.Limit == 0 {
		s.fresh = q.Fresh
		if s.listed != nil {
			s.listed()
		}
	}
	return hostfn.Page{Items: s.pods, ResourceVersion: fmt.Sprint(s.rv)}, nil
}

func (s *stock) Find(ctx context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	if kind == "" {
		kind = map[string]string{"pods": "Pod", "namespaces": "Namespace"}[resource]
	}
	if gv.Version != "v1" {
		return hostfn.Resource{}, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, "")
	}
	return s.cluster.Find(ctx, gv, kind, resource)
}

func TestAPolicyOfGatekeeper(t *testing.T) {
	l := load(t, gatekeeperPolicy(t), nil, "abi: gatekeeper\nsettings: {registry: registry.example.com/}")
	err := apply(t, l, creating())
	if err == nil || !strings.Contains(err.Error(), `plugin "policy" denied the request: image <nginx:latest> comes from another registry than <registry.example.com/>`) {
		t.Errorf("error %v", err)
	}
	l = load(t, gatekeeperPolicy(t), nil, "abi: gatekeeper\nsettings: {registry: nginx}")
	if err := apply(t, l, creating()); err != nil {
		t.Error(err)
	}
	kept := pod()
	kept.Labels["keep"] = "yes"
	r := admissiontest.Creating("pods", kept)
	r.Operation, r.OldObject, r.Object = admission.Delete, r.Object, nil
	if err := apply(t, l, r); err == nil || !strings.Contains(err.Error(), "deletion is forbidden") {
		t.Errorf("error %v", err)
	}
}

func TestGatekeepersInventory(t *testing.T) {
	taken := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "other", UID: "1", ResourceVersion: "5"},
		Spec:       corev1.PodSpec{Hostname: "db"},
	}
	s := &stock{pods: []runtime.Object{taken}}
	f := hostfn.New(hostfn.Backend{Objects: s})
	t.Cleanup(f.Close)
	l := load(t, gatekeeperPolicy(t), f, "abi: gatekeeper\nsettings: {registry: nginx, unique: true, teams: {red: true}}\ngrants: {read: [{resources: [pods, namespaces]}]}")
	p := pod()
	p.Spec.Hostname = "db"
	err := apply(t, l, admissiontest.Creating("pods", p))
	if err == nil || !strings.Contains(err.Error(), "host name is taken by other/first") || !strings.Contains(err.Error(),
		"team blue may not") {
		t.Errorf("error %v", err)
	}
}

// TestTwinsMeetInTheInventory: what was written a moment ago counts. It used to be up to a
// second old, so that two Ingresses of one host passed half a second apart. Nothing is kept
// of objects whose identity is not known, as from one case of `plugin test` to the next.
func TestTwinsMeetInTheInventory(t *testing.T) {
	for name, uid := range map[string]types.UID{"known": "1", "without an identity": ""} {
		s := &stock{}
		f := hostfn.New(hostfn.Backend{Objects: s})
		t.Cleanup(f.Close)
		l := load(t, gatekeeperPolicy(t), f, "abi: gatekeeper\nsettings: {registry: nginx, unique: true}\ngrants: {read: [{resources: [pods]}]}")
		p := pod()
		p.Spec.Hostname = "db"
		if err := apply(t, l, admissiontest.Creating("pods", p.DeepCopy())); err != nil {
			t.Fatal(err)
		}
		s.pods = []runtime.Object{&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "other", UID: uid, ResourceVersion: "5"},
			Spec:       corev1.PodSpec{Hostname: "db"},
		}}
		if err := apply(t, l, admissiontest.Creating("pods", p.DeepCopy())); err == nil || !strings.Contains(err.Error(),
			"host name is taken by other/first") {
			t.Errorf("%s: the twin: %v", name, err)
		}
		s.pods = nil
		if err := apply(t, l, admissiontest.Creating("pods", p.DeepCopy())); err != nil {
			t.Errorf("%s: when the first is gone: %v", name, err)
		}
		if !s.fresh {
			t.Errorf("%s: the inventory was not read at the newest revision", name)
		}
		// Nor do those pass that are judged in the same moment: the write is held against the fence.
		raised := 0
		ctx := fence.Begin(t.Context(), func(context.Context, string) (int64, error) {
			raised++
			return 7, nil
		})
		s.listed = func() {
			if raised == 0 {
				t.Errorf("%s: objects are read before the fence is raised", name)
			}
		}
		chain, err := admission.NewChain(l.AdmissionPlugins()...)
		if err != nil {
			t.Fatal(err)
		}
		if err := chain.Validate(ctx, admissiontest.Creating("pods", p.DeepCopy())); err != nil {
			t.Error(err)
		}
		if seen := fence.Seen(ctx); len(seen) != 1 || seen[fence.Key("")] != 7 {
			t.Errorf("%s: the write is held against %v", name, seen)
		}
	}
}

// Modules that only look as if they came from Rego end by themselves.
func TestHostileRego(t *testing.T) {
	base := map[string]string{
		"builtins":               `(func (export "builtins") (result i32) (i32.const 1))`,
		"entrypoints":            `(func (export "entrypoints") (result i32) (i32.const 1))`,
		"eval":                   `(func (export "eval") (param i32) (result i32) (i32.const 0))`,
		"opa_malloc":             `(func (export "opa_malloc") (param i32) (result i32) (i32.const 4096))`,
		"opa_json_parse":         `(func (export "opa_json_parse") (param i32 i32) (result i32) (i32.const 1))`,
		"opa_json_dump":          `(func (export "opa_json_dump") (param i32) (result i32) (i32.const 64))`,
		"opa_value_parse":        `(func (export "opa_value_parse") (param i32 i32) (result i32) (i32.const 1))`,
		"opa_value_dump":         `(func (export "opa_value_dump") (param i32) (result i32) (i32.const 64))`,
		"opa_heap_ptr_get":       `(func (export "opa_heap_ptr_get") (result i32) (i32.const 8192))`,
		"opa_heap_ptr_set":       `(func (export "opa_heap_ptr_set") (param i32))`,
		"opa_eval_ctx_new":       `(func (export "opa_eval_ctx_new") (result i32) (i32.const 0))`,
		"opa_eval_ctx_set_input": `(func (export "opa_eval_ctx_set_input") (param i32 i32))`,
		"opa_eval_ctx_set_data":  `(func (export "opa_eval_ctx_set_data") (param i32 i32))`, "opa_eval_ctx_get_result": `(func (export "opa_eval_ctx_get_result") (param i32) (result i32) (i32.const 1))`,
		"opa_eval_ctx_set_entrypoint": `(func (export "opa_eval_ctx_set_entrypoint") (param i32 i32))`,
		"data":                        `(data (i32.const 64) "{\"sprintf\": 0}\00")`,
	}
	for name, c := range map[string]struct {
		replace map[string]string
		want    string
	}{
		"text without an end":    {map[string]string{"opa_json_dump": `(func (export "opa_json_dump") (param i32) (result i32) (memory.fill (i32.const 0) (i32.const 32) (i32.const 65536)) (i32.const 0))`}, "bad pointer"},
		"text outside":           {map[string]string{"opa_json_dump": `(func (export "opa_json_dump") (param i32) (result i32) (i32.const -1))`}, "bad pointer"},
		"no room":                {map[string]string{"opa_malloc": `(func (export "opa_malloc") (param i32) (result i32) (i32.const -8))`}, "no room"},
		"built-ins of nonsense":  {map[string]string{"data": `(data (i32.const 64) "[1]\00")`}, "builtins answered"},
		"built-in while loading": {map[string]string{"builtins": `(func (export "builtins") (result i32) (call $b (i32.const 0) (i32.const 0)))`}, "outside of an evaluation"},
		"undeclared built-in":    {map[string]string{"eval": `(func (export "eval") (param i32) (result i32) (call $b (i32.const 77) (i32.const 0)))`}, "which it does not declare"},
		"built-in in built-in":   {map[string]string{"eval": `(func (export "eval") (param i32) (result i32) (call $b2 (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 1)))`, "opa_value_dump": `(func (export "opa_value_dump") (param i32) (result i32) (call $b2 (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 1)))`}, "inside of itself"},
		"abort":                  {map[string]string{"eval": `(func (export "eval") (param i32) (result i32) (call $abort (i32.const 64)) (i32.const 0))`}, "the policy aborted: {"},
		"abort outside":          {map[string]string{"eval": `(func (export "eval") (param i32) (result i32) (call $abort (i32.const -1)) (i32.const 0))`}, "bad pointer"},
		"answer of nonsense":     {nil, "cannot be read"},
		"wrong signature":        {map[string]string{"eval": `(func (export "eval"))`}, "eval is ()"},
	} {
		t.Run(name, func(t *testing.T) {
			source := `(module (import "env" "memory" (memory 1)) (import "env" "opa_abort" (func $abort (param i32)))
				(import "env" "opa_builtin0" (func $b (param i32 i32) (result i32))) (import "env" "opa_builtin2" (func $b2 (param i32 i32 i32 i32) (result i32)))`
			for field, text := range base {
				if r, ok := c.replace[field]; ok {
					text = r
				}
				source += text
			}
			l, err := tryLoad(t, assemble(t, source+")"), nil, "abi: opa\nlimits: {startFuel: 1000000, fuel: 1000000, memory: 64Ki}")
			if err == nil {
				err = apply(t, l, creating())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
