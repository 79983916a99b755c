// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
	pointcustom "github.com/wasmplane/wasmplane/plugins/point/customresource"
)

var (
	crontabs = schema.GroupResource{Group: "example.wasmplane.dev", Resource: "crontabs"}
	v1, v2   = schema.GroupVersion{Group: crontabs.Group, Version: "v1"}, schema.GroupVersion{Group: crontabs.Group, Version: "v2"}
)

func crontab(t *testing.T, version, spec string) *unstructured.Unstructured {
	t.Helper()
	text := fmt.Sprintf("apiVersion: %s/%s\nkind: CronTab\nmetadata: {name: nightly, namespace: default, labels: {team: web}}\nspec: %s", crontabs.Group, version, spec)
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func change(o, old *unstructured.Unstructured) extension.Change {
	return extension.Change{
		Resource: crontabs.WithVersion(o.GroupVersionKind().Version), Object: o, Old: old,
		User: &user.DefaultInfo{Name: "jane", Groups: []string{"staff"}},
	}
}

func TestAPluginConvertsCustomResources(t *testing.T) {
	set := pointcustom.NewSet(loaded(t, "crontab").CustomResources)
	c := set.Converter("crontab", crontabs)
	if c == nil {
		t.Fatal("there is no converter")
	}
	first := crontab(t, "v1", `{cron: "30 3 * * 1-5", image: "job:1"}`)
	before := first.DeepCopy()
	out, err := c.Convert(t.Context(), []*unstructured.Unstructured{first, crontab(t, "v1", "{cron: 0 0 1 1 *}")}, v2)
	if err != nil || len(out) != 2 {
		t.Fatalf("%v %v", out, err)
	}
	schedule, _, _ := unstructured.NestedStringMap(out[0].Object, "spec", "schedule")
	if out[0].GetAPIVersion() != v2.String() || schedule["weekday"] != "1-5" || out[0].GetLabels()["team"] != "web" {
		t.Errorf("%v", out[0].Object)
	}
	if fmt.Sprint(first.Object) != fmt.Sprint(before.Object) {
		t.Errorf("what it was given has changed: %v", first.Object)
	}
	if back, err := c.Convert(t.Context(), out[:1], v1); err != nil || fmt.Sprint(back[0].Object) != fmt.Sprint(before.Object) {
		t.Errorf("there and back again: %v %v", back, err)
	}
	_, err = c.Convert(t.Context(), []*unstructured.Unstructured{crontab(t, "v1", "{cron: now}")}, v2)
	if want := `plugin "crontab" refused to convert CronTab default/nightly: spec.cron: "now" has 1 fields instead of 5`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if set.Converter("another", crontabs) != nil {
		t.Error("there is a plugin that nobody loaded")
	}
	_, err = set.Converter("crontab", schema.GroupResource{Group: "example.com", Resource: "tabs"}).Convert(t.Context(),
		[]*unstructured.Unstructured{first}, v2)
	if err == nil || !strings.Contains(err.Error(), `plugin "crontab" does not convert tabs.example.com: the rules of its hook`) {
		t.Errorf("a resource that its rules do not name: %v", err)
	}
	if set.Converter("crontab", schema.GroupResource{Group: manifest.APIGroup, Resource: "plugins"}) != nil {
		t.Error("plugins are converted by plugins")
	}
}

func TestAPluginValidatesCustomResources(t *testing.T) {
	wrong := crontab(t, "v2", `{schedule: {minute: "61", hour: "25"}}`)
	judge := func(t *testing.T, o *unstructured.Unstructured, more ...string) (extension.Judgement, error) {
		t.Helper()
		validators := pointcustom.NewSet(loaded(t, "crontab", more...).CustomResources).Validators(crontabs)
		if len(validators) != 1 {
			t.Fatalf("%d validators", len(validators))
		}
		return validators[0].Validate(t.Context(), change(o, nil))
	}
	const finding = `[spec.schedule.minute: Invalid value: "61": 61 is not from 0 to 59 (plugin "crontab"), spec.schedule.hour: Invalid value: "25": 25 is not from 0 to 23 (plugin "crontab")]`
	got, err := judge(t, wrong)
	if err != nil || got.Wrong.ToAggregate().Error() != finding {
		t.Errorf("%v %v, want %s", got.Wrong, err, finding)
	}
	if got, err := judge(t, crontab(t, "v2", "{schedule: {}}")); err != nil || len(got.Wrong)+len(got.Warnings) > 0 {
		t.Errorf("%v %v", got, err)
	}
	if got, err := judge(t, wrong, "match: {conditions: [{name: c, expression: 'object.metadata.name != \"nightly\"'}]}"); err != nil ||
		len(got.Wrong) > 0 {
		t.Errorf("what the entry leaves out is judged: %v %v", got, err)
	}
	points := "points: [customresource.validate]"
	if got, err := judge(t, wrong, points, "mode: Warn"); err != nil || len(got.Wrong) > 0 || len(got.Warnings) != 1 ||
		got.Warnings[0] != `plugin "crontab" would refuse this: spec.schedule.minute: 61 is not from 0 to 59; spec.schedule.hour: 25 is not from 0 to 23` {
		t.Errorf("Warn: %v %v", got, err)
	}
	if got, err := judge(t, wrong, points, "mode: Audit"); err != nil || len(got.Wrong)+len(got.Warnings) > 0 ||
		got.Annotations["crontab/would-refuse"] == "" {
		t.Errorf("Audit: %v %v", got, err)
	}
	if got, err := judge(t, wrong, points, "mode: Shadow"); err != nil || len(got.Wrong)+len(got.Warnings)+len(got.Annotations) > 0 {
		t.Errorf("Shadow: %v %v", got, err)
	}
	if got, err := judge(t, wrong, "limits: {fuel: 100}"); err == nil || !strings.Contains(err.Error(),
		"a plugin failed at customresource.validate, and its failurePolicy is Fail") || !strings.Contains(err.Error(), "fuel") {
		t.Errorf("out of fuel: %v %v", got, err)
	}
	if got, err := judge(t, wrong, "limits: {fuel: 100}", "failurePolicy: Ignore"); err != nil || len(got.Wrong) > 0 ||
		got.Annotations["crontab/failed-open"] == "" {
		t.Errorf("out of fuel, ignored: %v %v", got, err)
	}
	if len(pointcustom.NewSet(loaded(t, "crontab").CustomResources).Validators(schema.GroupResource{
		Group:    "example.com",
		Resource: "tabs",
	})) > 0 {
		t.Error("resources that no rule names are judged")
	}
}

// What hostile modules answer.
const (
	another = `{"object":{"apiVersion":"example.wasmplane.dev/v2","kind":"CronTab","metadata":{"name":"another"}}}`
	patched = `{"patch":[{"op":"replace","path":"/apiVersion","value":7}]}`
)

// hostile is a module whose hooks at custom resources do what a body in the text format says.
func hostile(t *testing.T, body string) string {
	t.Helper()
	const about = `{"abi":1,"name":"hostile","hooks":[{"op":1,"point":"customresource.convert"},{"op":2,"point":"customresource.validate"}]}`
	m, err := wat.Assemble(fmt.Sprintf(`(module (memory (export "memory") 2)
		(data (i32.const 1024) %q)
		(data (i32.const 4096) %q)
		(data (i32.const 5120) %q)
		(data (i32.const 6144) "[1")
		(func (export "describe") (result i64) (i64.const %d))
		(func (export "alloc") (param i32) (result i32) (i32.const 65536))
		(func (export "call") (param i32 i32 i32) (result i64) %s))`, about, another, patched, int64(1024)<<32|int64(len(about)), body))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "hostile.wasm")
	if err := os.WriteFile(file, m, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAHostileConverterHarmsItsOwnResourceOnly(t *testing.T) {
	for name, c := range map[string]struct{ body, problem string }{
		"a trap":                 {"unreachable", "unreachable"},
		"an endless loop":        {"(loop $l (br $l)) (i64.const 0)", "fuel"},
		"an answer from nowhere": {"(i64.const 0x7fffffff00000010)", "outside"},
		"no JSON":                {fmt.Sprintf("(i64.const %d)", int64(6144)<<32|2), "no admission answer"},
		"a patch of the version": {fmt.Sprintf("(i64.const %d)", int64(5120)<<32|int64(len(patched))), ""},
		"an object of its own":   {fmt.Sprintf("(i64.const %d)", int64(4096)<<32|int64(len(another))), ""},
		"nothing":                {"(i64.const 0)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLoader(t,
				loader.Config{
					InProcess: true,
					Entries:   entries(t, "plugins: [{name: hostile, source: 'file:"+hostile(t, c.body)+"', limits: {fuel: 100000}}]"),
				})
			if err := l.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			set := pointcustom.NewSet(l.CustomResources)
			out, err := set.Converter("hostile", crontabs).Convert(t.Context(), []*unstructured.Unstructured{crontab(t, "v1", "{cron: 0 0 * * *}")},
				v2)
			switch {
			case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem) || !strings.Contains(err.Error(), "hostile")):
				t.Errorf("%v %v, want %q", out, err, c.problem)
			case c.problem == "" && (err != nil || len(out) != 1): // whether it is the same object is held by who asked
				t.Errorf("%v", out)
			}
		})
	}
}

