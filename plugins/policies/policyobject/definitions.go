// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/definition"
	"github.com/wasmplane/wasmplane/plugins/policies/admissionpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
)

// Templates is the resource of Gatekeeper's templates.
func Templates() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gatekeeper.TemplateGroup, Version: "v1", Resource: "constrainttemplates"}
}

// Settings are the resources of what says something about all constraints.
func Settings() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Group: gatekeeper.ConfigGroup, Version: gatekeeper.SettingsVersion, Resource: plural(gatekeeper.ConfigKind)},
		{Group: gatekeeper.SyncSetGroup, Version: gatekeeper.SettingsVersion, Resource: plural(gatekeeper.SyncSetKind)},
	}
}

// KubewardenResource is the resource of a kind of Kubewarden.
func KubewardenResource(kind string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: admissionpolicy.Group, Version: "v1", Resource: plural(kind)}
}

// KyvernoResource is the resource of a kind of Kyverno.
func KyvernoResource(kind string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: kyverno.Group, Version: kyverno.Versions()[0], Resource: plural(kind)}
}

func plural(kind string) string {
	out := strings.ToLower(kind) + "s"
	if stem, y := strings.CutSuffix(out, "ys"); y {
		return stem + "ies"
	}
	return out
}

// Definitions are the kinds of the enabled projects. What their spec has to be is held by the
// reader of each project, which names what is wrong; the schema takes every field, so that
// none is dropped in silence.
func Definitions(enabled []string) []*apiextensionsv1.CustomResourceDefinition {
	var out []*apiextensionsv1.CustomResourceDefinition
	if slices.Contains(enabled, Gatekeeper) {
		template := openKind(Templates(), gatekeeper.TemplateKind, apiextensionsv1.ClusterScoped,
			"ConstraintTemplate is a policy in Rego, and defines a kind whose objects apply it.",
			column("kind", ".spec.crd.spec.names.kind", "The kind that it defines."),
			column("created", ".status.created", "Whether the kind can be used."))
		template.Older = []string{"v1beta1"}
		out = append(out, definition.New(template),
			defined(Settings()[0], gatekeeper.ConfigKind, apiextensionsv1.NamespaceScoped,
				"Config says of which kinds constraints may see objects, and in which namespaces none holds."),
			defined(Settings()[1], gatekeeper.SyncSetKind, apiextensionsv1.ClusterScoped,
				"SyncSet says of which kinds constraints may see objects."))
		out = append(out, mutationDefinitions()...)
		provider := openKind(schema.GroupVersionResource{
			Group: externaldata.Group, Version: externaldata.Versions()[0],
			Resource: plural(externaldata.Kind),
		},
			externaldata.Kind, apiextensionsv1.ClusterScoped, "Provider is a server that constraints ask by external_data.",
			column("url", ".spec.url", "Where it is asked."))
		provider.Older = externaldata.Versions()[1:]
		out = append(out, definition.New(provider))
	}
	if slices.Contains(enabled, Kubewarden) {
		for _, kind := range admissionpolicy.Kinds() {
			scope := apiextensionsv1.ClusterScoped
			if kind == admissionpolicy.Policy || kind == admissionpolicy.PolicyGroup {
				scope = apiextensionsv1.NamespaceScoped
			}
			out = append(out, defined(KubewardenResource(kind), kind, scope, kind+" is a policy of Kubewarden, which runs as a plugin.",
				column("module", ".spec.module", "Where its module comes from."), column("mode", ".spec.mode", "What its decisions do."),
				column("mutating", ".spec.mutating", "Whether it may change objects."),
				column("status", ".status.policyStatus", "Whether it is in force.")))
		}
	}
	if slices.Contains(enabled, Kyverno) {
		out = append(out, kyvernoDefinitions()...)
		global := openKind(schema.GroupVersionResource{
			Group: kyverno.GlobalGroup, Version: kyverno.GlobalVersions()[0], Resource: plural(kyverno.GlobalKind),
		}, kyverno.GlobalKind, apiextensionsv1.ClusterScoped,
			"GlobalContextEntry is what policies of Kyverno share: objects, or the answer of a server (globalContext.Get).")
		global.ShortNames, global.Older = []string{"gctxentry"}, kyverno.GlobalVersions()[1:]
		out = append(out, definition.New(global))
	}
	return out
}

// kyvernoDefinitions are those of the kinds that are in force here, and of those that are known to be
// refused: whoever applies one learns why.
func kyvernoDefinitions() (out []*apiextensionsv1.CustomResourceDefinition) {
	ready := column("ready", ".status.conditionStatus.ready", "Whether it is in force.")
	for _, kind := range slices.Concat(kyverno.Kinds(), kyverno.ImageKinds(), []string{kyverno.ExceptionKind}, kyverno.OtherKinds()) {
		scope := apiextensionsv1.ClusterScoped
		if kyverno.Namespaced(kind) {
			scope = apiextensionsv1.NamespaceScoped
		}
		text := kind + " is a kind of Kyverno's, and is not known here: one that is written is refused."
		if !slices.Contains(kyverno.OtherKinds(), kind) {
			text = kind + " is a policy of Kyverno in CEL."
		}
		k := openKind(KyvernoResource(kind), kind, scope, text, ready)
		if short := kyvernoShort[kind]; short != "" {
			k.ShortNames = []string{short}
		}
		k.Older = kyverno.Versions()[1:]
		out = append(out, definition.New(k))
	}
	return out
}

// kyvernoShort are the names by which kubectl's users know the kinds.
var kyvernoShort = map[string]string{
	kyverno.Validating: "vpol", kyverno.NamespacedValidating: "nvpol", kyverno.Mutating: "mpol", kyverno.NamespacedMutating: "nmpol",
	kyverno.Image: "ivpol", kyverno.NamespacedImage: "nivpol",
}

func column(name, path, description string) definition.Column {
	return definition.Show(name, "string", path, description, 0)
}

// defined is the definition of a kind of which nothing is described: its reader says what is wrong.
func defined(r schema.GroupVersionResource, kind string, scope apiextensionsv1.ResourceScope, text string,
	columns ...definition.Column,
) *apiextensionsv1.CustomResourceDefinition {
	return definition.New(openKind(r, kind, scope, text, columns...))
}

func openKind(r schema.GroupVersionResource, kind string, scope apiextensionsv1.ResourceScope, text string,
	columns ...definition.Column,
) definition.Kind {
	return definition.Kind{
		Resource: r, Kind: kind, Scope: scope, Categories: []string{"policies"}, Description: text, Columns: columns,
		Spec: definition.Open("The policy."), Status: definition.Open("What became of it."),
	}
}
