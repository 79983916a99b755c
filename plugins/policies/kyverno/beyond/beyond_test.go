// SPDX-License-Identifier: Apache-2.0

package beyond_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/beyond"
)

// reach answers by what a test says, and remembers what it was asked.
type reach struct {
	mu     sync.Mutex
	asked  []string
	answer func(question string) (any, error)
}

func (r *reach) say(question ...any) (any, error) {
	text, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.asked = append(r.asked, string(text))
	r.mu.Unlock()
	return r.answer(string(text))
}

func (r *reach) object(question ...any) (map[string]any, error) {
	v, err := r.say(question...)
	o, _ := v.(map[string]any)
	return o, err
}

func (r *reach) Get(_ context.Context, apiVersion, resource, namespace, name string) (map[string]any, error) {
	return r.object("get", apiVersion, resource, namespace, name)
}

func (r *reach) List(_ context.Context, apiVersion, resource, namespace string, labels map[string]string) (map[string]any, error) {
	return r.object("list", apiVersion, resource, namespace, labels)
}

func (r *reach) Post(_ context.Context, apiVersion, resource, namespace string, o map[string]any) (map[string]any, error) {
	return r.object("post", apiVersion, resource, namespace, o)
}

func (r *reach) Resource(_ context.Context, apiVersion, kind string) (string, error) {
	v, err := r.say("resource", apiVersion, kind)
	text, _ := v.(string)
	return text, err
}

func (r *reach) Global(_ context.Context, name, projection string) (any, error) {
	return r.say("global", name, projection)
}

func (r *reach) Send(_ context.Context, q beyond.Request) (any, error) {
	return r.say("send", q.Method, q.URL, q.Headers, q.Body, q.Authorities)
}

func (r *reach) Image(_ context.Context, image string) (map[string]any, error) {
	return r.object("image", image)
}

// always answers everything alike.
func always(v any) *reach {
	return &reach{answer: func(string) (any, error) { return v, nil }}
}

type namespaces struct{}

func (namespaces) Get(name string) (*corev1.Namespace, error) {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "red"}}}, nil
}

func (namespaces) List(labels.Selector) ([]*corev1.Namespace, error) { return nil, nil }

