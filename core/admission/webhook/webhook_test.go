// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/webhook"
	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/dial"
)

// server is a webhook of the tests: it answers as its function says.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	asked []*admissionv1.AdmissionReview
}

func serve(t *testing.T, answer func(w http.ResponseWriter, review *admissionv1.AdmissionReview)) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.asked = append(s.asked, &review)
		s.mu.Unlock()
		if answer == nil { // never answers
			<-r.Context().Done()
			return
		}
		answer(w, &review)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) questions() []*admissionv1.AdmissionReview {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *server) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func reply(w http.ResponseWriter, review *admissionv1.AdmissionReview, edit func(*admissionv1.AdmissionResponse)) {
	out := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}}
	out.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if edit != nil {
		edit(out.Response)
	}
	_ = json.NewEncoder(w).Encode(out)
}

func allow(w http.ResponseWriter, r *admissionv1.AdmissionReview) { reply(w, r, nil) }

func patching(patch string) func(http.ResponseWriter, *admissionv1.AdmissionReview) {
	return func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		reply(w, r, func(a *admissionv1.AdmissionResponse) {
			a.Patch, a.PatchType = []byte(patch), ptr.To(admissionv1.PatchTypeJSONPatch)
		})
	}
}

func pods(ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{Operations: ops, Rule: admissionregistrationv1.Rule{
		APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: ptr.To(admissionregistrationv1.AllScopes),
	}}}
}

func (s *server) validating(name string,
	edit func(*admissionregistrationv1.ValidatingWebhook),
) *admissionregistrationv1.ValidatingWebhookConfiguration {
	h := admissionregistrationv1.ValidatingWebhook{
		Name: name + ".example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To(s.URL + "/check"), CABundle: s.ca()},
		Rules: pods("*"), FailurePolicy: ptr.To(admissionregistrationv1.Fail), MatchPolicy: ptr.To(admissionregistrationv1.Equivalent),
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To(int32(30)),
		AdmissionReviewVersions: []string{"v1"},
	}
	if edit != nil {
		edit(&h)
	}
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{h},
	}
}

func (s *server) mutating(name string,
	edit func(*admissionregistrationv1.MutatingWebhook),
) *admissionregistrationv1.MutatingWebhookConfiguration {
	h := admissionregistrationv1.MutatingWebhook{
		Name: name + ".example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To(s.URL + "/mutate"), CABundle: s.ca()},
		Rules: pods("*"), FailurePolicy: ptr.To(admissionregistrationv1.Fail), MatchPolicy: ptr.To(admissionregistrationv1.Equivalent),
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To(int32(30)),
		AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy:      ptr.To(admissionregistrationv1.NeverReinvocationPolicy),
	}
	if edit != nil {
		edit(&h)
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks:   []admissionregistrationv1.MutatingWebhook{h},
	}
}

var nobodyMay = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "root" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
})

// start makes the webhooks of configurations that exist already.
func start(t *testing.T, objects ...runtime.Object) (*webhook.Webhooks, *fake.Clientset) {
	t.Helper()
	objects = append(objects,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"watched": "yes"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "quiet"}})
	kube := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(kube, 0)
	w, err := webhook.New(webhook.Config{Client: kube, Informers: factory, Authorizer: nobodyMay, Warm: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(t.Context().Done())
	return w, kube
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

// ask runs the two plugins in a chain, as the server does.
func ask(t *testing.T, w *webhook.Webhooks, r *admission.Request) error {
	t.Helper()
	chain, err := admission.NewChain(w.Mutating(), w.Validating())
	if err != nil {
		t.Fatal(err)
	}
	if err := chain.Mutate(t.Context(), r); err != nil {
		return err
	}
	return chain.Validate(t.Context(), r)
}

func TestAWebhookIsToldTheRequestAndItsRefusalReachesTheUser(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		reply(w, r, func(a *admissionv1.AdmissionResponse) {
			a.Allowed = false
			a.Result = &metav1.Status{Message: "no such image here", Reason: "Forbidden", Code: http.StatusForbidden}
			a.Warnings = []string{"images are checked"}
			a.AuditAnnotations = map[string]string{"image": "i:1"}
		})
	})
	w, _ := start(t, s.validating("images", nil))
	r := admissiontest.Creating("pods", pod("app", "web"))
	err := ask(t, w, r)
	if want := `admission webhook "images.example.com" denied the request: no such image here`; err == nil || err.Error() != want ||
		!apierrors.IsForbidden(err) {
		t.Fatalf("error %v, want %s", err, want)
	}
	if len(r.Warnings()) != 1 || r.Annotations()["images.example.com/image"] != "i:1" {
		t.Errorf("warnings %q, annotations %v", r.Warnings(), r.Annotations())
	}
	q := s.questions()[0].Request
	var got corev1.Pod
	if err := json.Unmarshal(q.Object.Raw, &got); err != nil || got.Name != "web" || got.Kind != "Pod" || got.APIVersion != "v1" {
		t.Errorf("the webhook was shown %s (%v)", q.Object.Raw, err)
	}
	if q.Operation != admissionv1.Create || q.Resource.Resource != "pods" || q.UserInfo.Username != "jane" || q.Namespace != "default" ||
		q.Name != "web" || q.DryRun == nil || *q.DryRun {
		t.Errorf("asked %+v", q)
	}
	if string(q.OldObject.Raw) != "" && string(q.OldObject.Raw) != "null" || !strings.Contains(string(q.Options.Raw),
		`"kind":"CreateOptions"`) {
		t.Errorf("old %s, options %s", q.OldObject.Raw, q.Options.Raw)
	}
}

