// SPDX-License-Identifier: Apache-2.0

package celgate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.yaml.in/yaml/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/fence"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celgate"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

var uids atomic.Int32

// world is a cluster with some objects.
type world struct {
	t       *testing.T
	objects []*unstructured.Unstructured
	late    []*unstructured.Unstructured // stored, and not seen by the watch cache yet
	may     func(authorizationv1.SubjectAccessReviewSpec) bool
	gate    *celgate.Gate
}

// State implements latest.Objects: whatever is asked about may have changed.
func (*world) State(schema.GroupVersionKind) (any, error) { return new(int), nil }

func (w *world) List(_ context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector,
) (out []runtime.Object, err error) {
	for _, o := range w.objects {
		if o.GroupVersionKind() == kind && (namespace == "" || namespace == o.GetNamespace()) && selector.Matches(labels.Set(o.GetLabels())) {
			out = append(out, o)
		}
	}
	return out, nil
}

func (w *world) Get(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error) {
	list, err := w.List(ctx, kind, namespace, labels.Everything())
	for _, o := range list {
		if u, ok := o.(*unstructured.Unstructured); ok && u.GetName() == name {
			return o, nil
		}
	}
	if err == nil {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: kind.Kind}, name)
	}
	return nil, err
}

// newest is the world as it is stored.
func (w *world) newest() *world { return &world{objects: append(slices.Clone(w.objects), w.late...)} }

func (w *world) GetNewest(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error) {
	return w.newest().Get(ctx, kind, namespace, name)
}

func (w *world) ListNewest(ctx context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector,
) ([]runtime.Object, error) {
	return w.newest().List(ctx, kind, namespace, selector)
}

func (w *world) Served(gv schema.GroupVersion, kind, resource string) (foundKind, foundResource string, err error) {
	if gv.String() == "v1" && (resource == "configmaps" || kind == "ConfigMap") {
		return "ConfigMap", "configmaps", nil
	}
	return "", "", apierrors.NewNotFound(schema.GroupResource{Resource: resource}, kind)
}

func (w *world) Review(_ context.Context, s authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	return authorizationv1.SubjectAccessReviewStatus{Allowed: w.may == nil || w.may(s)}, nil
}

type namespaces struct{}

func (namespaces) Get(name string) (*corev1.Namespace, error) {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

func (namespaces) List(labels.Selector) ([]*corev1.Namespace, error) { return nil, nil }

func newWorld(t *testing.T) *world {
	w := &world{t: t}
	nobody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", nil
	})
	w.gate = celgate.New(celgate.Config{
		World: w, Namespaces: matching.Namespaces{Lister: namespaces{}}, Rights: rights.New(w), Review: w.Review,
		Policies: policy.Config{
			Authorizer: nobody,
			Types: func(schema.GroupVersionKind) (managedfields.TypeConverter, error) {
				return managedfields.NewDeducedTypeConverter(), nil
			},
		},
		Complete:  func(*kyverno.Objects, string) {},
		Operators: dial.Operator(nil), Tenants: dial.Public(nil, nil),
	})
	return w
}

// add puts an object there, written by jane.
func (w *world) add(text string) {
	w.t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		w.t.Fatal(err)
	}
	encoded, err := json.Marshal(o)
	if err != nil {
		w.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(encoded); err != nil {
		w.t.Fatal(err)
	}
	u.SetAnnotations(map[string]string{"plugins.wasmplane.dev/writer": `{"username":"jane"}`})
	u.SetUID(types.UID(fmt.Sprintf("uid%d", uids.Add(1))))
	u.SetResourceVersion("1")
	w.objects = append(w.objects, u)
}

// policy adds a ValidatingPolicy about ConfigMaps.
func (w *world) policy(name, expression string) {
	w.t.Helper()
	w.add(`{apiVersion: policies.kyverno.io/v1, kind: ValidatingPolicy, metadata: {name: ` + name + `}, spec: {
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]},
  webhookConfiguration: {timeoutSeconds: 5}, validations: [{expression: ` + fmt.Sprintf("%q", expression) + `}]}}`)
}

func (w *world) request() *admission.Request {
	r := &admission.Request{
		Operation: admission.Create, Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Namespace: "red", Name: "a",
		User: &user.DefaultInfo{Name: "eve"},
	}
	tree := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "red"}, "data": map[string]any{"host": "127.0.0.1"},
	}
	r.Object = object.FromTree(object.Unstructured{GVK: r.Kind}, tree)
	return r
}

// validate says what the policies have against a ConfigMap; "" = nothing.
func (w *world) validate() string {
	w.t.Helper()
	if err := w.gate.Validate(w.t.Context(), w.request()); err != nil {
		return err.Error()
	}
	return ""
}