// read reads a policy.
func read(t *testing.T, kind, namespace, spec string) *kyverno.Objects {
	t.Helper()
	var o map[string]any
	text := fmt.Sprintf("{apiVersion: policies.kyverno.io/v1, kind: %s, metadata: {name: p, namespace: %q}, spec: {%s}}", kind, namespace, spec)
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(encoded, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := kyverno.Read(o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const aboutMaps = `matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps, pods]}]}`

func validating(t *testing.T, expression, more string) *beyond.Policy {
	t.Helper()
	return policyOf(t, kyverno.Validating, "", fmt.Sprintf("%s, validations: [{expression: %q}]%s", aboutMaps, expression, more))
}

func policyOf(t *testing.T, kind, namespace, spec string) *beyond.Policy {
	t.Helper()
	nobody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", nil
	})
	return beyond.New(read(t, kind, namespace, spec), "p", namespace, policy.Config{
		Authorizer: nobody,
		Types: func(schema.GroupVersionKind) (managedfields.TypeConverter, error) {
			return managedfields.NewDeducedTypeConverter(), nil
		},
	}, namespaces{})
}

// creating is a request that creates an object.
func creating(kind, resource string, more map[string]any) *admission.Request {
	tree := map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": "a", "namespace": "red"}}
	for key, value := range more {
		tree[key] = value
	}
	r := &admission.Request{
		Operation: admission.Create, Kind: schema.GroupVersionKind{Version: "v1", Kind: kind}, Namespace: "red", Name: "a",
		Resource: schema.GroupVersionResource{Version: "v1", Resource: resource}, User: &user.DefaultInfo{Name: "eve"},
	}
	r.Object = object.FromTree(object.Unstructured{GVK: r.Kind}, tree)
	return r
}

func creatingMap(data map[string]any) *admission.Request {
	return creating("ConfigMap", "configmaps", map[string]any{"data": data})
}

func creatingPod(images ...string) *admission.Request {
	var containers []any
	for i, image := range images {
		containers = append(containers, map[string]any{"name": fmt.Sprint("c", i), "image": image})
	}
	return creating("Pod", "pods", map[string]any{"spec": map[string]any{"containers": containers}})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestEachFunctionAsksItsQuestion: what an expression asks comes to the Reach as it was meant, and its answer to the expression.
func TestEachFunctionAsksItsQuestion(t *testing.T) {
	object := map[string]any{"data": map[string]any{"a": "b"}, "items": []any{map[string]any{"n": int64(1)}}, "statusCode": int64(200)}
	for _, c := range []struct {
		expression string
		answer     any
		asked      []string
	}{
		{`resource.Get("v1", "configmaps", "red", "x").data.a == "b"`, object, []string{`["get","v1","configmaps","red","x"]`}},
		{`resource.get("v1", "namespaces", "", "x") == null`, nil, []string{`["get","v1","namespaces","","x"]`}},
		{`resource.List("v1", "pods", "").items[0].n == 1`, object, []string{`["list","v1","pods","",null]`}},
		{`resource.List("v1", "pods", "red", {"a": "b"}).items.size() == 1`, object, []string{`["list","v1","pods","red",{"a":"b"}]`}},
		{
			`resource.Get(resource.ToGVR("v1", "ConfigMap"), "red", "x") == null`, "configmaps",
			[]string{`["resource","v1","ConfigMap"]`, `["get","v1","configmaps","red","x"]`},
		},
		{`resource.Post("a/v1", "reviews", {"spec": {"n": 1}}).data.a == "b"`, object, []string{`["post","a/v1","reviews","",{"spec":{"n":1}}]`}},
		{`globalContext.Get("teams", "").data.a == "b"`, object, []string{`["global","teams",""]`}},
		{`globalContext.Get("teams", "names").data.a == "b"`, object, []string{`["global","teams","names"]`}},
		{`http.Get("https://a.example.com/x").statusCode == 200`, object, []string{`["send","GET","https://a.example.com/x",null,null,""]`}},
		{
			`http.Client("PEM").Post("https://a.example.com", {"n": [1]}, {"X-A": "b"}).statusCode == 200`, object,
			[]string{`["send","POST","https://a.example.com",{"X-A":"b"},{"n":[1]},"PEM"]`},
		},
		{`image.GetMetadata("a:1").data.a == "b"`, object, []string{`["image","a:1"]`}},
		{
			`resource.Get("v1", "a", "", "x") == resource.Get("v1", "a", "", "x") && resource.Get("v1", "a", "", "y") != null`, object,
			[]string{`["get","v1","a","","x"]`, `["get","v1","a","","y"]`},
		},
		{`sha256(object.data.name).size() == 64`, nil, nil},
	} {
		p, asked := validating(t, c.expression, ""), always(c.answer)
		if err := p.Validate(t.Context(), creatingMap(map[string]any{"name": "x"}), asked); err != nil {
			t.Errorf("%s: %v", c.expression, err)
		}
		if !reflect.DeepEqual(asked.asked, c.asked) {
			t.Errorf("%s: asked %s, expected %s", c.expression, asked.asked, c.asked)
		}
	}
}

// TestOnlyWhomAPolicyIsAboutCosts: a request that the policy is not about has no evaluator made, and requests one after the other have one.
func TestOnlyWhomAPolicyIsAboutCosts(t *testing.T) {
	for _, c := range []struct {
		name, spec string
		request    *admission.Request
		asks, made int
	}{
		{"another resource", aboutMaps, creating("Secret", "secrets", nil), 0, 0},
		{"another namespace", strings.TrimSuffix(aboutMaps, "}") + `, namespaceSelector: {matchLabels: {team: blue}}}`, creatingMap(nil), 0, 0},
		{"its namespace", strings.TrimSuffix(aboutMaps, "}") + `, namespaceSelector: {matchLabels: {team: red}}}`, creatingMap(nil), 5, 1},
	} {
		p := policyOf(t, kyverno.Validating, "", c.spec+`, validations: [{expression: 'resource.Get("v1", "configmaps", "red", "x") == null'}]`)
		asked := always(nil)
		for range 5 {
			if err := p.Validate(t.Context(), c.request, asked); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if len(asked.asked) != c.asks || p.Idle() != c.made {
			t.Errorf("%s: %d questions, %d evaluators; expected %d and %d", c.name, len(asked.asked), p.Idle(), c.asks, c.made)
		}
	}
}

// TestWhatCannotBeAnsweredIsTheFailurePolicys: it refuses, or it does not, and what is said names the reason.
func TestWhatCannotBeAnsweredIsTheFailurePolicys(t *testing.T) {
	fails := &reach{answer: func(string) (any, error) { return nil, errors.New("10.0.0.1 may not be connected to") }}
	for _, c := range []struct{ expression, more, want string }{
		{`http.Get("http://" + object.data.host).a == 1`, "", "http.Get: 10.0.0.1 may not be connected to"},
		{`http.Get("http://" + object.data.host).a == 1`, ", failurePolicy: Ignore", ""},
		{`image.GetMetadata(object.data.host).a == 1`, "", "GetMetadata: 10.0.0.1 may not be connected to"},
		{`resource.List("v1", "secrets", "").items.size() == 0`, "", "List: 10.0.0.1 may not be connected to"},
		{`resource.Get(object.data.number, "a", "b", "c") == null`, "", "no such overload"},
		{`resource.Get("v1", "a", "b", object.data.none) == null`, "", "no such key: none"},
		{`http.Post("https://a", {1: 2}) == null`, "", "JSON has texts alone"},
	} {
		p := validating(t, c.expression, c.more)
		found := text(p.Validate(t.Context(), creatingMap(map[string]any{"host": "10.0.0.1", "number": int64(1)}), fails))
		want := strings.TrimPrefix(c.want, "http.") // functions have no place in their names
		if (want == "") != (found == "") || !strings.Contains(found, want) {
			t.Errorf("%s: %q, expected %q", c.expression, found, want)
		}
	}
}

// TestWhatDoesNotCompileIsSaidBefore: which functions there are depends on whose the policy is.
func TestWhatDoesNotCompileIsSaidBefore(t *testing.T) {
	for _, c := range []struct{ namespace, expression, want string }{
		{"", `http.Get("https://a.example.com").a == 1`, ""},
		{"red", `resource.Get("v1", "configmaps", "x") == null && resource.List("v1", "pods", {"a": "b"}).items == []`, ""},
		{"", `resource.Get("v1", "configmaps", "x") == null`, "no matching overload"},
		{"", `resource.Delete("v1", "configmaps", "red", "x") == null`, "undeclared reference to 'Delete'"},
		{"", `http.Get(1).a == 1`, "no matching overload"},
		{"", `http == 1`, "no matching overload"},
		{"", `images.containers[0] == 1`, "no matching overload"},
	} {
		kind := kyverno.Validating
		if c.namespace != "" {
			kind = kyverno.NamespacedValidating
		}
		o := read(t, kind, c.namespace, fmt.Sprintf("%s, validations: [{expression: %q}]", aboutMaps, c.expression))
		found := text(beyond.Compiles(o, c.namespace))
		if (c.want == "") != (found == "") || !strings.Contains(found, c.want) {
			t.Errorf("%q %s: %q, expected %q", c.namespace, c.expression, found, c.want)
		}
	}
}

// TestHostileObjectsAreBounded: what stands in an object, which anybody may write, costs no more than the bounds say, and what
// exceeds them is an error of the expression.
func TestHostileObjectsAreBounded(t *testing.T) {
	many := make([]any, 200_000)
	for i := range many {
		many[i] = map[string]any{"metadata": map[string]any{"name": fmt.Sprint("n", i)}}
	}
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%[1]d: &a%[1]d [*a%[2]d,*a%[2]d,*a%[2]d,*a%[2]d,*a%[2]d,*a%[2]d,*a%[2]d,*a%[2]d,*a%[2]d]\n", i, i-1)
	}
	for _, c := range []struct {
		name, expression string
		data             string
		answer           any
		want             string
	}{
		{"a bomb of gzip", `gzip.decompress(gzip.compress(object.data.a + object.data.a)).size() > 0`, strings.Repeat("x", 1<<19+1), nil, "more than 1048576 bytes"},
		{"a billion laughs", `yaml.parse(object.data.a).a11.size() > 0`, laughs, nil, "excessive aliasing"},
		{"nested without an end", `json.unmarshal(object.data.a) == null`, strings.Repeat("[", 1<<19), nil, "exceeded max depth"},
		{"a large text of JSON", `json.unmarshal(object.data.a) == null`, strings.Repeat(" ", 1<<20+1), nil, "more than 1048576 bytes is not decoded"},
		{"a large text of YAML", `yaml.parse(object.data.a) == null`, strings.Repeat(" ", 1<<20+1), nil, "more than 1048576 bytes is not decoded"},
		{"a large certificate", `x509.decode(object.data.a).IsCA == true`, strings.Repeat(" ", 1<<20+1), nil, "more than 1048576 bytes is not decoded"},
		{"a key of a million bits", `x509.decode(object.data.a).PublicKey.N.size() > 0`, largeKey(t), nil, "at most 16384 bits"},
		{"no certificate", `x509.decode(object.data.a).IsCA == true`, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", nil, "x509.decode: "},
		{"no reference of an image", `image(object.data.a).registry() == ""`, strings.Repeat("a/", 1<<16), nil, "could not parse reference"},
		{"a regular expression of chance", `random(object.data.a).size() > 0`, "(((a{99}){99}){9})", nil, "random: "},
		{"questions out of the object", `object.data.a.split(",").all(n, resource.Get("v1", "configmaps", "red", n) == null)`, strings.Repeat("a,b,", 60), nil, ""},
		{
			"other questions out of the object", `object.data.a.split("").all(n, http.Get("https://a.example.com/" + n) == null)`,
			distinct(101), nil, "at most 100 things",
		},
		{
			"a list that is large", `resource.List("v1", "pods", "").items.all(a, resource.List("v1", "pods", "").items.all(b, a != b || a == b))`,
			"",
			map[string]any{"items": many},
			"resulted in error",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := validating(t, c.expression, ", webhookConfiguration: {timeoutSeconds: 10}")
			found := text(p.Validate(t.Context(), creatingMap(map[string]any{"a": c.data}), always(c.answer)))
			if (c.want == "") != (found == "") || !strings.Contains(found, c.want) {
				t.Errorf("%.300q, expected %q", found, c.want)
			}
		})
	}
}

// largeKey is a certificate whose key takes long to be written as a number.
func largeKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	n := new(big.Int).Lsh(big.NewInt(1), 1<<20)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &rsa.PublicKey{N: n.Sub(n, big.NewInt(3)), E: 65537}, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// distinct are n characters of which no two are the same.
func distinct(n int) string {
	var out strings.Builder
	for i := range n {
		out.WriteRune(rune(0x4e00 + i))
	}
	return out.String()
}

// TestImagesAreThoseOfTheObject: of pods and what makes them, whatever stands there.
func TestImagesAreThoseOfTheObject(t *testing.T) {
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprint("a:", i)
	}
	for _, c := range []struct {
		name, expression string
		request          *admission.Request
		want             string
	}{
		{"all", `images.containers == ["a:1", "b"] && "initContainers" in images`, creatingPod("a:1", "b"), ""},
		{"read one by one", `images.containers.all(i, image(i).registry() == "r.example.com")`, creatingPod("r.example.com/a:1", "r.example.com/b"), ""},
		{"no reference", `images.containers.all(i, image(i).tag() == "1")`, creatingPod("a:1", "A B"), "could not parse reference"},
		{"none", `images.containers == [] && images.?other == optional.none()`, creatingMap(nil), ""},
		{"very many", `images.containers.size() == 300`, creatingPod(many...), ""},
		{"looked up", `images.containers.all(i, image.GetMetadata(i) == {})`, creatingPod("a:1", "a:2"), ""},
	} {
		p := validating(t, c.expression, "")
		found := text(p.Validate(t.Context(), c.request, always(nil)))
		if (c.want == "") != (found == "") || !strings.Contains(found, c.want) {
			t.Errorf("%s: %q, expected %q", c.name, found, c.want)
		}
	}
}

// TestAnEvaluationEndsWithItsTime: by the policy's timeout, and by the request's own end.
func TestAnEvaluationEndsWithItsTime(t *testing.T) {
	for seconds, want := range map[int]time.Duration{0: 10 * time.Second, 3: 3 * time.Second, 30: 30 * time.Second} {
		o := read(t, kyverno.Validating, "", fmt.Sprintf("%s, webhookConfiguration: {timeoutSeconds: %d}, validations: [{expression: 'sha256(\"\") == \"\"'}]",
			aboutMaps, seconds))
		if found := beyond.Timeout(o); found != want {
			t.Errorf("of %d seconds: %s, expected %s", seconds, found, want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client has gone")
	waits := &reach{answer: func(string) (any, error) {
		cancel(gone)
		return nil, ctx.Err()
	}}
	p := validating(t, `resource.Get("v1", "configmaps", "red", "x") == null`, "")
	if found := text(p.Validate(ctx, creatingMap(nil), waits)); !strings.Contains(found, "the client has gone") {
		t.Errorf("%q, expected what ended the request", found)
	}
	slow := validating(t, `object.data.a.split("").all(n, gzip.decompress(gzip.compress(object.data.a + object.data.a)).size() > 0)`,
		", webhookConfiguration: {timeoutSeconds: 1}")
	found := text(slow.Validate(t.Context(), creatingMap(map[string]any{"a": strings.Repeat("x", 400_000)}), always(nil)))
	if found == "" {
		t.Error("an evaluation of an hour's work had no bound")
	}
}

// TestAPolicyHasEightTurns: others wait, and go when their time is over.
func TestAPolicyHasEightTurns(t *testing.T) {
	release, inside := make(chan struct{}), make(chan struct{}, 100)
	waits := &reach{answer: func(string) (any, error) {
		inside <- struct{}{}
		<-release
		return nil, nil
	}}
	p := validating(t, `resource.Get("v1", "configmaps", "red", "x") == null`, ", webhookConfiguration: {timeoutSeconds: 30}")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { _ = p.Validate(t.Context(), creatingMap(nil), waits) })
	}
	for range 8 {
		<-inside
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client has gone"))
	if err := p.Validate(ctx, creatingMap(nil), waits); err == nil || !strings.Contains(err.Error(), "the client has gone") {
		t.Errorf("the ninth: %v, expected that it waits", err)
	}
	close(release)
	all.Wait()
	if len(waits.asked) != 8 || p.Idle() != 8 {
		t.Errorf("%d questions, %d evaluators; expected 8 of both", len(waits.asked), p.Idle())
	}
}

// TestJudgeSaysWhatAPolicyHasAgainstWhatIsStored, whatever its actions are.
func TestJudgeSaysWhatAPolicyHasAgainstWhatIsStored(t *testing.T) {
	p := validating(t, `resource.Get("v1", "configmaps", "red", object.data.other) != null`, ", validationActions: [Audit]")
	for _, c := range []struct {
		name    string
		request *admission.Request
		answer  any
		asked   bool
		found   int
		failed  bool
	}{
		{"what it wants", creatingMap(map[string]any{"other": "x"}), map[string]any{"a": "b"}, true, 0, false},
		{"what it does not", creatingMap(map[string]any{"other": "x"}), nil, true, 1, false},
		{"what cannot be evaluated", creatingMap(nil), nil, true, 1, true},
		{"another resource", creating("Secret", "secrets", nil), nil, false, 0, false},
	} {
		asked, found, err := p.Judge(t.Context(), c.request, always(c.answer))
		if err != nil || asked != c.asked || len(found) != c.found || len(found) > 0 && found[0].Failed != c.failed {
			t.Errorf("%s: %t, %v, %v", c.name, asked, found, err)
		}
	}
}

// TestMutatePutsAnswersIntoTheObject.
func TestMutatePutsAnswersIntoTheObject(t *testing.T) {
	p := policyOf(t, kyverno.Mutating, "", aboutMaps+`, mutations: [{patchType: JSONPatch, jsonPatch: {expression:
  '[JSONPatch{op: "add", path: "/data/b", value: resource.Get("v1", "configmaps", "red", "x").data.a}]'}}]`)
	if !p.Mutates() || p.Validates() {
		t.Fatal("a mutating policy is none")
	}
	r := creatingMap(map[string]any{"a": "1"})
	if err := p.Mutate(t.Context(), r, always(map[string]any{"data": map[string]any{"a": "2"}})); err != nil {
		t.Fatal(err)
	}
	tree, err := r.Object.Tree()
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]any{"a": "1", "b": "2"}; !reflect.DeepEqual(runtime.DeepCopyJSON(tree)["data"], any(want)) {
		t.Errorf("%v, expected %v", tree["data"], want)
	}
	if p.Again(r) {
		t.Error("it wants to be asked again, and says that it does not")
	}
	if err := p.Mutate(t.Context(), creatingMap(map[string]any{"a": "1"}), always(map[string]any{})); err == nil {
		t.Error("an answer without what it wants changed an object")
	}
}

// TestAnswerIsAnObject: with the code, whatever was answered.
func TestAnswerIsAnObject(t *testing.T) {
	for _, c := range []struct {
		body any
		want map[string]any
	}{
		{map[string]any{"a": "b"}, map[string]any{"a": "b", "statusCode": int64(200)}},
		{map[string]any{"statusCode": "mine"}, map[string]any{"statusCode": int64(200)}},
		{[]any{"a"}, map[string]any{"body": []any{"a"}, "statusCode": int64(200)}},
		{nil, map[string]any{"body": nil, "statusCode": int64(200)}},
	} {
		if found := beyond.Answer(200, c.body); !reflect.DeepEqual(found, c.want) {
			t.Errorf("%v: %v, expected %v", c.body, found, c.want)
		}
	}
}
