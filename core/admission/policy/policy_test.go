// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/policy"
)

// parameters are the ConfigMaps of the tests; there is no other kind.
type parameters []*corev1.ConfigMap

var configMaps = corev1.SchemeGroupVersion.WithKind("ConfigMap")

func (parameters) Namespaced(kind schema.GroupVersionKind) (namespaced, known bool) {
	return true, kind == configMaps
}

func (p parameters) Get(_ context.Context, _ schema.GroupVersionKind, namespace, name string) (runtime.Object, error) {
	for _, c := range p {
		if c.Namespace == namespace && c.Name == name {
			return c, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (p parameters) List(_ context.Context, _ schema.GroupVersionKind, namespace string,
	s labels.Selector,
) (out []runtime.Object, _ error) {
	for _, c := range p {
		if c.Namespace == namespace && s.Matches(labels.Set(c.Labels)) {
			out = append(out, c)
		}
	}
	return out, nil
}

func parameter(name, key, value string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels},
		Data:       map[string]string{key: value},
	}
}

func types(schema.GroupVersionKind) (managedfields.TypeConverter, error) {
	return applyconfigurations.NewTypeConverter(scheme.Scheme), nil
}

var onlyRoot = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "root" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
})

func start(t *testing.T, params parameters, objects ...runtime.Object) (*policy.Policies, *fake.Clientset) {
	t.Helper()
	kube := fake.NewClientset(append(objects,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"level": "strict"}}})...)
	factory := informers.NewSharedInformerFactory(kube, 0)
	p, err := policy.New(policy.Config{
		Client: kube, Informers: factory, Authorizer: onlyRoot, Objects: params, Types: types,
		Warm: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(t.Context().Done())
	return p, kube
}

func pods(ops ...admissionregistrationv1.OperationType) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		MatchPolicy: ptr.To(admissionregistrationv1.Equivalent),
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: ops, Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
	}
}

func validation(expression string) admissionregistrationv1.Validation {
	return admissionregistrationv1.Validation{Expression: expression}
}

func policyOf(edit func(*admissionregistrationv1.ValidatingAdmissionPolicySpec),
	list ...admissionregistrationv1.Validation,
) *admissionregistrationv1.ValidatingAdmissionPolicy {
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: pods("*"), Validations: list, FailurePolicy: ptr.To(admissionregistrationv1.Fail),
		},
	}
	if edit != nil {
		edit(&p.Spec)
	}
	return p
}

func bindingOf(
	edit func(*admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec),
) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "p", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	if edit != nil {
		edit(&b.Spec)
	}
	return b
}

func pod(labels ...string) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{"kept": "yes"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i:1"}}},
	}
	for i := 0; i+1 < len(labels); i += 2 {
		p.Labels[labels[i]] = labels[i+1]
	}
	return p
}

func withParams(
	edit func(*admissionregistrationv1.ParamRef)) (func(*admissionregistrationv1.ValidatingAdmissionPolicySpec), func(
	*admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec),
) {
	return func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
		}, func(s *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
			s.ParamRef = &admissionregistrationv1.ParamRef{Name: "limits", ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)}
			if edit != nil {
				edit(s.ParamRef)
			}
		}
}

