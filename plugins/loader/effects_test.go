// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// counting has one hook with more keys; it denies, in words that no two calls share.
func counting(t *testing.T, hook string) []byte {
	t.Helper()
	manifest := `{"abi":1,"name":"counting","hooks":[` + hook + `]}`
	wasm, err := wat.Assemble(fmt.Sprintf(`(module
		(memory (export "memory") 2)
		(data (i32.const 0) "%s")
		(data (i32.const 4096) "{\"allowed\":false,\"message\":\"0\",\"decision\":\"deny\",\"reason\":\"0\"}")
		(func (export "describe") (result i64) (i64.const %d))
		(func (export "alloc") (param i32) (result i32) (i32.const 65536))
		(func (export "call") (param i32 i32 i32) (result i64)
			(i32.store8 (i32.const 4124) (i32.add (i32.load8_u (i32.const 4124)) (i32.const 1)))
			(i32.store8 (i32.const 4155) (i32.add (i32.load8_u (i32.const 4155)) (i32.const 1)))
			(i64.or (i64.shl (i64.const 4096) (i64.const 32)) (i64.const 62))))`, strings.ReplaceAll(manifest, `"`, `\"`), len(manifest)))
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

func loadCounting(t *testing.T, hook string, r prometheus.Registerer, more ...string) *loader.Loader {
	t.Helper()
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "counting.wasm"), counting(t, hook))
	text := "plugins:\n  - name: counting\n    source: file:counting.wasm\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Registerer: r, Entries: entries(t, text)})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestDryRunsAreRefusedByPluginsWithSideEffects, and asked of all others.
func TestDryRunsAreRefusedByPluginsWithSideEffects(t *testing.T) {
	for effects, want := range map[string]string{
		"Some": `plugin "counting" does not support dry run: it declares sideEffects: Some`, "None": "denied the request",
		"NoneOnDryRun": "denied the request",
	} {
		l := loadCounting(t, `{"op":1,"point":"admission.validate","sideEffects":"`+effects+`"}`, nil)
		r := creating(pod("a:1", nil))()
		r.DryRun = true
		if err := chain(t, l, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sideEffects %s: %v, want %q", effects, err, want)
		}
		if err := chain(t, l, creating(pod("a:1", nil))()); err == nil || !strings.Contains(err.Error(), "denied the request") {
			t.Errorf("sideEffects %s, a real request: %v", effects, err)
		}
	}
}

// TestPureAuthorizersAreAskedOnce for what they read, and others each time.
func TestPureAuthorizersAreAskedOnce(t *testing.T) {
	question := func(name, verb string) authz.Attributes {
		return authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: verb, Resource: "pods", ResourceRequest: true}
	}
	for _, c := range []struct {
		hook string
		want string
	}{
		{`{"op":1,"point":"authorization","fields":["user"],"pure":true}`, "1 1 1 2"}, // the verb is not read
		{`{"op":1,"point":"authorization","fields":["user","resourceAttributes.verb"],"pure":true}`, "1 1 2 3"},
		{`{"op":1,"point":"authorization","fields":["user"]}`, "1 2 3 4"},
	} {
		registry := prometheus.NewRegistry()
		before, _ := loadCounting(t, c.hook, registry, "limits: {instances: 1}").Authorizers()
		var reasons []string
		for _, q := range []authz.Attributes{
			question("jane", "get"), question("jane", "get"), question("jane", "list"),
			question("tim", "list"),
		} {
			d, reason, err := before[0].Authorize(t.Context(), q)
			if d != authz.Deny || err != nil {
				t.Fatalf("%v, %v", d, err)
			}
			reasons = append(reasons, strings.TrimPrefix(reason, `plugin "counting": `))
		}
		if got := strings.Join(reasons, " "); got != c.want {
			t.Errorf("%s: calls %s, want %s", c.hook, got, c.want)
		}
	}
}

// TestEveryCallIsCounted by plugin, point and decision, with what it cost.
func TestEveryCallIsCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	l := loadCounting(t, `{"op":1,"point":"authorization","fields":["user"],"pure":true}`, registry)
	before, _ := l.Authorizers()
	for range 3 {
		q := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}, Verb: "get", Resource: "pods", ResourceRequest: true}
		if _, _, err := before[0].Authorize(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP wasmplane_plugin_breaker_open 1 while a plugin is left alone because it failed many times in a row, by plugin.
# TYPE wasmplane_plugin_breaker_open gauge
wasmplane_plugin_breaker_open{plugin="counting"} 0
# HELP wasmplane_plugin_calls_total Calls of plugins, by plugin, point and decision.
# TYPE wasmplane_plugin_calls_total counter
wasmplane_plugin_calls_total{decision="deny",plugin="counting",point="authorization"} 3
# HELP wasmplane_plugin_remembered_total Answers of pure hooks that were remembered, by plugin and point.
# TYPE wasmplane_plugin_remembered_total counter
wasmplane_plugin_remembered_total{plugin="counting",point="authorization"} 2
`), "wasmplane_plugin_calls_total", "wasmplane_plugin_breaker_open", "wasmplane_plugin_remembered_total")
	if err != nil {
		t.Error(err)
	}
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range all {
		names[f.GetName()] = true
	}
	for _, want := range []string{
		"wasmplane_plugin_duration_seconds", "wasmplane_plugin_fuel_total", "wasmplane_plugin_memory_bytes",
		"wasmplane_plugin_instances", "wasmplane_plugin_ready",
	} {
		if !names[want] {
			t.Errorf("%s is not served", want)
		}
	}
	if err := l.Apply(t.Context(), loader.File, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 0 {
		t.Errorf("%d series are left of a plugin that is gone, %v", n, err)
	}
}