func TestRefusalsOfAllShapesAreRefusals(t *testing.T) {
	for _, c := range []struct {
		result *metav1.Status
		want   string
		code   int32
	}{
		{nil, `admission webhook "x.example.com" denied the request without explanation`, 400},
		{&metav1.Status{Reason: "TooBad"}, `admission webhook "x.example.com" denied the request: TooBad`, 400},
		{&metav1.Status{Status: "Success", Code: 200, Message: "m"}, `admission webhook "x.example.com" denied the request: m`, 400},
		{&metav1.Status{Code: 418, Message: "m"}, `admission webhook "x.example.com" denied the request: m`, 418},
	} {
		s := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
			reply(w, r, func(a *admissionv1.AdmissionResponse) { a.Allowed, a.Result = false, c.result })
		})
		w, _ := start(t, s.validating("x", nil))
		err := ask(t, w, admissiontest.Creating("pods", pod()))
		var status *apierrors.StatusError
		if !errors.As(err, &status) || status.ErrStatus.Message != c.want || status.ErrStatus.Code != c.code ||
			status.ErrStatus.Status != metav1.StatusFailure {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}

func TestWhoIsAskedIsDecidedByTheConfiguration(t *testing.T) {
	refuse := func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		reply(w, r, func(a *admissionv1.AdmissionResponse) { a.Allowed = false })
	}
	s := serve(t, refuse)
	quiet := pod()
	quiet.Namespace = "quiet"
	for _, c := range []struct {
		name  string
		edit  func(*admissionregistrationv1.ValidatingWebhook)
		r     *admission.Request
		asked bool
	}{
		{"everything", nil, admissiontest.Creating("pods", pod()), true},
		{"another operation", func(h *admissionregistrationv1.ValidatingWebhook) { h.Rules = pods("UPDATE") }, admissiontest.Creating("pods", pod()), false},
		{"a delete", func(h *admissionregistrationv1.ValidatingWebhook) { h.Rules = pods("DELETE") }, admissiontest.Deleting("pods", pod()), true},
		{"a subresource that no rule names", nil, admissiontest.Updating("pods", pod(), pod(), admissiontest.Subresource("status")), false},
		{
			"a subresource that a rule names", func(h *admissionregistrationv1.ValidatingWebhook) { h.Rules[0].Resources = []string{"*/*"} },
			admissiontest.Updating("pods", pod(), pod(), admissiontest.Subresource("status")), true,
		},
		{
			"cluster scope", func(h *admissionregistrationv1.ValidatingWebhook) {
				h.Rules[0].Scope = ptr.To(admissionregistrationv1.ClusterScope)
			},
			admissiontest.Creating("pods", pod()), false,
		},
		{"the namespace's labels", selectNamespace, admissiontest.Creating("pods", pod()), true},
		{"another namespace's labels", selectNamespace, admissiontest.Creating("pods", quiet), false},
		{"the object's labels", selectObject, admissiontest.Creating("pods", pod("app", "web")), true},
		{"the old object's labels", selectObject, admissiontest.Updating("pods", pod("app", "web"), pod()), true},
		{"neither has the labels", selectObject, admissiontest.Updating("pods", pod(), pod()), false},
		{"a condition that holds", condition(`object.metadata.name == 'web'`), admissiontest.Creating("pods", pod()), true},
		{"a condition that does not", condition(`object.metadata.name != 'web'`), admissiontest.Creating("pods", pod()), false},
		{"a condition on the user's rights", condition(`!authorizer.group('').resource('pods').check('bypass').allowed()`), admissiontest.Creating("pods", pod()), true},
		{"a condition on the request", condition(`request.userInfo.username != 'jane'`), admissiontest.Creating("pods", pod()), false},
		{"a condition on what a delete lacks", condition(`has(object.spec)`), admissiontest.Deleting("pods", pod()), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, _ := start(t, s.validating("x", c.edit))
			if err := ask(t, w, c.r); (err != nil) != c.asked {
				t.Errorf("error %v, asked should be %v", err, c.asked)
			}
		})
	}
}

