// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
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
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/admission/webhook"
)

// side is one form of the policy: what core's admission chain would call.
type side struct {
	name     string
	missing  error        // it could not be built
	fuel     func() int64 // of a decision; nil = nothing counts it
	validate func(ctx context.Context, r *admission.Request) error
	mutate   func(ctx context.Context, r *admission.Request) error
}

// wanted are the plugins that are measured: FORMS, a regular expression about their names in the table.
var wanted = regexp.MustCompile(os.Getenv("FORMS"))

// sides are all forms, in the order of the table.
func sides(tb testing.TB) []*side {
	tb.Helper()
	out := []*side{{name: "native Go", validate: native{}.Validate, mutate: native{}.Mutate}}
	for _, g := range policies {
		if !wanted.MatchString(g.label) {
			continue
		}
		wasm, err := g.build(tb)
		if err != nil {
			out = append(out, &side{name: g.label, missing: err})
			continue
		}
		out = append(out, wasmSide(tb, g, wasm))
	}
	return append(out, celSide(tb), webhookSide(tb))
}

// wasmSide stands twice in the chain, as validating and as mutating plugin.
func wasmSide(tb testing.TB, g guest, wasm []byte) *side {
	tb.Helper()
	validator := loaded(tb, wasm, ", points: [admission.validate]")
	validating, ok1 := validator.AdmissionPlugins()[0].(admission.Validator)
	more := ", points: [admission.mutate]"
	if g.name == "wapc" {
		more += ", settings: {label: true}"
	}
	mutating, ok2 := loaded(tb, wasm, more).AdmissionPlugins()[0].(admission.Mutator)
	if !ok1 || !ok2 {
		tb.Fatalf("%s does not take part at both points", g.label)
	}
	fuel := func() int64 { return validator.Status()[0].MeanFuel }
	return &side{name: g.label, fuel: fuel, validate: validating.Validate, mutate: mutating.Mutate}
}

// native is the policy as a plugin of core would be written.
type native struct{}

func (native) Validate(_ context.Context, r *admission.Request) error {
	p, err := podOf(r)
	if err != nil {
		return err
	}
	if message := judge(&p.Spec); message != "" {
		return admission.Forbidden(r, errors.New(message))
	}
	return nil
}

func (n native) Mutate(ctx context.Context, r *admission.Request) error {
	if err := n.Validate(ctx, r); err != nil {
		return err
	}
	p, err := podOf(r)
	if err != nil || p.Labels["checked"] != "" {
		return err
	}
	changed := p.DeepCopy()
	changed.Labels["checked"] = "yes"
	r.Object.SetVersioned(changed)
	return nil
}

func podOf(r *admission.Request) (*corev1.Pod, error) {
	o, err := r.Object.Versioned()
	if err != nil {
		return nil, err
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("it is a %T", o)
	}
	return p, nil
}

func judge(s *corev1.PodSpec) string {
	for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range list {
			c := &list[i]
			name := c.Image[strings.LastIndexByte(c.Image, '/')+1:]
			if !strings.Contains(name, "@") && (!strings.Contains(name, ":") || strings.HasSuffix(name, ":latest")) {
				return "image " + c.Image + " has no fixed tag"
			}
			if c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
				return "a container is privileged"
			}
		}
	}
	return ""
}

// noParams: the policies take none.
type noParams struct{}

func (noParams) Namespaced(schema.GroupVersionKind) (namespaced, known bool) { return false, false }

func (noParams) Get(context.Context, schema.GroupVersionKind, string, string) (runtime.Object, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
}

func (noParams) List(context.Context, schema.GroupVersionKind, string, labels.Selector) ([]runtime.Object, error) {
	return nil, nil
}

var nobodyMay = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
})

// cluster is a client with objects, and informers over it that have seen them.
func cluster(tb testing.TB, objects []runtime.Object, use func(*fake.Clientset, informers.SharedInformerFactory) error) {
	tb.Helper()
	kube := fake.NewClientset(append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})...)
	factory := informers.NewSharedInformerFactory(kube, 0)
	if err := use(kube, factory); err != nil {
		tb.Fatal(err)
	}
	factory.Start(tb.Context().Done())
	tb.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(tb.Context().Done())
}

