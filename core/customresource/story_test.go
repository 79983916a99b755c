// SPDX-License-Identifier: Apache-2.0

package customresource_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
)

func TestADefinitionIsServedFromItsEstablishmentToItsEnd(t *testing.T) {
	c := start(t, clusterOptions{})
	tabs := c.in("crontabs.v1.stable.example.com")
	if _, err := tabs.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("before there is a definition: %v", err)
	}
	crd := c.define(crontabs)

	disc, err := discovery.NewDiscoveryClientForConfig(c.cfg)
	must(t, err)
	for _, legacy := range []bool{false, true} {
		disc.UseLegacyDiscovery = legacy
		want := []string{"crontabs CronTab ct all,mine", "crontabs/scale Scale  ", "crontabs/status CronTab  "}
		// What is served is listed a moment later.
		until(t, fmt.Sprintf("discovery lists the resource, legacy=%v", legacy), func() bool {
			_, lists, err := disc.ServerGroupsAndResources()
			must(t, err)
			var found []string
			for _, l := range lists {
				for _, r := range l.APIResources {
					if l.GroupVersion == "stable.example.com/v1" {
						found = append(found, r.Name+" "+r.Kind+" "+strings.Join(r.ShortNames, ",")+" "+strings.Join(r.Categories, ","))
					}
				}
			}
			slices.Sort(found)
			if len(found) > 0 && !slices.Equal(found, want) {
				t.Errorf("legacy=%v: discovery lists %q", legacy, found)
			}
			return len(found) > 0
		})
	}

	w, err := tabs.Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer w.Stop()
	made, err := tabs.Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{})
	must(t, err)
	if at(made, "spec.image") != "busybox" || made.GetGeneration() != 1 || made.GetUID() == "" {
		t.Errorf("created: %s", text(made))
	}
	kv, err := c.srv.Store.Get(t.Context(), "/registry/stable.example.com/crontabs/default/a")
	must(t, err)
	stored := map[string]any{}
	if err := json.Unmarshal(kv.Value, &stored); err != nil || stored["kind"] != "CronTab" || strings.Contains(string(kv.Value),
		"resourceVersion") {
		t.Errorf("stored as %s: %v", kv.Value, err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != "a" {
		t.Errorf("the watch saw %v", e)
	}
	must(t, c.crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	if e := <-w.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("the watch saw %v", e)
	}
	until(t, "the definition is gone", func() bool {
		_, err := c.crds.Get(t.Context(), crd.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	until(t, "the resource is gone", func() bool {
		_, err := tabs.List(t.Context(), metav1.ListOptions{})
		return apierrors.IsNotFound(err)
	})
	if _, err := c.srv.Store.Get(t.Context(), "/registry/stable.example.com/crontabs/default/a"); err == nil {
		t.Error("the object outlived its definition")
	}
}

func TestBodiesArePrunedDefaultedAndValidated(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	for name, story := range map[string]struct{ spec, want, refusal string }{
		"unknown fields are pruned":       {spec: `{cronSpec: "* * * * 5", more: {x: 1}}`, want: `{"cronSpec":"* * * * 5","image":"busybox","replicas":1}`},
		"nulls are dropped":               {spec: `{cronSpec: "* * * * 5", image: null, plain: null, note: null}`, want: `{"cronSpec":"* * * * 5","image":"busybox","note":null,"replicas":1}`},
		"anything is kept where said":     {spec: `{cronSpec: "* * * * 5", anything: {x: {z: [1, "2"]}}}`, want: `{"anything":{"x":{"z":[1,"2"]}},"cronSpec":"* * * * 5","image":"busybox","replicas":1}`},
		"embedded metadata is pruned":     {spec: `{cronSpec: "* * * * 5", pod: {apiVersion: v1, kind: Pod, metadata: {name: x, bogus: y}}}`, want: `{"cronSpec":"* * * * 5","image":"busybox","pod":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}},"replicas":1}`},
		"an integer or a string":          {spec: `{cronSpec: "* * * * 5", size: 50%}`, want: `{"cronSpec":"* * * * 5","image":"busybox","replicas":1,"size":"50%"}`},
		"neither integer nor string":      {spec: `{cronSpec: "* * * * 5", size: 1.5}`, refusal: `spec.size: Invalid value: "number": spec.size in body must be of type integer,string: "number"`},
		"the pattern does not match":      {spec: `{cronSpec: "5"}`, refusal: `spec.cronSpec: Invalid value: "5": spec.cronSpec in body should match '^(\S+ ){4}\S+$'`},
		"a required field":                {spec: `{}`, refusal: `spec.cronSpec: Required value`},
		"a wrong type":                    {spec: `{cronSpec: "* * * * 5", replicas: x}`, refusal: `spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"`},
		"a CEL rule with its own message": {spec: `{cronSpec: "* * * * 5", replicas: 11}`, refusal: `spec: Invalid value: at most ten replicas`},
		"a set with a double":             {spec: `{cronSpec: "* * * * 5", tags: [a, a]}`, refusal: `spec.tags[1]: Duplicate value: "a"`},
		"a map with a double":             {spec: `{cronSpec: "* * * * 5", ports: [{name: a}, {name: a}]}`, refusal: `spec.ports[1]: Duplicate value: {"name":"a"}`},
		"embedded object without a kind":  {spec: `{cronSpec: "* * * * 5", pod: {metadata: {name: x}}}`, refusal: `spec.pod.apiVersion: Required value`},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := tabs.Create(t.Context(), tab(t, "a", story.spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: "Ignore"})
			if story.refusal != "" {
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), story.refusal) {
					t.Errorf("refused with %v\nwant %s", err, story.refusal)
				}
				return
			}
			if err != nil || text(at(made, "spec")) != story.want {
				t.Errorf("%s\n%v\nwant %s", text(at(made, "spec")), err, story.want)
			}
		})
	}
	if l, err := tabs.List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) > 0 {
		t.Errorf("a dry run stored %d objects, %v", len(l.Items), err)
	}
}