func selectNamespace(h *admissionregistrationv1.ValidatingWebhook) {
	h.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"watched": "yes"}}
}

func selectObject(h *admissionregistrationv1.ValidatingWebhook) {
	h.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func condition(expression string) func(*admissionregistrationv1.ValidatingWebhook) {
	return func(h *admissionregistrationv1.ValidatingWebhook) {
		h.Rules = pods("*")
		h.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "c", Expression: expression}}
	}
}

func TestConditionsThatFailFollowTheFailurePolicy(t *testing.T) {
	s := serve(t, allow)
	broken := func(policy admissionregistrationv1.FailurePolicyType) *admissionregistrationv1.ValidatingWebhookConfiguration {
		return s.validating("x", func(h *admissionregistrationv1.ValidatingWebhook) {
			h.MatchConditions = []admissionregistrationv1.MatchCondition{{
				Name:       "c",
				Expression: `object.spec.nodeName == 'a' || object.metadata.labels['none'] == 'b'`,
			}}
			h.FailurePolicy = &policy
		})
	}
	w, _ := start(t, broken(admissionregistrationv1.Fail))
	if err := ask(t, w, admissiontest.Creating("pods", pod())); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no such key") {
		t.Errorf("error %v", err)
	}
	w, _ = start(t, broken(admissionregistrationv1.Ignore))
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err != nil || len(s.questions()) != 0 {
		t.Errorf("error %v, asked %d times", err, len(s.questions()))
	}
}

