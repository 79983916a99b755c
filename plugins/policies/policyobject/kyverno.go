// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/beyond"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// uidAnnotation on an object in CEL is the UID of the policy of which it was made. A reference to an owner
// will not do: policies of a namespace own nothing that is in none.
const uidAnnotation = "plugins.wasmplane.dev/policy-uid"

// Annotations of policies, which what is made of them has too.
const (
	CategoryAnnotation = "policies.kyverno.io/category"
	SeverityAnnotation = "policies.kyverno.io/severity"
	// BackgroundAnnotation is false where a policy does not want to judge what is stored.
	BackgroundAnnotation = policies.BackgroundAnnotation
	// PolicyAnnotation names the policy: its kind and group, a space and its name.
	PolicyAnnotation = "plugins.wasmplane.dev/policy"
)

// inCEL are the resources of what is made of policies in CEL, by kind.
var inCEL = map[string]schema.GroupVersionResource{
	"ValidatingAdmissionPolicy":        admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"),
	"ValidatingAdmissionPolicyBinding": admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"),
	"MutatingAdmissionPolicy":          admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies"),
	"MutatingAdmissionPolicyBinding":   admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings"),
}

// Compiles says which expressions of a policy of a namespace ("" = the cluster) do not compile. Those for controllers are made of
// those for pods.
func Compiles(o *kyverno.Objects, namespace string) error {
	if len(o.Uses) > 0 {
		return beyond.Compiles(o, namespace)
	}
	if len(o.Validating) > 0 {
		return policy.CheckValidating(o.Validating[0], nil)
	}
	if len(o.Mutating) > 0 {
		return policy.CheckMutating(o.Mutating[0], nil)
	}
	return nil
}

// checkKyverno says what is wrong with an object of Kyverno's kinds, and what its writer must be allowed:
// to read what the policy sees, to write what it changes, and to change a policy to take something out of it.
func checkKyverno(o *unstructured.Unstructured) ([]rights.Need, error) {
	kind := o.GetKind()
	if slices.Contains(kyverno.OtherKinds(), kind) {
		return nil, fmt.Errorf("kind: a %s is not applied here: %s; what is applied is %q, %q and %s", kind, kyverno.Instead(kind),
			kyverno.Kinds(), kyverno.ImageKinds(), kyverno.ExceptionKind)
	}
	if slices.Contains(kyverno.ImageKinds(), kind) {
		return checkImages(o)
	}
	if kind == kyverno.ExceptionKind {
		return checkException(o)
	}
	made, err := kyverno.Read(o.Object)
	if err != nil {
		return nil, err
	}
	sends := slices.IndexFunc(made.Uses, func(use string) bool { return strings.HasPrefix(use, "http.") })
	if sends >= 0 && o.GetNamespace() != "" {
		return nil, fmt.Errorf("spec: a policy of a namespace sends nothing, so that its expressions have no %s", made.Uses[sends])
	}
	if err := Compiles(made, o.GetNamespace()); err != nil {
		return nil, err
	}
	if o.GetNamespace() != "" {
		if err := withinReach(matches(made)[0], len(made.Mutating) > 0); err != nil {
			return nil, err
		}
	}
	out := needs(matches(made)[0], len(made.Mutating) > 0, o.GetNamespace())
	if sends >= 0 || o.GetNamespace() == "" && slices.ContainsFunc(made.Uses, isImageData) {
		out = append(out, rights.Need{Field: "spec", What: "send from the control plane's machines"})
	}
	return out, nil
}

func isImageData(use string) bool { return use == "image.GetMetadata" || use == "image.getMetadata" }

// checkGlobal says what is wrong with a GlobalContextEntry, and what its writer must be allowed.
func checkGlobal(o *unstructured.Unstructured) ([]rights.Need, error) {
	e, err := kyverno.ReadGlobalEntry(o.Object)
	if err != nil {
		return nil, err
	}
	if e.URL != "" {
		return []rights.Need{{Field: "spec.apiCall.service", What: "send from the control plane's machines"}}, nil
	}
	verb := "list"
	if e.Object != "" {
		verb = "get"
	}
	return []rights.Need{{Field: "spec", Attributes: &authorizationv1.ResourceAttributes{
		Verb: verb, Group: e.Group, Version: e.Version, Resource: e.Resource, Namespace: e.Namespace, Name: e.Object,
	}}}, nil
}