func TestConversionIsEnforcedOrNotAtAll(t *testing.T) {
	plugintest.Example(t, "crontab")
	l := newLoader(t, loader.Config{
		InProcess: true, Dir: plugintest.Root(t),
		Entries: entries(t, "plugins: [{name: crontab, source: 'file:build/wasm/crontab.wasm', mode: Audit}]"),
	})
	err := l.Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "mode Audit: customresource.convert either converts objects or does not; leave the point out of the entry's points") {
		t.Errorf("%v", err)
	}
}

func TestConvertersThatChangeAreKnown(t *testing.T) {
	l := loaded(t, "crontab")
	set := pointcustom.NewSet(l.CustomResources)
	if got := set.Changed(); !got["crontab"] || len(got) != 1 {
		t.Errorf("a new one: %v", got)
	}
	if got := set.Changed(); len(got) != 0 {
		t.Errorf("nothing happened: %v", got)
	}
	again := entries(t, "plugins: [{name: crontab, source: 'file:build/wasm/crontab.wasm', limits: {fuel: 1000000}}]")
	if err := l.Apply(t.Context(), loader.File, again); err != nil {
		t.Fatal(err)
	}
	if got := set.Changed(); !got["crontab"] {
		t.Errorf("another entry: %v", got)
	}
	if err := l.Apply(t.Context(), loader.File, nil); err != nil {
		t.Fatal(err)
	}
	if got := set.Changed(); !got["crontab"] || set.Converter("crontab", crontabs) != nil {
		t.Errorf("one that is gone: %v", got)
	}
}
