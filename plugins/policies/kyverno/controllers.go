// SPDX-License-Identifier: Apache-2.0

package kyverno

import (
	"regexp"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// variant is a policy for what it names, or for the controllers that make its pods: there its
// expressions look at the pod template.
type variant struct {
	name     string
	match    *admissionregistrationv1.MatchResources
	template string // the path of the pod template; "" = what the policy names
}

// controllersOf are the resources with a pod template, by its path.
var controllersOf = []struct {
	name, template string
	groups         []groupResources
}{
	{"controllers", "spec.template", []groupResources{
		{"apps", []string{"daemonsets", "deployments", "replicasets", "statefulsets"}}, {"batch", []string{"jobs"}},
	}},
	{"cronjobs", "spec.jobTemplate.spec.template", []groupResources{{"batch", []string{"cronjobs"}}}},
}

type groupResources struct {
	group     string
	resources []string
}

// Variant is a policy for what it names, or for the controllers that make its pods.
type Variant struct{ variant }

// Match is what it is about.
func (v Variant) Match() *admissionregistrationv1.MatchResources { return v.match }

// Name tells it from others of the policy; "" = what the policy names.
func (v Variant) Name() string { return v.name }

// In is an expression as it looks at a template.
func (v Variant) In(expression string) string { return v.in(expression) }

// Variants are a policy for what it names, and for the controllers that make its pods, where it names pods alone.
// controllers are the resources that are wanted; nil = all.
func Variants(m *admissionregistrationv1.MatchResources, controllers []string) []Variant {
	out := []Variant{{variant{match: m}}}
	for _, v := range controllersFor(m, controllers) {
		out = append(out, Variant{v})
	}
	return out
}

// controllers are the variants for controllers, of a policy that is about all pods and nothing else.
func (s *spec) controllers() []variant {
	var wanted []string
	if c := s.Autogen.PodControllers; c != nil {
		wanted = c.Controllers
	}
	return controllersFor(s.MatchConstraints, wanted)
}

func controllersFor(m *admissionregistrationv1.MatchResources, controllers []string) []variant {
	for _, selector := range []*metav1.LabelSelector{m.NamespaceSelector, m.ObjectSelector} {
		if selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) > 0 {
			return nil
		}
	}
	if len(m.ExcludeResourceRules) > 0 || len(m.ResourceRules) != 1 {
		return nil
	}
	rule := m.ResourceRules[0]
	if len(rule.ResourceNames) > 0 || !slices.Equal(rule.APIGroups, []string{""}) || !slices.Equal(rule.APIVersions, []string{"v1"}) ||
		!slices.Equal(rule.Resources, []string{"pods"}) {
		return nil
	}
	wanted := func(resource string) bool { return controllers == nil || slices.Contains(controllers, resource) }
	var out []variant
	for _, set := range controllersOf {
		v := variant{name: set.name, template: set.template, match: &admissionregistrationv1.MatchResources{}}
		for _, g := range set.groups {
			resources := slices.DeleteFunc(slices.Clone(g.resources), func(r string) bool { return !wanted(r) })
			if len(resources) == 0 {
				continue
			}
			v.match.ResourceRules = append(v.match.ResourceRules, admissionregistrationv1.NamedRuleWithOperations{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: rule.Operations,
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{g.group}, APIVersions: []string{"v1"}, Resources: resources},
				},
			})
		}
		if len(v.match.ResourceRules) > 0 {
			out = append(out, v)
		}
	}
	return out
}

// podField is what a policy for pods looks at. Name and namespace are the controller's own: its
// template has none.
var podField = regexp.MustCompile(`\b(object|oldObject)\.(spec|metadata)\b(\.(?:name|namespace)\b)?`)

// in is an expression as it looks at a template.
func (v variant) in(expression string) string {
	if v.template == "" {
		return expression
	}
	return podField.ReplaceAllStringFunc(expression, func(found string) string {
		m := podField.FindStringSubmatch(found)
		if m[2] == "metadata" && m[3] != "" {
			return found
		}
		return m[1] + "." + v.template + "." + m[2] + m[3]
	})
}

func (v variant) conditions(list []admissionregistrationv1.MatchCondition) (out []admissionregistrationv1.MatchCondition) {
	for _, c := range list {
		c.Expression = v.in(c.Expression)
		out = append(out, c)
	}
	return out
}

func (v variant) variables(list []admissionregistrationv1.Variable) (out []admissionregistrationv1.Variable) {
	for _, x := range list {
		x.Expression = v.in(x.Expression)
		out = append(out, x)
	}
	return out
}

var (
	// typeName is a type of a configuration that is applied to a pod, which has no braces of its own.
	typeName = regexp.MustCompile(`\bObject\.(spec|metadata)\b`)
	// patchPath is the beginning of a path of a JSON patch.
	patchPath = regexp.MustCompile(`(["'])/(spec|metadata)\b`)
	whole     = regexp.MustCompile(`\bObject\s*\{`)
)

// mutation is a mutation of a pod as one of its template.
func (v variant) mutation(m admissionregistrationv1.Mutation) admissionregistrationv1.Mutation {
	if v.template == "" {
		return m
	}
	if m.JSONPatch != nil {
		path := strings.ReplaceAll(v.template, ".", "/")
		m.JSONPatch = &admissionregistrationv1.JSONPatch{
			Expression: patchPath.ReplaceAllString(v.in(m.JSONPatch.Expression), "${1}/"+path+"/${2}"),
		}
	}
	if m.ApplyConfiguration != nil {
		text := typeName.ReplaceAllString(v.in(m.ApplyConfiguration.Expression), "Object."+v.template+".${1}")
		m.ApplyConfiguration = &admissionregistrationv1.ApplyConfiguration{Expression: v.wrapped(text)}
	}
	return m
}

// wrapped puts the fields of each Object{...} where the template is: Object{spec:
// Object.spec{template: Object.spec.template{...}}}.
func (v variant) wrapped(text string) string {
	at := whole.FindStringIndex(text)
	if at == nil {
		return text
	}
	end := closing(text, at[1])
	before, after, path := "Object{", "}", "Object"
	for _, field := range strings.Split(v.template, ".") {
		path += "." + field
		before += field + ": " + path + "{"
		after += "}"
	}
	return text[:at[0]] + before + text[at[1]:end] + after + v.wrapped(text[min(len(text), end+1):])
}

// closing is where the brace closes that was opened before from; the end, where it does not.
func closing(text string, from int) int { return closingOf(text, from, '{', '}') }

func closingOf(text string, from int, opens, closes byte) int {
	depth, quote := 1, byte(0)
	for i := from; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == opens:
			depth++
		case c == closes:
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(text)
}
