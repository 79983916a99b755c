// SPDX-License-Identifier: Apache-2.0

package policyobject_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
)

const (
	template = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: some, uid: t1, generation: 1}
spec:
  crd: {spec: {names: {kind: Some}}}
  targets: [{target: admission.k8s.gatekeeper.sh, rego: "package some\nviolation[{\"msg\": \"x\"}] { true }"}]
`
	constraint = `
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: Some
metadata: {name: one, uid: c1, generation: 1, annotations: {plugins.wasmplane.dev/writer: '{"username":"jane"}'}}
spec: {parameters: {a: 1}}
`
	policy = `
apiVersion: policies.kubewarden.io/v1
kind: AdmissionPolicy
metadata: {name: p, namespace: red, uid: p1, generation: 1, annotations: {plugins.wasmplane.dev/writer: '{"username":"tina"}'}}
spec: {module: "a.example/b@sha256:0000000000000000000000000000000000000000000000000000000000000000", rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]}
`
)

var (
	constraints = schema.GroupVersionResource{Group: gatekeeper.ConstraintGroup, Version: gatekeeper.ConstraintVersion, Resource: "some"}
	namespaced  = policyobject.KubewardenResource("AdmissionPolicy")
)

// world is a cluster without a server, and a controller in it.
type world struct {
	t         *testing.T
	client    *fake.FakeDynamicClient
	installed []string
	refuse    error // to install definitions
}

// mapper serves no kinds that are looked up.
type mapper struct{ meta.RESTMapper }

func (mapper) Reset() {}

func (mapper) RESTMapping(k schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	return nil, &meta.NoKindMatchError{GroupKind: k}
}

// within runs a story beside a controller, in virtual time.
func within(t *testing.T, story func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		kinds := map[schema.GroupVersionResource]string{
			plugindefinition.Resource(): "PluginList", plugindefinition.TenantResource(): "TenantPluginList",
			policyobject.Templates(): "ConstraintTemplateList",
			constraints:              "SomeList",
		}
		for _, kind := range []string{"ClusterAdmissionPolicy", "AdmissionPolicy", "ClusterAdmissionPolicyGroup", "AdmissionPolicyGroup"} {
			kinds[policyobject.KubewardenResource(kind)] = kind + "List"
		}
		for _, kind := range slices.Concat(kyverno.Kinds(), kyverno.ImageKinds(), []string{kyverno.ExceptionKind}) {
			kinds[policyobject.KyvernoResource(kind)] = kind + "List"
		}
		for _, r := range policyobject.Settings() {
			kinds[r] = "SettingsList"
		}
		for _, kind := range mutation.Kinds() {
			kinds[policyobject.MutatorResource(kind)] = kind + "List"
		}
		kinds[policyobject.ExpansionTemplates()] = "ExpansionTemplateList"
		for r, kind := range inCEL {
			kinds[r] = kind + "List"
		}
		w := &world{t: t, client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)}
		c := policyobject.New(policyobject.Config{
			Client: w.client, Mapper: mapper{}, Enabled: []string{policyobject.Gatekeeper, policyobject.Kubewarden, policyobject.Kyverno},
			Install: func(_ context.Context, d *apiextensionsv1.CustomResourceDefinition) error {
				w.installed = append(w.installed, d.Name)
				return w.refuse
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		story(w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// pass lets the controller do all that there is to do.
func (w *world) pass() {
	time.Sleep(30 * time.Second) // virtual
	synctest.Wait()
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(b); err != nil {
		t.Fatal(err)
	}
	return o
}

func (w *world) put(r schema.GroupVersionResource, text string) {
	w.t.Helper()
	o := parse(w.t, text)
	c := w.client.Resource(r).Namespace(o.GetNamespace())
	_, err := c.Create(w.t.Context(), o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = c.Update(w.t.Context(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.pass()
}

func (w *world) get(r schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	w.t.Helper()
	o, err := w.client.Resource(r).Namespace(namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

func (w *world) remove(r schema.GroupVersionResource, namespace, name string) {
	w.t.Helper()
	if err := w.client.Resource(r).Namespace(namespace).Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.pass()
}

func (w *world) plugin() *unstructured.Unstructured {
	return w.get(plugindefinition.Resource(), "", "some.one")
}

func text(o *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, path...)
	return s
}

// message is that of an object's condition Ready.
func message(o *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		m, _ := c.(map[string]any)
		s, _ := m["message"].(string)
		return s
	}
	return ""
}

func must(t *testing.T, o *unstructured.Unstructured) []byte {
	t.Helper()
	b, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAPluginFollowsItsPolicy(t *testing.T) {
	within(t, func(w *world) {
		w.put(policyobject.Templates(), template)
		if !slices.Equal(w.installed, []string{"some.constraints.gatekeeper.sh"}) {
			t.Fatalf("installed %v", w.installed)
		}
		if created, _, _ := unstructured.NestedBool(w.get(policyobject.Templates(), "", "some").Object, "status", "created"); !created {
			t.Error("the template does not say that its kind can be used")
		}
		w.put(constraints, constraint)
		p := w.plugin()
		if p == nil {
			t.Fatal("no plugin was made")
		}
		if a := p.GetAnnotations()[apiobject.WriterAnnotation]; a != `{"username":"jane"}` {
			t.Errorf("written by %s", a)
		}
		if refs := p.GetOwnerReferences(); len(refs) != 1 || refs[0].UID != types.UID("c1") {
			t.Errorf("owned by %v", refs)
		}
		if m := message(w.get(constraints, "", "one")); m != "its plugin some.one is being loaded" {
			t.Errorf("the constraint says %q", m)
		}
		// It changes with the constraint, and with the template; what others change in it is put back.
		w.put(constraints,
			strings.NewReplacer("generation: 1", "generation: 2", "{parameters", "{enforcementAction: warn, parameters").Replace(constraint))
		if mode := text(w.plugin(), "spec", "mode"); mode != "Warn" {
			t.Errorf("mode %s after a change of the constraint", mode)
		}
		w.put(policyobject.Templates(), strings.NewReplacer("generation: 1", "generation: 2", `\"x\"`, `\"y\"`).Replace(template))
		if rego := text(w.plugin(), "spec", "rego", "text"); !strings.Contains(rego, `"y"`) {
			t.Errorf("%s after a change of the template", rego)
		}
		if notes := w.plugin().GetAnnotations(); len(notes) != 1 {
			t.Errorf("annotations %v of a constraint that does the same everywhere", notes)
		}
		w.put(constraints, strings.NewReplacer("generation: 1", "generation: 3", "{parameters",
			"{enforcementAction: scoped, scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: validation.gatekeeper.sh}]}, "+
				"{action: deny, enforcementPoints: [{name: audit.gatekeeper.sh}]}], parameters").Replace(constraint))
		p = w.plugin()
		if mode, action := text(p, "spec", "mode"), p.GetAnnotations()[policies.ActionAnnotation]; mode != "Warn" || action != "deny" {
			t.Errorf("mode %s at requests, %q at stored objects", mode, action)
		}
		w.put(constraints, strings.NewReplacer("generation: 1", "generation: 4", "{parameters",
			"{enforcementAction: scoped, scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: validation.gatekeeper.sh}]}], parameters").
			Replace(constraint))
		if notes := w.plugin().GetAnnotations(); notes[policies.BackgroundAnnotation] != "false" || notes[policies.ActionAnnotation] != "" {
			t.Errorf("annotations %v where stored objects are not judged", notes)
		}
		changed := w.plugin()
		changed.SetGeneration(7)
		if err := unstructured.SetNestedField(changed.Object, "Shadow", "spec", "mode"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Resource(plugindefinition.Resource()).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass()
		if mode := text(w.plugin(), "spec", "mode"); mode != "Warn" {
			t.Errorf("mode %s, which somebody wrote on the plugin", mode)
		}
		// What the scan of stored objects writes beside it stays.
		scanned := w.get(constraints, "", "one")
		if err := unstructured.SetNestedField(scanned.Object, int64(3), "status", "totalViolations"); err != nil {
			t.Fatal(err)
		}
		w.put(constraints, string(must(t, scanned)))
		changed = w.plugin()
		changed.Object["status"] = map[string]any{"observedGeneration": changed.GetGeneration(), "conditions": []any{
			map[string]any{"type": apiobject.Ready, "status": "True", "reason": "Loaded", "message": "it answers"},
			map[string]any{"type": apiobject.Updated, "status": "True", "reason": "Loaded", "message": "it is new"},
		}}
		if _, err := w.client.Resource(plugindefinition.Resource()).UpdateStatus(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass()
		o := w.get(constraints, "", "one")
		n, _, _ := unstructured.NestedInt64(o.Object, "status", "totalViolations")
		if m := message(o); m != "by its plugin some.one: it answers" || n != 3 {
			t.Errorf("the constraint says %q, and %v violations", m, n)
		}
		w.remove(constraints, "", "one")
		if w.plugin() != nil {
			t.Error("the plugin stays without its policy")
		}
	})
}