func TestPoliciesValidate(t *testing.T) {
	params := parameters{
		parameter("limits", "image", "i:1", map[string]string{"set": "a"}),
		parameter("more", "image", "j:1", map[string]string{"set": "a"}),
	}
	const allowed = "object.spec.containers.all(c, c.image == params.data.image)"
	byName, bindName := withParams(nil)
	_, bindMissing := withParams(func(r *admissionregistrationv1.ParamRef) { r.Name = "none" })
	_, bindLenient := withParams(func(r *admissionregistrationv1.ParamRef) {
		r.Name, r.ParameterNotFoundAction = "none", ptr.To(admissionregistrationv1.AllowAction)
	})
	_, bindAll := withParams(func(r *admissionregistrationv1.ParamRef) {
		r.Name, r.Selector = "", &metav1.LabelSelector{MatchLabels: map[string]string{"set": "a"}}
	})
	unknownKind := func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Limit"}
	}
	ignore := func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	}
	for _, c := range []struct {
		name    string
		policy  *admissionregistrationv1.ValidatingAdmissionPolicy
		binding *admissionregistrationv1.ValidatingAdmissionPolicyBinding
		r       *admission.Request
		denied  string
		reason  metav1.StatusReason
	}{
		{"what holds", policyOf(nil, validation("object.metadata.name == 'web'")), bindingOf(nil), nil, "", ""},
		{
			"what does not", policyOf(nil, validation("object.metadata.name == 'db'")), bindingOf(nil), nil,
			`pods "web" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: object.metadata.name == 'db'`, metav1.StatusReasonInvalid,
		},
		{
			"with its own message and reason", policyOf(nil, admissionregistrationv1.Validation{
				Expression: "false", Message: "fixed", MessageExpression: "'no ' + object.metadata.name", Reason: ptr.To(metav1.StatusReasonForbidden),
			}), bindingOf(nil), nil, "denied request: no web", metav1.StatusReasonForbidden,
		},
		{"the kind of the object", policyOf(nil, validation("object.kind == 'Pod' && object.apiVersion == 'v1'")), bindingOf(nil), nil, "", ""},
		{"variables", policyOf(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.Variables = []admissionregistrationv1.Variable{
				{Name: "images", Expression: "object.spec.containers.map(c, c.image)"},
				{Name: "n", Expression: "size(variables.images)"},
			}
		}, validation("variables.n == 0")), bindingOf(nil), nil, "failed expression: variables.n == 0", metav1.StatusReasonInvalid},
		{"the namespace", policyOf(nil, validation("namespaceObject.metadata.labels.level != 'strict'")), bindingOf(nil), nil, "denied request", metav1.StatusReasonInvalid},
		{"the user's rights", policyOf(nil, validation("authorizer.group('').resource('pods').check('bypass').allowed()")), bindingOf(nil), nil, "denied request", metav1.StatusReasonInvalid},
		{"the request", policyOf(nil, validation("request.userInfo.username == 'jane' && request.operation == 'CREATE'")), bindingOf(nil), nil, "", ""},
		{
			"an update's old object", policyOf(nil, validation("oldObject == null || oldObject.metadata.labels.kept == object.metadata.labels.kept")), bindingOf(nil),
			admissiontest.Updating("pods", pod("kept", "no"), pod()), "denied request", metav1.StatusReasonInvalid,
		},
		{"a delete", policyOf(nil, validation("oldObject.metadata.name != 'web'")), bindingOf(nil), admissiontest.Deleting("pods", pod()), "denied request", metav1.StatusReasonInvalid},
		{"a condition that exempts", policyOf(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "request.userInfo.username != 'jane'"}}
		}, validation("false")), bindingOf(nil), nil, "", ""},
		{"another operation", policyOf(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) { s.MatchConstraints = pods("DELETE") }, validation("false")), bindingOf(nil), nil, "", ""},
		{
			"a binding that selects nothing", policyOf(nil, validation("false")),
			bindingOf(func(s *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
				s.MatchResources = &admissionregistrationv1.MatchResources{
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"level": "loose"}}, ObjectSelector: &metav1.LabelSelector{},
				}
			}), nil, "", "",
		},
		{"an evaluation that fails", policyOf(nil, validation("object.metadata.labels['none'] == 'x'")), bindingOf(nil), nil, "no such key: none", metav1.StatusReasonInvalid},
		{"one whose failures are ignored", policyOf(ignore, validation("object.metadata.labels['none'] == 'x'")), bindingOf(nil), nil, "", ""},
		{"an expression that does not compile", policyOf(nil, validation("object.")), bindingOf(nil), nil, "compilation error", metav1.StatusReasonInvalid},
		{
			"an expression that costs too much",
			policyOf(nil, validation("[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, [1,2,3,4,5,6,7,8,9,10].all(g, a+b+c+d+e+f+g > 0)))))))")),
			bindingOf(nil), nil, "cost", metav1.StatusReasonInvalid,
		},
		{"a parameter by name", policyOf(byName, validation(allowed)), bindingOf(bindName), nil, "", ""},
		{"a parameter that is missing", policyOf(byName, validation(allowed)), bindingOf(bindMissing), nil, "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction", metav1.StatusReasonInvalid},
		{"one that may be missing", policyOf(byName, validation("false")), bindingOf(bindLenient), nil, "", ""},
		{"parameters by label, all of which have to agree", policyOf(byName, validation(allowed)), bindingOf(bindAll), nil, "denied request", metav1.StatusReasonInvalid},
		{"parameters of a kind that nobody serves", policyOf(unknownKind, validation("true")), bindingOf(bindName), nil, "not known", metav1.StatusReasonInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := start(t, params, c.policy, c.binding)
			r := c.r
			if r == nil {
				r = admissiontest.Creating("pods", pod())
			}
			err := p.Validating().Validate(t.Context(), r)
			if c.denied == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var status *apierrors.StatusError
			if !errors.As(err, &status) || !strings.Contains(err.Error(), c.denied) || status.ErrStatus.Reason != c.reason {
				t.Fatalf("error %v, want %s for %q in it", err, c.reason, c.denied)
			}
			if want := map[metav1.StatusReason]int32{
				metav1.StatusReasonInvalid:   422,
				metav1.StatusReasonForbidden: 403,
			}[c.reason]; status.ErrStatus.Code != want {
				t.Errorf("code %d", status.ErrStatus.Code)
			}
		})
	}
}

