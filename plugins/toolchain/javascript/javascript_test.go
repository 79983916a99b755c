// SPDX-License-Identifier: Apache-2.0

package javascript_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// validate is the operation of admission.validate in sdk/spec/abi.yaml.
const validate = 2

// build builds a plugin of some files.
func build(tb testing.TB, files map[string]string) ([]byte, error) {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	b, err := toolchain.New(toolchain.Config{Progress: func(s string) { tb.Log(s) }})
	if err != nil {
		tb.Fatal(err)
	}
	out := filepath.Join(dir, "out.wasm")
	if err := b.Build(tb.Context(), dir, out); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

// hook is a plugin whose function has this body; its input is named document.
func hook(body string) map[string]string {
	return map[string]string{"main.js": `import { plugin, deny, stringify } from "wasmplane";
export default plugin({ name: "p", validate: { fields: ["object"], decide(document) {
  ` + body + `
} } });
`}
}

// load compiles a plugin by the limits of every plugin, but for a deadline that a busy machine meets too.
func load(tb testing.TB, files map[string]string, limits host.Limits) *host.Module {
	tb.Helper()
	wasm, err := build(tb, files)
	if err != nil {
		tb.Fatal(err)
	}
	cache, err := toolchain.Cache()
	if err != nil {
		tb.Fatal(err)
	}
	h, err := host.New(tb.Context(), host.Config{InProcess: true, CacheDir: filepath.Join(cache, "javascript", "compiled")})
	if err != nil {
		tb.Fatal(err)
	}
	if limits.Deadline == 0 {
		limits.Deadline = 5 * time.Minute
	}
	limits.StartDeadline = 5 * time.Minute
	m, err := h.Compile(tb.Context(), wasm, host.Options{Name: "p", Limits: limits})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(m.Close(), h.Close()); err != nil {
			tb.Error(err)
		}
	})
	return m
}

func TestWhatIsWrongWithTheSourceIsAnErrorOfTheBuild(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		says  []string
	}{
		"syntax": {hook("if (document { return; }"), []string{"Expected \")\" but found \"{\"", "main.js:3:15:", "3 │   if (document { return; }\n        │                ^"}},
		"the syntax of another file": {
			map[string]string{"main.ts": "import { x } from \"./lib/x\";\nexport default x;", "lib/x.ts": "export const x: number = ;"},
			[]string{"lib/x.ts:1:25:", "export const x: number = ;"},
		},
		"a module that is not there": {map[string]string{"main.js": "import fs from \"fs\";\nexport default fs;"}, []string{"Could not resolve \"fs\"", "main.js:1:15:", "A plugin has no files"}},
		"no default export":          {map[string]string{"main.js": "export const x = 1;"}, []string{"No matching export in \"main.js\" for import \"default\""}},
		"no plugin":                  {map[string]string{"main.js": "export default 3;"}, []string{"the default export is no plugin: export default plugin({"}},
		"no hook":                    {map[string]string{"main.js": "export default {name: \"p\"};"}, []string{"the plugin has no hook: expected one of authorize, convert"}},
		"a hook's name":              {map[string]string{"main.js": "export default {name: \"p\", valdiate() {}};"}, []string{"a plugin has no valdiate: expected name, version"}},
		"a part of a hook":           {map[string]string{"main.js": "export default {name: \"p\", validate: {field: [], decide() {}}};"}, []string{"validate has field: expected one of match, fields"}},
		"no function":                {map[string]string{"main.js": "export default {name: \"p\", validate: {fields: []}};"}, []string{"validate has no function decide"}},
		"it throws when it is loaded": {
			map[string]string{
				"main.ts":  "import { table } from \"./lib/x\";\n\nexport default table;",
				"lib/x.ts": "type T = number;\n\nfunction make(): T {\n  throw new RangeError(\"no room\");\n}\nexport const table = make();",
			},
			[]string{"RangeError: no room (at make lib/x.ts:4, lib/x.ts:6)"},
		},
		"it never ends":    {map[string]string{"main.js": "for (;;);\nexport default {};"}, []string{"the script did not end", "at the top of a file"}},
		"it waits forever": {map[string]string{"main.js": "await new Promise(() => {});\nexport default {};"}, []string{"the promise is never fulfilled"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t, c.files)
			for _, words := range c.says {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("the error does not say %q:\n%v", words, err)
				}
			}
		})
	}
}

