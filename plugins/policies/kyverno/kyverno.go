// SPDX-License-Identifier: Apache-2.0

// Package kyverno reads Kyverno's policies in CEL, and makes of them the ValidatingAdmissionPolicies,
// MutatingAdmissionPolicies and bindings that decide the same. Every cluster of Kubernetes knows these.
//
// ClusterPolicy, which its authors retire, is not read, nor are the kinds that generate or delete. Package imagepolicy reads
// those that verify images. A field that cannot be kept is an error that names it.
package kyverno

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// Group of the policies.
const Group = "policies.kyverno.io"

// The kinds that are read. Those of a namespace judge what is in it.
const (
	Validating           = "ValidatingPolicy"
	NamespacedValidating = "NamespacedValidatingPolicy"
	Mutating             = "MutatingPolicy"
	NamespacedMutating   = "NamespacedMutatingPolicy"
)

// The kinds about images, which package imagepolicy reads.
const (
	Image           = "ImageValidatingPolicy"
	NamespacedImage = "NamespacedImageValidatingPolicy"
)

// ImageKinds are the kinds about images.
func ImageKinds() []string { return []string{Image, NamespacedImage} }

// Kinds are the kinds that are read.
func Kinds() []string {
	return []string{Validating, NamespacedValidating, Mutating, NamespacedMutating}
}

// Namespaced says whether a kind's policies belong to namespaces.
func Namespaced(kind string) bool {
	return strings.HasPrefix(kind, "Namespaced") || kind == ExceptionKind
}

// OtherKinds are the project's kinds that are known, and not read.
func OtherKinds() []string {
	return []string{
		"GeneratingPolicy", "NamespacedGeneratingPolicy",
		"DeletingPolicy", "NamespacedDeletingPolicy",
	}
}

// Instead says what to use in place of a kind that is known and not applied.
func Instead(kind string) string {
	if strings.HasSuffix(kind, "GeneratingPolicy") {
		return "use a plugin of the point reconcile, which makes objects for other objects"
	}
	return "use a CronJob whose service account may delete, or a plugin of the point reconcile"
}

// Versions of the kinds, which have the same fields.
func Versions() []string { return []string{"v1", "v1beta1", "v1alpha1"} }

// Objects are what a policy is made of: the first of each list judges what the policy names, the others
// the controllers that make pods, where it names pods alone.
type Objects struct {
	// Admission: requests are judged. Background: stored objects are judged too.
	Admission, Background bool
	// Uses are what the expressions use of what only Kyverno's have ("resource.Get"). Such a policy is judged by package beyond: no
	// policy of Kubernetes can hold it.
	Uses []string
	// Texts are the texts that stand in the expressions: the places that the policy itself names are among them.
	Texts []string
	// Timeout is how long one request may take, in seconds; 0 = nothing is said.
	Timeout int32

	Validating         []*admissionregistrationv1.ValidatingAdmissionPolicy
	ValidatingBindings []*admissionregistrationv1.ValidatingAdmissionPolicyBinding
	Mutating           []*admissionregistrationv1.MutatingAdmissionPolicy
	MutatingBindings   []*admissionregistrationv1.MutatingAdmissionPolicyBinding
}

// All are the objects that judge requests, each policy before its binding.
func (o *Objects) All() (out []runtime.Object) {
	if !o.Admission {
		return nil
	}
	for i, p := range o.Validating {
		out = append(out, p, o.ValidatingBindings[i])
	}
	for i, p := range o.Mutating {
		out = append(out, p, o.MutatingBindings[i])
	}
	return out
}

// object is a policy of any of the kinds.
type object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Spec       spec            `json:"spec"`
	Status     json.RawMessage `json:"status"`
}

// spec has the fields of the validating and of the mutating kinds.
type spec struct {
	MatchConstraints     *admissionregistrationv1.MatchResources    `json:"matchConstraints"`
	MatchConditions      []admissionregistrationv1.MatchCondition   `json:"matchConditions"`
	Variables            []admissionregistrationv1.Variable         `json:"variables"`
	FailurePolicy        *admissionregistrationv1.FailurePolicyType `json:"failurePolicy"`
	Autogen              autogen                                    `json:"autogen"`
	Evaluation           evaluation                                 `json:"evaluation"`
	WebhookConfiguration *struct {
		TimeoutSeconds *int32 `json:"timeoutSeconds"` // of what looks beyond the request; nothing else waits
	} `json:"webhookConfiguration"`

	Validations       []validation                               `json:"validations"`
	ValidationActions []admissionregistrationv1.ValidationAction `json:"validationActions"`
	AuditAnnotations  []admissionregistrationv1.AuditAnnotation  `json:"auditAnnotations"`

	Mutations              []admissionregistrationv1.Mutation             `json:"mutations"`
	ReinvocationPolicy     admissionregistrationv1.ReinvocationPolicyType `json:"reinvocationPolicy"`
	TargetMatchConstraints json.RawMessage                                `json:"targetMatchConstraints"`
}