// celSide is a ValidatingAdmissionPolicy and, where the object is mutated, behind it a MutatingAdmissionPolicy.
func celSide(tb testing.TB) *side {
	tb.Helper()
	match := &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		MatchPolicy:   ptr.To(admissionregistrationv1.Equivalent),
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: creatingPods()[0]}},
	}
	meta := metav1.ObjectMeta{Name: "image-policy"}
	const all = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
	objects := []runtime.Object{
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: match, FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			Validations: []admissionregistrationv1.Validation{
				{Expression: all + `.all(c, c.image.matches('(@|:[^/@]+$)') && !c.image.endsWith(':latest'))`, Message: "an image has no fixed tag"},
				{Expression: all + `.all(c, !(c.?securityContext.privileged.orValue(false)))`, Message: "a container is privileged"},
			},
		}},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: meta,
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: meta.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		},
		&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: match, FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{
					Expression: `[JSONPatch{op: "add", path: "/metadata/labels/checked", value: "yes"}]`,
				},
			}},
		}},
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: meta,
			Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: meta.Name},
		},
	}
	types := func(schema.GroupVersionKind) (managedfields.TypeConverter, error) {
		return applyconfigurations.NewTypeConverter(scheme.Scheme), nil
	}
	s := &side{name: "CEL policies"}
	cluster(tb, objects, func(kube *fake.Clientset, factory informers.SharedInformerFactory) error {
		p, err := policy.New(policy.Config{Client: kube, Informers: factory, Authorizer: nobodyMay, Objects: noParams{}, Types: types})
		if err == nil {
			s.validate = p.Validating().Validate
			s.mutate = func(ctx context.Context, r *admission.Request) error {
				if err := p.Validating().Validate(ctx, r); err != nil {
					return err
				}
				return p.Mutating().Mutate(ctx, r)
			}
		}
		return err
	})
	return s
}

func creatingPods() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: ptr.To(admissionregistrationv1.AllScopes),
		},
	}}
}

// webhookSide is a server in this process, over TLS on the loopback: no network and no
// pod's own scheduling are in its figures.
func webhookSide(tb testing.TB) *side {
	tb.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(answer))
	server.EnableHTTP2 = true
	server.StartTLS()
	tb.Cleanup(server.Close)
	where := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{
			URL:      ptr.To(server.URL + path),
			CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		}
	}
	meta, name, versions := metav1.ObjectMeta{Name: "image-policy"}, "image-policy.example.com", []string{"v1"}
	fail, none, timeout, equivalent := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, int32(
		10), admissionregistrationv1.Equivalent
	objects := []runtime.Object{
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: name, ClientConfig: where("/validate"), Rules: creatingPods(), FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &timeout,
			MatchPolicy: &equivalent, AdmissionReviewVersions: versions,
		}}},
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: name, ClientConfig: where("/mutate"), Rules: creatingPods(), FailurePolicy: &fail, SideEffects: &none, TimeoutSeconds: &timeout,
			MatchPolicy: &equivalent, AdmissionReviewVersions: versions,
			ReinvocationPolicy: ptr.To(admissionregistrationv1.NeverReinvocationPolicy),
		}}},
	}
	s := &side{name: "https webhook, kept connection"}
	cluster(tb, objects, func(kube *fake.Clientset, factory informers.SharedInformerFactory) error {
		w, err := webhook.New(webhook.Config{Client: kube, Informers: factory, Authorizer: nobodyMay})
		if err == nil {
			s.validate, s.mutate = w.Validating().Validate, w.Mutating().Mutate
		}
		return err
	})
	return s
}

// answer is the policy as a webhook's server.
func answer(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var pod corev1.Pod
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err == nil {
		err = json.Unmarshal(review.Request.Object.Raw, &pod)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if message := judge(&pod.Spec); message != "" {
		out.Allowed, out.Result = false, &metav1.Status{Message: message}
	} else if r.URL.Path == "/mutate" && pod.Labels["checked"] == "" {
		out.Patch, out.PatchType = []byte(`[{"op":"add","path":"/metadata/labels/checked","value":"yes"}]`), ptr.To(
			admissionv1.PatchTypeJSONPatch)
	}
	review.Request, review.Response = nil, out
	if err := json.NewEncoder(w).Encode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
