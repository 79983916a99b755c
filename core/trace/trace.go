// Package trace ties what happens to one object together: every component
// records OpenTelemetry spans with the identity of the object that it worked on,
// and the journey of an apply is found by those identities, not by a request
// identifier that would have to survive the store.
//
// A component is handed an oteltrace.Tracer (never a package-level one); where
// its spans go is the wiring's business: to the apiserver's bounded store
// directly, or over HTTP to an authorized endpoint.
package trace

import (
	"k8s.io/apimachinery/pkg/types"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Attribute keys that all components use.
const (
	// Component that recorded the span: apiserver, scheduler, controllers, kubelet, ...
	ComponentKey = attribute.Key("wasmplane.component")
	// The object that the span is about.
	KindKey      = attribute.Key("k8s.object.kind") // "Pod"
	NamespaceKey = attribute.Key("k8s.object.namespace")
	NameKey      = attribute.Key("k8s.object.name")
	UIDKey       = attribute.Key("k8s.object.uid")
	// OwnerUIDKey links to the controlling owner, so that a Deployment's journey finds its pods.
	OwnerUIDKey = attribute.Key("k8s.object.owner.uid")
	// RevisionKey is the resourceVersion that a write produced.
	RevisionKey = attribute.Key("k8s.object.resourceversion")
	// A decision of a plugin, webhook, policy or authorizer.
	PluginKey   = attribute.Key("wasmplane.plugin")
	PointKey    = attribute.Key("wasmplane.point") // "admission.mutate", "scheduling.filter"
	DigestKey   = attribute.Key("wasmplane.plugin.digest")
	DecisionKey = attribute.Key("wasmplane.decision") // "allow", "deny", "patch", "no opinion"
	MessageKey  = attribute.Key("wasmplane.message")
	PatchKey    = attribute.Key("wasmplane.patch") // JSON patch
	FuelKey     = attribute.Key("wasmplane.fuel")
	// The request.
	UserKey     = attribute.Key("enduser.id")
	VerbKey     = attribute.Key("k8s.request.verb")
	ResourceKey = attribute.Key("k8s.request.resource") // "deployments.apps", "pods/status"
	StatusKey   = attribute.Key("http.response.status_code")
	NodeKey     = attribute.Key("k8s.node.name")
	// NodesKey sums up filtered nodes: "3/5 nodes: insufficient cpu".
	NodesKey = attribute.Key("wasmplane.scheduling.nodes")
	// ScoresKey are scores by node and plugin, as JSON.
	ScoresKey = attribute.Key("wasmplane.scheduling.scores")
)

// Object are the attributes that name an object.
func Object(kind, namespace, name string, uid types.UID) oteltrace.SpanStartEventOption {
	return oteltrace.WithAttributes(KindKey.String(kind), NamespaceKey.String(namespace), NameKey.String(name), UIDKey.String(string(uid)))
}

// Discard is the tracer of who does not trace.
func Discard() oteltrace.Tracer { return noop.NewTracerProvider().Tracer("") }
