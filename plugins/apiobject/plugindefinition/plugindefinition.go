// SPDX-License-Identifier: Apache-2.0

// Package plugindefinition is what the API knows of plugins as objects: the names of the kinds Plugin and TenantPlugin,
// and their definitions, whose schema is made from the entry of the configuration file.
package plugindefinition

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Group, Version and Kind of the object.
const (
	Group   = manifest.APIGroup
	Version = "v1"
	Kind    = "Plugin"
)

// Resource is what clients ask for.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: "plugins"}
}

// TenantResource is the form that belongs to a namespace: a plugin of the people who
// may write there, which sees that namespace only.
func TenantResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: "tenantplugins"}
}

// TenantKind is its kind.
const TenantKind = "TenantPlugin"

// TenantDefinition is its definition: the same entry.
func TenantDefinition() *apiextensionsv1.CustomResourceDefinition {
	d := Definition()
	d.Name = TenantResource().GroupResource().String()
	d.Spec.Scope = apiextensionsv1.NamespaceScoped
	d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
		Plural: TenantResource().Resource, Singular: "tenantplugin", Kind: TenantKind, ListKind: TenantKind + "List",
		Categories: []string{"wasmplane"},
	}
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "TenantPlugin is an admission plugin of one namespace: it sees requests of that namespace only, and reads nothing else."
	return d
}

// Definition is the definition of the custom resource.
func Definition() *apiextensionsv1.CustomResourceDefinition {
	spec := schemaOf(reflect.TypeFor[manifest.Entry](), "spec")
	delete(spec.Properties, "name") // the object's own
	spec.Description = "The entry by which a plugin is loaded."
	column := func(name, kind, path, text string, priority int32) apiextensionsv1.CustomResourceColumnDefinition {
		return apiextensionsv1.CustomResourceColumnDefinition{Name: name, Type: kind, JSONPath: path, Description: text, Priority: priority}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: Resource().GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: Group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: Resource().Resource, Singular: "plugin", Kind: Kind, ListKind: Kind + "List", Categories: []string{"wasmplane"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Description: "Plugin is a Wasm plugin that is asked at decision points of the cluster.", Required: []string{"spec"},
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec, "status": statusSchema()},
				}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
					column("Ready", "string", `.status.conditions[?(@.type=="Ready")].status`, "whether a version answers in every process that asks it",
						0),
					column("Updated", "string", `.status.conditions[?(@.type=="Updated")].status`, "whether that version is the one of the spec", 0),
					column("Mode", "string", ".status.mode", "what its decisions do", 0),
					column("Version", "string", ".status.version", "what the module calls itself", 0),
					column("Calls", "integer", ".status.calls", "calls since the processes started", 0),
					column("Denials", "integer", ".status.denials", "refusals among them", 0),
					column("Failures", "integer", ".status.failures", "failed calls among them", 0),
					column("Time", "string", ".status.meanTime", "mean time of a call", 0),
					column("Origin", "string", ".status.origin", "where the entry stands: file, api or tenant", 0),
					column("Differing", "integer", ".status.candidate.differing", "calls that the candidate decided differently", 1),
					column("Points", "string", ".status.points", "where it takes part", 1),
					column("Digest", "string", ".status.digest", "of the module in force", 1),
					column("Message", "string", `.status.conditions[?(@.type=="Updated")].message`, "why the spec's version is not in force", 1),
					column("Age", "date", ".metadata.creationTimestamp", "", 0),
				},
			}},
		},
	}
}

// enums are the values of types that have few.
func enums(t reflect.Type) []string {
	switch t {
	case reflect.TypeFor[manifest.Mode]():
		return []string{string(manifest.Enforce), string(manifest.Warn), string(manifest.Audit), string(manifest.Shadow)}
	case reflect.TypeFor[manifest.FailurePolicy]():
		return []string{string(manifest.Fail), string(manifest.Ignore)}
	case reflect.TypeFor[manifest.Isolation]():
		return []string{string(manifest.Shared), string(manifest.PerCall)}
	case reflect.TypeFor[manifest.ABI]():
		var out []string
		for _, a := range manifest.ABIs() {
			out = append(out, string(a))
		}
		return out
	}
	return nil
}

// schemaOf is the structural schema of a part of the entry. It is made from the
// entry's own types, so that file and object cannot drift apart.
func schemaOf(t reflect.Type, path string) apiextensionsv1.JSONSchemaProps {
	yes := true
	s := apiextensionsv1.JSONSchemaProps{Description: descriptions[path]}
	switch {
	case t == reflect.TypeFor[yaml.Node]():
		s.Type, s.XPreserveUnknownFields = "object", &yes
		return s
	case t == reflect.TypeFor[manifest.Duration]():
		s.Type = "string"
		return s
	case t == reflect.TypeFor[manifest.Bytes]():
		s.XIntOrString = true
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), path)
	case reflect.Bool:
		s.Type = "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64:
		s.Type = "integer"
	case reflect.String:
		s.Type = "string"
		for _, v := range enums(t) {
			s.Enum = append(s.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + v + `"`)})
		}
	case reflect.Slice:
		items := schemaOf(t.Elem(), path+"[]")
		s.Type, s.Items = "array", &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}
		if path == "spec.points" {
			for _, p := range abi.Points() {
				items.Enum = append(items.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + string(p) + `"`)})
			}
		}
	case reflect.Map:
		values := schemaOf(t.Elem(), path+"{}")
		s.Type, s.AdditionalProperties = "object", &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &values}
	case reflect.Struct:
		s.Type, s.Properties = "object", map[string]apiextensionsv1.JSONSchemaProps{}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			if name != "-" && name != "" {
				s.Properties[name] = schemaOf(t.Field(i).Type, path+"."+name)
			}
		}
	default: // no entry has such a field; a schema without a type lets everything through
	}
	return s
}

