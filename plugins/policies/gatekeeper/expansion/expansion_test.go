// SPDX-License-Identifier: Apache-2.0

package expansion_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
)

// template is one from a kind of group g to another.
func template(name, from, to string) string {
	return fmt.Sprintf(`{apiVersion: expansion.gatekeeper.sh/v1alpha1, kind: ExpansionTemplate, metadata: {name: %s}, spec: {
  applyTo: [{groups: [g], versions: [v1], kinds: [%s]}], templateSource: spec.template,
	generatedGVK: {group: g, version: v1, kind: %s}}}`, name, from, to)
}

func read(t *testing.T, texts ...string) (out []*expansion.Template) {
	t.Helper()
	for _, text := range texts {
		one, err := expansion.Read(plugintest.Object(t, text))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, one)
	}
	return out
}

func target(t *testing.T, text string) *gatekeeper.Target {
	t.Helper()
	u := unstructured.Unstructured{Object: plugintest.Object(t, text)}
	return &gatekeeper.Target{Object: u.Object, Kind: u.GroupVersionKind(), Namespace: "shop", Source: gatekeeper.Original}
}

func TestAGeneratorIsExpandedIntoWhatItMakes(t *testing.T) {
	mutator, err := mutation.Read(plugintest.Object(t, `{apiVersion: mutations.gatekeeper.sh/v1, kind: Assign, metadata: {name: m}, spec: {
  applyTo: [{groups: [g], versions: [v1], kinds: [Job, Pod]}], match: {source: Generated}, location: spec.owner,
	parameters: {assign: {fromMetadata: {field: name}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	set := expansion.NewSet(read(t, template("of-cron", "CronJob", "Job"), template("of-job", "Job", "Pod")))
	of := target(t, `{apiVersion: g/v1, kind: CronJob, metadata: {name: Night, namespace: shop}, spec: {template: {metadata: {labels: {a: b}},
  spec: {template: {spec: {containers: [{name: a}]}}}}}}`)
	out, err := set.Expand(of, mutation.NewSet([]*mutation.Mutator{mutator}))
	if err != nil || len(out) != 2 {
		t.Fatalf("%d objects, error %v", len(out), err)
	}
	job := plugintest.Object(t, `{apiVersion: g/v1, kind: Job, metadata: {name: night-job, namespace: shop, labels: {a: b}},
  spec: {owner: night-job, template: {spec: {containers: [{name: a}]}}}}`)
	pod := plugintest.Object(t, `{apiVersion: g/v1, kind: Pod, metadata: {name: night-job-pod, namespace: shop}, spec: {owner: night-job-pod, containers: [{name: a}]}}`)
	for i, want := range []map[string]any{job, pod} {
		if !reflect.DeepEqual(out[i].Object, want) {
			t.Errorf("got %v\nwant %v", out[i].Object, want)
		}
	}
	if got := out[1].Message("no"); got != "[Implied by of-job] no" {
		t.Error(got)
	}
	if _, there, _ := unstructured.NestedString(of.Object, "spec", "template", "kind"); there {
		t.Error("the generator itself was changed")
	}
}

func TestTemplatesThatLeadBackAreLeftOut(t *testing.T) {
	list := read(t, template("ab", "A", "B"), template("bc", "B", "C"), template("ca", "C", "A"), template("bx", "B", "X"))
	set := expansion.NewSet(list)
	for i, want := range [][]string{{"ab", "bc", "ca"}, {"ab", "bc", "ca"}, {"ab", "bc", "ca"}, nil} {
		if got := set.Cycle(list[i]); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, want %q", list[i].Name, got, want)
		}
	}
	out, err := set.Expand(target(t, `{apiVersion: g/v1, kind: B, metadata: {name: b}, spec: {template: {}}}`), nil)
	if err != nil || len(out) != 1 || out[0].Kind.Kind != "X" {
		t.Errorf("%v, error %v", out, err)
	}
}

func TestWhatIsMadeIsBounded(t *testing.T) {
	var wide, deep []string
	for i := range 101 {
		wide = append(wide, template(fmt.Sprintf("w%03d", i), "A", fmt.Sprintf("B%d", i)))
	}
	spec := "{}"
	for i := range 31 {
		deep = append(deep, template(fmt.Sprintf("d%d", i), fmt.Sprintf("A%d", i), fmt.Sprintf("A%d", i+1)))
		spec = "{spec: {template: " + spec + "}}"
	}
	for text, templates := range map[string][]string{
		`{apiVersion: g/v1, kind: A, metadata: {name: a}, spec: {template: {}}}`:            wide,
		`{apiVersion: g/v1, kind: A0, metadata: {name: a}, spec: {template: ` + spec + `}}`: deep,
	} {
		if _, err := expansion.NewSet(read(t, templates...)).Expand(target(t, text), nil); err == nil ||
			!strings.Contains(err.Error(), "more than 100 objects") {
			t.Errorf("%v", err)
		}
	}
}

func TestWhatIsWrongWithATemplateIsNamed(t *testing.T) {
	good := template("a", "A", "B")
	for text, want := range map[string]string{
		template("a", "A", "A"):                                              "makes such again",
		strings.Replace(good, "spec.template", `""`, 1):                      "spec.templateSource",
		strings.Replace(good, "version: v1, kind: B", "kind: B", 1):          "spec.generatedGVK",
		strings.Replace(good, "groups: [g], ", "", 1):                        "spec.applyTo[0]",
		strings.Replace(good, "spec: {", "spec: {enforcementAction: x, ", 1): "spec.enforcementAction",
		strings.Replace(good, "spec: {", "spec: {more: x, ", 1):              `the field "more"`,
		template(strings.Repeat("a", 64), "A", "B"):                          "metadata.name",
	} {
		if _, err := expansion.Read(plugintest.Object(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q for %s", err, want, text)
		}
	}
	set := expansion.NewSet(read(t, good))
	for text, want := range map[string]string{
		`{apiVersion: g/v1, kind: A, metadata: {name: a}, spec: {}}`:            "the object has no spec.template",
		`{apiVersion: g/v1, kind: A, metadata: {name: a}, spec: {template: x}}`: "is no object",
	} {
		if _, err := set.Expand(target(t, text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