// TestWhatIsSaidOfAllConstraints: kinds that they see, and namespaces in which none holds.
func TestWhatIsSaidOfAllConstraints(t *testing.T) {
	within(t, func(w *world) {
		w.put(policyobject.Templates(), strings.Replace(template, "{ true }", "{ data.inventory.cluster }", 1))
		w.put(constraints, constraint)
		if m := message(w.get(constraints, "", "one")); !strings.Contains(m, "nothing says at which") {
			t.Fatalf("the constraint says %q", m)
		}
		w.put(policyobject.Settings()[1], "apiVersion: syncset.gatekeeper.sh/v1alpha1\nkind: SyncSet\n"+
			"metadata: {name: s}\nspec: {gvks: [{group: \"\", version: v1, kind: Namespace}]}")
		if m := message(w.get(constraints, "", "one")); strings.Contains(m, "nothing says at which") {
			t.Errorf("with a SyncSet the constraint says %q", m)
		}
		w.put(policyobject.Settings()[0], "apiVersion: config.gatekeeper.sh/v1alpha1\nkind: Config\n"+
			"metadata: {name: config, namespace: gatekeeper-system}\nspec: {match: [{processes: [\"*\"], excludedNamespaces: [kube-*]}]}")
		list, _, _ := unstructured.NestedSlice(w.plugin().Object, "spec", "match", "conditions")
		if len(list) != 1 || !strings.Contains(fmt.Sprint(list[0]), "kube-") {
			t.Errorf("with a Config the plugin is asked where %v", list)
		}
	})
}

