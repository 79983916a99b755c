// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/definition"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// MutatorResource is the resource of a kind of mutators, which is called by its kind in lower case.
func MutatorResource(kind string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: mutation.Group, Version: mutation.Versions(kind)[0], Resource: strings.ToLower(kind)}
}

// ExpansionTemplates is the resource of Gatekeeper's expansion templates.
func ExpansionTemplates() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: expansion.Group, Version: expansion.Versions()[0], Resource: strings.ToLower(expansion.Kind)}
}

func mutators() (out []schema.GroupVersionResource) {
	for _, kind := range mutation.Kinds() {
		out = append(out, MutatorResource(kind))
	}
	return out
}

// changing are the rights that a mutator takes: its writer must be allowed to read and to write what it changes.
func changing(m *mutation.Mutator) []rights.Need {
	field := "spec.applyTo"
	if m.Kind == mutation.AssignMetadata {
		field = "spec.match.kinds"
	}
	needs := allowed(field, m.Kinds(), "get", "create", "update")
	if name := m.Provider(); name != "" {
		needs = append(needs, rights.Need{Field: "spec.parameters.assign.externalData.provider", Attributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: externaldata.Group, Resource: "providers", Name: name,
		}})
	}
	return needs
}

// allowed are the rights to do something with objects of some kinds.
func allowed(field string, kinds []schema.GroupKind, verbs ...string) (out []rights.Need) {
	for _, k := range kinds {
		resource := "*"
		if k.Kind != "*" {
			resource, _ = policies.Offline{}.Resource(k)
		}
		for _, verb := range verbs {
			out = append(out, rights.Need{Field: field, Attributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Group: k.Group,
				Resource: resource,
			}})
		}
	}
	return out
}

// mutationDefinitions are those of mutators and expansion templates. What is said beside their fields is kept, so
// that their reader can name it.
func mutationDefinitions() (out []*apiextensionsv1.CustomResourceDefinition) {
	ready := column("ready", `.status.conditions[?(@.type=="Ready")].status`, "Whether it is in force.")
	add := func(r schema.GroupVersionResource, kind, text string, versions []string, spec map[string]definition.Props,
		columns ...definition.Column,
	) {
		k := openKind(r, kind, apiextensionsv1.ClusterScoped, text, append(columns, ready)...)
		k.Categories = append(k.Categories, "gatekeeper")
		k.Spec.Properties, k.Older = spec, versions[1:]
		out = append(out, definition.New(k))
	}
	location := column("location", ".spec.location", "What it changes.")
	for _, kind := range mutation.Kinds() {
		add(MutatorResource(kind), kind, mutatorTexts[kind], mutation.Versions(kind), mutatorSchema(kind), location)
	}
	add(ExpansionTemplates(), expansion.Kind, "ExpansionTemplate says what objects are going to make, so that policies are asked about that too.",
		expansion.Versions(), map[string]definition.Props{
			"applyTo":           applyToSchema("Kinds of the objects that make others."),
			"templateSource":    definition.Text("The field that holds what is made, such as spec.template."),
			"generatedGVK":      definition.Open("Group, version and kind of what is made."),
			"enforcementAction": definition.Text("What violations of what is made do: deny, warn or dryrun; else what the constraints say."),
		}, column("source", ".spec.templateSource", "What it expands."), column("makes", ".spec.generatedGVK.kind", "The kind of what is made."))
	return out
}

var mutatorTexts = map[string]string{
	mutation.Assign:         "Assign puts a value into a field of an object that is written.",
	mutation.AssignMetadata: "AssignMetadata adds a label or an annotation to an object that is written.",
	mutation.AssignImage:    "AssignImage changes parts of an image's reference in an object that is written.",
	mutation.ModifySet:      "ModifySet adds values to a list in an object that is written, or takes them out of it.",
}

func mutatorSchema(kind string) map[string]definition.Props {
	parameters := map[string]definition.Props{}
	text := func(name, description string) {
		parameters[name] = definition.Text(description)
	}
	switch kind {
	case mutation.Assign, mutation.AssignMetadata:
		parameters["assign"] = definition.Open("What is put there: value, fromMetadata with the field name or namespace, or externalData with the provider that is asked for it.")
	case mutation.AssignImage:
		text("assignDomain", "The registry, such as registry.example.com:5000.")
		text("assignPath", "The path, such as team/app.")
		text("assignTag", "The tag or digest, such as :v1.")
	case mutation.ModifySet:
		text("operation", "merge (the default) or prune.")
		parameters["values"] = definition.Open("The values: fromList.")
	}
	whole := definition.Open("How it is changed.")
	whole.Properties = parameters
	out := map[string]definition.Props{
		"match":      gatekeeper.MatchSchema("Which objects are changed. Everything given has to match."),
		"location":   definition.Text("The field, such as spec.containers[name: *].image; a list's items by a key, or all of them."),
		"parameters": whole,
	}
	match := out["match"]
	yes := true
	match.XPreserveUnknownFields = &yes
	out["match"] = match
	if kind != mutation.AssignMetadata {
		parameters["pathTests"] = definition.List(definition.Open(""),
			"What has to be there, or must not: subPath, the beginning of the location, and condition, MustExist or MustNotExist.")
		out["applyTo"] = applyToSchema("Kinds of the objects that are changed.")
	}
	return out
}

