// SPDX-License-Identifier: Apache-2.0

package policyobject_test

import (
	"encoding/base64"
	"encoding/pem"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
)

const (
	celPolicy = `
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: p, uid: k1, generation: 1, annotations: {plugins.wasmplane.dev/writer: '{"username":"jane"}'}}
spec:
  matchConstraints: {resourceRules: [{apiGroups: ["*"], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "object.data.a == '1'"}]
`
	celImages = `
apiVersion: policies.kyverno.io/v1
kind: ImageValidatingPolicy
metadata: {name: i, uid: i1, generation: 1, annotations: {plugins.wasmplane.dev/writer: '{"username":"jane"}'}}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}
  matchImageReferences: [{glob: a/*}]
  credentials: {secrets: [pull]}
  attestors: [{name: a, cosign: {key: {expression: string(object.kind)}}}]
  validations: [{expression: "images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)"}]
`
	celException = `
apiVersion: policies.kyverno.io/v1
kind: PolicyException
metadata: {name: e, namespace: red, uid: e1, generation: 1, annotations: {plugins.wasmplane.dev/writer: '{"username":"jane"}'}}
spec:
  policyRefs: [{kind: ValidatingPolicy, name: p}]
  matchConditions: [{name: a, expression: "object.metadata.name == 'x'"}]
`
	celNamespaced = `
apiVersion: policies.kyverno.io/v1
kind: NamespacedMutatingPolicy
metadata: {name: p, namespace: red, uid: k2, generation: 1, annotations: {plugins.wasmplane.dev/writer: '{"username":"tina"}'}}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]}
  mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/data/a', value: '1'}]"}}]
`
)

var (
	vap  = admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")
	vapb = admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings")
	mapr = admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies")
	mapb = admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings")

	inCEL = map[schema.GroupVersionResource]string{
		vap: "ValidatingAdmissionPolicy", vapb: "ValidatingAdmissionPolicyBinding",
		mapr: "MutatingAdmissionPolicy", mapb: "MutatingAdmissionPolicyBinding",
	}

	validatingPolicies = policyobject.KyvernoResource(kyverno.Validating)
	exceptions         = policyobject.KyvernoResource(kyverno.ExceptionKind)
	ofNamespaces       = policyobject.KyvernoResource(kyverno.NamespacedMutating)
)

// spec is that of a ValidatingAdmissionPolicy.
func (w *world) spec(name string) *admissionregistrationv1.ValidatingAdmissionPolicySpec {
	w.t.Helper()
	o := w.get(vap, "", name)
	if o == nil {
		w.t.Fatalf("there is no %s", name)
	}
	var p admissionregistrationv1.ValidatingAdmissionPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
		w.t.Fatal(err)
	}
	return &p.Spec
}

