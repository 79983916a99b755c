// SPDX-License-Identifier: Apache-2.0

// Package wasmplane is the Go SDK for wasmplane plugins.
//
// A plugin is a value that is registered while the package is initialised, and a
// main that is never run:
//
//	var _ = wasmplane.Register(wasmplane.Plugin{
//		Name: "add-label",
//		Mutate: &wasmplane.Admission{
//			Match:  []wasmplane.Rule{wasmplane.Resources("pods").On("CREATE")},
//			Fields: []string{"object.metadata.labels"},
//			Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
//				if !in.Get("object.metadata.labels").Get("team").Exists() {
//					out.Add("/metadata/labels/team", "unknown")
//				}
//			},
//		},
//	})
//
//	func main() {}
//
// It is built with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath -ldflags='-s -w' -o add-label.wasm
//
// The SDK imports nothing but a few small packages of the standard library and
// reads its input without parsing: the host sends the declared fields as a flat table. The functions of
// a plugin run one at a time. The package also builds for any other platform, so that a
// plugin's functions can be tested with go test (see Try).
package wasmplane

import "errors"

// Plugin is a plugin with its hooks. Those that are nil are not there.
type Plugin struct {
	Name    string
	Version string
	// Settings is called with the entry's settings before anything else; an error
	// refuses them, and with them the plugin. nil: the plugin takes no settings.
	Settings func(settings Value) error
	// SettingsSchema is a JSON schema of the settings, as JSON: the host holds an entry's settings against it before Settings is called, and
	// names the field that is wrong. "" = Settings alone knows.
	SettingsSchema string
	// Needs are the host functions that the plugin cannot do without ("log").
	Needs []string

	Mutate        *Admission
	Validate      *Admission
	Authorize     *Authorizer
	Reconcile     *Reconciler
	NodeAdmission *NodeAdmission
	// Convert is the hook at customresource.convert: it brings a custom resource (object)
	// into the version that the input's desiredAPIVersion names, by changes (Move, Add,
	// Remove...); the object has that apiVersion already. Deny fails the conversion.
	Convert *Admission
	// ValidateCustom is the hook at customresource.validate: it is asked about writes of
	// custom resources that their schema has nothing against.
	ValidateCustom *Admission

	// Table filters and scores all nodes in one call. It takes the place of Filter and Score.
	Table *Table

	// Groups tells groups of pods apart, teams or queues: hooks of a pod's cycle see what each
	// of them has. It is asked once the settings are known; nil = there are none.
	Groups func() *Groups

	// The cycle of a pod, step by step.
	PreEnqueue *Gate
	QueueSort  *QueueSort
	PreFilter  *PreFilter
	Filter     *Filter
	PostFilter *PostFilter
	PreScore   *PreScore
	Score      *Score
	Normalize  *Normalize
	Reserve    *Gate
	Unreserve  *Notice
	Permit     *Permit
	PreBind    *Gate
	Bind       *Bind
	PostBind   *Notice
}

// Rule says which requests a hook at admission or custom resources wants to see. What is empty matches everything.
type Rule struct {
	Operations []string
	Groups     []string
	Versions   []string
	Resources  []string
}

// Resources is a rule for resources of the core group ("pods", "pods/status").
func Resources(names ...string) Rule { return Rule{Groups: []string{""}, Resources: names} }

// In puts a rule into other API groups.
func (r Rule) In(groups ...string) Rule { r.Groups = groups; return r }

// On narrows a rule to operations: CREATE, UPDATE, DELETE, CONNECT.
func (r Rule) On(operations ...string) Rule { r.Operations = operations; return r }

// Admission is a hook at admission.mutate, admission.validate, customresource.convert
// or customresource.validate.
type Admission struct {
	Match []Rule
	// Fields that Decide reads; none = the whole request.
	Fields []string
	// FieldsFunc, where set, is asked for the fields once the settings are known.
	FieldsFunc func() []string
	// Alternatives are aliases for places that depend on the kind of object:
	// {"@replicas": {"Deployment": "spec.replicas", "*": "spec.size"}} makes object.@replicas a field.
	Alternatives map[string]map[string]string
	// SideEffects that Decide has by calling host functions.
	SideEffects SideEffects
	Decide      func(in Input, out *Decision)

	known []string // the fields as of the call that runs
}