func (w *world) expect(want string) {
	w.t.Helper()
	if found := w.validate(); (want == "") != (found == "") || !strings.Contains(found, want) {
		w.t.Errorf("%q, expected %q", found, want)
	}
}

func TestAServerIsAskedWhereThePolicyNamesIt(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch r.URL.Path {
		case "/away":
			http.Redirect(rw, r, "/ok", http.StatusFound)
		case "/large":
			_, _ = rw.Write(make([]byte, 2<<20))
		default:
			var in any
			_ = json.NewDecoder(r.Body).Decode(&in)
			_ = json.NewEncoder(rw).Encode(map[string]any{"ok": true, "n": 3, "sent": in, "header": r.Header.Get("X-A"), "method": r.Method})
		}
	}))
	defer server.Close()
	port := server.URL[strings.LastIndexByte(server.URL, ':'):]
	w.policy("get", `http.Get("`+server.URL+`" + "/ok", {"X-A": "b"}).header == "b" && http.Get("`+server.URL+`/ok").statusCode == 200`)
	w.policy("post", `http.Post("`+server.URL+`/ok", {"a": object.data.host}).sent.a == "127.0.0.1"`)
	w.policy("redirect", `http.Get("`+server.URL+`/away").statusCode == 302`)
	w.expect("")
	before := asked.Load()
	w.policy("twice", `http.Get("`+server.URL+`/ok").n == 3 && http.Get("`+server.URL+`/ok").n == 3`)
	w.expect("")
	if n := asked.Load() - before; n != 5 { // the four before, and once for both
		t.Errorf("the server was asked %d times, expected 5", n)
	}
	for name, c := range map[string]struct{ expression, want string }{
		"chosen":  {`http.Get("http://" + object.data.host + "` + port + `").ok == true`, "whose name does not stand in the policy"},
		"private": {`http.Get("https://" + object.data.host + "` + port + `").ok == true`, "may not be connected to"},
		"large":   {`http.Get("` + server.URL + `/large").ok == true`, "more than 1048576 bytes"},
		"place":   {`http.Get("file:///etc/passwd").ok == true`, "expected https://"},
		"bundle":  {`http.Client("no").Get("https://a.example.com").ok == true`, "certificates in PEM"},
	} {
		w.objects = nil
		w.policy(name, c.expression)
		w.expect(c.want)
	}
	w.objects = nil
	w.policy("nobody", `http.Get("`+server.URL+`/ok").ok == true`)
	w.may = func(s authorizationv1.SubjectAccessReviewSpec) bool { return s.ResourceAttributes.Verb != "grant" }
	w.gate = newWorld(t).with(w)
	w.expect(`"jane" may not send from the control plane's machines`)
}

// with has a gate look at another world's objects and rights.
func (w *world) with(other *world) *celgate.Gate {
	w.objects, w.may = other.objects, other.may
	return w.gate
}

func TestAnEvaluationAsksOnlySoOften(t *testing.T) {
	w := newWorld(t)
	var names []string
	for i := range 101 {
		names = append(names, fmt.Sprintf("%q", fmt.Sprint(i)))
	}
	w.policy("many", `[`+strings.Join(names, ",")+`].all(n, resource.Get("v1", "configmaps", "red", n) == null)`)
	w.expect("at most 100 things")
	w.objects = nil
	w.policy("few", `[`+strings.Join(names[:100], ",")+`].all(n, resource.Get("v1", "configmaps", "red", n) == null)`)
	w.expect("")
	w.objects = nil
	w.policy("unknown", `resource.List("a.example.com/v1", "things", "").items == []`)
	w.expect("things of a.example.com/v1 are not served here")
}

// TestAPolicyOfANamespaceReadsThere: its functions take no namespace.
func TestAPolicyOfANamespaceReadsThere(t *testing.T) {
	w := newWorld(t)
	w.add(`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: red}, data: {a: b}}`)
	w.add(`{apiVersion: v1, kind: ConfigMap, metadata: {name: y, namespace: blue}}`)
	w.add(`{apiVersion: policies.kyverno.io/v1, kind: NamespacedValidatingPolicy, metadata: {name: own, namespace: red}, spec: {
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]},
  validations: [{expression: 'resource.Get("v1", "configmaps", "x").data.a == "b" && resource.Get("v1", "configmaps", "y") == null
    && resource.List("v1", "configmaps").items.size() == 1'}]}}`)
	w.expect("")
}