func TestAScriptIsHeldByTheLimits(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		limits host.Limits
		kind   host.Kind // empty: the script throws, and its instance is sound
		says   string
	}{
		"a loop":              {"for (;;);", host.Limits{}, host.Fuel, "limits.fuel"},
		"a loop that catches": {"for (;;) try { null.x; } catch {}", host.Limits{}, host.Fuel, "limits.fuel"},
		"a regular expression that backtracks": {
			`return /^(a+)+$/.test("a".repeat(40) + "b") ? undefined : undefined;`, host.Limits{}, host.Fuel, "limits.fuel",
		},
		"memory":                {"const all = []; for (;;) all.push(new Uint8Array(1 << 20));", host.Limits{Fuel: 5_000_000_000}, host.Trap, "limits.memory"},
		"memory, a string":      {`let s = "x"; for (;;) s += s;`, host.Limits{Fuel: 5_000_000_000}, "", "InternalError"},
		"memory that is caught": {"for (;;) try { const all = []; for (;;) all.push({}); } catch {}", host.Limits{Fuel: 500_000_000}, host.Fuel, ""},
		"recursion":             {"const f = (n) => 1 + f(n + 1); return f(0);", host.Limits{Stack: 4 << 20}, "", "RangeError: Maximum call stack size exceeded (at f main.js:3, "},
		"recursion, by the limit of every plugin": {"const f = (n) => 1 + f(n + 1); return f(0);", host.Limits{}, host.StackDepth, "limits.stack"},
		"recursion in JSON":                       {`return JSON.parse("[".repeat(1e5));`, host.Limits{}, host.StackDepth, "limits.stack"},
		"recursion in an answer":                  {"const o = {allowed: true}; o.o = o; return o;", host.Limits{}, "", "the answer refers to itself"},
		"recursion in a pattern":                  {`return new RegExp("(".repeat(1e4)).test("");`, host.Limits{Stack: 4 << 20}, "", "SyntaxError"},
		"an answer without end":                   {`return {allowed: true, message: "x".repeat(1200000)};`, host.Limits{Fuel: 1_000_000_000}, host.OutputSize, "limits.output"},
		"an exception":                            {"return document.object.metadata.labels.owner;", host.Limits{}, "", "TypeError: cannot read property 'labels' of undefined (at decide main.js:3)"},
		"an exception of no error":                {"throw {toString() { throw 1; }};", host.Limits{}, "", "an exception that cannot be shown"},
		"false":                                   {"return false;", host.Limits{}, "", `validate answered false: answer deny("why")`},
		"a promise that never ends":               {"return new Promise(() => {});", host.Limits{}, "", "the promise is never fulfilled"},
		"an exception while something is left to be done": {
			`Promise.resolve().then(() => { throw new Error("later"); }); throw new Error("now");`, host.Limits{}, "", "Error: now (at decide main.js:3)",
		},
		"an exception that is written while it is shown": {
			`throw {toString: () => stringify({a: 1}) + "!"};`, host.Limits{}, "", `"p": {"a":1}!`,
		},
		"a rejected promise": {"return Promise.reject(new Error(\"no\"));", host.Limits{}, "", "Error: no"},
	} {
		t.Run(name, func(t *testing.T) {
			m := load(t, hook(c.body), c.limits)
			for range 2 { // the second time on an instance that has seen the first, or on a new one
				_, usage, err := m.Call(t.Context(), validate, []byte(`{"object":{}}`))
				var fault *host.Fault
				if errors.As(err, &fault) != (c.kind != "") || c.kind != "" && fault.Kind != c.kind {
					t.Errorf("it ended in %v, expected %q", err, c.kind)
				}
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("the error does not say %q: %v", c.says, err)
				}
				if usage.Memory > 32<<20 {
					t.Errorf("it had %d bytes of memory", usage.Memory)
				}
			}
		})
	}
}

// TestAPluginIsTheSameWhereverItIsBuilt: a digest can be pinned, and checked by whoever has the source.
func TestAPluginIsTheSameWhereverItIsBuilt(t *testing.T) {
	files := hook(`return document.object.x ? undefined : deny("no");`)
	first, err := build(t, files)
	if err != nil {
		t.Fatal(err)
	}
	// With the SDK beside it, in another folder.
	for _, name := range []string{"index.js", "glue.js"} {
		content, err := os.ReadFile(filepath.Join("../../../sdk/javascript", name))
		if err != nil {
			t.Fatal(err)
		}
		files["wasmplane/"+name] = string(content)
	}
	second, err := build(t, files)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Errorf("two modules, of %d and %d bytes, from the same source", len(first), len(second))
	}
}