// SideEffects is what a call changes besides answering.
type SideEffects string

// The side effects that a hook declares.
const (
	// NoSideEffects is the default: in a dry run the host keeps its functions from changing anything.
	NoSideEffects SideEffects = "None"
	// NoneOnDryRun: the hook looks at the field dryRun by itself, too.
	NoneOnDryRun SideEffects = "NoneOnDryRun"
	// SomeSideEffects: dry runs that the hook matches are refused.
	SomeSideEffects SideEffects = "Some"
)

// Authorizer is a hook at authorization. The input has the names of a
// SubjectAccessReview's spec: user, groups, resourceAttributes.namespace, ...
type Authorizer struct {
	Fields []string
	// Pure: the answer depends on the fields and the settings only, so that the host
	// may answer the same question again by itself.
	Pure   bool
	Decide func(in Input) Verdict
}

// Verdict is an authorizer's answer. The zero value is no opinion.
type Verdict struct {
	decision string
	reason   string
}

// Allow allows.
func Allow(reason string) Verdict { return Verdict{"allow", reason} }

// Deny denies.
func Deny(reason string) Verdict { return Verdict{"deny", reason} }

// NoOpinion leaves the decision to others.
func NoOpinion() Verdict { return Verdict{} }

// NodeAdmission is a hook at nodeadmission: the node asks before it runs a pod.
// The input has pod and node. reason is a word in CamelCase; "" admits.
type NodeAdmission struct {
	Fields []string
	Admit  func(in Input) (reason, message string)
}

// registered is the plugin of this module.
var registered *Plugin

// Register makes p the plugin of this module. It returns a value so that it can
// stand in a variable declaration.
func Register(p Plugin) struct{} {
	registered = &p
	return struct{}{}
}

var errNoPlugin = errors.New("the module registers no plugin")

// failure is why the call that runs fails, once it is known.
var failure error

// Fail makes the call that runs fail, whatever its hook answers: the failure policy
// of the plugin's entry decides then. It is for what a hook cannot go on without, an object that the host does not give for example.
func Fail(message string) { failure = errors.New(message) }

// dispatch runs one operation and returns its answer, or why it failed.
func dispatch(op int32, input []byte) ([]byte, error) {
	failure = nil
	out, err := answerOf(op, input)
	if failure != nil {
		return nil, failure
	}
	return out, err
}

func answerOf(op int32, input []byte) ([]byte, error) {
	p := registered
	if p == nil {
		return nil, errNoPlugin
	}
	switch {
	case op == opSettings && p.Settings != nil:
		v, err := ParseJSON(input)
		if err != nil {
			return nil, err
		}
		return nil, p.Settings(v)
	case op == opMutate && p.Mutate != nil:
		return p.Mutate.run(input)
	case op == opValidate && p.Validate != nil:
		return p.Validate.run(input)
	case op == opAuthorize && p.Authorize != nil:
		return p.Authorize.run(input)
	case op == opTable && p.Table != nil:
		return p.Table.run(input)
	case op == opReconcile && p.Reconcile != nil:
		return p.Reconcile.run(input)
	case op == opNodeAdmission && p.NodeAdmission != nil:
		return p.NodeAdmission.run(input)
	case op == opConvert && p.Convert != nil:
		return p.Convert.run(input)
	case op == opValidateCustom && p.ValidateCustom != nil:
		return p.ValidateCustom.run(input)
	}
	if out, ok := p.schedule(op, input); ok {
		return out, nil
	}
	return nil, errors.New("the plugin has no such operation")
}

func (a *Admission) fields() []string {
	if a.FieldsFunc != nil {
		return a.FieldsFunc()
	}
	return a.Fields
}

func (a *Admission) run(input []byte) ([]byte, error) {
	a.known = a.fields()
	decision.reset()
	a.Decide(newInput(&a.known, input), &decision)
	return decision.encode(), nil
}