func TestActionsSayWhatADenialMeans(t *testing.T) {
	audited := func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.AuditAnnotations = []admissionregistrationv1.AuditAnnotation{{Key: "name", ValueExpression: "string(object.metadata.name)"}}
	}
	p, _ := start(t, nil, policyOf(audited, validation("false")),
		bindingOf(func(s *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
			s.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn, admissionregistrationv1.Audit}
		}))
	registry := prometheus.NewRegistry()
	if err := p.Register(registry); err != nil {
		t.Fatal(err)
	}
	r := admissiontest.Creating("pods", pod())
	if err := p.Validating().Validate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got := r.Warnings(); len(got) != 1 || got[0] != "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': failed expression: false" {
		t.Errorf("warnings %q", got)
	}
	const want = `[{"message":"failed expression: false","policy":"p","binding":"b","expressionIndex":0,"validationActions":["Warn","Audit"]}]`
	if got := r.Annotations(); got["validation.policy.admission.k8s.io/validation_failure"] != want || got["p/name"] != "web" {
		t.Errorf("annotations %v", got)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 2 || families[1].GetName() != "apiserver_validating_admission_policy_check_total" {
		t.Errorf("metrics %v", families)
	}
}

func mutation(edit func(*admissionregistrationv1.MutatingAdmissionPolicySpec),
	list ...admissionregistrationv1.Mutation,
) *admissionregistrationv1.MutatingAdmissionPolicy {
	p := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: pods("CREATE", "UPDATE"), Mutations: list, FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
		},
	}
	if edit != nil {
		edit(&p.Spec)
	}
	return p
}

func bound(name, to string) *admissionregistrationv1.MutatingAdmissionPolicyBinding {
	return &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: to},
	}
}

func apply(expression string) admissionregistrationv1.Mutation {
	return admissionregistrationv1.Mutation{
		PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
		ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression},
	}
}

func jsonPatch(expression string) admissionregistrationv1.Mutation {
	return admissionregistrationv1.Mutation{
		PatchType: admissionregistrationv1.PatchTypeJSONPatch,
		JSONPatch: &admissionregistrationv1.JSONPatch{Expression: expression},
	}
}

// mutate runs the plugin in a chain, as the server does.
func mutate(t *testing.T, p *policy.Policies, r *admission.Request) error {
	t.Helper()
	chain, err := admission.NewChain(p.Mutating())
	if err != nil {
		t.Fatal(err)
	}
	return chain.Mutate(t.Context(), r)
}