func checkException(o *unstructured.Unstructured) ([]rights.Need, error) {
	e, err := kyverno.ReadException(o.Object)
	if err != nil {
		return nil, err
	}
	tried := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	tried.Spec.MatchConditions = []admissionregistrationv1.MatchCondition{e.Condition()}
	if err := policy.CheckValidating(tried, nil); err != nil {
		return nil, fmt.Errorf("spec.matchConditions: %w", err)
	}
	var out []rights.Need
	for i, p := range e.Policies {
		a := &authorizationv1.ResourceAttributes{Verb: "update", Group: kyverno.Group, Resource: KyvernoResource(p.Kind).Resource, Name: p.Name}
		if kyverno.Namespaced(p.Kind) {
			a.Namespace = e.Namespace
		}
		out = append(out, rights.Need{Field: fmt.Sprintf("spec.policyRefs[%d]", i), Attributes: a})
	}
	return out, nil
}

// matches are what the objects of a policy are about.
func matches(o *kyverno.Objects) (out []*admissionregistrationv1.MatchResources) {
	for _, p := range o.Validating {
		out = append(out, p.Spec.MatchConstraints)
	}
	for _, p := range o.Mutating {
		out = append(out, p.Spec.MatchConstraints)
	}
	return out
}

// withinReach refuses a policy of a namespace that is about more than what runs something there.
func withinReach(m *admissionregistrationv1.MatchResources, changes bool) error {
	for i, rule := range m.ResourceRules {
		for _, group := range rule.APIGroups {
			for _, r := range rule.Resources {
				resource, sub, _ := strings.Cut(r, "/")
				at := fmt.Sprintf("spec.matchConstraints.resourceRules[%d]", i)
				if !admission.TenantReach(group, resource, sub) || resource == "*" || sub == "*" {
					return fmt.Errorf("%s: a policy of a namespace is about what runs something there (docs/plugins/loading.md), not about %s of %q", at, r, group)
				}
				if changes && group == "" && resource == "secrets" {
					return fmt.Errorf("%s: a policy of a namespace does not change Secrets", at)
				}
			}
		}
	}
	return nil
}

// needs are the rights that a policy takes. Those for the controllers of pods come with those for pods.
func needs(m *admissionregistrationv1.MatchResources, changes bool, namespace string) (out []rights.Need) {
	for i, rule := range m.ResourceRules {
		verbs := []string{"get"}
		if changes {
			verbs = append(verbs, writing(rule.Operations)...)
		}
		for _, verb := range verbs {
			for _, group := range rule.APIGroups {
				for _, r := range rule.Resources {
					resource, sub, _ := strings.Cut(r, "/")
					out = append(out, rights.Need{
						Field: fmt.Sprintf("spec.matchConstraints.resourceRules[%d]", i),
						Attributes: &authorizationv1.ResourceAttributes{
							Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: namespace,
						},
					})
				}
			}
		}
	}
	return out
}

// writing are the verbs of what changes objects.
func writing(operations []admissionregistrationv1.OperationType) (out []string) {
	for _, op := range []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update} {
		if slices.Contains(operations, op) || slices.Contains(operations, admissionregistrationv1.OperationAll) {
			out = append(out, strings.ToLower(string(op)))
		}
	}
	return out
}

// notTheSystem keeps the cluster's own components and its operator out of the policies of a namespace, as out of its plugins:
// pods would not start, nor namespaces end.
var notTheSystem = admissionregistrationv1.MatchCondition{
	Name: "not-the-system",
	Expression: `request.userInfo.username != "system:apiserver" && !request.userInfo.username.startsWith("system:kube-") && ` +
		`(!has(request.userInfo.groups) || !request.userInfo.groups.exists(g, g in ["system:masters", "system:nodes", "system:serviceaccounts:kube-system"]))`,
}

// kyverno makes policies in CEL of Kyverno's policies, and says on these what became of them.
func (c *Controller) kyverno(ctx context.Context) {
	exceptions, whole := c.exceptions(ctx)
	for _, r := range inCEL {
		_, ok := c.objects(r)
		whole = whole && ok
	}
	if !whole { // without its exceptions a policy refuses what it should not
		return
	}
	wanted, kept := map[string]bool{}, map[string]bool{}
	for _, kind := range kyverno.Kinds() {
		r := KyvernoResource(kind)
		list, ok := c.objects(r)
		whole = whole && ok
		for _, o := range list {
			if o.GetDeletionTimestamp() != nil {
				continue
			}
			made, err := c.policyInCEL(o, exceptions)
			done := false
			switch {
			case err == nil && len(made.Uses) > 0: // the servers judge by it themselves
				done = true
			case err == nil:
				done, err = c.putAll(ctx, o, made, wanted)
			default:
				kept[string(o.GetUID())] = true
			}
			c.report(ctx, o, "bring it into force", err)
			c.report(ctx, o, "write the status", c.writeStatus(ctx, r, o, kyvernoStatus(o, made, done, err)))
		}
	}
	c.images(ctx)
	if !whole {
		return
	}
	for _, r := range inCEL {
		list, _ := c.objects(r)
		for _, o := range list {
			if o.GetLabels()[apiobject.PolicyLabel] == Kyverno && !wanted[r.Resource+"/"+o.GetName()] && !kept[o.GetAnnotations()[uidAnnotation]] {
				c.report(ctx, o, "delete what was made of a policy that is gone", c.remove(ctx, r, o))
			}
		}
	}
}

