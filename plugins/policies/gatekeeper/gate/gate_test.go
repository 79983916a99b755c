// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/gate"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// world is a cluster: its objects, and who may do what.
type world struct {
	t       *testing.T
	objects map[string]*unstructured.Unstructured
	asked   int
	plugins []admission.Plugin
}

// State implements latest.Objects: whatever is asked about may have changed.
func (*world) State(schema.GroupVersionKind) (any, error) { return new(int), nil }

func (w *world) List(_ context.Context, kind schema.GroupVersionKind, _ string, _ labels.Selector) (out []runtime.Object, err error) {
	w.asked++
	for _, o := range w.objects {
		if o.GroupVersionKind().GroupKind() == kind.GroupKind() {
			out = append(out, o)
		}
	}
	return out, nil
}

func (*world) ResourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	if kind.Kind != "Pod" {
		return schema.GroupVersionResource{}, errors.New("no resource")
	}
	return corev1.SchemeGroupVersion.WithResource("pods"), nil
}

// Review: the operator may do everything, jane write pods, tina nothing.
func (*world) Review(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (s authorizationv1.SubjectAccessReviewStatus,
	err error,
) {
	a := spec.ResourceAttributes
	s.Allowed = spec.User == "operator" || spec.User == "jane" && a != nil && a.Resource == "pods"
	return s, nil
}

func (w *world) put(writer, text string) {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		w.t.Fatal(err)
	}
	key := o.GetKind() + "/" + o.GetName()
	o.SetUID(types.UID(key))
	if before := w.objects[key]; before != nil {
		o.SetGeneration(before.GetGeneration() + 1)
	}
	o.SetAnnotations(map[string]string{"plugins.wasmplane.dev/writer": fmt.Sprintf(`{"username":%q}`, writer)})
	w.objects[key] = o
}

func (w *world) gate() *gate.Gate {
	return gate.New(gate.Config{
		Objects: w, Rights: rights.New(w), Plugins: func() []admission.Plugin { return w.plugins },
		Namespaces: func(_ context.Context, name string) (map[string]string, bool) {
			return map[string]string{"name": name}, name != "unknown"
		},
	})
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, objects: map[string]*unstructured.Unstructured{}}
}

const (
	assign = `{apiVersion: mutations.gatekeeper.sh/v1, kind: Assign, metadata: {name: %s}, spec: {applyTo: [{groups: [""], versions: [v1], kinds: [Pod]}],
  match: %s, location: "spec.containers[name: *].imagePullPolicy", parameters: {assign: {value: Always}}}}`
	template = `{apiVersion: expansion.gatekeeper.sh/v1beta1, kind: ExpansionTemplate, metadata: {name: expand}, spec: {applyTo: [{groups: [apps], versions: [v1], kinds: [Deployment]}],
  templateSource: spec.template, generatedGVK: {group: "", version: v1, kind: Pod}%s}}`
)

func pod(namespace string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: namespace}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
}

func mutate(t *testing.T, g *gate.Gate, r *admission.Request) (policy corev1.PullPolicy, err error) {
	t.Helper()
	p := g.Mutation()
	if p.Handles(r) {
		err = p.(admission.Mutator).Mutate(t.Context(), r)
	}
	v, verr := r.Object.Versioned()
	if verr != nil {
		t.Fatal(verr)
	}
	return v.(*corev1.Pod).Spec.Containers[0].ImagePullPolicy, err
}