func TestUnknownAndDoubleFieldsAreRefusedToldOrIgnored(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	body := `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a","bogus":1},"spec":{"cronSpec":"* * * * 5","more":1,"plain":"x","plain":"y"}}`
	post := func(validation string) (int, string, []string) {
		t.Helper()
		client, err := restClient(c)
		must(t, err)
		r := client.Post().AbsPath("/apis/stable.example.com/v1/namespaces/default/crontabs").Param("dryRun", "All").Param("fieldValidation",
			validation).
			SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context())
		var code int
		r.StatusCode(&code)
		var warnings []string
		for _, w := range r.Warnings() {
			warnings = append(warnings, w.Text)
		}
		data, _ := r.Raw()
		return code, string(data), warnings
	}
	code, said, _ := post("Strict")
	want := `strict decoding error: duplicate field \"spec.plain\", unknown field \"metadata.bogus\", unknown field \"spec.more\"`
	if code != http.StatusBadRequest || !strings.Contains(said, `CronTab in version \"v1\" cannot be handled as a CronTab: `+want) {
		t.Errorf("Strict: %d %s", code, said)
	}
	code, _, warnings := post("Warn")
	if code != http.StatusCreated || !slices.Equal(warnings, []string{
		`duplicate field "spec.plain"`, `unknown field "metadata.bogus"`,
		`unknown field "spec.more"`,
	}) {
		t.Errorf("Warn: %d %q", code, warnings)
	}
	code, said, warnings = post("Ignore")
	if code != http.StatusCreated || len(warnings) > 0 || strings.Contains(said, "bogus") || !strings.Contains(said, `"plain":"y"`) {
		t.Errorf("Ignore: %d %s %q", code, said, warnings)
	}
}

