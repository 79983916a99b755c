// SPDX-License-Identifier: Apache-2.0

package kyvernotest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/beyond"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
)

// What a policy says of a resource.
const (
	pass   = "pass"
	fail   = "fail"
	skip   = "skip"  // it is not about the resource
	broken = "error" // an expression could not be evaluated
)

// decision is what a policy says of a resource, why, and what it made of it.
type decision struct {
	result string
	why    string
	object map[string]any
}

// judge has policies decide about resources.
type judge struct {
	contract   *api.Contract
	namespaces namespaces
	operations map[operationKey]string // CREATE where nothing is said
	user       map[string]any          // nil = anybody
	compiled   map[*kyverno.Objects]*compiled
	store      *evidence.Store
	context    *surroundings
}

// compiled is a policy that is ready to be asked, and whether it is about a resource.
type compiled struct{ about, all inForce }

// inForce are objects that judge a request.
type inForce interface {
	Validate(ctx context.Context, r *admission.Request) error
	Mutate(ctx context.Context, r *admission.Request) error
}

// plain are those of which policies of Kubernetes are made.
type plain struct{ *policy.Policies }

func (p plain) Validate(ctx context.Context, r *admission.Request) error {
	return p.Validating().Validate(ctx, r)
}

func (p plain) Mutate(ctx context.Context, r *admission.Request) error {
	return p.Mutating().Mutate(ctx, r)
}

// reaching are those that use what only Kyverno's have: they look at what the test's files say.
type reaching struct {
	*beyond.Policy
	reach beyond.Reach
}

func (p reaching) Validate(ctx context.Context, r *admission.Request) error {
	return p.Policy.Validate(ctx, r, p.reach)
}

func (p reaching) Mutate(ctx context.Context, r *admission.Request) error {
	return p.Policy.Mutate(ctx, r, p.reach)
}

// contract is what the API knows of its own kinds.
var contract = sync.OnceValues(api.New)

// newJudge reads the files of a test that say more of the requests.
func newJudge(dir string, t *given) (*judge, error) {
	c, err := contract()
	if err != nil {
		return nil, err
	}
	j := &judge{
		contract: c, namespaces: namespaces{}, operations: map[operationKey]string{}, compiled: map[*kyverno.Objects]*compiled{},
		store: evidence.New(),
	}
	if j.context, err = readSurroundings(dir, t); err != nil {
		return nil, err
	}
	if t.Variables != "" {
		if err := j.values(filepath.Join(dir, t.Variables)); err != nil {
			return nil, fmt.Errorf("variables: %w", err)
		}
	}
	if t.UserInfo == "" {
		return j, nil
	}
	var file struct {
		UserInfo map[string]any `yaml:"userInfo"`
		More     map[string]any `yaml:",inline"`
	}
	b, err := os.ReadFile(filepath.Join(dir, t.UserInfo))
	if err == nil {
		err = yaml.Unmarshal(b, &file)
	}
	if err != nil {
		return nil, fmt.Errorf("userinfo: %w", err)
	}
	for _, field := range []string{"roles", "clusterRoles"} {
		if file.More[field] != nil {
			return nil, fmt.Errorf("userinfo: %s: a policy in CEL is not told them", field)
		}
	}
	j.user = file.UserInfo
	return j, nil
}

// namespaces are those that a test names; every other one is there without labels and annotations.
type namespaces map[string]namespace

type namespace struct{ labels, annotations map[string]string }

// operationKey is a resource that a policy is asked about.
type operationKey struct{ policy, resource string }

// operation is the value by which a file says what is done with a resource.
const operation = "request.operation"

// values is a file of values.
type values struct {
	APIVersion        string         `yaml:"apiVersion"`
	Kind              string         `yaml:"kind"`
	Metadata          map[string]any `yaml:"metadata"`
	NamespaceSelector []struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	} `yaml:"namespaceSelector"`
	Namespaces []struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   struct {
			Name        string            `yaml:"name"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"metadata"`
	} `yaml:"namespaces"`
	Policies []struct {
		Name      string `yaml:"name"`
		Resources []struct {
			Name   string         `yaml:"name"`
			Values map[string]any `yaml:"values"`
		} `yaml:"resources"`
	} `yaml:"policies"`
}

// values reads namespaces, and what is done with single resources. Other values are of policies that are not in CEL.
func (j *judge) values(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var v values
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&v); err != nil {
		return err
	}
	for _, ns := range v.NamespaceSelector {
		j.namespaces[ns.Name] = namespace{labels: ns.Labels}
	}
	for _, ns := range v.Namespaces {
		j.namespaces[ns.Metadata.Name] = namespace{ns.Metadata.Labels, ns.Metadata.Annotations}
	}
	for _, p := range v.Policies {
		for _, r := range p.Resources {
			for name, value := range r.Values {
				text, _ := value.(string)
				if name != operation || text != string(admission.Create) && text != string(admission.Update) {
					return fmt.Errorf("policies: %s: %s: %s: expected %s, which is CREATE or UPDATE, found %q",
						p.Name, r.Name, name, operation, fmt.Sprint(value))
				}
				j.operations[operationKey{p.Name, r.Name}] = text
			}
		}
	}
	return nil
}

