// SPDX-License-Identifier: Apache-2.0

// Package plugindefinition is what the API knows of plugins as objects: the names of the kinds Plugin and TenantPlugin,
// and their definitions, whose schema is made from the entry of the configuration file.
package plugindefinition

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/definition"
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
	return definition.New(definition.Kind{
		Resource: Resource(), Kind: Kind, Categories: []string{"wasmplane"},
		Description: "Plugin is a Wasm plugin that is asked at decision points of the cluster.",
		Required:    []string{"spec"}, Spec: spec, Status: statusSchema(),
		Columns: []definition.Column{
			definition.Show("Ready", "string", `.status.conditions[?(@.type=="Ready")].status`, "whether a version answers in every process that asks it",
				0),
			definition.Show("Updated", "string", `.status.conditions[?(@.type=="Updated")].status`, "whether that version is the one of the spec", 0),
			definition.Show("Mode", "string", ".status.mode", "what its decisions do", 0),
			definition.Show("Version", "string", ".status.version", "what the module calls itself", 0),
			definition.Show("Calls", "integer", ".status.calls", "calls since the processes started", 0),
			definition.Show("Denials", "integer", ".status.denials", "refusals among them", 0),
			definition.Show("Failures", "integer", ".status.failures", "failed calls among them", 0),
			definition.Show("Time", "string", ".status.meanTime", "mean time of a call", 0),
			definition.Show("Origin", "string", ".status.origin", "where the entry stands: file, api or tenant", 0),
			definition.Show("Differing", "integer", ".status.candidate.differing", "calls that the candidate decided differently", 1),
			definition.Show("Points", "string", ".status.points", "where it takes part", 1),
			definition.Show("Digest", "string", ".status.digest", "of the module in force", 1),
			definition.Show("Message", "string", `.status.conditions[?(@.type=="Updated")].message`, "why the spec's version is not in force", 1),
			definition.Show("Age", "date", ".metadata.creationTimestamp", "", 0),
		},
	})
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
func schemaOf(t reflect.Type, path string) definition.Props {
	about := descriptions[path]
	switch t {
	case reflect.TypeFor[yaml.Node]():
		return definition.Open(about)
	case reflect.TypeFor[manifest.Duration]():
		return definition.Text(about)
	case reflect.TypeFor[manifest.Bytes]():
		return definition.Props{XIntOrString: true, Description: about}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), path)
	case reflect.Bool:
		return definition.Flag(about)
	case reflect.Int, reflect.Int32, reflect.Int64:
		return definition.Props{Type: "integer", Description: about}
	case reflect.String:
		return definition.OneOf(definition.Text(about), enums(t)...)
	case reflect.Slice:
		items := schemaOf(t.Elem(), path+"[]")
		if path == "spec.points" {
			items = definition.OneOf(items, abi.Points()...)
		}
		return definition.List(items, about)
	case reflect.Map:
		return definition.Map(schemaOf(t.Elem(), path+"{}"), about)
	case reflect.Struct:
		fields := map[string]definition.Props{}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			if name != "-" && name != "" {
				fields[name] = schemaOf(t.Field(i).Type, path+"."+name)
			}
		}
		return definition.Object(about, fields)
	}
	return definition.Props{Description: about} // no entry has such a field; a schema without a type lets everything through
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
	candidate := definition.Open("What became of the candidate: calls, how many it decided differently, and the last of these.")
	granted := definition.Object("What the plugin may do besides deciding, on behalf of its writer.", map[string]definition.Props{
		"writer":  definition.Text("Who wrote the object."),
		"read":    definition.List(definition.Text(""), "What it may read."),
		"call":    definition.List(definition.Text(""), "What it may ask the host for."),
		"send":    definition.List(definition.Text(""), "What it may send, and where."),
		"refused": definition.List(definition.Text(""), "What the object asks for and its writer may not."),
	})
	return definition.Object("What became of the plugin, over all processes that ask it.", map[string]definition.Props{
		"observedGeneration": definition.Number("The generation of the spec that this is about."),
		"conditions":         definition.List(definition.Open(""), "Ready: a version answers in every process that asks it. Updated: that version is the spec's."),
		"origin":             definition.Text("Where the entry stands: file (the configuration file; the object only shows it), api or tenant."),
		"source":             definition.Text("Where its module comes from."),
		"breakerOpen":        definition.Flag("Whether a process leaves the plugin alone because it failed many times in a row."),
		"digest":             definition.Text("Of the module in force."),
		"version":            definition.Text("What the module calls itself."),
		"points":             definition.List(definition.Text(""), "Where it takes part."),
		"kinds": definition.Object("The kinds that its module declares, as jobs.batch; * is all.", map[string]definition.Props{
			"watches": definition.List(definition.Text(""), "A change of one has it called."),
			"reads":   definition.List(definition.Text(""), "What it reads besides."),
			"writes":  definition.List(definition.Text(""), "What it makes, or changes on its way into the store."),
			"account": definition.Text("The service account (NAMESPACE/NAME) as which a reconciler writes."),
		}),
		"mode":        definition.Text("What its decisions do."),
		"replaced":    definition.Text("The digest of the version before."),
		"moved":       definition.Text("The digest at which the source's tag points now, instead of what is pinned."),
		"calls":       definition.Number("Calls since the processes started."),
		"denials":     definition.Number("Refusals among them."),
		"failures":    definition.Number("Failed calls among them."),
		"lastFailure": definition.Text("The last failure's message."),
		"meanTime":    definition.Text("Mean time of a call."),
		"meanFuel":    definition.Number("Mean fuel of a call."),
		"candidate":   candidate,
		"grants":      granted,
		"instances":   definition.List(definition.Open(""), "What each process reports. It holds while the process renews its Lease in namespace wasmplane-plugins."),
	})
}
