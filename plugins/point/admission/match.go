// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// matcherOf is the matcher of a version. It is made when the version is checked, so that no request waits for it.
func matcherOf(v *point.Version) *matcher {
	return v.Once(func() any { return compile(v) }).(*matcher)
}

// matcher decides which requests a version sees: one of the module's rules, one
// of the entry's, the selectors and all conditions.
type matcher struct {
	version    *point.Version
	module     map[abi.Point][]abi.Rule
	entry      []entryRule
	namespace  labels.Selector // nil = every namespace
	object     labels.Selector
	conditions []condition
	err        error

	// Of a thousand policies most are about other kinds: these are looked at first. nil = all.
	kinds, resources []string
}

// entryRule is a rule of an entry, which may name kinds too.
type entryRule struct {
	abi.Rule
	kinds []string
}

type condition struct {
	name    string
	program cel.Program
}

// Check compiles what an entry says about matching, so that a mistake is found at load.
func Check(v *point.Version) error { return matcherOf(v).err }

func compile(v *point.Version) *matcher {
	m := &matcher{version: v, module: map[abi.Point][]abi.Rule{}}
	for _, p := range []abi.Point{abi.AdmissionMutate, abi.AdmissionValidate, abi.CustomResourceConvert, abi.CustomResourceValidate} {
		switch h := v.Hook(p); {
		case h == nil:
		case len(h.Match) == 0: // a hook without rules sees everything
			m.module[p] = []abi.Rule{{}}
		default:
			m.module[p] = h.Match
		}
	}
	match := &v.Entry.Match
	for _, r := range match.Rules {
		m.entry = append(m.entry,
			entryRule{abi.Rule{Operations: r.Operations, Groups: r.APIGroups, Versions: r.APIVersions, Resources: r.Resources}, r.Kinds})
	}
	var errs []error
	if len(m.entry) > 0 && v.Manifest.RulesAreDefaults {
		for p := range m.module {
			m.module[p] = []abi.Rule{{Resources: []string{"*/*"}}} // the entry's rules alone decide
		}
	} else if len(m.module) > 0 {
		for i := range m.entry {
			errs = append(errs, m.unmet(i))
		}
	}
	m.kinds, m.resources = m.subjects()
	selector := func(s manifest.Selector) labels.Selector {
		if s.Empty() {
			return nil
		}
		sel, err := metav1.LabelSelectorAsSelector(s.LabelSelector())
		errs = append(errs, err)
		return sel
	}
	m.namespace, m.object = selector(match.NamespaceSelector), selector(match.ObjectSelector)
	for _, c := range match.Conditions {
		program, err := compileCEL(c.Expression)
		if err != nil {
			errs = append(errs, fmt.Errorf("match.conditions %q: %w", c.Name, err))
			continue
		}
		m.conditions = append(m.conditions, condition{c.Name, program})
	}
	if v.Err == nil {
		m.err = errors.Join(errs...)
	}
	// A version that is not loaded, perhaps because of a mistake in what was just
	// read, fails for all that the rest matches, and for nothing beyond.
	return m
}

// subjects are the kinds and the resources of which one has to be the request's: those of the entry's
// rules, else those of the module's; nil where a rule leaves them open.
func (m *matcher) subjects() (kinds, resources []string) {
	rules := m.entry
	if len(rules) == 0 {
		for _, p := range []abi.Point{abi.AdmissionMutate, abi.AdmissionValidate} {
			for _, r := range m.module[p] {
				rules = append(rules, entryRule{Rule: r})
			}
		}
	}
	anyKind, anyResource := false, false
	for _, rule := range rules {
		anyKind = anyKind || len(rule.kinds) == 0 || slices.Contains(rule.kinds, "*")
		kinds = append(kinds, rule.kinds...)
		anyResource = anyResource || len(rule.Resources) == 0
		for _, r := range rule.Resources {
			resources = append(resources, resourceOf(r))
		}
	}
	if anyKind {
		kinds = nil
	}
	if anyResource || slices.Contains(resources, "*") {
		resources = nil
	}
	return slices.Compact(kinds), slices.Compact(resources)
}

// unmet finds what the i-th rule of the entry names and no rule of the module has: the
// entry's rules only narrow the module's, so the plugin would never be asked about it.
func (m *matcher) unmet(i int) error {
	have := slices.Concat(slices.Collect(maps.Values(m.module))...)
	rule := &m.entry[i]
	either := func(list []string) []string {
		if len(list) == 0 {
			return []string{"*"}
		}
		return list
	}
	for _, op := range either(rule.Operations) {
		for _, group := range either(rule.Groups) {
			for _, resource := range either(rule.Resources) {
				if !slices.ContainsFunc(have, func(h abi.Rule) bool {
					return overlap(h.Operations, op) && overlap(h.Groups, group) && resourcesOverlap(h.Resources, resource) &&
						(len(rule.Versions) == 0 || slices.ContainsFunc(rule.Versions, func(v string) bool { return overlap(h.Versions, v) }))
				}) {
					return fmt.Errorf("match.rules[%d]: no rule of the module is about %s of %s in API group %q: rules of an entry narrow the module's own, so the plugin would not be asked; take it out, or use a module that asks for it", i, op, resource, group)
				}
			}
		}
	}
	return nil
}