func applyToSchema(description string) definition.Props {
	return definition.List(definition.Open("Groups, versions and kinds."), description)
}

// conflictType is what Gatekeeper calls the error of mutators that contradict each other.
const conflictType = "ErrConflictingSchema"

// mutation says on mutators what became of them. The server reads them itself.
func (c *Controller) mutation(ctx context.Context) {
	type one struct {
		r schema.GroupVersionResource
		o *unstructured.Unstructured
		m *mutation.Mutator
	}
	var all []one
	var read []*mutation.Mutator
	for _, r := range mutators() {
		list, ok := c.objects(r)
		if !ok {
			return // one that is not known may contradict others
		}
		for _, o := range list {
			m, err := mutation.Read(o.Object)
			if o.GetDeletionTimestamp() != nil {
				continue
			}
			if err != nil {
				c.report(ctx, o, "write the status", c.writeStatus(ctx, r, o, inForceStatus(o, mutatorReport, "", err)))
				continue
			}
			all, read = append(all, one{r, o, m}), append(read, m)
		}
	}
	set := mutation.NewSet(read)
	for _, a := range all {
		kind, problem := "", error(nil)
		if in := set.Conflicts(a.m); len(in) > 0 {
			kind, problem = conflictType, fmt.Errorf("these imply different schemas of one field, so that none of them is applied: %s",
				strings.Join(in, ", "))
		}
		c.report(ctx, a.o, "write the status", c.writeStatus(ctx, a.r, a.o, inForceStatus(a.o, mutatorReport, kind, problem)))
	}
}

// expansion says on expansion templates what became of them.
func (c *Controller) expansion(ctx context.Context) {
	list, ok := c.objects(ExpansionTemplates())
	if !ok {
		return
	}
	list = slices.DeleteFunc(list, func(o *unstructured.Unstructured) bool { return o.GetDeletionTimestamp() != nil })
	templates, problems := make([]*expansion.Template, len(list)), make([]error, len(list))
	var read []*expansion.Template
	for i, o := range list {
		if templates[i], problems[i] = expansion.Read(o.Object); problems[i] == nil {
			read = append(read, templates[i])
		}
	}
	set := expansion.NewSet(read)
	for i, o := range list {
		kind := ""
		if problems[i] == nil {
			if in := set.Cycle(templates[i]); len(in) > 0 {
				kind, problems[i] = "ErrTemplateCycle", fmt.Errorf("these lead back to what they begin with, so that none of them is used: %s",
					strings.Join(in, ", "))
			}
		}
		c.report(ctx, o, "write the status", c.writeStatus(ctx, ExpansionTemplates(), o, inForceStatus(o, templateReport, kind, problems[i])))
	}
}

// What the fields of Gatekeeper's own reports about an object are called.
type report struct{ uid, operation string }

var (
	mutatorReport  = report{"mutatorUID", "mutation-webhook"}
	templateReport = report{"templateUID", "webhook"}
)

// inForceStatus is the status of what the server reads itself, in Gatekeeper's form, with a condition.
func inForceStatus(o *unstructured.Unstructured, r report, kind string, problem error) map[string]any {
	c := map[string]any{
		"type": apiobject.Ready, "status": "True", "reason": "InForce", "message": "it is in force", "observedGeneration": o.GetGeneration(),
	}
	by := map[string]any{
		"id": reporter, "observedGeneration": o.GetGeneration(), r.uid: string(o.GetUID()), "operations": []any{r.operation},
		"enforced": problem == nil,
	}
	if problem != nil {
		c["status"], c["reason"], c["message"] = "False", "Refused", problem.Error()
		e := map[string]any{"message": problem.Error()}
		if kind != "" {
			e["type"], c["reason"] = kind, "Conflict"
		}
		by["errors"] = []any{e}
	}
	if before := condition(o, apiobject.Ready); before != nil && before["status"] == c["status"] {
		c["lastTransitionTime"] = before["lastTransitionTime"]
	}
	return map[string]any{"conditions": []any{c}, "byPod": []any{by}}
}