func TestWhatCannotBeMadeIsSaid(t *testing.T) {
	within(t, func(w *world) {
		w.put(policyobject.Templates(), template)
		w.put(constraints, constraint)
		// A template that cannot be read any more, and a constraint likewise: what was, stays.
		w.put(policyobject.Templates(),
			strings.NewReplacer("generation: 1", "generation: 2", "target: admission", "target: other").Replace(template))
		list, _, _ := unstructured.NestedSlice(w.get(policyobject.Templates(), "", "some").Object, "status", "byPod")
		if len(list) != 1 || !strings.Contains(list[0].(map[string]any)["errors"].([]any)[0].(map[string]any)["message"].(string),
			"spec.targets[0].target") {
			t.Errorf("the template says %v", list)
		}
		if w.plugin() == nil {
			t.Fatal("the plugin went with a change that cannot be read")
		}
		w.put(constraints,
			strings.NewReplacer("generation: 1", "generation: 2", "{parameters", "{enforcementAction: scoped, parameters").Replace(constraint))
		if m := message(w.get(constraints, "", "one")); !strings.Contains(m, "spec.enforcementAction") {
			t.Errorf("the constraint says %q", m)
		}
		if w.plugin() == nil {
			t.Fatal("the plugin went with a change that cannot be kept")
		}
		// Nobody knows who wrote it.
		w.put(constraints, strings.NewReplacer("one", "two", "c1", "c2", "plugins.wasmplane.dev/writer", "other").Replace(constraint))
		if w.get(plugindefinition.Resource(), "", "some.two") != nil {
			t.Error("a plugin of nobody was made")
		}
		// Somebody has a plugin of that name.
		own := parse(t, "apiVersion: plugins.wasmplane.dev/v1\nkind: Plugin\nmetadata: {name: some.three}\nspec: {mode: Audit}")
		if _, err := w.client.Resource(plugindefinition.Resource()).Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.put(constraints, strings.NewReplacer("one", "three", "c1", "c3").Replace(constraint))
		if mode := text(w.get(plugindefinition.Resource(), "", "some.three"), "spec", "mode"); mode != "Audit" {
			t.Errorf("somebody's own plugin was changed to %s", mode)
		}
	})
}

func TestAKindIsInstalledUntilItSucceeds(t *testing.T) {
	within(t, func(w *world) {
		w.refuse = errors.New("not now")
		w.put(policyobject.Templates(), template)
		w.put(constraints, constraint)
		if n := len(w.installed); n < 2 || w.plugin() != nil {
			t.Errorf("tried %d times, plugin %v", n, w.plugin())
		}
		w.refuse = nil
		w.pass()
		if w.plugin() == nil {
			t.Error("no plugin was made")
		}
	})
}

func TestAPolicyOfANamespaceIsATenantsPlugin(t *testing.T) {
	within(t, func(w *world) {
		w.put(namespaced, policy)
		p := w.get(plugindefinition.TenantResource(), "red", "admissionpolicy.p")
		if p == nil || p.GetAnnotations()[apiobject.WriterAnnotation] != `{"username":"tina"}` {
			t.Fatalf("made %v", p)
		}
		if s := text(w.get(namespaced, "red", "p"), "status", "policyStatus"); s != "pending" {
			t.Errorf("status %s before it is loaded", s)
		}
		p.Object["status"] = map[string]any{"observedGeneration": int64(0), "conditions": []any{
			map[string]any{"type": apiobject.Ready, "status": "True", "reason": "Loaded", "message": "it answers"},
			map[string]any{"type": apiobject.Updated, "status": "True", "reason": "Loaded", "message": "it is new"},
		}}
		if _, err := w.client.Resource(plugindefinition.TenantResource()).Namespace("red").UpdateStatus(t.Context(), p,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass()
		if s := text(w.get(namespaced, "red", "p"), "status", "policyStatus"); s != "active" {
			t.Errorf("status %s when it is loaded", s)
		}
		w.remove(namespaced, "red", "p")
		if w.get(plugindefinition.TenantResource(), "red", "admissionpolicy.p") != nil {
			t.Error("the plugin stays without its policy")
		}
	})
}