// Get implements corelisters.NamespaceLister.
func (n namespaces) Get(name string) (*corev1.Namespace, error) {
	all := map[string]string{corev1.LabelMetadataName: name}
	for k, v := range n[name].labels {
		all[k] = v
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all, Annotations: n[name].annotations}}, nil
}

// List implements corelisters.NamespaceLister.
func (n namespaces) List(labels.Selector) ([]*corev1.Namespace, error) {
	return nil, errors.New("nobody lists namespaces here")
}

// static are the objects of one policy as those of files.
type static struct{ *kyverno.Objects }

func (s static) ValidatingPolicies() (
	[]*admissionregistrationv1.ValidatingAdmissionPolicy, []*admissionregistrationv1.ValidatingAdmissionPolicyBinding,
) {
	return s.Validating, s.ValidatingBindings
}

func (s static) MutatingPolicies() (
	[]*admissionregistrationv1.MutatingAdmissionPolicy, []*admissionregistrationv1.MutatingAdmissionPolicyBinding,
) {
	return s.Mutating, s.MutatingBindings
}

// decide asks a policy, by its name, about a resource that is created, or updated.
func (j *judge) decide(ctx context.Context, name string, o *kyverno.Objects, resource map[string]any) (*decision, error) {
	c := j.compiled[o]
	if c == nil {
		c = &compiled{about: j.with(name, about(o)), all: j.with(name, o)}
		j.compiled[o] = c
	}
	r, err := j.request(name, resource)
	if err != nil {
		return nil, err
	}
	if c.about.Validate(ctx, r) == nil {
		return &decision{result: skip}, nil
	}
	if r, err = j.request(name, resource); err != nil {
		return nil, err
	}
	if len(o.Mutating) > 0 {
		err = c.all.Mutate(ctx, r)
	} else {
		err = c.all.Validate(ctx, r)
	}
	d := &decision{result: pass}
	if err != nil {
		d.result, d.why = fail, err.Error()
		if len(o.Mutating) > 0 || strings.Contains(d.why, "resulted in error") || strings.Contains(d.why, "compilation error") {
			d.result = broken
		}
		return d, nil
	}
	d.object, err = r.Object.Tree()
	return d, err
}

// with are the objects in force, and everything that they find is refused.
func (j *judge) with(name string, o *kyverno.Objects) inForce {
	denying := *o
	denying.ValidatingBindings = nil
	for _, b := range o.ValidatingBindings {
		b = b.DeepCopy()
		b.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
		denying.ValidatingBindings = append(denying.ValidatingBindings, b)
	}
	nobody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", nil
	})
	if len(o.Uses) > 0 {
		return reaching{beyond.New(&denying, name, "", policy.Config{Authorizer: nobody, Types: j.types}, j.namespaces), j.context}
	}
	return plain{policy.Alone(policy.Config{Static: static{&denying}, Authorizer: nobody, Types: j.types}, j.namespaces)}
}

// about refuses whatever a policy is about.
func about(o *kyverno.Objects) *kyverno.Objects {
	out := &kyverno.Objects{Uses: o.Uses, Timeout: o.Timeout}
	add := func(name string, match *admissionregistrationv1.MatchResources, conditions []admissionregistrationv1.MatchCondition,
		failure *admissionregistrationv1.FailurePolicyType,
	) {
		p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.MatchConstraints, p.Spec.MatchConditions, p.Spec.FailurePolicy = match, conditions, failure
		p.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "false"}}
		b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
		b.Spec.PolicyName = name
		out.Validating, out.ValidatingBindings = append(out.Validating, p), append(out.ValidatingBindings, b)
	}
	for _, p := range o.Validating {
		add(p.Name, p.Spec.MatchConstraints, p.Spec.MatchConditions, p.Spec.FailurePolicy)
	}
	for _, p := range o.Mutating {
		add(p.Name, p.Spec.MatchConstraints, p.Spec.MatchConditions, p.Spec.FailurePolicy)
	}
	return out
}

// types knows the schemas of the API's own kinds; of others it sees what an object has.
func (j *judge) types(kind schema.GroupVersionKind) (managedfields.TypeConverter, error) {
	if r, known := j.contract.ByKind(kind.GroupKind()); known {
		return j.contract.TypeConverter(r)
	}
	return managedfields.NewDeducedTypeConverter(), nil
}

// request creates a resource, or updates it without a change, where a policy is to be asked about that.
func (j *judge) request(policy string, resource map[string]any) (*admission.Request, error) {
	u := (&unstructured.Unstructured{Object: resource}).DeepCopy()
	if r, known := j.contract.ByKind(u.GroupVersionKind().GroupKind()); known && r.Namespaced && u.GetNamespace() == "" {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	doc := map[string]any{"object": u.Object}
	if op := j.operations[operationKey{policy, u.GetName()}]; op == string(admission.Update) {
		doc["operation"], doc["oldObject"] = op, u.DeepCopy().Object
	}
	if j.user != nil {
		doc["userInfo"] = j.user
	}
	return author.Request(doc)
}