func TestAMutatorCountsAsSoonAsItIsWritten(t *testing.T) {
	w := newWorld(t)
	g := w.gate()
	create := func() *admission.Request { return admissiontest.Creating("pods", pod("shop")) }
	if got, err := mutate(t, g, create()); got != "" || err != nil {
		t.Errorf("without a mutator: %q, %v", got, err)
	}
	w.put("jane", fmt.Sprintf(assign, "pull", "{}"))
	r := create()
	if got, err := mutate(t, g, r); got != corev1.PullAlways || err != nil {
		t.Errorf("with one: %q, %v", got, err)
	}
	if got := r.Annotations()["GatekeeperMutation/applied"]; got != "Assign pull" {
		t.Errorf("annotation %q", got)
	}
	w.put("jane", fmt.Sprintf(assign, "pull", "{excludedNamespaces: ['sh*']}"))
	if got, err := mutate(t, g, create()); got != "" || err != nil {
		t.Errorf("changed: %q, %v", got, err)
	}
	w.put("jane", fmt.Sprintf(assign, "pull", "{namespaceSelector: {matchLabels: {name: shop}}}"))
	if got, err := mutate(t, g, create()); got != corev1.PullAlways || err != nil {
		t.Errorf("by the namespace's labels: %q, %v", got, err)
	}
	if _, err := mutate(t, g, admissiontest.Creating("pods", pod("unknown"))); err == nil ||
		!strings.Contains(err.Error(), "the labels of namespace unknown are not known") {
		t.Errorf("a namespace without known labels: %v", err)
	}
	delete(w.objects, "Assign/pull")
	if got, err := mutate(t, g, create()); got != "" || err != nil {
		t.Errorf("deleted: %q, %v", got, err)
	}
}

func TestWhoWroteAMutatorMustBeAllowedTheChange(t *testing.T) {
	for writer, want := range map[string]string{"jane": "", "operator": "", "tina": `"tina" may not create pods`} {
		w := newWorld(t)
		w.put(writer, fmt.Sprintf(assign, "pull", "{}"))
		_, err := mutate(t, w.gate(), admissiontest.Creating("pods", pod("shop")))
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v; want %q", writer, err, want)
		}
	}
	// An object that nobody changes asks for nobody's rights.
	w := newWorld(t)
	w.put("tina", fmt.Sprintf(assign, "pull", "{namespaces: [elsewhere]}"))
	if _, err := mutate(t, w.gate(), admissiontest.Creating("pods", pod("shop"))); err != nil {
		t.Error(err)
	}
}

func TestWhatIsMutatedIsValidatedAsItsWritersToo(t *testing.T) {
	w := newWorld(t)
	w.put("operator", fmt.Sprintf(assign, "pull", "{}"))
	var asked []string
	chain, err := admission.NewChain(w.gate().Mutation(), recorder{&asked})
	if err != nil {
		t.Fatal(err)
	}
	r := admissiontest.Creating("pods", pod("shop"), admissiontest.By(&user.DefaultInfo{Name: "jane"}))
	if err := chain.Mutate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := chain.Validate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if want := []string{"jane", "operator"}; !slices.Equal(asked, want) {
		t.Errorf("validated as %q, want %q", asked, want)
	}
}

// recorder records as whom it is asked.
type recorder struct{ users *[]string }

func (recorder) Name() string                    { return "recorder" }
func (recorder) Handles(*admission.Request) bool { return true }
func (r recorder) Validate(_ context.Context, req *admission.Request) error {
	*r.users = append(*r.users, req.User.GetName())
	return nil
}

func TestNamespacesThatTheConfigExcludesStayAsTheyAre(t *testing.T) {
	for processes, want := range map[string]corev1.PullPolicy{"'*'": "", "mutation-webhook": "", "webhook, audit": corev1.PullAlways} {
		w := newWorld(t)
		w.put("operator", fmt.Sprintf(assign, "pull", "{}"))
		w.put("operator", fmt.Sprintf(`{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system},
  spec: {match: [{processes: [%s], excludedNamespaces: [shop]}]}}`, processes))
		if got, err := mutate(t, w.gate(), admissiontest.Creating("pods", pod("shop"))); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", processes, got, err, want)
		}
	}
}

func TestWhatIsOutOfReachIsNotMutated(t *testing.T) {
	w := newWorld(t)
	w.put("operator", fmt.Sprintf(assign, "pull", "{}"))
	g := w.gate()
	for _, r := range []*admission.Request{
		admissiontest.Creating("pods", pod("shop"), admissiontest.By(&user.DefaultInfo{
			Name:   "root",
			Groups: []string{user.SystemPrivilegedGroup},
		})),
		admissiontest.Updating("pods", pod("shop"), pod("shop"), admissiontest.Subresource("status")),
	} {
		if got, err := mutate(t, g, r); got != "" || err != nil {
			t.Errorf("%s: %q, %v", r.Subresource, got, err)
		}
	}
	if got, _ := mutate(t, g, admissiontest.Updating("pods", pod("shop"), pod("shop"),
		admissiontest.Subresource("ephemeralcontainers"))); got != corev1.PullAlways {
		t.Errorf("ephemeral containers: %q", got)
	}
	if w.asked == 0 {
		t.Error("nothing was read")
	}
}