// A hostile or broken webhook costs its own requests, in upstream's words, and
// nothing else.
// TestARefusedAddressIsReportedWithItsConfiguration, so that an operator learns which webhook leads to addresses
// that the server must not connect to.
func TestARefusedAddressIsReportedWithItsConfiguration(t *testing.T) {
	s := serve(t, allow)
	kube := fake.NewClientset(s.validating("x", nil), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	factory := informers.NewSharedInformerFactory(kube, 0)
	reported := make(chan string, 16)
	policy := dial.Public(nil, nil)
	policy.Report = func(ctx context.Context, refused *dial.RefusedError) {
		o := attempts.From(ctx).Object
		reported <- o.Kind + " " + o.Name + " " + refused.Error()
	}
	w, err := webhook.New(webhook.Config{Client: kube, Informers: factory, Authorizer: nobodyMay, Warm: time.Minute, Dial: &policy})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(t.Context().Done())
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err == nil || len(s.questions()) > 0 {
		t.Errorf("asked %d times: %v", len(s.questions()), err)
	}
	if got := <-reported; got != "ValidatingWebhookConfiguration x 127.0.0.1 is a private address" {
		t.Errorf("reported %q", got)
	}
}

func TestHostileWebhooks(t *testing.T) {
	elsewhere := serve(t, allow)
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter, *admissionv1.AdmissionReview)
		want   string
	}{
		{"slow", nil, "context deadline exceeded"},
		{"huge", func(w http.ResponseWriter, _ *admissionv1.AdmissionReview) {
			junk := make([]byte, 1<<20)
			for range 64 {
				if _, err := w.Write(junk); err != nil {
					return
				}
			}
		}, "larger than"},
		{"another uid", func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
			reply(w, r, func(a *admissionv1.AdmissionResponse) { a.UID = "guess" })
		}, `received invalid webhook response: expected response.uid=`},
		{"a redirect", func(w http.ResponseWriter, _ *admissionv1.AdmissionReview) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, "redirect"},
		{"an error", func(w http.ResponseWriter, _ *admissionv1.AdmissionReview) {
			http.Error(w, "out of order", http.StatusInternalServerError)
		}, "out of order"},
		{"no JSON", func(w http.ResponseWriter, _ *admissionv1.AdmissionReview) { _, _ = io.WriteString(w, "<html>") }, "invalid character"},
		{"no response", func(w http.ResponseWriter, _ *admissionv1.AdmissionReview) {
			_, _ = io.WriteString(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`)
		}, "webhook response was absent"},
		{"another kind", func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
			_, _ = fmt.Fprintf(w, `{"kind":"Pod","apiVersion":"v1","response":{"uid":%q,"allowed":true}}`, r.Request.UID)
		}, "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /v1, Kind=Pod"},
		{"a patch from a validating one", patching(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`), "validating webhook may not return response.patch"},
		{"a hang-up", func(w http.ResponseWriter, _ *admissionv1.AdmissionReview) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}, "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, c.answer)
			quick := func(h *admissionregistrationv1.ValidatingWebhook) {
				if c.name == "slow" {
					h.TimeoutSeconds = ptr.To(int32(1))
				}
			}
			w, _ := start(t, s.validating("x", quick))
			err := ask(t, w, admissiontest.Creating("pods", pod()))
			if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), `failed calling webhook "x.example.com": `) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			w, _ = start(t, s.validating("x", func(h *admissionregistrationv1.ValidatingWebhook) {
				quick(h)
				h.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
			}))
			r := admissiontest.Creating("pods", pod())
			if err := ask(t, w, r); err != nil {
				t.Errorf("a webhook whose failures are ignored refused: %v", err)
			}
			if r.Annotations()["failed-open.validating.webhook.admission.k8s.io/round_0_index_0"] != "x.example.com" {
				t.Errorf("annotations %v", r.Annotations())
			}
		})
	}
	if n := len(elsewhere.questions()); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

