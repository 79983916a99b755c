// SPDX-License-Identifier: Apache-2.0

package toolchain_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/component/encode"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/sdk"
)

// otherTools asks the Bytecode Alliance's tools, which test/deps.sh installs.
func otherTools(t *testing.T, args ...string) (out []byte, err error) {
	t.Helper()
	cache, err := toolchain.Cache()
	if err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(cache, "component-tools-0.15.0")
	if _, err := os.Stat(tools); err != nil {
		t.Fatalf("the tools that know components are not installed: run test/deps.sh test (%v)", err)
	}
	cmd := exec.CommandContext(t.Context(), "node", append([]string{filepath.Join("testdata", "wasm-tools.mjs"), tools}, args...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err = cmd.Output()
	if err != nil {
		t.Log(said.String())
	}
	return out, err
}

const (
	pluginInGo = `package main

import "github.com/wasmplane/wasmplane/sdk/go"

var _ = wasmplane.Register(wasmplane.Plugin{Name: "p", Version: "1.0.0", Validate: &wasmplane.Admission{
	Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
		println("printed")
		wasmplane.Log("logged")
		_, err := wasmplane.Call("clock.now", nil)
		out.Deny(err.Error())
	},
}})

func main() {}
`
	pluginInJavaScript = `import { plugin, deny, host, call } from "wasmplane";
export default plugin({name: "p", version: "1.0.0", validate() {
  console.log("printed");
  host.log({level: "INFO", message: "logged"});
  try { call("clock.now"); } catch (e) { return deny(e.message); }
}});
`
)

// TestModulesForWASIBecomeComponents: Go's and the JavaScript engine's modules import WASI 0.1. Their components import the
// interfaces of 0.2 that those functions need and no others, and run on another host with that host's own WASI.
func TestModulesForWASIBecomeComponents(t *testing.T) {
	for l, c := range map[toolchain.Language]struct {
		source  string
		imports []string
	}{
		toolchain.Go: {pluginInGo, []string{
			"wasi:cli/environment@0.2.0", "wasi:cli/exit@0.2.0", "wasi:cli/stderr@0.2.0", "wasi:cli/stdout@0.2.0",
			"wasi:clocks/monotonic-clock@0.2.0", "wasi:clocks/wall-clock@0.2.0", "wasi:io/error@0.2.0", "wasi:io/poll@0.2.0",
			"wasi:io/streams@0.2.0", "wasi:random/random@0.2.0", "wasmplane:plugin/host@1.0.0",
		}},
		toolchain.JavaScript: {pluginInJavaScript, []string{
			"wasi:cli/stderr@0.2.0", "wasi:cli/stdout@0.2.0", "wasi:clocks/monotonic-clock@0.2.0", "wasi:clocks/wall-clock@0.2.0",
			"wasi:io/error@0.2.0", "wasi:io/streams@0.2.0", "wasmplane:plugin/host@1.0.0",
		}},
	} {
		b, err := toolchain.New(toolchain.Config{Component: true})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		library, err := filepath.Abs(filepath.Join("..", "..", "sdk", "go"))
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{
			l.Main(): c.source,
			"go.mod": "module p\n\ngo 1.24\n\nrequire github.com/wasmplane/wasmplane/sdk/go v0.0.0\n\n" +
				"replace github.com/wasmplane/wasmplane/sdk/go => " + strconv.Quote(library) + "\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "p.wasm")
		if err := b.Build(t.Context(), dir, file); err != nil {
			t.Fatal(err)
		}
		wit, err := otherTools(t, "wit", file)
		if err != nil {
			t.Fatal(err)
		}
		var imports []string
		for _, m := range regexp.MustCompile(`(?m)^  import (.*);$`).FindAllStringSubmatch(string(wit), -1) {
			imports = append(imports, m[1])
		}
		slices.Sort(imports)
		if !slices.Equal(imports, c.imports) {
			t.Errorf("%s: it imports\n%s\nwant\n%s", l, strings.Join(imports, "\n"), strings.Join(c.imports, "\n"))
		}
		out, err := otherTools(t, "run", file, t.TempDir())
		for _, want := range []string{
			`log {"level":"INFO","message":"logged"}`, "\n" + `{"abi":1,`,
			"\n" + `{"allowed":false,"message":"no clock.now here"}`, "\nerror: ",
		} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %q is missing in\n%s\n%v", l, want, out, err)
			}
		}
	}
}

const pluginInC = `#include "wasmplane.h"
static void decide(wp_input in, wp_answer *out) { wp_log("logged"); wp_deny(out, "no"); }
WP_PLUGIN = {.name = "p", .version = "1.0.0", .validate = {.decide = decide, .match = {{.operations = {"CREATE"}}}}};
`

// TestOtherToolsReadTheComponent: a validator that is not ours takes what is built, and sees the world that was meant.
func TestOtherToolsReadTheComponent(t *testing.T) {
	b, err := toolchain.New(toolchain.Config{Component: true})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, toolchain.C.Main()), []byte(pluginInC), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "p.wasm")
	if err := b.Build(t.Context(), dir, file); err != nil {
		t.Fatal(err)
	}
	wit, err := otherTools(t, "wit", file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"import wasmplane:plugin/host@1.0.0;", "export describe: func() -> string;",
		"export call: func(operation: s32, input: list<u8>) -> result<option<list<u8>>, string>;",
	} {
		if !strings.Contains(string(wit), want) {
			t.Errorf("%s is missing in\n%s", want, wit)
		}
	}
	if strings.Contains(string(wit), "wasi:") {
		t.Errorf("it imports what it does not call:\n%s", wit)
	}
	manifest, err := otherTools(t, "run", file, t.TempDir())
	if err != nil || !strings.Contains(string(manifest), `{"abi":1,"name":"p","version":"1.0.0"`) {
		t.Errorf("on another host it describes %s, %v", manifest, err)
	}
	// It does validate: a lie about the type of a core function is found.
	component, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	shim := []byte("\x60\x05\x7f\x7f\x7f\x7f\x7f\x00")
	if !bytes.Contains(component, shim) {
		t.Fatal("the host's function is not imported")
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(component, shim, []byte("\x60\x05\x7f\x7f\x7f\x7f\x7e\x00")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := otherTools(t, "run", file, t.TempDir()); err == nil {
		t.Error("a component that lies is taken")
	}
}

// TestTheWorldIsThatOfItsText: sdk/wit/built.world is what a generator of bindings would embed of plugin.wit and built.wit.
func TestTheWorldIsThatOfItsText(t *testing.T) {
	wit := filepath.Join("..", "..", "sdk", "wit")
	module, err := otherTools(t, "world", "built", filepath.Join(wit, "plugin.wit"), filepath.Join(wit, "built.wit"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(module, sdk.World()) { // behind it stands who made it
		t.Errorf("sdk/wit/built.world is of another text")
	}
}

// TestHooksMakeAWorld: a plugin at all points has a world of its own, of the worlds of all hooks.
func TestHooksMakeAWorld(t *testing.T) {
	file := filepath.Join("..", "..", "sdk", "wit", "plugin.wit")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	hooks := regexp.MustCompile(`(?m)^world (.*)-hook \{$`).FindAllStringSubmatch(string(text), -1)
	if len(hooks) < 22 {
		t.Fatalf("there are %d hooks", len(hooks))
	}
	team := "world team {\n  include base;\n  include configurable;\n"
	for _, h := range hooks {
		team += "  include " + h[1] + "-hook"
		if h[1] == "mutate" { // both at admission import the same type
			team += " with { decision as change }\n"
		} else {
			team += ";\n"
		}
	}
	own := filepath.Join(t.TempDir(), "team.wit")
	if err := os.WriteFile(own, []byte(team+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	module, err := otherTools(t, "world", "team", file, own)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hooks {
		if !bytes.Contains(module, []byte(h[1])) {
			t.Errorf("the world has no function %s", h[1])
		}
	}
}

// typedInC is a plugin in C without the SDK, with the functions that a generator of bindings makes for the world
// validate-plugin: it refuses with the document as the message, until it was told that an answer was read.
const typedInC = `
#define MANIFEST "{\"abi\":1,\"name\":\"typed\",\"version\":\"1\",\"hooks\":[{\"op\":2,\"point\":\"admission.validate\"}]}"
static char heap[4096];
static struct { const char *at; unsigned length; } manifest = {MANIFEST, sizeof MANIFEST - 1};
static unsigned answer[19]; /* a result<decision, string>: all zero, it refuses and says nothing */
__attribute__((export_name("cabi_realloc"))) void *allocate(void *old, int n, int align, int m) { return heap; }
__attribute__((export_name("describe"))) void *describe(void) { return &manifest; }
__attribute__((export_name("validate"))) void *validate(const char *document, int n) {
	answer[2] = 1;
	answer[3] = (unsigned)document;
	answer[4] = n;
	return answer;
}
__attribute__((export_name("cabi_post_validate"))) void forget(void *at) { answer[1] = 1; }
`

// validates has this project's own host ask the plugin in C.
func validates(t *testing.T, component []byte) {
	t.Helper()
	h, err := host.New(t.Context(), host.Config{InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := h.Compile(t.Context(), component, host.Options{Name: "typed", Limits: host.Limits{Deadline: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	const validate = 2 // the operation
	answer, _, err := m.Call(t.Context(), validate, []byte(`"?"`))
	if want := `{"allowed":false,"message":"\"?\""}`; err != nil || string(answer) != want {
		t.Errorf("here it answers %s, %v\nwant %s", answer, err, want)
	}
}

// TestAModuleThatSaysItsWorld: a typed world, written into the module by another tool, goes before that of the SDKs.
func TestAModuleThatSaysItsWorld(t *testing.T) {
	b, err := toolchain.New(toolchain.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, toolchain.C.Main()), []byte(typedInC), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "p.wasm")
	if err := b.Build(t.Context(), dir, file); err != nil {
		t.Fatal(err)
	}
	module, err := otherTools(t, "embed", file, "validate-plugin", filepath.Join("..", "..", "sdk", "wit", "plugin.wit"))
	if err != nil {
		t.Fatal(err)
	}
	component, err := encode.Component(module, sdk.World())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, component, 0o600); err != nil {
		t.Fatal(err)
	}
	decision, err := otherTools(t, "run", file, t.TempDir())
	validates(t, component)
	const want = `{"abi":1,"name":"typed","version":"1","hooks":[{"op":2,"point":"admission.validate"}]}
{"allowed":false,"message":"a","warnings":[],"annotations":[]}
{"allowed":true,"message":"b","warnings":[],"annotations":[]}`
	if err != nil || strings.TrimSpace(string(decision)) != want {
		t.Errorf("%s, %v\nwant %s", decision, err, want)
	}
}