// TestARequestReadsWhatThereIsOnce in both turns: each kind is one list.
func TestARequestReadsWhatThereIsOnce(t *testing.T) {
	w := newWorld(t)
	w.put("operator", fmt.Sprintf(assign, "pull", "{}"))
	w.put("operator", fmt.Sprintf(template, ""))
	g := w.gate()
	chain, err := admission.NewChain(g.Mutation(), g.Expansion())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*admission.Request{
		admissiontest.Creating("deployments", deployment()),
		admissiontest.Creating("pods", pod("shop"), admissiontest.By(&user.DefaultInfo{Name: "operator"})),
	} {
		w.asked = 0
		if err := chain.Mutate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := chain.Validate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if w.asked != 6 {
			t.Errorf("%s: %d lists are read, want the 6 kinds", r.Resource.Resource, w.asked)
		}
	}
}

func TestAnObjectOfAnotherShapeIsRefused(t *testing.T) {
	w := newWorld(t)
	w.put("operator", strings.ReplaceAll(strings.ReplaceAll(fmt.Sprintf(assign, "shape", "{}"), "Always", "{a: b}"), "imagePullPolicy",
		"image"))
	_, err := mutate(t, w.gate(), admissiontest.Creating("pods", pod("shop")))
	if err == nil || !strings.Contains(err.Error(), "mutation by Assign shape: what they make of it is no Pod") {
		t.Error(err)
	}
}

// constraint is one that refuses pods that are implied, and remembers what it was asked.
type constraint struct {
	mode   manifest.Mode
	broken error
	fails  error
	policy manifest.FailurePolicy
	seen   []*admission.Request
}

func (c *constraint) Name() string { return "some.one" }

func (c *constraint) Handles(r *admission.Request) bool { return r.Resource.Resource == "pods" }

func (c *constraint) Current() *point.Version {
	return &point.Version{Entry: manifest.Entry{ABI: manifest.Gatekeeper, Mode: c.mode, FailurePolicy: c.policy}, Err: c.broken}
}
func (c *constraint) Version() *point.Version { return c.Current() }
func (c *constraint) Broken() *point.Version  { return nil }
func (c *constraint) Pending() bool           { return false }

func (c *constraint) Judge(_ context.Context, r *admission.Request) (bool, []string, error) {
	c.seen = append(c.seen, r)
	return true, []string{"no pods"}, c.fails
}

func deployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"},
		Spec:       appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: pod("").Spec}},
	}
}