type validation struct {
	admissionregistrationv1.Validation `json:",inline"`
	Identifier                         string `json:"identifier"` // names its result in a report
}

type enabled struct {
	Enabled *bool `json:"enabled"`
}

// on says what is set, or else what holds without it.
func (e *enabled) on(otherwise bool) bool {
	if e == nil || e.Enabled == nil {
		return otherwise
	}
	return *e.Enabled
}

type autogen struct {
	PodControllers *struct {
		Controllers []string `json:"controllers"`
	} `json:"podControllers"`
	// What they ask for is what is made in any case.
	ValidatingAdmissionPolicy *enabled `json:"validatingAdmissionPolicy"`
	MutatingAdmissionPolicy   *enabled `json:"mutatingAdmissionPolicy"`
}

type evaluation struct {
	Mode           string   `json:"mode"`
	Admission      *enabled `json:"admission"`
	Background     *enabled `json:"background"`
	MutateExisting *enabled `json:"mutateExisting"`
}

// Read makes the objects of a policy.
func Read(policy map[string]any) (*Objects, error) {
	var o object
	if err := tree.Decode(policy, &o, "policy"); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Spec.rewrite(withoutIdleOrValue)
	e := o.Spec.Evaluation
	out := &Objects{Admission: e.Admission.on(true), Background: e.Background.on(true)}
	if w := o.Spec.WebhookConfiguration; w != nil && w.TimeoutSeconds != nil {
		out.Timeout = *w.TimeoutSeconds
	}
	o.Spec.rewrite(func(expression string) string {
		for _, use := range Uses(expression) {
			if !slices.Contains(out.Uses, use) {
				out.Uses = append(out.Uses, use)
			}
		}
		return expression
	})
	if len(out.Uses) > 0 {
		o.Spec.rewrite(func(expression string) string {
			out.Texts = append(out.Texts, Literals(expression)...)
			return expression
		})
	}
	variants := append([]variant{{match: o.Spec.MatchConstraints}}, o.Spec.controllers()...)
	for _, v := range variants {
		if o.Kind == Validating || o.Kind == NamespacedValidating {
			o.validating(out, v)
		} else {
			o.mutating(out, v)
		}
	}
	return out, nil
}

// rewrite changes each expression.
func (s *spec) rewrite(change func(string) string) {
	for i := range s.MatchConditions {
		s.MatchConditions[i].Expression = change(s.MatchConditions[i].Expression)
	}
	for i := range s.Variables {
		s.Variables[i].Expression = change(s.Variables[i].Expression)
	}
	for i := range s.Validations {
		v := &s.Validations[i]
		v.Expression, v.MessageExpression = change(v.Expression), change(v.MessageExpression)
	}
	for i := range s.AuditAnnotations {
		s.AuditAnnotations[i].ValueExpression = change(s.AuditAnnotations[i].ValueExpression)
	}
	for i := range s.Mutations {
		if m := s.Mutations[i].JSONPatch; m != nil {
			m.Expression = change(m.Expression)
		}
		if m := s.Mutations[i].ApplyConfiguration; m != nil {
			m.Expression = change(m.Expression)
		}
	}
}

// check refuses what cannot be kept.
func (o *object) check() error {
	s := &o.Spec
	var errs []error
	refuse := func(wrong bool, text string) {
		if wrong {
			errs = append(errs, errors.New(text))
		}
	}
	validates := o.Kind == Validating || o.Kind == NamespacedValidating
	refuse(!slices.Contains(Kinds(), o.Kind), fmt.Sprintf("kind: expected one of %q, found %q", Kinds(), o.Kind))
	refuse(o.Metadata.Name == "", "metadata.name: it is missing")
	refuse(o.Metadata.Namespace == "" && o.namespaced(), fmt.Sprintf("metadata.namespace: a %s belongs to a namespace", o.Kind))
	refuse(s.MatchConstraints == nil, "spec.matchConstraints: it is missing")
	refuse(s.Evaluation.Mode != "" && s.Evaluation.Mode != "Kubernetes",
		fmt.Sprintf("spec.evaluation.mode: %s: only requests of Kubernetes are judged here", s.Evaluation.Mode))
	refuse(s.Evaluation.MutateExisting.on(false), "spec.evaluation.mutateExisting: objects that are there are not changed here")
	refuse(len(s.TargetMatchConstraints) > 0 && string(s.TargetMatchConstraints) != "null",
		"spec.targetMatchConstraints: other objects than that of the request are not changed here")
	refuse(validates && len(s.Validations)+len(s.AuditAnnotations) == 0, "spec.validations: there are none")
	refuse(validates && len(s.Mutations) > 0, fmt.Sprintf("spec.mutations: a %s has none", o.Kind))
	refuse(!validates && len(s.Mutations) == 0, "spec.mutations: there are none")
	refuse(!validates && len(s.Validations)+len(s.AuditAnnotations)+len(s.ValidationActions) > 0,
		fmt.Sprintf("spec.validations, auditAnnotations, validationActions: a %s has none", o.Kind))
	return errors.Join(errs...)
}