// TestWhatAScriptDoesToADocumentEndsWithItsCall: objects of the same keys share how they are laid out, and nothing else.
func TestWhatAScriptDoesToADocumentEndsWithItsCall(t *testing.T) {
	m := load(t, hook(`const { object } = document, before = stringify(object);
  object.added = 1;
  delete object.b;
  object.a.x = "changed";
  Object.defineProperty(object, "c", { value: 3, enumerable: false });
  return { allowed: true, message: before };`), host.Limits{})
	err := m.With(t.Context(), func(in *host.Instance) error {
		for range 3 {
			for _, object := range []string{
				`{"a":{"x":1},"b":[true,null,{}],"c":"1"}`, `{"a":{"x":2},"b":"","c":-9007199254740993}`,
				`{"a":{},"b":{"b":{"b":"\u00e9\ud83d\ude00"}},"c":0.5}`, `{"b":1,"a":{"x":1},"c":2}`, `{"2":1,"a":{},"1":2,"b":[]}`,
			} {
				out, _, err := in.Call(t.Context(), validate, []byte(`{"object":`+object+`}`))
				if err != nil {
					return err
				}
				var answer struct{ Message string }
				if err := json.Unmarshal(out, &answer); err != nil {
					return err
				}
				if got, want := tree(t, answer.Message), tree(t, object); !reflect.DeepEqual(got, want) {
					t.Errorf("it was given %v, expected %v", got, want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func tree(t *testing.T, text string) (out any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return out
}

// TestKeysDoNotPileUp: objects of other keys in each call leave nothing behind.
func TestKeysDoNotPileUp(t *testing.T) {
	m := load(t, hook(`return Object.keys(document.object).length === 40 ? undefined : deny("no");`), host.Limits{})
	err := m.With(t.Context(), func(in *host.Instance) error {
		for i := range 5000 {
			var object strings.Builder
			for k := range 40 {
				fmt.Fprintf(&object, ",\"key-%d-%d\":{\"v-%d\":%d}", i, k, i, k)
			}
			out, usage, err := in.Call(t.Context(), validate, []byte(`{"object":{`+object.String()[1:]+`}}`))
			if err != nil || out != nil {
				return fmt.Errorf("%s, %w", out, err)
			}
			if usage.Memory > 4<<20 {
				t.Fatalf("after %d calls: %d bytes", i, usage.Memory)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestALargeScript: what a bundle of libraries comes to.
func TestALargeScript(t *testing.T) {
	var library strings.Builder
	for i := range 4000 {
		library.WriteString("export function f" + strconv.Itoa(i) + "(a) {\n" + strings.Repeat("  if (a.b?.c === \"d\") a = [a, ...a];\n",
			36) + "  return a;\n}\n")
	}
	files := hook("return deny(String(all.length));")
	files["main.js"] = "import * as library from \"./library.js\";\nconst all = Object.values(library);\n" + files["main.js"]
	files["library.js"] = library.String()
	if n := library.Len(); n < 5<<20 {
		t.Fatalf("%d bytes are not large", n)
	}
	wasm, err := build(t, files)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of source, %d of module", library.Len(), len(wasm))
	m := load(t, files, host.Limits{Memory: 128 << 20})
	out, _, err := m.Call(t.Context(), validate, nil)
	if err != nil || !strings.Contains(string(out), "4000") {
		t.Errorf("%s, %v", out, err)
	}
}

// BenchmarkCall is one decision, without what stands around it.
func BenchmarkCall(b *testing.B) {
	m := load(b, hook(`if (!document.object.metadata.labels?.owner) return deny("name an owner");`), host.Limits{})
	input := []byte(`{"object":{"metadata":{"name":"web-5d4c","labels":{"app":"web","pod-template-hash":"5d4c","team":"red"}}}}`)
	err := m.With(b.Context(), func(in *host.Instance) error { return calls(b.Context(), b, in, input) })
	if err != nil {
		b.Fatal(err)
	}
}

func calls(ctx context.Context, b *testing.B, in *host.Instance, input []byte) error {
	b.Helper()
	for b.Loop() {
		if _, _, err := in.Call(ctx, validate, input); err != nil {
			return err
		}
	}
	return nil
}