func TestHostilePatches(t *testing.T) {
	bomb := strings.Builder{}
	bomb.WriteString(`[{"op":"add","path":"/metadata/annotations","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`)
	for i := range 40 {
		fmt.Fprintf(&bomb, `,{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/b%d"}`, i)
	}
	bomb.WriteString("]")
	many := "[" + strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/kind","value":"Pod"},`, 10_001), ",") + "]"
	for _, c := range []struct{ name, patch, want string }{
		{"no JSON", `{`, "received undecodable patch in webhook response"},
		{"out of bounds", `[{"op":"replace","path":"/spec/containers/7/image","value":"j"}]`, "replace operation does not apply"},
		{"a failed test", `[{"op":"test","path":"/metadata/name","value":"other"}]`, "testing value /metadata/name failed"},
		{"another kind", `[{"op":"replace","path":"/kind","value":"Node"}]`, "/v1, Kind=Pod to /v1, Kind=Node"},
		{"wrong types", `[{"op":"replace","path":"/spec/containers","value":"none"}]`, "containers"},
		{"copies that double", bomb.String(), "larger than"},
		{"too many operations", many, "maximum operations"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, patching(c.patch))
			w, _ := start(t, s.mutating("x", nil))
			r := admissiontest.Creating("pods", pod())
			if err := ask(t, w, r); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
	t.Run("of what a delete lacks", func(t *testing.T) {
		s := serve(t, patching(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`))
		w, _ := start(t, s.mutating("x", nil))
		if err := ask(t, w, admissiontest.Deleting("pods", pod())); err == nil || !strings.Contains(err.Error(),
			"attempted to modify the object, which is not supported for this operation") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("without its type", func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
			reply(w, r, func(a *admissionv1.AdmissionResponse) { a.Patch = []byte("[]") })
		})
		w, _ := start(t, s.mutating("x", nil))
		if err := ask(t, w, admissiontest.Creating("pods", pod())); err == nil || !strings.Contains(err.Error(),
			"webhook returned response.patch but not response.patchType") {
			t.Errorf("error %v", err)
		}
	})
}

func TestMutatingWebhooksSeeEachOthersChangesAndAreAskedAgainIfTheyWish(t *testing.T) {
	first := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		var p corev1.Pod
		_ = json.Unmarshal(r.Request.Object.Raw, &p)
		if p.Labels["second"] == "was here" {
			patching(`[{"op":"add","path":"/metadata/labels/first","value":"saw second"}]`)(w, r)
			return
		}
		patching(`[{"op":"add","path":"/metadata/labels/first","value":"alone"}]`)(w, r)
	})
	second := serve(t, patching(`[{"op":"add","path":"/metadata/labels/second","value":"was here"}]`))
	for _, c := range []struct {
		policy       admissionregistrationv1.ReinvocationPolicyType
		want         string
		first, other int
	}{
		{admissionregistrationv1.NeverReinvocationPolicy, "alone", 1, 1},
		{admissionregistrationv1.IfNeededReinvocationPolicy, "saw second", 2, 1},
	} {
		first.asked, second.asked = nil, nil
		w, _ := start(t, first.mutating("a-first", func(h *admissionregistrationv1.MutatingWebhook) { h.ReinvocationPolicy = &c.policy }), second.mutating("b-second", nil))
		r := admissiontest.Creating("pods", pod())
		if err := ask(t, w, r); err != nil {
			t.Fatal(err)
		}
		m, err := r.Object.Meta()
		if err != nil || m.GetLabels()["first"] != c.want || len(first.questions()) != c.first || len(second.questions()) != c.other {
			t.Errorf("%s: labels %v (%v), asked %d and %d times", c.policy, m.GetLabels(), err, len(first.questions()), len(second.questions()))
		}
		if got := r.Annotations()["mutation.webhook.admission.k8s.io/round_0_index_1"]; got !=
			`{"configuration":"b-second","webhook":"b-second.example.com","mutated":true}` {
			t.Errorf("annotation %s", got)
		}
		if got := r.BodyAnnotations()["patch.webhook.admission.k8s.io/round_0_index_0"]; !strings.Contains(got, `"patch":[{"op":"add"`) {
			t.Errorf("patch annotation %s", got)
		}
	}
}

func TestDryRunsAreAskedOnlyWhereTheyHaveNoSideEffects(t *testing.T) {
	s := serve(t, allow)
	for effects, allowed := range map[admissionregistrationv1.SideEffectClass]bool{
		admissionregistrationv1.SideEffectClassNone: true, admissionregistrationv1.SideEffectClassNoneOnDryRun: true,
		admissionregistrationv1.SideEffectClassSome: false, admissionregistrationv1.SideEffectClassUnknown: false,
	} {
		w, _ := start(t, s.validating("x", func(h *admissionregistrationv1.ValidatingWebhook) { h.SideEffects = &effects }))
		r := admissiontest.Creating("pods", pod())
		r.DryRun = true
		err := ask(t, w, r)
		if allowed != (err == nil) ||
			err != nil && (!apierrors.IsBadRequest(err) || err.Error() != `admission webhook "x.example.com" does not support dry run`) {
			t.Errorf("%s: error %v", effects, err)
		}
	}
}

func TestConfigurationsAreFollowedAndDontJudgeThemselves(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		reply(w, r, func(a *admissionv1.AdmissionResponse) { a.Allowed = false })
	})
	all := s.validating("x", func(h *admissionregistrationv1.ValidatingWebhook) {
		h.Rules[0].APIGroups, h.Rules[0].APIVersions, h.Rules[0].Resources = []string{"*"}, []string{"*"}, []string{"*/*"}
	})
	w, kube := start(t)
	configurations := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err != nil {
		t.Fatal(err)
	}
	if _, err := configurations.Create(t.Context(), all, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return ask(t, w, admissiontest.Creating("pods", pod())) != nil })
	if err := ask(t, w, admissiontest.Deleting("validatingwebhookconfigurations", all)); err != nil {
		t.Errorf("a webhook was asked about its own configuration: %v", err)
	}
	if err := configurations.Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return ask(t, w, admissiontest.Creating("pods", pod())) == nil })
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

func TestValidatingWebhooksAreAskedAllAtOnce(t *testing.T) {
	const n = 4
	var meeting sync.WaitGroup
	meeting.Add(n)
	s := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		meeting.Done()
		meeting.Wait() // nobody answers before all were asked
		allow(w, r)
	})
	var objects []runtime.Object
	for i := range n {
		objects = append(objects, s.validating(fmt.Sprintf("x%d", i), nil))
	}
	w, _ := start(t, objects...)
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err != nil {
		t.Error(err)
	}
}

func TestAServiceReferenceReachesAnEndpointByTheServicesName(t *testing.T) {
	var names atomic.Value
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names.Store(r.TLS.ServerName + r.URL.Path)
		var review admissionv1.AdmissionReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		allow(w, &review)
	}))
	s.StartTLS()
	defer s.Close()
	ref := func(port int32) *admissionregistrationv1.ValidatingWebhookConfiguration {
		return (&server{Server: s}).validating("x", func(h *admissionregistrationv1.ValidatingWebhook) {
			h.ClientConfig.URL = nil
			h.ClientConfig.Service = &admissionregistrationv1.ServiceReference{
				Namespace: "default", Name: "hook", Path: ptr.To("/check"),
				Port: &port,
			}
		})
	}
	svc, slice := endpointOf(t, s)
	w, _ := start(t, ref(8443), svc, slice)
	// The test server's certificate is for example.com, not for the service: what
	// matters is that the name was asked for, and that it is verified.
	err := ask(t, w, admissiontest.Creating("pods", pod()))
	if err == nil || !strings.Contains(err.Error(), "hook.default.svc") || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("error %v", err)
	}
	w, _ = start(t, ref(9), svc, slice)
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err == nil || !strings.Contains(err.Error(), `no service port 9 found for service "hook"`) {
		t.Errorf("error %v", err)
	}
	w, _ = start(t, ref(8443), svc)
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err == nil || !strings.Contains(err.Error(), `no endpoints available for service "hook"`) {
		t.Errorf("error %v", err)
	}
	w, _ = start(t, ref(8443))
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err == nil || !strings.Contains(err.Error(), `services "hook" not found`) {
		t.Errorf("error %v", err)
	}
}

func TestMetricsHaveUpstreamsNames(t *testing.T) {
	s := serve(t, allow)
	w, _ := start(t, s.validating("x", nil))
	registry := prometheus.NewRegistry()
	if err := w.Register(registry); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, name := range []string{"apiserver_admission_webhook_admission_duration_seconds", "apiserver_admission_webhook_request_total"} {
		if !got[name] {
			t.Errorf("%s is missing among %v", name, got)
		}
	}
}

func TestSuite(t *testing.T) {
	label := base64.StdEncoding.EncodeToString([]byte(`[{"op":"add","path":"/metadata/labels/team","value":"a"}]`))
	s := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		_, _ = fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true,"patchType":"JSONPatch","patch":%q}}`, r.Request.UID, label)
	})
	no := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		reply(w, r, func(a *admissionv1.AdmissionResponse) {
			a.Allowed = !strings.Contains(string(r.Request.Object.Raw), `"bad"`)
			a.Result = &metav1.Status{Message: "bad label"}
		})
	})
	w, _ := start(t, s.mutating("x", func(h *admissionregistrationv1.MutatingWebhook) { h.Rules = pods("CREATE") }), no.validating("y", nil))
	t.Run("mutating", func(t *testing.T) {
		admissiontest.Run(t, w.Mutating(), admissiontest.Case{
			Name: "labels", Request: func() *admission.Request { return admissiontest.Creating("pods", pod()) },
			Check: func(t *testing.T, o runtime.Object) {
				if o.(*corev1.Pod).Labels["team"] != "a" {
					t.Errorf("%+v", o)
				}
			},
		})
	})
	t.Run("validating", func(t *testing.T) {
		admissiontest.Run(t, w.Validating(),
			admissiontest.Case{Name: "good", Request: func() *admission.Request { return admissiontest.Creating("pods", pod()) }},
			admissiontest.Case{
				Name: "bad", Denied: "bad label",
				Request: func() *admission.Request { return admissiontest.Creating("pods", pod("bad", "x")) },
			},
		)
	})
}