func (a *Authorizer) run(input []byte) ([]byte, error) {
	v := a.Decide(newInput(&a.Fields, input))
	if v.decision == "" {
		return nil, nil
	}
	return Object{"decision": v.decision, "reason": v.reason}.append(nil), nil
}

func (n *NodeAdmission) run(input []byte) ([]byte, error) {
	reason, message := n.Admit(newInput(&n.Fields, input))
	if reason == "" {
		return nil, nil
	}
	return Object{"admitted": false, "reason": reason, "message": message}.append(nil), nil
}

// Decision is what an admission hook decides: nothing, so far, lets the request through.
type Decision struct {
	denied   bool
	message  string
	field    string
	reason   string
	code     int
	causes   []Object
	object   any
	warnings []string
	audit    Object
	Patch
}

// decision is that of the call that runs: most say nothing, and leave nothing to collect.
var decision Decision

// reset makes the decision that of another call; the room of its changes is kept.
func (d *Decision) reset() { *d = Decision{Patch: Patch{ops: d.ops[:0]}} }

// Deny refuses the request.
func (d *Decision) Deny(message string) { d.denied, d.message = true, message }

// DenyField refuses the request because of a field.
func (d *Decision) DenyField(field, message string) {
	d.denied, d.field, d.message = true, field, message
}

// Cause refuses the request because of a field, beside what else is wrong: a user
// learns of everything at once.
func (d *Decision) Cause(field, message string) {
	d.denied = true
	d.causes = append(d.causes, Object{"field": field, "message": message})
}

// Code sets the HTTP status of a refusal; 403 otherwise.
func (d *Decision) Code(code int) { d.code = code }

// Reason sets the refusal's metav1.StatusReason: "Invalid", "Conflict", ...
func (d *Decision) Reason(reason string) { d.reason = reason }

// SetObject makes the object be as given, in the place of a patch; only a mutating
// hook that named no Fields may.
func (d *Decision) SetObject(object any) { d.object = object }

// Warn shows a warning to the user.
func (d *Decision) Warn(text string) { d.warnings = append(d.warnings, text) }

// Audit adds an annotation to the audit record.
func (d *Decision) Audit(key, value string) {
	if d.audit == nil {
		d.audit = Object{}
	}
	d.audit[key] = value
}

// Token writes a key as part of a path: slashes and tildes are escaped.
func Token(key string) string {
	out := make([]byte, 0, len(key)+4)
	for i := 0; i < len(key); i++ {
		switch key[i] {
		case '~':
			out = append(out, "~0"...)
		case '/':
			out = append(out, "~1"...)
		default:
			out = append(out, key[i])
		}
	}
	return string(out)
}

func (d *Decision) encode() []byte {
	if !d.denied && len(d.ops) == 0 && d.object == nil && len(d.warnings) == 0 && len(d.audit) == 0 {
		return nil
	}
	out := append(make([]byte, 0, 64+len(d.ops)+len(d.message)), `{"allowed":`...)
	out = appendValue(out, !d.denied)
	if d.denied {
		out = appendString(append(out, `,"message":`...), d.message)
		if d.field != "" {
			out = appendString(append(out, `,"field":`...), d.field)
		}
		if d.code != 0 {
			out = appendInt(append(out, `,"code":`...), int64(d.code))
		}
		if len(d.causes) > 0 {
			out = appendValue(append(out, `,"causes":`...), d.causes)
		}
		if d.reason != "" {
			out = appendString(append(out, `,"reason":`...), d.reason)
		}
	} else {
		if len(d.ops) > 0 {
			out = d.append(append(out, `,"patch":`...))
		}
		if d.object != nil {
			out = appendValue(append(out, `,"object":`...), d.object)
		}
	}
	if len(d.warnings) > 0 {
		out = appendValue(append(out, `,"warnings":`...), d.warnings)
	}
	if len(d.audit) > 0 {
		out = d.audit.append(append(out, `,"auditAnnotations":`...))
	}
	return append(out, '}')
}