// overlap: some value is named by both.
func overlap(list []string, v string) bool { return v == "*" || named(list, v) }

func resourcesOverlap(list []string, v string) bool {
	want, sub, _ := strings.Cut(v, "/")
	if len(list) == 0 {
		return sub == "" || sub == "*"
	}
	return slices.ContainsFunc(list, func(h string) bool {
		res, has, _ := strings.Cut(h, "/")
		return (res == "*" || want == "*" || res == want) && (sub == has || sub == "*" || has == "*")
	})
}

// celCost bounds one condition; it is upstream's limit for match conditions.
const celCost = 2_500_000

// conditionEnv is what conditions are written in, made once for all of them.
var conditionEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType),
		cel.Variable("request", cel.DynType), ext.Strings(), ext.Sets(), cel.OptionalTypes())
})

func compileCEL(expression string) (cel.Program, error) {
	env, err := conditionEnv()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	if t := ast.OutputType(); t != cel.BoolType && t != cel.DynType {
		return nil, fmt.Errorf("the expression is a %s: a bool was expected", t)
	}
	return env.Program(ast, cel.CostLimit(celCost), cel.InterruptCheckFrequency(1000))
}

// handles looks at what the request is about, not at the object.
func (m *matcher) handles(r *admission.Request) bool {
	if m.kinds != nil && !slices.Contains(m.kinds, r.Kind.Kind) || m.resources != nil && !slices.Contains(m.resources, r.Resource.Resource) {
		return false
	}
	if m.version.Entry.FromAPI && r.Resource.Group == manifest.APIGroup {
		return false // a plugin of the API must not keep itself from being taken away
	}
	if r.Resource.Resource == "configmaps" && r.Namespace == manifest.StateNamespace && strings.HasPrefix(r.Name, manifest.StatePrefix) &&
		r.User != nil && slices.Contains([]string{user.APIServerUser, user.KubeScheduler, user.KubeControllerManager}, r.User.GetName()) {
		return false // what plugins keep: one that keeps something at each write would never come to rest
	}
	if r.Resource.Group == manifest.APIGroup && r.Resource.Resource == "plugins" && r.User != nil && r.User.GetName() == user.APIServerUser {
		return false // what shows the entries of the file: a policy about Plugins is about what people write
	}
	if !m.reaches(r) || !m.entryMatches(r) {
		return false
	}
	return anyRule(m.module[abi.AdmissionMutate], r) || anyRule(m.module[abi.AdmissionValidate], r)
}

func anyRule(rules []abi.Rule, r *admission.Request) bool {
	return slices.ContainsFunc(rules, func(rule abi.Rule) bool { return ruleMatches(&rule, r) })
}

// entryMatches: one of the entry's rules matches, or it has none.
func (m *matcher) entryMatches(r *admission.Request) bool {
	return len(m.entry) == 0 || slices.ContainsFunc(m.entry, func(rule entryRule) bool {
		return named(rule.kinds, r.Kind.Kind) && ruleMatches(&rule.Rule, r)
	})
}

func ruleMatches(rule *abi.Rule, r *admission.Request) bool {
	return named(rule.Operations, string(r.Operation)) && named(rule.Groups, r.Resource.Group) &&
		named(rule.Versions, r.Resource.Version) && resourceMatches(rule.Resources, r.Resource.Resource, r.Subresource)
}

// named: an empty list names everything, as "*" does.
func named(list []string, v string) bool {
	return len(list) == 0 || slices.Contains(list, v) || slices.Contains(list, "*")
}

// resourceOf is a rule's resource without its subresource.
func resourceOf(rule string) string {
	resource, _, _ := strings.Cut(rule, "/")
	return resource
}

// resourceMatches reads "pods", "pods/status", "pods/*", "*/scale", "*" (no
// subresources) and "*/*", as upstream's webhook rules do.
func resourceMatches(list []string, resource, subresource string) bool {
	if len(list) == 0 {
		return subresource == ""
	}
	return slices.ContainsFunc(list, func(want string) bool {
		res, sub, _ := strings.Cut(want, "/")
		return (res == "*" || res == resource) && (sub == subresource || sub == "*")
	})
}

// matches looks at labels and conditions too.
func (m *matcher) matches(ctx context.Context, pt abi.Point, r *admission.Request, c Cluster) (bool, error) {
	if !m.reaches(r) || m.foreignSecret(pt, r) {
		return false, nil
	}
	if !anyRule(m.module[pt], r) || !m.entryMatches(r) {
		return false, nil
	}
	if m.err != nil {
		return false, m.err
	}
	if m.object != nil && !objectSelected(m.object, r) {
		return false, nil
	}
	if excepted(m.version, r) {
		return false, nil
	}
	if m.namespace != nil {
		ok, err := namespaceSelected(ctx, m.namespace, r, c.Namespaces)
		if !ok || err != nil {
			return false, err
		}
	}
	if m.version.Pending() { // it is shown nothing yet
		return m.conditionsHold(ctx, r)
	}
	if err := m.maySee(ctx, c, r); err != nil {
		return false, err
	}
	return m.conditionsHold(ctx, r)
}