func TestPoliciesMutate(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy *admissionregistrationv1.MutatingAdmissionPolicy
		check  func(*corev1.Pod) bool
		denied string
	}{
		{
			"an apply configuration", mutation(nil, apply(`Object{metadata: Object.metadata{labels: {"team": "a"}}}`)),
			func(p *corev1.Pod) bool { return p.Labels["team"] == "a" && p.Labels["kept"] == "yes" }, "",
		},
		{
			"a sidecar, merged by name", mutation(nil, apply(`Object{spec: Object.spec{containers: [Object.spec.containers{name: "side", image: "s:1"}]}}`)),
			func(p *corev1.Pod) bool { return len(p.Spec.Containers) == 2 && p.Spec.Containers[1].Name == "side" }, "",
		},
		{
			"a JSON patch", mutation(nil, jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("example.com/x"), value: "y"}]`)),
			func(p *corev1.Pod) bool { return p.Labels["example.com/x"] == "y" }, "",
		},
		{
			"two mutations, the second on what the first made",
			mutation(nil, apply(`Object{metadata: Object.metadata{labels: {"team": "a"}}}`), jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/team2", value: object.metadata.labels.team + "2"}]`)),
			func(p *corev1.Pod) bool { return p.Labels["team2"] == "a2" }, "",
		},
		{
			"a condition that exempts", mutation(func(s *admissionregistrationv1.MutatingAdmissionPolicySpec) {
				s.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "!('kept' in object.metadata.labels)"}}
			}, apply(`Object{metadata: Object.metadata{labels: {"team": "a"}}}`)),
			func(p *corev1.Pod) bool { return p.Labels["team"] == "" }, "",
		},
		{
			"a test that fails changes nothing", mutation(nil, jsonPatch(`[JSONPatch{op: "test", path: "/metadata/name", value: "db"}, JSONPatch{op: "add", path: "/metadata/labels/x", value: "y"}]`)),
			func(p *corev1.Pod) bool { return p.Labels["x"] == "" }, "",
		},
		{"a patch out of bounds", mutation(nil, jsonPatch(`[JSONPatch{op: "replace", path: "/spec/containers/7/image", value: "x"}]`)), nil, "policy 'p' with binding 'b' denied request: JSON Patch"},
		{"an atomic field", mutation(nil, apply(`Object{spec: Object.spec{containers: [Object.spec.containers{name: "c", args: ["x"]}]}}`)), nil, "may not mutate atomic arrays"},
		{"an expression that fails", mutation(nil, jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/x", value: object.metadata.labels.none}]`)), nil, "no such key: none"},
		{"one whose failures are ignored", mutation(func(s *admissionregistrationv1.MutatingAdmissionPolicySpec) {
			s.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		}, jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/x", value: object.metadata.labels.none}]`)), func(p *corev1.Pod) bool { return p.Labels["x"] == "" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := start(t, nil, c.policy, bound("b", "p"))
			r := admissiontest.Creating("pods", pod())
			err := mutate(t, p, r)
			if c.denied != "" {
				if err == nil || !strings.Contains(err.Error(), c.denied) {
					t.Errorf("error %v, want %q in it", err, c.denied)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			o, err := r.Object.Versioned()
			if err != nil || !c.check(o.(*corev1.Pod)) {
				t.Errorf("%+v (%v)", o, err)
			}
		})
	}
}

func TestAPolicyIsAskedAgainIfItWishes(t *testing.T) {
	first := func(policy admissionregistrationv1.ReinvocationPolicyType) *admissionregistrationv1.MutatingAdmissionPolicy {
		p := mutation(func(s *admissionregistrationv1.MutatingAdmissionPolicySpec) { s.ReinvocationPolicy = policy },
			jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/first", value: "late" in object.metadata.labels ? "saw it" : "alone"}]`))
		p.Name = "a"
		return p
	}
	second := mutation(nil, jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/late", value: "yes"}]`))
	second.Name = "b"
	for policy, want := range map[admissionregistrationv1.ReinvocationPolicyType]string{
		admissionregistrationv1.NeverReinvocationPolicy: "alone", admissionregistrationv1.IfNeededReinvocationPolicy: "saw it",
	} {
		p, _ := start(t, nil, first(policy), second, bound("x", "a"), bound("y", "b"))
		r := admissiontest.Creating("pods", pod())
		if err := mutate(t, p, r); err != nil {
			t.Fatal(err)
		}
		if m, err := r.Object.Meta(); err != nil || m.GetLabels()["first"] != want {
			t.Errorf("%s: labels %v (%v), want %s", policy, m.GetLabels(), err, want)
		}
	}
}

func TestPoliciesAreFollowedAndDontJudgeThemselves(t *testing.T) {
	everything := policyOf(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		r := &s.MatchConstraints.ResourceRules[0]
		r.APIGroups, r.APIVersions, r.Resources = []string{"*"}, []string{"*"}, []string{"*"}
	}, validation("false"))
	p, kube := start(t, nil, everything)
	ask := func(r *admission.Request) error { return p.Validating().Validate(t.Context(), r) }
	if err := ask(admissiontest.Creating("pods", pod())); err != nil {
		t.Errorf("a policy without a binding refused: %v", err)
	}
	bindings := kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	if _, err := bindings.Create(t.Context(), bindingOf(nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return ask(admissiontest.Creating("pods", pod())) != nil })
	if err := ask(admissiontest.Deleting("validatingadmissionpolicies", everything)); err != nil {
		t.Errorf("a policy judged itself: %v", err)
	}
	if err := bindings.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return ask(admissiontest.Creating("pods", pod())) == nil })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("it did not come true within a minute")
		}
	}
}

func TestSuite(t *testing.T) {
	p, _ := start(t, nil, policyOf(nil, admissionregistrationv1.Validation{
		Expression: "object == null || !('bad' in object.metadata.labels)",
		Message:    "bad label",
	}), bindingOf(nil),
		mutation(nil, apply(`Object{metadata: Object.metadata{labels: {"team": "a"}}}`)), bound("b", "p"))
	t.Run("validating", func(t *testing.T) {
		admissiontest.Run(t, p.Validating(),
			admissiontest.Case{Name: "good", Request: func() *admission.Request { return admissiontest.Creating("pods", pod()) }},
			admissiontest.Case{
				Name: "bad", Denied: "bad label",
				Request: func() *admission.Request { return admissiontest.Creating("pods", pod("bad", "x")) },
			})
	})
	t.Run("mutating", func(t *testing.T) {
		admissiontest.Run(t, p.Mutating(), admissiontest.Case{
			Name: "labels", Request: func() *admission.Request { return admissiontest.Creating("pods", pod()) },
			Check: func(t *testing.T, o runtime.Object) {
				if o.(*corev1.Pod).Labels["team"] != "a" {
					t.Errorf("%+v", o)
				}
			},
		})
	})
}