// exceptions are those that there are; ok says that all are known.
func (c *Controller) exceptions(ctx context.Context) (out []*kyverno.Exception, ok bool) {
	r := KyvernoResource(kyverno.ExceptionKind)
	list, ok := c.objects(r)
	for _, o := range list {
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		e, err := kyverno.ReadException(o.Object)
		if err == nil && o.GetAnnotations()[apiobject.WriterAnnotation] == "" {
			err = errNobody
		}
		if err == nil {
			out = append(out, e)
		}
		c.report(ctx, o, "read the exception", err)
		c.report(ctx, o, "write the status", c.writeStatus(ctx, r, o, kyvernoStatus(o, nil, true, err)))
	}
	return out, ok
}

var errNobody = errors.New("nobody knows who wrote the policy: write it again")

// policyInCEL reads a policy, as exceptions leave it.
func (c *Controller) policyInCEL(o *unstructured.Unstructured, exceptions []*kyverno.Exception) (*kyverno.Objects, error) {
	if o.GetAnnotations()[apiobject.WriterAnnotation] == "" {
		return nil, errNobody
	}
	made, err := kyverno.Read(o.Object)
	if err != nil {
		return nil, err
	}
	if o.GetNamespace() != "" {
		if err := withinReach(matches(made)[0], len(made.Mutating) > 0); err != nil {
			return nil, err
		}
	}
	for _, e := range exceptions {
		if e.About(o.GetKind(), o.GetNamespace(), o.GetName(), time.Now()) {
			made.Except(e.Condition())
		}
	}
	Complete(made, o.GetNamespace())
	return made, nil
}

// Complete says what the API would fill in, and keeps the cluster's components out of a policy of a namespace.
func Complete(o *kyverno.Objects, namespace string) {
	if namespace != "" {
		o.Except(notTheSystem)
	}
	for _, m := range matches(o) {
		complete(m)
	}
}

// complete says what the API would fill in, and leaves out what a policy is made of: nobody is kept from
// mending a policy by the policy.
func complete(m *admissionregistrationv1.MatchResources) {
	if slices.ContainsFunc(m.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.APIGroups, "*")
	}) {
		own := admissionregistrationv1.NamedRuleWithOperations{}
		own.Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}
		own.APIGroups, own.APIVersions, own.Resources = []string{kyverno.Group}, []string{"*"}, []string{"*"}
		m.ExcludeResourceRules = append(slices.Clone(m.ExcludeResourceRules), own)
	}
	if m.MatchPolicy == nil {
		equivalent := admissionregistrationv1.Equivalent
		m.MatchPolicy = &equivalent
	}
	if m.NamespaceSelector == nil {
		m.NamespaceSelector = &metav1.LabelSelector{}
	}
	if m.ObjectSelector == nil {
		m.ObjectSelector = &metav1.LabelSelector{}
	}
	for _, rules := range [][]admissionregistrationv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			if rules[i].Scope == nil {
				all := admissionregistrationv1.AllScopes
				rules[i].Scope = &all
			}
		}
	}
}

// putAll writes what a policy is made of, each policy before its binding. done says that all of it was seen to be there.
func (c *Controller) putAll(ctx context.Context, o *unstructured.Unstructured, made *kyverno.Objects,
	wanted map[string]bool,
) (done bool, err error) {
	var errs []error
	done = true
	for _, part := range made.All() {
		want, err := partOf(o, made, part)
		if err != nil {
			return false, err
		}
		r := inCEL[want.GetKind()]
		wanted[r.Resource+"/"+want.GetName()] = true
		there, err := c.putInCEL(ctx, r, o, want)
		done = done && there
		errs = append(errs, err)
	}
	return done, errors.Join(errs...)
}

