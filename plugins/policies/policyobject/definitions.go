// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
		d := definition(Templates(), gatekeeper.TemplateKind, apiextensionsv1.ClusterScoped,
			"ConstraintTemplate is a policy in Rego, and defines a kind whose objects apply it.",
			column("kind", ".spec.crd.spec.names.kind", "The kind that it defines."),
			column("created", ".status.created", "Whether the kind can be used."))
		old := *d.Spec.Versions[0].DeepCopy()
		old.Name, old.Storage = "v1beta1", false
		d.Spec.Versions = append(d.Spec.Versions, old)
		out = append(out, d,
			definition(Settings()[0], gatekeeper.ConfigKind, apiextensionsv1.NamespaceScoped,
				"Config says of which kinds constraints may see objects, and in which namespaces none holds."),
			definition(Settings()[1], gatekeeper.SyncSetKind, apiextensionsv1.ClusterScoped,
				"SyncSet says of which kinds constraints may see objects."))
		out = append(out, mutationDefinitions()...)
		provider := definition(schema.GroupVersionResource{
			Group: externaldata.Group, Version: externaldata.Versions()[0],
			Resource: plural(externaldata.Kind),
		},
			externaldata.Kind, apiextensionsv1.ClusterScoped, "Provider is a server that constraints ask by external_data.",
			column("url", ".spec.url", "Where it is asked."))
		older := *provider.Spec.Versions[0].DeepCopy()
		older.Name, older.Storage = externaldata.Versions()[1], false
		provider.Spec.Versions = append(provider.Spec.Versions, older)
		out = append(out, provider)
	}
	if slices.Contains(enabled, Kubewarden) {
		for _, kind := range admissionpolicy.Kinds() {
			scope := apiextensionsv1.ClusterScoped
			if kind == admissionpolicy.Policy || kind == admissionpolicy.PolicyGroup {
				scope = apiextensionsv1.NamespaceScoped
			}
			out = append(out, definition(KubewardenResource(kind), kind, scope, kind+" is a policy of Kubewarden, which runs as a plugin.",
				column("module", ".spec.module", "Where its module comes from."), column("mode", ".spec.mode", "What its decisions do."),
				column("mutating", ".spec.mutating", "Whether it may change objects."),
				column("status", ".status.policyStatus", "Whether it is in force.")))
		}
	}
	if slices.Contains(enabled, Kyverno) {
		out = append(out, kyvernoDefinitions()...)
		global := definition(schema.GroupVersionResource{
			Group: kyverno.GlobalGroup, Version: kyverno.GlobalVersions()[0], Resource: plural(kyverno.GlobalKind),
		}, kyverno.GlobalKind, apiextensionsv1.ClusterScoped,
			"GlobalContextEntry is what policies of Kyverno share: objects, or the answer of a server (globalContext.Get).")
		global.Spec.Names.ShortNames = []string{"gctxentry"}
		for _, v := range kyverno.GlobalVersions()[1:] {
			old := *global.Spec.Versions[0].DeepCopy()
			old.Name, old.Storage = v, false
			global.Spec.Versions = append(global.Spec.Versions, old)
		}
		out = append(out, global)
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
		d := definition(KyvernoResource(kind), kind, scope, text, ready)
		if short := kyvernoShort[kind]; short != "" {
			d.Spec.Names.ShortNames = []string{short}
		}
		for _, v := range kyverno.Versions()[1:] {
			old := *d.Spec.Versions[0].DeepCopy()
			old.Name, old.Storage = v, false
			d.Spec.Versions = append(d.Spec.Versions, old)
		}
		out = append(out, d)
	}
	return out
}

// kyvernoShort are the names by which kubectl's users know the kinds.
var kyvernoShort = map[string]string{
	kyverno.Validating: "vpol", kyverno.NamespacedValidating: "nvpol", kyverno.Mutating: "mpol", kyverno.NamespacedMutating: "nmpol",
	kyverno.Image: "ivpol", kyverno.NamespacedImage: "nivpol",
}

func column(name, path, description string) apiextensionsv1.CustomResourceColumnDefinition {
	return apiextensionsv1.CustomResourceColumnDefinition{Name: name, Type: "string", JSONPath: path, Description: description}
}

func definition(r schema.GroupVersionResource, kind string, scope apiextensionsv1.ResourceScope, text string,
	columns ...apiextensionsv1.CustomResourceColumnDefinition,
) *apiextensionsv1.CustomResourceDefinition {
	yes := true
	open := func(description string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes, Description: description}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: r.GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: r.Group, Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: r.Resource, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List", Categories: []string{"policies"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: r.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Description: text, Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec":   open("The policy."),
						"status": open("What became of it."),
					},
				}},
				AdditionalPrinterColumns: columns,
			}},
		},
	}
}