func TestSpecAndStatusHaveTheirOwnWriters(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	wanted := tab(t, "a", `{cronSpec: "* * * * 5"}`)
	wanted.Object["status"] = map[string]any{"phase": "Busy"}
	made, err := tabs.Create(t.Context(), wanted, metav1.CreateOptions{})
	must(t, err)
	if at(made, "status") != nil {
		t.Errorf("a create set the status: %s", text(made))
	}
	patched, err := tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"plain":"x"},"status":{"phase":"Busy"}}`),
		metav1.PatchOptions{}, "status")
	must(t, err)
	if at(patched, "status.phase") != "Busy" || at(patched, "spec.plain") != nil || patched.GetGeneration() != 1 {
		t.Errorf("a write of the status: %s", text(patched))
	}
	patched, err = tabs.Patch(t.Context(), "a", types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/replicas","value":2},{"op":"replace","path":"/status/phase","value":"Idle"}]`), metav1.PatchOptions{})
	must(t, err)
	if at(patched, "status.phase") != "Busy" || at(patched, "spec.replicas") != int64(2) || patched.GetGeneration() != 2 {
		t.Errorf("a write of the spec: %s", text(patched))
	}
	labelled, err := tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	if err != nil || labelled.GetGeneration() != 2 {
		t.Errorf("metadata counts as a change of the spec: %d %v", labelled.GetGeneration(), err)
	}
	same, err := tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	if err != nil || same.GetResourceVersion() != labelled.GetResourceVersion() {
		t.Errorf("a patch that changes nothing was stored: %v", err)
	}
	_, err = tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":"Dead"}}`), metav1.PatchOptions{}, "status")
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		`status.phase: Unsupported value: "Dead": supported values: "Idle", "Busy"`) {
		t.Errorf("a wrong status: %v", err)
	}
	_, err = tabs.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	if !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("a strategic merge: %v", err)
	}
	made.SetResourceVersion("")
	if _, err := tabs.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		"metadata.resourceVersion: Invalid value: 0: must be specified for an update") {
		t.Errorf("an update without a resourceVersion: %v", err)
	}
}