// descriptions are what `kubectl explain plugin.spec` says.
var descriptions = map[string]string{
	"spec.source":        "Where the module comes from: oci://HOST/REPOSITORY:TAG@sha256:DIGEST, https://HOST/PATH, or file:PATH below the folder that the server's configuration opens (pluginFiles).",
	"spec.rego":          "A policy's text in Rego (text, libs, version), instead of a source; abi says for whom it was written.",
	"spec.cel":           "A policy's expressions in CEL (matchConditions, variables, validations), instead of a source; abi is gatekeeper.",
	"spec.bundle":        "The source is a bundle of Open Policy Agent; its keys verify its signature.",
	"spec.abi":           "What the module speaks, where the module does not tell.",
	"spec.entrypoint":    "The rule of a module compiled from Rego.",
	"spec.digest":        "The digest of the module, sha256:... Required unless an oci:// source names the digest of its manifest.",
	"spec.fetch":         "How the module is fetched: authorities (ca), credentials (secret), plainHTTP, timeout, maxSize, and how often it is looked whether the tag has moved (check).",
	"spec.signatures":    "Signatures that the module has to have, each by one of some keys in PEM.",
	"spec.points":        "Where the plugin is asked; left out, everywhere that the module has a hook for.",
	"spec.match":         "Which admission requests the plugin sees. Everything given has to match.",
	"spec.settings":      "What is handed to the plugin, which checks it when it is loaded. It can be read by whoever may read Plugins: it is no place for secrets.",
	"spec.failurePolicy": "What a failure of the plugin means: Fail refuses the request, Ignore goes on.",
	"spec.mode":          "What decisions do: Enforce; Warn tells the client; Audit records; Shadow counts.",
	"spec.limits":        "What one call may use.",
	"spec.grants":        "Host functions that the plugin may use. Nothing is granted by default. It is held against the rights of whoever writes this; status.grants says what came of it.",
	"spec.isolation":     "shared: instances are used again. perCall: each call finds the memory as it was after start-up.",
	"spec.order":         "Smaller ones are asked first; of the same order the configuration file's, then those of the API by name.",
	"spec.candidate":     "Another version, which runs beside this one on live requests without an effect; where it decides differently, that is counted and shown in the status.",
	"spec.previous":      "What was in force before a candidate was promoted; `wasmplane plugin rollback` puts it back.",
	"spec.disabled":      "Keeps the object and does not load the plugin.",
	"spec.authorization": "Where an authorizer stands in the chain.",
	"spec.scheduling":    "The weight of scores.",
	"spec.reconcile":     "The service account, as namespace/name, under which a reconciler writes.",
	"spec.group":         "Instead of a source: several plugins and a boolean expression over what they decide.",
}

// statusSchema is written by the controller alone: it is described, not checked field by field.
func statusSchema() apiextensionsv1.JSONSchemaProps {
	yes := true
	text := func(d string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "string", Description: d}
	}
	number := func(d string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int64", Description: d}
	}
	list := func(of apiextensionsv1.JSONSchemaProps, d string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}, Description: d}
	}
	open := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}
	candidate := open
	candidate.Description = "What became of the candidate: calls, how many it decided differently, and the last of these."
	granted := apiextensionsv1.JSONSchemaProps{
		Type: "object", Description: "What the plugin may do besides deciding, on behalf of its writer.",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"writer":  text("Who wrote the object."),
			"read":    list(text(""), "What it may read."),
			"call":    list(text(""), "What it may ask the host for."),
			"send":    list(text(""), "What it may send, and where."),
			"refused": list(text(""), "What the object asks for and its writer may not."),
		},
	}
	return apiextensionsv1.JSONSchemaProps{
		Type: "object", Description: "What became of the plugin, over all processes that ask it.",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"observedGeneration": number("The generation of the spec that this is about."),
			"conditions":         list(open, "Ready: a version answers in every process that asks it. Updated: that version is the spec's."),
			"origin":             text("Where the entry stands: file (the configuration file; the object only shows it), api or tenant."),
			"source":             text("Where its module comes from."),
			"breakerOpen":        {Type: "boolean", Description: "Whether a process leaves the plugin alone because it failed many times in a row."},
			"digest":             text("Of the module in force."),
			"version":            text("What the module calls itself."),
			"points":             list(text(""), "Where it takes part."),
			"kinds": {
				Type: "object", Description: "The kinds that its module declares, as jobs.batch; * is all.",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"watches": list(text(""), "A change of one has it called."),
					"reads":   list(text(""), "What it reads besides."),
					"writes":  list(text(""), "What it makes, or changes on its way into the store."),
					"account": text("The service account (NAMESPACE/NAME) as which a reconciler writes."),
				},
			},
			"mode":        text("What its decisions do."),
			"replaced":    text("The digest of the version before."),
			"moved":       text("The digest at which the source's tag points now, instead of what is pinned."),
			"calls":       number("Calls since the processes started."),
			"denials":     number("Refusals among them."),
			"failures":    number("Failed calls among them."),
			"lastFailure": text("The last failure's message."),
			"meanTime":    text("Mean time of a call."),
			"meanFuel":    number("Mean fuel of a call."),
			"candidate":   candidate,
			"grants":      granted,
			"instances":   list(open, "What each process reports. It holds while the process renews its Lease in namespace wasmplane-plugins."),
		},
	}
}