func TestWhatPoliciesShare(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			return // nothing: it answers with the code alone
		}
		_, _ = rw.Write([]byte(`{"teams":["red"]}`))
	}))
	defer server.Close()
	w.add(`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: red}, data: {a: b}}`)
	w.add(`{apiVersion: kyverno.io/v2beta1, kind: GlobalContextEntry, metadata: {name: maps}, spec: {kubernetesResource: {version: v1, resource: configmaps}}}`)
	w.add(`{apiVersion: kyverno.io/v2beta1, kind: GlobalContextEntry, metadata: {name: one}, spec: {apiCall: {urlPath: /api/v1/namespaces/red/configmaps/x}}}`)
	w.add(`{apiVersion: kyverno.io/v2beta1, kind: GlobalContextEntry, metadata: {name: list}, spec: {apiCall: {urlPath: /api/v1/configmaps}}}`)
	w.add(`{apiVersion: kyverno.io/v2beta1, kind: GlobalContextEntry, metadata: {name: teams}, spec: {apiCall: {service: {url: "` + server.URL + `"}}}}`)
	w.policy("maps", `globalContext.Get("maps", "").all(m, m.data.a == "b") && globalContext.Get("one").data.a == "b"`)
	w.policy("list", `size(globalContext.Get("list", "").items) == 1`)
	w.policy("teams", `globalContext.Get("teams", "").statusCode == 200`)
	w.expect("")
	w.expect("")
	if n := asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times, expected once in its refreshInterval", n)
	}
	w.policy("none", `globalContext.Get("none", "") == null`)
	w.expect(`there is no GlobalContextEntry "none"`)
}

// TestARequestIsJudgedByWhatIsStored: what a policy reads while a request is judged is the newest state, and the request is
// held against later changes of it. Where nobody waits, such as in a background scan, the watch cache does.
func TestARequestIsJudgedByWhatIsStored(t *testing.T) {
	const group = "" // of ConfigMaps
	for name, expression := range map[string]string{
		"list":   `resource.List("v1", "configmaps", "red").items.all(i, i.data.host != object.data.host)`,
		"get":    `resource.Get("v1", "configmaps", "red", "other") == null`,
		"global": `globalContext.Get("maps", "").all(i, i.data.host != object.data.host)`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add(`{apiVersion: kyverno.io/v2beta1, kind: GlobalContextEntry, metadata: {name: maps},
  spec: {kubernetesResource: {version: v1, resource: configmaps, namespace: red}}}`)
			w.policy(name, expression)
			w.add(`{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: red}, data: {host: 127.0.0.1}}`)
			last := len(w.objects) - 1
			w.objects, w.late = w.objects[:last], w.objects[last:]
			if found := w.validate(); found != "" {
				t.Errorf("where nothing is judged: %s", found)
			}
			asked := 0
			ctx := fence.Begin(t.Context(), func(_ context.Context, key string) (int64, error) {
				if asked++; key != fence.Key(group) {
					t.Errorf("the fence %q is raised", key)
				}
				return 7, nil
			})
			if err := w.gate.Validate(ctx, w.request()); err == nil {
				t.Error("a request is judged by what the watch cache has seen")
			}
			if seen := fence.Seen(ctx); seen[fence.Key(group)] != 7 {
				t.Errorf("it is held against %v", seen)
			}
		})
	}
}

func TestMutationsBeyondTheRequest(t *testing.T) {
	w := newWorld(t)
	w.add(`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: red}, data: {a: b}}`)
	w.add(`{apiVersion: policies.kyverno.io/v1, kind: MutatingPolicy, metadata: {name: copy}, spec: {
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]},
  mutations: [{patchType: JSONPatch, jsonPatch: {
    expression: '[JSONPatch{op: "add", path: "/data/a", value: resource.Get("v1", "configmaps", "red", "x").data.a}]'}}]}}`)
	r := w.request()
	if err := w.gate.Mutate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	tree, err := r.Object.Tree()
	if err != nil {
		t.Fatal(err)
	}
	if a, _, _ := unstructured.NestedString(tree, "data", "a"); a != "b" {
		t.Errorf("data.a is %q, expected b", a)
	}
	w.may = func(s authorizationv1.SubjectAccessReviewSpec) bool { return s.ResourceAttributes.Verb == "get" }
	w.gate = newWorld(t).with(w)
	if err := w.gate.Mutate(t.Context(), w.request()); err == nil || !strings.Contains(err.Error(), `"jane" may not create configmaps`) {
		t.Errorf("%v, expected that its writer may not create them", err)
	}
}

func TestWhatIsStoredIsJudgedToo(t *testing.T) {
	w := newWorld(t)
	w.policy("maps", `resource.Get("v1", "configmaps", "red", "x") != null`)
	list, err := w.gate.Standing(t.Context())
	if err != nil || len(list) != 1 || !list[0].About(schema.GroupResource{Resource: "configmaps"}, admission.Create) {
		t.Fatalf("%v, %v", list, err)
	}
	asked, found, err := list[0].Judge(t.Context(), w.request())
	if !asked || len(found) != 1 || err != nil {
		t.Errorf("%v, %v, %v", asked, found, err)
	}
}