func TestRulesSeeWhatWasAndOldFaultsMayStay(t *testing.T) {
	c := start(t, clusterOptions{})
	crd := c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	_, err := tabs.Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5", plain: short}`), metav1.CreateOptions{})
	must(t, err)
	_, err = tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"image":"other"}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `spec.image: Invalid value: "other": image is immutable`) {
		t.Errorf("a transition rule: %v", err)
	}
	c.redefine(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		plain := spec.Properties["plain"]
		least := int64(10)
		plain.MinLength = &least
		spec.Properties["plain"] = plain
	})
	if _, err := tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a field that nobody touched was held against the new schema: %v", err)
	}
	if _, err := tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"plain":"new"}}`),
		metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a changed field was not: %v", err)
	}
}

func TestObjectsAreScaled(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	_, err := tabs.Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{FieldManager: "maker"})
	must(t, err)
	_, err = tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"replicas":7,"selector":"a=b"}}`), metav1.PatchOptions{},
		"status")
	must(t, err)
	scale, err := tabs.Get(t.Context(), "a", metav1.GetOptions{}, "scale")
	must(t, err)
	if scale.GetKind() != "Scale" || at(scale, "spec.replicas") != int64(1) || at(scale, "status.replicas") != int64(7) ||
		at(scale, "status.selector") != "a=b" {
		t.Errorf("%s", text(scale))
	}
	must(t, unstructured.SetNestedField(scale.Object, int64(3), "spec", "replicas"))
	_, err = tabs.Update(t.Context(), scale, metav1.UpdateOptions{FieldManager: "scaler"}, "scale")
	must(t, err)
	_, err = tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`),
		metav1.PatchOptions{FieldManager: "scaler"}, "scale")
	must(t, err)
	now, err := tabs.Get(t.Context(), "a", metav1.GetOptions{})
	must(t, err)
	if at(now, "spec.replicas") != int64(4) || now.GetGeneration() != 3 {
		t.Errorf("%s", text(now))
	}
	apply := []byte(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a"},"spec":{"replicas":5}}`)
	if _, err := tabs.Patch(t.Context(), "a", types.ApplyPatchType, apply, metav1.PatchOptions{FieldManager: "hpa"},
		"scale"); !apierrors.IsConflict(err) {
		t.Errorf("who owns the replicas was not asked: %v", err)
	}
	force := true
	applied, err := tabs.Patch(t.Context(), "a", types.ApplyPatchType, apply, metav1.PatchOptions{FieldManager: "hpa", Force: &force}, "scale")
	if err != nil || at(applied, "spec.replicas") != int64(5) {
		t.Errorf("%s %v", text(applied), err)
	}
	now, err = tabs.Get(t.Context(), "a", metav1.GetOptions{})
	must(t, err)
	if !strings.Contains(text(now.GetManagedFields()), `"manager":"hpa"`) {
		t.Errorf("the parent does not know who scaled it: %s", text(now.GetManagedFields()))
	}
	for _, bad := range []string{`{"spec":{"replicas":-1}}`, `{"spec":{"replicas":11}}`, `{"spec":{"replicas":null}}`} {
		if _, err := tabs.Patch(t.Context(), "a", types.MergePatchType, []byte(bad), metav1.PatchOptions{},
			"scale"); bad != `{"spec":{"replicas":null}}` && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestAppliedObjectsAreMergedByTheirSchema(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	apply := func(who, spec string, force bool) (*unstructured.Unstructured, error) {
		return tabs.Apply(t.Context(), "a", tab(t, "a", spec), metav1.ApplyOptions{FieldManager: who, Force: force})
	}
	_, err := apply("jane", `{cronSpec: "* * * * 5", ports: [{name: a, port: 1}], tags: [x]}`, false)
	must(t, err)
	both, err := apply("joe", `{cronSpec: "* * * * 5", ports: [{name: b, port: 2}], tags: [z]}`, false)
	must(t, err)
	if got := text(at(both, "spec.ports")) + text(at(both, "spec.tags")); got != `[{"name":"a","port":1},{"name":"b","port":2}]["x","z"]` {
		t.Errorf("merged to %s", got)
	}
	_, err = apply("joe", `{cronSpec: "* * * * 6"}`, false)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "jane": .spec.cronSpec`) {
		t.Errorf("%v", err)
	}
	left, err := apply("jane", `{cronSpec: "* * * * 5"}`, false)
	if err != nil || text(at(left, "spec.ports")) != `[{"name":"b","port":2}]` {
		t.Errorf("what jane applies no more stays: %s %v", text(left), err)
	}
	if _, err := apply("jane", `{cronSpec: "* * * * 5", more: 1}`, false); err == nil || !strings.Contains(err.Error(), ".spec.more: field not declared in schema") {
		t.Errorf("an unknown field: %v", err)
	}
	same, err := apply("jane", `{cronSpec: "* * * * 5"}`, false)
	if err != nil || same.GetResourceVersion() != left.GetResourceVersion() {
		t.Errorf("applying the same again was stored: %v", err)
	}
}

// A text of half a MiB against a pattern of two thousand instructions takes a processor for seconds, and no deadline ends it.
// What is stored may stay, so that its finalizers can go.
func TestLongTextsAreNotHeldAgainstLargePatterns(t *testing.T) {
	c := start(t, clusterOptions{})
	crd := c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	long := strings.Repeat("a", 500_000)
	before, err := tabs.Create(t.Context(), tab(t, "before", `{cronSpec: "* * * * 5", plain: `+long+`}`), metav1.CreateOptions{})
	must(t, err)
	c.redefine(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		plain := spec.Properties["plain"]
		plain.Pattern = "^([a-z]{0,30}){0,30}$"
		spec.Properties["plain"] = plain
	})
	_, err = tabs.Create(t.Context(), tab(t, "after", `{cronSpec: "* * * * 5", plain: `+long+`}`), metav1.CreateOptions{})
	const tooLong = "spec.plain: Forbidden: the texts of the object are too long for their patterns"
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tooLong) {
		t.Errorf("a long text: %.300v", err)
	}
	_, err = tabs.Create(t.Context(), tab(t, "short", `{cronSpec: "* * * * 5", plain: aaa}`), metav1.CreateOptions{})
	must(t, err)
	label := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	if _, err := tabs.Patch(t.Context(), before.GetName(), types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Errorf("an object from before: %.300v", err)
	}
}

// TestAnObjectOfManyErrorsIsNotLookedAtToItsEnd: 50,000 entries of the wrong type were compared with each other until long after
// the request's end.
func TestAnObjectOfManyErrorsIsNotLookedAtToItsEnd(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	tags := make([]string, 50_000)
	for i := range tags {
		tags[i] = strconv.Itoa(i)
	}
	wrong := tab(t, "wrong", `{cronSpec: "* * * * 5", tags: [`+strings.Join(tags, ", ")+`]}`)
	_, err := tabs.Create(t.Context(), wrong, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `spec.tags[249]: Invalid value: "integer"`) ||
		!strings.Contains(err.Error(), "after 250 errors the object is not held against its schema any further") {
		t.Errorf("%.1000v", err)
	}
}