func TestAPolicyInCELFollowsItsPolicy(t *testing.T) {
	within(t, func(w *world) {
		w.put(validatingPolicies, celPolicy)
		if w.get(vapb, "", "p") == nil || message(w.get(validatingPolicies, "", "p")) != "in force" {
			t.Fatal("it is not in force")
		}
		if ready, _, _ := unstructured.NestedBool(w.get(validatingPolicies, "", "p").Object, "status", "conditionStatus", "ready"); !ready {
			t.Error("it is not ready by the name that its users know")
		}
		m := w.spec("p").MatchConstraints
		if len(m.ExcludeResourceRules) != 1 || m.ExcludeResourceRules[0].APIGroups[0] != kyverno.Group {
			t.Errorf("it judges what it is made of: %v", m.ExcludeResourceRules)
		}
		// An exception narrows it while it lasts.
		w.put(exceptions, celException)
		if c := w.spec("p").MatchConditions; len(c) != 1 || c[0].Expression != "!((object.metadata.name == 'x'\n))" {
			t.Errorf("with an exception it is about %v", c)
		}
		ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		w.put(exceptions, strings.NewReplacer("generation: 1", "generation: 2", "spec:", "spec:\n  expiresAt: "+ends).Replace(celException))
		if c := w.spec("p").MatchConditions; len(c) != 1 {
			t.Errorf("before the exception expires it is about %v", c)
		}
		time.Sleep(time.Hour) // virtual
		w.pass()
		if c := w.spec("p").MatchConditions; len(c) != 0 {
			t.Errorf("after the exception has expired it is about %v", c)
		}
		// What somebody changes is put back; a change that cannot be kept leaves the one before.
		changed := w.get(vap, "", "p")
		changed.SetGeneration(7)
		if err := unstructured.SetNestedField(changed.Object, "Ignore", "spec", "failurePolicy"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Resource(vap).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass()
		if f := *w.spec("p").FailurePolicy; f != admissionregistrationv1.Fail {
			t.Errorf("failurePolicy %s, which somebody wrote", f)
		}
		w.put(validatingPolicies, strings.NewReplacer("generation: 1", "generation: 2", "validations:",
			"generate: []\n  validations:").Replace(celPolicy))
		if m := message(w.get(validatingPolicies, "", "p")); !strings.Contains(m, `the field "generate" is not known here`) {
			t.Errorf("the policy says %q", m)
		}
		w.spec("p")
		w.put(validatingPolicies, strings.NewReplacer("generation: 1", "generation: 3", "validations:",
			"evaluation: {admission: {enabled: false}}\n  validations:").Replace(celPolicy))
		if w.get(vap, "", "p") != nil || w.get(vapb, "", "p") != nil {
			t.Error("it judges requests, which it does not want to")
		}
	})
}

func TestAPolicyInCELGoesWithItsPolicy(t *testing.T) {
	within(t, func(w *world) {
		w.put(validatingPolicies, celPolicy)
		w.put(ofNamespaces, celNamespaced)
		o := w.get(mapr, "", "red.p")
		if o == nil || len(o.GetOwnerReferences()) != 0 {
			t.Fatalf("made %v", o)
		}
		conditions, _, _ := unstructured.NestedSlice(o.Object, "spec", "matchConditions")
		if len(conditions) != 1 || conditions[0].(map[string]any)["name"] != "not-the-system" {
			t.Errorf("it changes what the system does: %v", conditions)
		}
		w.remove(ofNamespaces, "red", "p")
		if w.get(mapr, "", "red.p") != nil || w.get(mapb, "", "red.p") != nil {
			t.Error("it stays without its policy")
		}
		// Somebody has one of that name, or another policy.
		own := parse(t, "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: own}\nspec: {failurePolicy: Ignore}")
		if _, err := w.client.Resource(vap).Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.put(validatingPolicies, strings.NewReplacer("name: p", "name: own", "k1", "k3").Replace(celPolicy))
		if m := message(w.get(validatingPolicies, "", "own")); !strings.Contains(m, "was not made of a policy") {
			t.Errorf("the policy says %q", m)
		}
		if f := *w.spec("own").FailurePolicy; f != admissionregistrationv1.Ignore {
			t.Error("somebody's own was changed")
		}
		w.remove(validatingPolicies, "", "p")
		if w.get(vap, "", "p") != nil || w.get(vap, "", "own") == nil {
			t.Error("the wrong one went")
		}
	})
}

// TestWhatIsWrittenForKyvernoIsChecked, and what its writer must be allowed.
func TestWhatIsWrittenForKyvernoIsChecked(t *testing.T) {
	check := policyobject.Check{Enabled: []string{policyobject.Kyverno}}
	for _, c := range []struct{ name, text, want string }{
		{"policy", celPolicy, "get configmaps"},
		{"of a namespace", celNamespaced, "get configmaps red, create configmaps red, update configmaps red"},
		{"exception", celException, "update validatingpolicies p"},
		{"expression", strings.Replace(celPolicy, "object.data", "images.data", 1), "error: spec.validations[0].expression: "},
		{"images", celImages, "get pods, create pods, send from the control plane's machines, get secrets kyverno pull"},
		{"images of a namespace", strings.NewReplacer("kind: Image", "kind: NamespacedImage", "name: i,", "name: i, namespace: red,").Replace(celImages), "get pods red, create pods red, get secrets red pull"},
		{"images by notary", strings.Replace(celImages, "cosign:", "notary: {}, cosign:", 1), "error: spec.attestors[0].notary: signatures of Notary are not known here"},
		{"images by everybody", strings.Replace(celImages, "key: {expression: string(object.kind)}", "keyless: {}", 1), "error: spec.attestors[0].cosign.keyless.identities: there are none"},
		{"images by part of an identity", strings.Replace(celImages, "key: {expression: string(object.kind)}", "keyless: {identities: [{issuer: a}]}", 1), "error: spec.attestors[0].cosign.keyless.identities[0]: an issuer"},
		{"images without a key", strings.Replace(celImages, "expression: string(object.kind)", "data: x", 1), "error: spec.attestors[0].cosign.key.data: expected public keys in PEM"},
		{"images by a class", strings.Replace(celImages, "glob: a/*", "glob: 'a/[b]'", 1), "error: spec.matchImageReferences[0]: glob:"},
		{"images by an expression", strings.Replace(celImages, "verifyImageSignatures(i", "verifyImages(i", 1), "error: spec.validations[0].expression: compilation failed"},
		{"images by a root that is fetched", strings.Replace(celImages, "cosign: {", "cosign: {tuf: {mirror: a}, ", 1), "error: spec.attestors[0].cosign.tuf: no root of trust is fetched here"},
		{"field", strings.Replace(celPolicy, "validations", "validation", 1), `error: policy: the field "validation" is not known here`},
		{"what generates", strings.Replace(celPolicy, "ValidatingPolicy", "GeneratingPolicy", 1), "error: kind: a GeneratingPolicy is not applied here: use a plugin of the point reconcile"},
		{"what deletes", strings.Replace(celPolicy, "ValidatingPolicy", "DeletingPolicy", 1), "error: kind: a DeletingPolicy is not applied here: use a CronJob"},
		{"reach", strings.Replace(celNamespaced, "configmaps", "resourcequotas", 1), "error: spec.matchConstraints.resourceRules[0]: a policy of a namespace"},
		{"all", strings.Replace(celNamespaced, "configmaps", `"*"`, 1), "error: spec.matchConstraints.resourceRules[0]: a policy of a namespace"},
		{"secrets", strings.Replace(celNamespaced, "configmaps", "secrets", 1), "error: spec.matchConstraints.resourceRules[0]: a policy of a namespace does not change"},
		{"condition", strings.Replace(celException, "object.metadata", "image.metadata", 1), "error: spec.matchConditions: "},
		{"exception of all", strings.Replace(celException, "ValidatingPolicy", "ClusterPolicy", 1), "error: spec.policyRefs[0].kind: expected one of"},
		{"values", strings.Replace(celException, "spec:", "spec:\n  allowedValues: [a]", 1), "error: spec.images, spec.allowedValues"},
	} {
		_, needs, err := check.Check(t.Context(), parse(t, c.text))
		var got []string
		for _, n := range needs {
			a := n.Attributes
			if a == nil {
				got = append(got, n.What)
				continue
			}
			got = append(got, strings.TrimSpace(strings.Join(strings.Fields(a.Verb+" "+a.Resource+" "+a.Namespace+" "+a.Name), " ")))
		}
		found := strings.Join(got, ", ")
		if err != nil {
			found = "error: " + err.Error()
		}
		if found != c.want && (!strings.HasPrefix(c.want, "error: ") || !strings.HasPrefix(found, c.want)) {
			t.Errorf("%s: %s, expected %s", c.name, found, c.want)
		}
	}
	if _, needs, err := (policyobject.Check{}).Check(t.Context(), parse(t, celPolicy)); err != nil || needs != nil {
		t.Errorf("where it is not enabled: %v, %v", needs, err)
	}
}

// TestWhatIsWrittenForGatekeepersProvidersIsChecked: whoever writes one has the control plane send something.
func TestWhatIsWrittenForGatekeepersProvidersIsChecked(t *testing.T) {
	check := policyobject.Check{Enabled: []string{policyobject.Gatekeeper}}
	const head = "apiVersion: externaldata.gatekeeper.sh/v1beta1\nkind: Provider\nmetadata: {name: p}\nspec: "
	for spec, want := range map[string]string{
		"{url: 'https://a.example.com', caBundle: x}":                              "spec.caBundle: expected certificates",
		"{url: 'http://a.example.com', caBundle: x}":                               "spec.url: expected https://",
		"{url: 'https://u:p@a.example.com', caBundle: x}":                          "spec.url: expected https://",
		"{url: 'https://a.example.com', caBundle: x, insecureTLSSkipVerify: true}": "spec.insecureTLSSkipVerify",
		"{url: 'https://a.example.com', caBundle: x, timeout: 60}":                 "spec.timeout: expected 1 to 30 seconds",
		"{url: 'https://a.example.com', caBundle: x, retries: 3}":                  `the field "retries" is not known here`,
	} {
		if _, _, err := check.Check(t.Context(), parse(t, head+spec)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", spec, err, want)
		}
	}
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	_, needs, err := check.Check(t.Context(), parse(t, head+"{url: 'https://a.example.com', caBundle: "+authority+"}"))
	if err != nil || len(needs) != 1 || needs[0].Attributes != nil || needs[0].What == "" {
		t.Errorf("%+v, %v", needs, err)
	}
}