func TestConstraintsAreAskedAboutWhatAnObjectImplies(t *testing.T) {
	const said = `plugin "some.one" denied the request: [Implied by expand] no pods`
	for name, c := range map[string]struct {
		constraint constraint
		action     string
		refused    string
		warning    bool
		annotation bool
	}{
		"a refusal":                      {constraint{mode: manifest.Enforce}, "", said, false, false},
		"a warning":                      {constraint{mode: manifest.Warn}, "", "", true, false},
		"what is only noted":             {constraint{mode: manifest.Audit}, "", "", false, true},
		"the template warns":             {constraint{mode: manifest.Enforce}, ", enforcementAction: warn", "", true, false},
		"the template notes":             {constraint{mode: manifest.Enforce}, ", enforcementAction: dryrun", "", false, true},
		"the template refuses":           {constraint{mode: manifest.Warn}, ", enforcementAction: deny", said, false, false},
		"one that is broken":             {constraint{mode: manifest.Enforce, broken: errors.New("broken")}, "", "failurePolicy is Fail: broken", false, false},
		"one that fails":                 {constraint{mode: manifest.Enforce, fails: errors.New("trap")}, "", "failurePolicy is Fail: trap", false, false},
		"one that fails, and may":        {constraint{mode: manifest.Enforce, fails: errors.New("trap"), policy: manifest.Ignore}, "", "", false, false},
		"one that fails, and only warns": {constraint{mode: manifest.Warn, fails: errors.New("trap")}, "", "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.plugins = []admission.Plugin{&c.constraint}
			w.put("operator", fmt.Sprintf(template, c.action))
			w.put("operator", fmt.Sprintf(assign, "pull", "{source: Generated}"))
			p := w.gate().Expansion()
			r := admissiontest.Creating("deployments", deployment())
			if !p.Handles(r) {
				t.Fatal("it is not asked")
			}
			err := p.(admission.Validator).Validate(t.Context(), r)
			if got := fmt.Sprint(err); c.refused == "" && err != nil || !strings.Contains(got, c.refused) {
				t.Errorf("%v; want %q", err, c.refused)
			}
			if got := slices.Equal(r.Warnings(), []string{said}); got != c.warning {
				t.Errorf("warnings %q", r.Warnings())
			}
			if got := r.Annotations()["some.one/would-refuse"] == said; got != c.annotation {
				t.Errorf("annotations %q", r.Annotations())
			}
			if c.constraint.broken != nil {
				return
			}
			if len(c.constraint.seen) != 1 {
				t.Fatalf("asked %d times", len(c.constraint.seen))
			}
			about := c.constraint.seen[0]
			tree, err := about.Object.Tree()
			if err != nil {
				t.Fatal(err)
			}
			containers, _, _ := unstructured.NestedSlice(tree, "spec", "containers")
			if about.Name != "web-pod" || about.Namespace != "shop" || containers[0].(map[string]any)["imagePullPolicy"] != "Always" {
				t.Errorf("asked about %s/%s: %v", about.Namespace, about.Name, tree)
			}
		})
	}
	// What is no generator is nobody's business.
	w := newWorld(t)
	c := &constraint{mode: manifest.Enforce}
	w.plugins = []admission.Plugin{c}
	w.put("operator", fmt.Sprintf(template, ""))
	if err := w.gate().Expansion().(admission.Validator).Validate(t.Context(), admissiontest.Creating("pods", pod("shop"))); err != nil ||
		len(c.seen) > 0 {
		t.Errorf("a pod itself: %v, asked %d times", err, len(c.seen))
	}
}

// TestStoredObjectsAreJudgedByWhatTheyImply, without an effect on any request.
func TestStoredObjectsAreJudgedByWhatTheyImply(t *testing.T) {
	w := newWorld(t)
	g := w.gate()
	if e, err := g.Expansions(t.Context()); e != nil || err != nil || e.Version() != "" {
		t.Errorf("without templates: %v, %v", e, err)
	}
	w.put("operator", fmt.Sprintf(template, ""))
	e, err := g.Expansions(t.Context())
	if err != nil || e == nil {
		t.Fatal(e, err)
	}
	c := &constraint{mode: manifest.Enforce}
	for i, r := range []*admission.Request{admissiontest.Creating("deployments", deployment()), admissiontest.Creating("pods", pod("shop"))} {
		asked, against, err := e.Judge(t.Context(), c, r)
		if want := []string{"[Implied by expand] no pods"}[:1-i]; err != nil || asked != (i == 0) || !slices.Equal(against, want) {
			t.Errorf("%s: asked %v, %q, %v", r.Resource.Resource, asked, against, err)
		}
	}
	c.fails = errors.New("trap")
	if _, _, err := e.Judge(t.Context(), c, admissiontest.Creating("deployments", deployment())); err == nil {
		t.Error("a failure is not told")
	}
	before := e.Version()
	w.put("operator", fmt.Sprintf(assign, "pull", "{source: Generated}"))
	if e, err := g.Expansions(t.Context()); err != nil || e.Version() == before {
		t.Errorf("what is made changes, and the version does not: %v", err)
	}
}

var _ pointadmission.Standing = (*constraint)(nil)
