// SPDX-License-Identifier: Apache-2.0

// Package trace ties what happens to one object together: every component
// records OpenTelemetry spans with the identity of the object that it worked on,
// and the journey of an apply is found by those identities, not by a request
// identifier that would have to survive the store.
//
// A component is handed an oteltrace.Tracer (never a package-level one); where
// its spans go is the wiring's business: to the apiserver's bounded store
// directly (Store.Exporter), or over HTTP to an authorized endpoint (core/trace/otlp).
// What is lost on the way or forgotten is counted, and a journey says so.
package trace

import (
	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// ScoresKey are scores by node and plugin, as JSON:
	// {"node-1": {"total": 130, "NodeResourcesFit": 90, "ImageLocality": 40}, ...}.
	ScoresKey = attribute.Key("wasmplane.scheduling.scores")
	// SeedKey is what decided among nodes that are equally good, so that the decision can be
	// made again.
	SeedKey = attribute.Key("wasmplane.scheduling.seed")
)

// More attribute keys, for those who need them.
const (
	// OwnerKindKey and OwnerNameKey name the controlling owner besides its uid.
	OwnerKindKey = attribute.Key("k8s.object.owner.kind")
	OwnerNameKey = attribute.Key("k8s.object.owner.name")
	// GenerationKey is metadata.generation of the object that was worked on (an int64):
	// a journey shows the latest generation of what the user applied, and older ones on demand.
	GenerationKey = attribute.Key("k8s.object.generation")
	// ControllerKey names the control loop of a "reconcile" span: "deployment", "replicaset".
	ControllerKey = attribute.Key("wasmplane.controller")
	// ContainerKey and ImageKey tell which container of a pod a kubelet span is about.
	ContainerKey = attribute.Key("k8s.container.name")
	ImageKey     = attribute.Key("container.image.name")
	// ModeKey is the mode of a plugin whose decision does not bind: "Warn", "Audit", "Shadow".
	ModeKey = attribute.Key("wasmplane.mode")
	// ReasonKey is a machine-readable reason: an event's, a status's.
	ReasonKey = attribute.Key("wasmplane.reason")
)

// Names of spans. A journey is assembled from these; a span with another name is
// kept and shown under its parent, but has no place of its own.
//
// Every span carries ComponentKey, and the object's KindKey, NamespaceKey,
// NameKey and, where known, UIDKey and OwnerUIDKey. A child span (one started
// from its parent's context) inherits its parent's object when it names none.
// Failure is the span's status (codes.Error with a description).
const (
	// Request is one API request as the server handled it: UserKey, VerbKey,
	// ResourceKey, StatusKey, RevisionKey of what was written; the object is the one that the
	// request names (UIDKey once it is known: after a create, on the response; GenerationKey too).
	// Only writes need be recorded. Its children are Authenticate ... StoreWrite.
	Request      = "request"
	Authenticate = "authenticate" // UserKey
	Authorize    = "authorize"    // PluginKey = the authorizer that decided, DecisionKey, MessageKey
	// AdmissionMutate and AdmissionValidate: one span per plugin (built-in, policy,
	// webhook or Wasm) that ran: PluginKey, PointKey, DecisionKey, MessageKey, PatchKey,
	// and of Wasm plugins DigestKey, FuelKey.
	AdmissionMutate   = "admission.mutate"
	AdmissionValidate = "admission.validate"
	StoreWrite        = "store.write" // RevisionKey

	// Reconcile is one pass of a controller over an object that changed
	// something: ControllerKey, MessageKey = what it did ("created pods: 2").
	// Passes that change nothing are not recorded.
	Reconcile = "reconcile"

	// Schedule is one attempt to place a pod: NodeKey = the node chosen, or
	// MessageKey = why none was. Children Filter (NodesKey), Score (ScoresKey), Bind (NodeKey);
	// a plugin's own call below them may be a span with PluginKey, PointKey, DecisionKey.
	Schedule = "schedule"
	Filter   = "filter"
	Score    = "score"
	Bind     = "bind"

	// The kubelet's steps with a pod, in order, NodeKey on each: Admit (with
	// PluginKey, DecisionKey, MessageKey of a plugin that decided), Volumes, Sandbox,
	// Network (MessageKey = the pod's IP); then for each container Image (ImageKey,
	// MessageKey "pulled" or "already present"), ContainerCreate, ContainerStart with ContainerKey.
	Admit           = "admit"
	Volumes         = "volumes"
	Sandbox         = "sandbox"
	Network         = "network"
	Image           = "image"
	ContainerCreate = "container.create"
	ContainerStart  = "container.start"
	// Running spans from the moment that the kubelet saw the pod to the moment
	// that its status said Running.
	Running = "running"
)

// Object are the attributes that name an object.
func Object(kind, namespace, name string, uid types.UID) oteltrace.SpanStartEventOption {
	return oteltrace.WithAttributes(KindKey.String(kind), NamespaceKey.String(namespace), NameKey.String(name), UIDKey.String(string(uid)))
}

// Identity are the attributes that name an object by its metadata, with its
// controlling owner and its generation.
func Identity(kind string, m metav1.Object) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		KindKey.String(kind), NamespaceKey.String(m.GetNamespace()), NameKey.String(m.GetName()), UIDKey.String(string(m.GetUID())),
	}
	if g := m.GetGeneration(); g > 0 {
		attrs = append(attrs, GenerationKey.Int64(g))
	}
	if o := metav1.GetControllerOfNoCopy(m); o != nil {
		attrs = append(attrs, OwnerUIDKey.String(string(o.UID)), OwnerKindKey.String(o.Kind), OwnerNameKey.String(o.Name))
	}
	return attrs
}

// Discard is the tracer of who does not trace.
func Discard() oteltrace.Tracer { return noop.NewTracerProvider().Tracer("") }
