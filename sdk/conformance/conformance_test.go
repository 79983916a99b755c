// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// settings that every guest is started with; text has what is hard to write and to read.
const settings = `{"key":"example.com/x~y","text":"h\u00ef \"\\\/\b\n\u0001 \ud83d\ude00","n":[-9007199254740993,0.5,-2.5e3,0],"t":true,"f":false,"z":null,"o":{},"a":[[]]}`

// guest is a module on one engine.
type guest struct {
	*host.Module
	manifest *abi.Manifest
	memory   uint32 // the most that it has after many calls
}

// inComponent says whether modules of a language are components: they get JSON, and have no node table.
func inComponent(l toolchain.Language) bool { return l == toolchain.Python }

func load(t *testing.T, wasm []byte, settings string, interpreted bool) (*guest, error) {
	t.Helper()
	h, err := host.New(t.Context(), host.Config{
		InProcess: true, Interpreter: interpreted,
		CacheDir: filepath.Join(plugintest.Root(t), "build", "plugin-cache"), // CPython takes a third of a minute
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := h.Compile(t.Context(), wasm, host.Options{
		Name: "guest",
		// What is conformed to is the answer; on a busy machine an interpreter may take its time.
		Limits: host.Limits{Deadline: time.Minute, StartDeadline: time.Minute},
		Funcs: map[string]host.Func{"test.echo": func(_ context.Context, input []byte) ([]byte, error) {
			var in struct{ N int }
			if err := json.Unmarshal(input, &in); err != nil {
				return nil, err
			}
			return json.Marshal(map[string]string{"text": strings.Repeat("x", in.N)})
		}},
		Setup: func(ctx context.Context, in *host.Instance) error {
			_, _, err := in.StartCall(ctx, abi.OpSettings, []byte(settings))
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	g := &guest{Module: m, memory: 8 << 20}
	err = m.With(t.Context(), func(in *host.Instance) error {
		b, err := in.Describe(t.Context())
		if err == nil {
			g.manifest, err = abi.ParseManifest(b)
		}
		return err
	})
	return g, err
}

// ask passes a document to the hook at a point, and returns the answer.
func (g *guest) ask(t *testing.T, p abi.Point, document string) (string, error) {
	t.Helper()
	h := g.manifest.Hook(p)
	if h == nil {
		t.Fatalf("no hook at %s", p)
	}
	w := &abi.Writer{}
	abi.NewProjection(h).Write(w, plain(t, document), "Pod")
	out, _, err := g.Call(t.Context(), h.Op, w.Bytes())
	return string(out), err
}

func plain(t *testing.T, text string) (out any) {
	t.Helper()
	if text == "" {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatalf("%q is no JSON: %v", text, err)
	}
	return numbers(out)
}

// numbers makes 0.5, 5e-1 and 0.50 the same, and keeps integers exact.
func numbers(v any) any {
	switch x := v.(type) {
	case json.Number:
		if i, err := x.Int64(); err == nil {
			return i
		}
		f, _ := x.Float64() // what the decoder took for a number is one
		if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return int64(f)
		}
		return f
	case map[string]any:
		for k := range x {
			x[k] = numbers(x[k])
		}
	case []any:
		for i := range x {
			x[i] = numbers(x[i])
		}
	}
	return v
}

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if is, should := plain(t, got), plain(t, want); !reflect.DeepEqual(is, should) {
		t.Errorf("%s:\n got  %s\n want %s", what, got, want)
	}
}

// cell reads the flat encoding as JSON has it: the reader that guests are held against.
func cell(data []byte, at int) any {
	c := binary.LittleEndian.Uint64(data[at:])
	kind, n, off := c>>60, int(c>>32&(1<<28-1)), int(uint32(c))
	switch kind {
	case 1, 2:
		return kind == 2
	case 3:
		return int64(binary.LittleEndian.Uint64(data[off:]))
	case 4:
		return math.Float64frombits(binary.LittleEndian.Uint64(data[off:]))
	case 5:
		return string(data[off : off+n])
	case 6:
		out := make([]any, n)
		for i := range out {
			out[i] = cell(data, off+8*i)
		}
		return out
	case 7:
		out := map[string]any{}
		for i := range n {
			out[cell(data, off+16*i).(string)] = cell(data, off+16*i+8)
		}
		return out
	}
	return nil
}

func TestEveryGuest(t *testing.T) {
	for _, l := range toolchain.Languages() {
		t.Run(string(l), func(t *testing.T) { testGuest(t, l, toolchain.Config{}) })
	}
}

// TestEveryGuestAsAComponent: the same sources, answering through the component model.
func TestEveryGuestAsAComponent(t *testing.T) {
	for _, l := range toolchain.Languages() {
		if inComponent(l) {
			continue
		}
		t.Run(string(l), func(t *testing.T) { testGuest(t, l, toolchain.Config{Component: true}) })
	}
}

func testGuest(t *testing.T, l toolchain.Language, cfg toolchain.Config) {
	t.Helper()
	cfg.Progress = func(s string) { t.Log(s) }
	builder, err := toolchain.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "guest.wasm")
	if err := builder.Build(t.Context(), string(l), out); err != nil {
		t.Fatal(err)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(wasm))
	for _, interpreted := range []bool{false, true} {
		if interpreted && (l == toolchain.Go || l == toolchain.Python) { // start-up alone takes seconds; wasm-examples runs such plugins so
			continue
		}
		g, err := load(t, wasm, settings, interpreted)
		if err != nil {
			t.Fatal(err)
		}
		if want := cfg.Component || inComponent(l); g.IsComponent() != want {
			t.Fatalf("a component: %t, want %t", g.IsComponent(), want)
		}
		if inComponent(l) {
			g.memory = 24 << 20 // the interpreter begins with 13
		}
		g.conform(t, map[bool]int{false: 2000, true: 100}[interpreted])
	}
	if _, err := load(t, wasm, `{"key":"","refuse":"not \"these\""}`, false); !says(err, `not "these"`) {
		t.Errorf("settings that the plugin refuses: %v", err)
	}
}

func says(err error, message string) bool {
	var said *host.GuestError
	return errors.As(err, &said) && said.Message == message
}

func (g *guest) conform(t *testing.T, calls int) {
	t.Helper()
	g.describes(t)
	g.readsVectors(t)
	g.mutates(t)
	g.answers(t)
	if !g.IsComponent() {
		g.judges(t)
	}
	for range calls { // nothing piles up
		if _, err := g.ask(t, abi.AdmissionMutate, `{"spec":{"replicas":1},"text":"`+strings.Repeat("x", 4096)+`"}`); err != nil {
			t.Fatal(err)
		}
	}
	h, w := g.manifest.Hook(abi.AdmissionValidate), &abi.Writer{}
	abi.NewProjection(h).Write(w, map[string]any{}, "Pod")
	_, usage, err := g.Call(t.Context(), h.Op, w.Bytes())
	if err != nil || usage.Memory > g.memory {
		t.Errorf("after many calls: %d bytes of memory, error %v", usage.Memory, err)
	}
}

func (g *guest) describes(t *testing.T) {
	t.Helper()
	m := g.manifest
	if m.Name != "conformance" || m.Version != "1.2.3" || !m.Settings || len(m.Needs) != 0 || len(m.Hooks) != len(g.points()) {
		t.Errorf("manifest %+v", m)
	}
	same(t, "the schema of the settings", string(m.SettingsSchema), `{"required": ["key"]}`)
	rule := abi.Rule{Operations: []string{"CREATE"}, Groups: []string{""}, Versions: []string{"v1"}, Resources: []string{"pods"}}
	if got := m.Hook(abi.AdmissionMutate).Match; len(got) != 1 || !reflect.DeepEqual(got[0], rule) {
		t.Errorf("match %+v", got)
	}
	if got := m.Hook(abi.AdmissionValidate).Fields; !reflect.DeepEqual(got,
		[]string{"object.metadata.name", "object.metadata.labels", "operation"}) {
		t.Errorf("fields %q", got)
	}
	if got := m.Hook(abi.CustomResourceConvert); len(got.Match) != 1 || !reflect.DeepEqual(got.Match[0].Groups, []string{"example.com"}) ||
		!reflect.DeepEqual(got.Match[0].Resources, []string{"endpoints"}) {
		t.Errorf("match %+v", got)
	}
	if h := m.Hook(abi.AdmissionValidate); h.SideEffects != abi.NoneOnDryRun || h.Alternatives["@size"]["Deployment"] != "spec.replicas" ||
		h.Alternatives["@size"]["*"] != "spec.size" {
		t.Errorf("side effects %q, alternatives %v", h.SideEffects, h.Alternatives)
	}
	for p, pure := range map[abi.Point]bool{abi.Authorization: true, abi.SchedulingPostFilter: true, abi.SchedulingPreFilter: false} {
		if m.Hook(p).Pure != pure {
			t.Errorf("%s: pure %v, want %v", p, m.Hook(p).Pure, pure)
		}
	}
	if g := m.Groups; g == nil || g.Value != "pod.metadata.namespace" || g.Other != `b "c"` ||
		!reflect.DeepEqual(g.Names, map[string]string{"red": "a", "crimson": "a"}) {
		t.Errorf("groups %+v", g)
	}
	if got := m.Hook(abi.SchedulingFilter).Events; !reflect.DeepEqual(got, []string{"nodeAdded", "podRemoved"}) {
		t.Errorf("events of the filter %q", got)
	}
	if got := m.Hook(abi.SchedulingPreEnqueue).Events; !reflect.DeepEqual(got, []string{"podChanged"}) {
		t.Errorf("events of preEnqueue %q", got)
	}
	if got := m.Hook(abi.SchedulingNormalize).Fields; !reflect.DeepEqual(got, []string{"state", "scores"}) {
		t.Errorf("fields of normalize %q", got)
	}
	for _, p := range g.points() {
		if m.Hook(p) == nil {
			t.Errorf("no hook at %s", p)
		}
	}
	h := m.Hook(abi.Reconcile)
	if want := (abi.Watch{
		Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment",
		Selector: "app=web",
	}); *h.Primary != want || len(h.Owned) != 1 || h.Owned[0].Kind != "Service" {
		t.Errorf("kinds %+v %+v", h.Primary, h.Owned)
	}
	if g.IsComponent() {
		return
	}
	h = m.Hook(abi.SchedulingTable)
	if len(h.Columns) != 2 || h.Columns[1].Path != "allocatable.pods" || len(h.Pod) != 1 || !reflect.DeepEqual(h.Reasons,
		[]string{"full", "never"}) {
		t.Errorf("table %+v %+v %q", h.Columns, h.Pod, h.Reasons)
	}
}

// points are those at which a guest can take part. The loader refuses a component with a node table.
func (g *guest) points() []abi.Point {
	return slices.DeleteFunc(abi.Points(), func(p abi.Point) bool {
		return p == abi.SchedulingTable && g.IsComponent() && g.manifest.Hook(p) == nil
	})
}

// readsVectors has the guest write what it reads of every flat vector.
func (g *guest) readsVectors(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("../spec/vectors/projections.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Flat, Error string
		Fields            []string
		JSON              json.RawMessage
	}
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	read, least := 0, 8
	hook := g.manifest.Hook(abi.AdmissionMutate)
	if hook.Encoding == abi.JSON {
		least = 1 // those without fields
	}
	for _, v := range vectors {
		if v.Error != "" || hook.Encoding == abi.JSON && len(v.Fields) > 0 {
			continue
		}
		flat, err := hex.DecodeString(v.Flat)
		if err != nil {
			t.Fatal(err)
		}
		want := cell(flat, 0)
		if len(v.Fields) == 0 {
			if is := plain(t, string(v.JSON)); !reflect.DeepEqual(want, is) {
				t.Fatalf("%s: the test reads %v of %v", v.Name, want, is)
			}
		}
		input := flat
		if hook.Encoding == abi.JSON {
			input = v.JSON
		}
		out, _, err := g.Call(t.Context(), hook.Op, input)
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		got, _ := plain(t, string(out)).(map[string]any)
		patch, _ := got["patch"].([]any)
		echo, _ := patch[0].(map[string]any)
		if !reflect.DeepEqual(echo["value"], want) {
			t.Errorf("vector %q:\n got  %v\n want %v", v.Name, echo["value"], want)
		}
		read++
	}
	if read < least {
		t.Errorf("%d vectors were read", read)
	}
}

func (g *guest) mutates(t *testing.T) {
	t.Helper()
	got, err := g.ask(t, abi.AdmissionMutate, `{"spec":{"replicas":9007199254740993}}`)
	if err != nil {
		t.Fatal(err)
	}
	text := func() string { // what the guest wrote of its settings, as a JSON string in JSON
		var answer struct {
			Patch []struct{ Value any }
		}
		if err := json.Unmarshal([]byte(got), &answer); err != nil || len(answer.Patch) != 4 {
			t.Fatalf("%v in %s", err, got)
		}
		s, _ := answer.Patch[1].Value.(string)
		return s
	}()
	same(t, "the settings", text, settings)
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := g.ask(t, abi.AdmissionMutate, `{"whole":[1]}`)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the object", whole, `{"allowed":true,"object":{"kind":"Pod","was":[1]}}`)
	same(t, "the patch", got, fmt.Sprintf(`{"allowed":true,"patch":[
		{"op":"add","path":"/echo","value":{"spec":{"replicas":9007199254740993}}},
		{"op":"add","path":"/metadata/labels/example.com~1x~0y","value":%s},
		{"op":"replace","path":"/spec/replicas","value":9007199254740994},
		{"op":"remove","path":"/spec/paused"}],
		"warnings":["careful \"now\"\n"],"auditAnnotations":{"key":"example.com/x~y"}}`, quoted))
}

func (g *guest) answers(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		point               abi.Point
		document, want, err string
	}{
		{abi.AdmissionValidate, `{"operation":"UPDATE"}`, ``, ""},
		{abi.AdmissionValidate, `{"operation":"CREATE","object":{"metadata":{"name":"a \"b\""}}}`, `{"allowed":false,"message":"not a \"b\"","field":"metadata.name","code":422}`, ""},
		{
			abi.CustomResourceConvert, `{"desiredAPIVersion":"example.com/v2","object":{"spec":{"hostPort":"a:1"}}}`,
			`{"allowed":true,"patch":[{"op":"move","from":"/spec/hostPort","path":"/spec/address"},{"op":"add","path":"/spec/as","value":"example.com/v2"}]}`, "",
		},
		{abi.CustomResourceConvert, `{"desiredAPIVersion":"example.com/v2","object":{}}`, `{"allowed":false,"message":"no hostPort"}`, ""},
		{abi.CustomResourceValidate, `{"object":{"spec":{"port":9}}}`, ``, ""},
		{
			abi.CustomResourceValidate, `{"object":{"spec":{"port":10}}}`,
			`{"allowed":false,"message":"","causes":[{"field":"spec.port","message":"too \"high\""},{"field":"spec.name","message":"missing"}]}`, "",
		},
		{abi.Authorization, `{"user":"root"}`, `{"decision":"allow","reason":"root may"}`, ""},
		{abi.Authorization, `{"user":"jane","resourceAttributes":{"namespace":"closed"}}`, `{"decision":"deny","reason":"closed to jane"}`, ""},
		{abi.Authorization, `{"user":"jane"}`, ``, ""},
		{abi.SchedulingFilter, `{"node":{"metadata":{"name":"bad-1"}}}`, `{"fits":false,"reasons":["node(s) were bad"]}`, ""},
		{abi.AdmissionValidate, `{"operation":"DELETE"}`, `{"allowed":false,"message":"in use","reason":"Conflict"}`, ""},
		{abi.AdmissionValidate, `{"operation":"CONNECT"}`, ``, `cannot tell`},
		{abi.AdmissionValidate, `{"operation":"UPDATE"}`, ``, ""}, // a failure is that call's only
		{abi.SchedulingFilter, `{"node":{"metadata":{"name":"ba"}}}`, ``, ""},
		{abi.SchedulingFilter, `{"node":{"metadata":{"name":"worst-1"}}}`, `{"fits":false,"unresolvable":true,"reasons":["node(s) were worst"]}`, ""},
		{abi.SchedulingFilter, `{"node":{"metadata":{"name":"bad-1"}}}`, `{"fits":false,"reasons":["node(s) were bad"]}`, ""},
		{abi.SchedulingPreEnqueue, `{"pod":{"metadata":{"labels":{"gate":"a \"quota\""}}}}`, `{"allowed":false,"reasons":["waits for a \"quota\""]}`, ""},
		{abi.SchedulingPreEnqueue, `{"pod":{"metadata":{}}}`, ``, ""},
		{abi.SchedulingQueueSort, `{"pod":{"spec":{"priority":-3}}}`, `-30`, ""},
		{abi.SchedulingPreFilter, `{"pod":{"metadata":{"name":"any"}}}`, ``, ""},
		{abi.SchedulingPreFilter, `{"pod":{"metadata":{"name":"none"}}}`, `{"fits":false,"reasons":["no node for none"]}`, ""},
		{abi.SchedulingPreFilter, `{"pod":{"metadata":{"name":"never"}}}`, `{"fits":false,"unresolvable":true,"reasons":["never runs"]}`, ""},
		{abi.SchedulingPreFilter, `{"pod":{"metadata":{"name":"skip"}}}`, `{"skip":true}`, ""},
		{abi.SchedulingPreFilter, `{"pod":{"metadata":{"name":"state"}}}`, `{"state":{"zone":"a"}}`, ""},
		{abi.SchedulingPreFilter, `{"pod":{"metadata":{"name":"narrow"}},"nodes":["a","b"]}`, `{"nodes":["a"]}`, ""},
		{abi.SchedulingPreFilter, `{"pod":{"metadata":{"name":"nowhere"}},"nodes":["a","b"]}`, `{"nodes":[]}`, ""},
		{abi.SchedulingPostFilter, `{"pod":{"metadata":{"name":"urgent"}},"failed":[{"node":"a"}]}`, `{"nominated":"a","evict":[{"namespace":"default","name":"victim","uid":"u1"}]}`, ""},
		{
			abi.SchedulingPostFilter, `{"pod":{"metadata":{"name":"owner"}},"failed":[]}`,
			`{"reclaim":[{"group":"a","keep":{"milliCPU":64000,"scalar":{"example.com/gpu":8}}},{"group":"b \"c\"","below":-100}]}`, "",
		},
		{abi.SchedulingPostFilter, `{"pod":{"metadata":{"name":"any"}},"failed":[]}`, `{"reasons":["nothing to evict"]}`, ""},
		{abi.SchedulingPreScore, `{"nodes":["a"]}`, `{"skip":true}`, ""},
		{abi.SchedulingPreScore, `{"nodes":["a","b","c"]}`, `{"state":3}`, ""},
		{abi.SchedulingNormalize, `{"state":3,"scores":[1,40,-2,0]}`, `[3,100,0,0]`, ""},
		{abi.SchedulingNormalize, `{"state":3,"scores":[]}`, `[]`, ""},
		{abi.SchedulingReserve, `{"nodeName":"full"}`, `{"allowed":false,"reasons":["node full is full"]}`, ""},
		{abi.SchedulingReserve, `{"nodeName":"a"}`, ``, ""},
		{abi.SchedulingUnreserve, `{"nodeName":"a"}`, ``, ""},
		{abi.SchedulingUnreserve, `{"nodeName":"broken"}`, ``, `it broke`},
		{abi.SchedulingPermit, `{"nodeName":"a"}`, ``, ""},
		{abi.SchedulingPermit, `{"nodeName":"hold","waitedSeconds":1.5}`, `{"decision":"wait","waitSeconds":2.5,"reasons":["hold on"]}`, ""},
		{abi.SchedulingPermit, `{"nodeName":"hold","waitedSeconds":7}`, ``, ""},
		{abi.SchedulingPermit, `{"nodeName":"no"}`, `{"decision":"deny","reasons":["no"]}`, ""},
		{abi.SchedulingPreBind, `{"nodeName":"unready"}`, `{"allowed":false,"reasons":["not ready"]}`, ""},
		{abi.SchedulingBind, `{"nodeName":"a"}`, ``, ""},
		{abi.SchedulingBind, `{"nodeName":"plain"}`, `{"annotations":{}}`, ""},
		{abi.SchedulingBind, `{"nodeName":"noted"}`, `{"annotations":{"example.com/by":"me \"x\""}}`, ""},
		{abi.SchedulingBind, `{"nodeName":"refused"}`, `{"allowed":false,"reasons":["not there"]}`, ""},
		{abi.SchedulingPostBind, `{"nodeName":"a"}`, ``, ""},
		{abi.SchedulingPostBind, `{"nodeName":"broken"}`, ``, `it broke`},
		{abi.SchedulingScore, `{"pods":4}`, `12`, ""},
		{abi.SchedulingScore, `{"pods":7}`, `30`, ""}, // a reply that is longer than the first buffer
		{abi.SchedulingScore, `{"pods":8}`, `99`, ""}, // a call that is refused
		{abi.NodeAdmission, `{"pod":{"spec":{"hostNetwork":true}}}`, `{"admitted":false,"reason":"HostNetwork","message":"no"}`, ""},
		{abi.NodeAdmission, `{"pod":{"spec":{}}}`, ``, ""},
		{
			abi.Reconcile, `{"namespace":"ns","name":"web","primary":{"spec":{"a":[1,"x"]}},"owned":[]}`,
			`{"apply":[{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"a":[1,"x"]}}],"delete":[],
			"conditions":[{"type":"Ready","status":"True","reason":"Made","message":"made it"}],
			"events":[{"type":"Normal","reason":"Made","message":"made web"}],"status":{"seen":true},"requeueSeconds":30}`, "",
		},
		{
			abi.Reconcile, `{"namespace":"ns","name":"web","primary":null}`,
			`{"apply":[],"delete":[{"apiVersion":"v1","kind":"Service","namespace":"ns","name":"web"}],"conditions":[],"events":[],"requeueSeconds":0}`, "",
		},
		{
			abi.Reconcile, `{"namespace":"ns","name":"db","primary":{}}`,
			`{"apply":[],"patch":[{"apiVersion":"apps/v1","kind":"Deployment","name":"db","subresource":"scale","patch":[
			{"op":"test","path":"/spec/replicas","value":3},{"op":"replace","path":"/spec/replicas","value":0}]}],
			"delete":[{"apiVersion":"v1","kind":"Service","name":"old","uid":"u-1","resourceVersion":"7","propagationPolicy":"Foreground"}],
			"conditions":[],"events":[],"requeueSeconds":0}`, "",
		},
		{abi.Reconcile, `{"namespace":"ns","name":"broken","primary":{}}`, ``, `broken "broken"`},
	} {
		got, err := g.ask(t, c.point, c.document)
		if c.err != "" {
			if !says(err, c.err) {
				t.Errorf("%s %s: error %v, want %s", c.point, c.document, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", c.point, c.document, err)
			continue
		}
		same(t, string(c.point)+" "+c.document, got, c.want)
		if err := abi.CheckAnswer(g.manifest.Hook(c.point), []byte(got),
			strings.Count(c.want, ",")+min(len(strings.Trim(c.want, "[]")), 1)); err != nil {
			t.Errorf("%s %s: the host refuses %s: %v", c.point, c.document, got, err)
		}
	}
	if _, _, err := g.Call(t.Context(), 77, nil); err == nil {
		t.Error("an operation that is not there answered")
	}
}

// judges writes a node table as a host does, makes it grow, and reads the verdicts.
func (g *guest) judges(t *testing.T) {
	t.Helper()
	err := g.With(t.Context(), func(in *host.Instance) error {
		for _, rows := range []int{3, 2, 500} {
			at, err := in.Invoke(t.Context(), "reserve", uint64(rows))
			if err != nil {
				return err
			}
			memory, ok := in.View(uint32(at), uint32(rows*16))
			if !ok || at%8 != 0 {
				return fmt.Errorf("reserve answered %#x", at)
			}
			want := make([]byte, rows)
			for i := range rows { // room for 10, then none, then 3
				pods, room := i, i+[]int{10, 0, 3}[i%3]
				binary.LittleEndian.PutUint64(memory[16*i:], uint64(pods))
				binary.LittleEndian.PutUint64(memory[16*i+8:], uint64(room))
				want[i] = []byte{11, 193, 128}[i%3]
			}
			for range 3 { // rows stay between calls
				input := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(rows)), 5)
				got, _, err := in.Call(t.Context(), g.manifest.Hook(abi.SchedulingTable).Op, input)
				if err != nil {
					return err
				}
				if !reflect.DeepEqual(got, want) {
					return fmt.Errorf("%d rows: verdicts %v, want %v", rows, got, want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