// excepted says that one of the entry's exceptions lets the request through, and
// leaves a record of it.
func excepted(v *point.Version, r *admission.Request) bool {
	for i := range v.Entry.Match.Exceptions {
		x := &v.Entry.Match.Exceptions[i]
		name, groups := "", []string(nil)
		if r.User != nil {
			name, groups = r.User.GetName(), r.User.GetGroups()
		}
		anyOf := func(wanted []string, have ...string) bool {
			return len(wanted) == 0 || slices.ContainsFunc(have, func(h string) bool { return slices.Contains(wanted, h) })
		}
		if anyOf(x.Users, name) && anyOf(x.Groups, groups...) && anyOf(x.Namespaces, r.Namespace) && anyOf(x.Names, r.Name) {
			r.Annotate(v.Entry.Name+"/exception", cmp.Or(x.Reason, fmt.Sprintf("match.exceptions[%d]", i)))
			return true
		}
	}
	return false
}

// objectSelected: the object's labels or the old object's, so that nobody gets
// out of a policy's reach by taking a label off.
func objectSelected(s labels.Selector, r *admission.Request) bool {
	for _, o := range []*object.Object{r.Object, r.OldObject} {
		if o == nil {
			continue
		}
		if m, err := o.Meta(); err == nil && s.Matches(labels.Set(m.GetLabels())) {
			return true
		}
	}
	return false
}

func namespaceSelected(ctx context.Context, s labels.Selector, r *admission.Request, namespaces Namespaces) (bool, error) {
	if r.Resource.Group == "" && r.Resource.Resource == "namespaces" && r.Subresource == "" {
		return objectSelected(s, r), nil
	}
	if r.Namespace == "" {
		return true, nil // cluster-wide objects are never left out by a namespace's labels
	}
	if namespaces == nil {
		return false, errors.New("match.namespaceSelector: nobody here knows the labels of namespaces")
	}
	set, ok := namespaces(ctx, r.Namespace)
	if !ok {
		return false, fmt.Errorf("match.namespaceSelector: namespace %q was not found", r.Namespace)
	}
	return s.Matches(labels.Set(set)), nil
}

func (m *matcher) conditionsHold(ctx context.Context, r *admission.Request) (bool, error) {
	if len(m.conditions) == 0 {
		return true, nil
	}
	vars, err := celVariables(r)
	if err != nil {
		return false, err
	}
	for _, c := range m.conditions {
		out, _, err := c.program.ContextEval(ctx, vars)
		if err != nil {
			return false, fmt.Errorf("match.conditions %q: %w", c.name, err)
		}
		if holds, ok := out.Value().(bool); !ok || !holds {
			if !ok {
				return false, fmt.Errorf("match.conditions %q: the expression is no bool", c.name)
			}
			return false, nil
		}
	}
	return true, nil
}

// variables are what conditions read of a request: made once for all of them, and again when the object was changed.
type variables struct {
	mu      sync.Mutex
	changes int
	values  map[string]any
}

type variablesKey struct{}

func celVariables(r *admission.Request) (map[string]any, error) {
	v := r.Memo(variablesKey{}, func() any { return &variables{} }).(*variables)
	changes := 0
	if r.Object != nil {
		changes = r.Object.Changes()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.values != nil && v.changes == changes {
		return v.values, nil
	}
	values, err := newVariables(r)
	if err == nil {
		v.values, v.changes = values, changes
	}
	return values, err
}

func newVariables(r *admission.Request) (map[string]any, error) {
	vars := map[string]any{"object": nil, "oldObject": nil}
	for name, o := range map[string]*object.Object{"object": r.Object, "oldObject": r.OldObject} {
		if o == nil {
			continue
		}
		tree, err := o.Tree()
		if err != nil {
			return nil, err
		}
		vars[name] = tree
	}
	who := map[string]any{}
	if r.User != nil {
		who = map[string]any{"username": r.User.GetName(), "uid": r.User.GetUID(), "groups": r.User.GetGroups(), "extra": r.User.GetExtra()}
	}
	vars["request"] = map[string]any{
		"uid": string(r.UID), "operation": string(r.Operation), "name": r.Name, "namespace": r.Namespace,
		"subResource": r.Subresource, "dryRun": r.DryRun, "userInfo": who, "implied": implied(r),
		"kind":     map[string]any{"group": r.Kind.Group, "version": r.Kind.Version, "kind": r.Kind.Kind},
		"resource": map[string]any{"group": r.Resource.Group, "version": r.Resource.Version, "resource": r.Resource.Resource},
	}
	return vars, nil
}