func (o *object) namespaced() bool {
	return o.Kind == NamespacedValidating || o.Kind == NamespacedMutating
}

// name of an object of the policy. Dots divide it, which stand in no name of a namespace.
func (o *object) name(v variant) string {
	name := o.Metadata.Name
	if o.namespaced() {
		name = o.Metadata.Namespace + "." + name
	}
	if v.name != "" {
		name += "." + v.name
	}
	return name
}

// inNamespace narrows a match to the policy's own namespace.
func (o *object) inNamespace(m *admissionregistrationv1.MatchResources) *admissionregistrationv1.MatchResources {
	m = m.DeepCopy()
	if !o.namespaced() {
		return m
	}
	if m.NamespaceSelector == nil {
		m.NamespaceSelector = &metav1.LabelSelector{}
	}
	m.NamespaceSelector.MatchExpressions = append(m.NamespaceSelector.MatchExpressions, metav1.LabelSelectorRequirement{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn, Values: []string{o.Metadata.Namespace},
	})
	for i := range m.ResourceRules { // what is in no namespace is in none of its either
		scope := admissionregistrationv1.NamespacedScope
		m.ResourceRules[i].Scope = &scope
	}
	return m
}

func (o *object) validating(out *Objects, v variant) {
	s := &o.Spec
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{
		TypeMeta: kind("ValidatingAdmissionPolicy"), ObjectMeta: o.meta(v),
	}
	p.Spec = admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: o.inNamespace(v.match), FailurePolicy: s.FailurePolicy,
		MatchConditions: v.conditions(s.MatchConditions), Variables: v.variables(s.Variables),
	}
	for _, given := range s.Validations {
		given.Expression, given.MessageExpression = v.in(given.Expression), v.in(given.MessageExpression)
		p.Spec.Validations = append(p.Spec.Validations, given.Validation)
	}
	for _, a := range s.AuditAnnotations {
		a.ValueExpression = v.in(a.ValueExpression)
		p.Spec.AuditAnnotations = append(p.Spec.AuditAnnotations, a)
	}
	b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta: kind("ValidatingAdmissionPolicyBinding"), ObjectMeta: o.meta(v),
	}
	b.Spec.PolicyName, b.Spec.ValidationActions = p.Name, s.ValidationActions
	if len(s.ValidationActions) == 0 {
		b.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	}
	out.Validating, out.ValidatingBindings = append(out.Validating, p), append(out.ValidatingBindings, b)
}

func (o *object) mutating(out *Objects, v variant) {
	s := &o.Spec
	p := &admissionregistrationv1.MutatingAdmissionPolicy{
		TypeMeta: kind("MutatingAdmissionPolicy"), ObjectMeta: o.meta(v),
	}
	p.Spec = admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints: o.inNamespace(v.match), FailurePolicy: s.FailurePolicy,
		MatchConditions: v.conditions(s.MatchConditions), Variables: v.variables(s.Variables),
		ReinvocationPolicy: s.ReinvocationPolicy,
	}
	if s.ReinvocationPolicy == "" {
		p.Spec.ReinvocationPolicy = admissionregistrationv1.NeverReinvocationPolicy
	}
	for _, m := range s.Mutations {
		p.Spec.Mutations = append(p.Spec.Mutations, v.mutation(m))
	}
	b := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		TypeMeta: kind("MutatingAdmissionPolicyBinding"), ObjectMeta: o.meta(v),
	}
	b.Spec.PolicyName = p.Name
	out.Mutating, out.MutatingBindings = append(out.Mutating, p), append(out.MutatingBindings, b)
}

func kind(name string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: name}
}

// meta is the metadata of a policy and of its binding, which say of what they were made.
func (o *object) meta(v variant) metav1.ObjectMeta {
	name := o.Metadata.Name
	if o.namespaced() {
		name = o.Metadata.Namespace + "/" + name
	}
	return metav1.ObjectMeta{
		Name: o.name(v), Annotations: map[string]string{"plugins.wasmplane.dev/policy": o.Kind + "." + Group + " " + name},
	}
}