// partOf is an object in CEL as the API would give it back.
func partOf(o *unstructured.Unstructured, made *kyverno.Objects, part runtime.Object) (*unstructured.Unstructured, error) {
	fail := admissionregistrationv1.Fail
	switch p := part.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		if p.Spec.FailurePolicy == nil {
			p.Spec.FailurePolicy = &fail
		}
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		if p.Spec.FailurePolicy == nil {
			p.Spec.FailurePolicy = &fail
		}
	}
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(part)
	if err != nil {
		return nil, err
	}
	delete(tree, "status")
	out := &unstructured.Unstructured{Object: tree}
	unstructured.RemoveNestedField(tree, "metadata", "creationTimestamp")
	out.SetLabels(map[string]string{apiobject.PolicyLabel: Kyverno})
	annotations := out.GetAnnotations()
	annotations[uidAnnotation] = string(o.GetUID())
	for _, note := range []string{CategoryAnnotation, SeverityAnnotation} {
		if text := o.GetAnnotations()[note]; text != "" {
			annotations[note] = text
		}
	}
	if !made.Background {
		annotations[BackgroundAnnotation] = "false"
	}
	out.SetAnnotations(annotations)
	if o.GetNamespace() == "" {
		yes := true
		out.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Controller: &yes,
		}})
	}
	return out, nil
}

// putInCEL makes an object, or brings it up to its policy. done says that it was there already.
func (c *Controller) putInCEL(ctx context.Context, r schema.GroupVersionResource,
	o, want *unstructured.Unstructured,
) (done bool, err error) {
	client := c.cfg.Client.Resource(r)
	found, there, err := c.follows[r].informer.GetStore().GetByKey(want.GetName())
	if err != nil {
		return false, err
	}
	now, _ := found.(*unstructured.Unstructured)
	if !there || now == nil {
		_, err := client.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return false, nil // of a moment ago
		}
		return false, err
	}
	if now.GetLabels()[apiobject.PolicyLabel] != Kyverno {
		return false, fmt.Errorf("a %s named %s is there, and was not made of a policy: delete one of the two", now.GetKind(), now.GetName())
	}
	if of := now.GetAnnotations()[uidAnnotation]; of != string(o.GetUID()) {
		if c.lives(types.UID(of)) {
			return false, fmt.Errorf("the %s %s was made of another policy: give one of the two another name", now.GetKind(), now.GetName())
		}
		return false, c.remove(ctx, r, now) // and made anew when it is gone
	}
	if equality.Semantic.DeepEqual(now.Object["spec"], want.Object["spec"]) &&
		equality.Semantic.DeepEqual(now.GetAnnotations(), want.GetAnnotations()) {
		return true, nil
	}
	fresh := now.DeepCopy()
	fresh.Object["spec"] = want.Object["spec"]
	fresh.SetAnnotations(want.GetAnnotations())
	_, err = client.Update(ctx, fresh, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil // its change is going to be seen
	}
	return false, err
}

// lives says whether there is a policy with a UID.
func (c *Controller) lives(uid types.UID) bool {
	for _, kind := range kyverno.Kinds() {
		list, _ := c.objects(KyvernoResource(kind))
		if slices.ContainsFunc(list, func(o *unstructured.Unstructured) bool { return o.GetUID() == uid && o.GetDeletionTimestamp() == nil }) {
			return true
		}
	}
	return false
}

func (c *Controller) remove(ctx context.Context, r schema.GroupVersionResource, o *unstructured.Unstructured) error {
	uid := o.GetUID()
	err := c.cfg.Client.Resource(r).Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// kyvernoStatus is the status of a policy, in its form, with a condition that can be waited for.
func kyvernoStatus(o *unstructured.Unstructured, made *kyverno.Objects, done bool, problem error) map[string]any {
	c := map[string]any{
		"type": apiobject.Ready, "status": "True", "reason": "Succeeded", "message": "in force", "observedGeneration": o.GetGeneration(),
	}
	if !done {
		c["status"], c["reason"], c["message"] = "False", "Waiting", "it is being brought into force"
	}
	if made != nil && !made.Admission {
		c["message"] = "requests are not judged by it"
	}
	if problem != nil {
		c["status"], c["reason"], c["message"] = "False", "Refused", problem.Error()
	}
	if before := condition(o, apiobject.Ready); before != nil && before["status"] == c["status"] {
		c["lastTransitionTime"] = before["lastTransitionTime"]
	}
	stamp(map[string]any{"conditions": []any{c}})
	named := maps.Clone(c)
	named["type"] = "WebhookConfigured" // what Kyverno calls it when a policy is asked
	return map[string]any{
		"conditions":      []any{c},
		"conditionStatus": map[string]any{"ready": c["status"] == "True", "message": c["message"], "conditions": []any{named}},
		"generated":       made != nil && made.Admission,
	}
}
