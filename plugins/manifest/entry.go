// SPDX-License-Identifier: Apache-2.0

// Package manifest is the entry by which an operator loads a plugin: its types,
// its strict decoding with the line and path of what is wrong, and its defaults.
//
// The same entry stands in the configuration file and beside every example; what
// a module says of itself is another thing (package abi). An entry narrows what
// the module offers and grants what it needs, never the other way round.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/strictyaml"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// APIGroup is the API group of plugins.
const APIGroup = "plugins.wasmplane.dev"

// StateNamespace holds the ConfigMaps in which plugins keep something: one of their
// own, so that the components that ask plugins may write there and nowhere else.
const StateNamespace = "wasmplane-plugins"

// StatePrefix begins the names of the ConfigMaps that hold what plugins keep.
const StatePrefix = "plugin-state."

// Entry is one plugin as an operator configures it.
type Entry struct {
	// Name is unique, and what the plugin is called everywhere.
	Name string `yaml:"name"`
	// Source is where the module comes from: file:PATH (a relative path starts at the
	// configuration file's directory), https://HOST/PATH, or oci://HOST/REPOSITORY:TAG@sha256:DIGEST.
	Source string `yaml:"source"`
	// Rego is a policy's text, instead of a source: it is compiled when it is loaded. The entry
	// says abi: gatekeeper or abi: opa.
	Rego *Rego `yaml:"rego"`
	// CEL are a policy's expressions, instead of a source. The entry says abi: gatekeeper.
	CEL *CEL `yaml:"cel"`
	// Bundle says that the source is a bundle of Open Policy Agent (.tar.gz), and how it is
	// verified. The entry's abi is opa then.
	Bundle *Bundle `yaml:"bundle"`
	// ABI is what the module speaks, where the module does not tell: wasmplane,
	// kubewarden-wapc, kubewarden-wasi, opa, gatekeeper or kube-scheduler-wasm.
	ABI ABI `yaml:"abi"`
	// Entrypoint of a module compiled from Rego: its rule's path ("policy/allow") or number; default: the first.
	Entrypoint string `yaml:"entrypoint"`
	// Digest pins the module: sha256:... It is required for anything that is not a
	// local file, unless the reference of an oci:// source pins the manifest.
	Digest string `yaml:"digest"`
	// Fetch says how a module is fetched that is not a local file.
	Fetch Fetch `yaml:"fetch"`
	// Signatures that the module has to have.
	Signatures []Signature `yaml:"signatures"`
	// Points narrows where the plugin is asked; empty: all that the module has.
	Points []string `yaml:"points"`
	// Match narrows which admission requests the plugin sees.
	Match Match `yaml:"match"`
	// Settings are handed to the plugin, which checks them at load.
	Settings yaml.Node `yaml:"settings"`
	// FailurePolicy says what a failure of the plugin means: Fail refuses, Ignore goes on.
	FailurePolicy FailurePolicy `yaml:"failurePolicy"`
	// Mode: Enforce, Warn, Audit or Shadow.
	Mode Mode `yaml:"mode"`
	// Limits bound what the plugin may use.
	Limits Limits `yaml:"limits"`
	// Grants open host functions to the plugin.
	Grants Grants `yaml:"grants"`
	// Isolation: shared (instances are used again) or perCall (memory is put back
	// to what it was after start-up, after each call).
	Isolation Isolation `yaml:"isolation"`
	// Order among plugins: smaller ones are asked first. Of plugins with the same
	// order (0 where nothing is said), those of the configuration file come first, as they stand there, then
	// those of the API, by name.
	Order int `yaml:"order"`
	// Candidate is another version of the plugin, which runs beside it on live
	// requests: where its decisions differ, that is counted and shown, and has no effect.
	Candidate *Candidate `yaml:"candidate"`
	// Previous is what was in force before a candidate was promoted; `wasmplane plugin
	// rollback` puts it back. It has no effect by itself.
	Previous *Candidate `yaml:"previous"`
	// Group makes one verdict of several plugins', instead of a source.
	Group *Group `yaml:"group"`
	// Disabled keeps the entry and does not load it.
	Disabled bool `yaml:"disabled"`

	Authorization Authorization `yaml:"authorization"`
	Scheduling    Scheduling    `yaml:"scheduling"`
	Reconcile     Reconcile     `yaml:"reconcile"`

	// Namespace confines a tenant's plugin: it sees requests of this namespace, and
	// its grants reach no further. Set by who loads it, never by its writer; "" = the whole cluster.
	Namespace string `yaml:"-"`
	// MemberOf is the group whose member this is; "" = none.
	MemberOf string `yaml:"-"`
	// FromAPI: the entry is an object of the API. Such a plugin takes no part in
	// writes of Plugins: none can keep itself from being taken away.
	FromAPI bool `yaml:"-"`
	// Writer is who wrote the object that the entry comes from, as the server recorded it:
	// the plugin may do no more than its writer. nil = of the file, or not known.
	Writer *user.DefaultInfo `yaml:"-"`
	// Guards are the points whose requests wait for the plugin until it has been loaded for
	// the first time in a process, or could not be: nil = none do.
	Guards []string `yaml:"-"`
	// Refused is why the object that the entry comes from may not be loaded; nil = it may.
	Refused error `yaml:"-"`
	// Line of the entry in its file, for messages.
	Line int `yaml:"-"`
}

// ABI is what a module speaks.
type ABI string

// The ABIs. The empty one is what the module shows.
const (
	Wasmplane         ABI = "wasmplane"
	KubewardenWaPC    ABI = "kubewarden-wapc"
	KubewardenWASI    ABI = "kubewarden-wasi"
	OPA               ABI = "opa"
	Gatekeeper        ABI = "gatekeeper"
	KubeSchedulerWasm ABI = "kube-scheduler-wasm"
)

// ABIs lists them all.
func ABIs() []ABI {
	return []ABI{Wasmplane, KubewardenWaPC, KubewardenWASI, OPA, Gatekeeper, KubeSchedulerWasm}
}

// FailurePolicy is what a failed plugin means for the request.
type FailurePolicy string

// The failure policies. The empty one is the point's default: Fail where a plugin
// protects something, Ignore for scheduling scores.
const (
	Fail   FailurePolicy = "Fail"
	Ignore FailurePolicy = "Ignore"
)

// Mode is what a plugin's decision does.
type Mode string

// The modes.
const (
	// Enforce: decisions bind.
	Enforce Mode = "Enforce"
	// Warn: refusals become warnings to the client; changes are not made.
	Warn Mode = "Warn"
	// Audit: refusals and changes are recorded in the audit annotations and the trace only.
	Audit Mode = "Audit"
	// Shadow: decisions are counted and traced, and have no effect at all.
	Shadow Mode = "Shadow"
)

// Isolation is what remains in a guest's memory between calls.
type Isolation string

// The isolations.
const (
	Shared  Isolation = "shared"
	PerCall Isolation = "perCall"
)

// Match narrows admission requests. Everything given has to match.
type Match struct {
	// Rules: any of them. Empty: the module's own rules.
	Rules             []Rule      `yaml:"rules"`
	NamespaceSelector Selector    `yaml:"namespaceSelector"`
	ObjectSelector    Selector    `yaml:"objectSelector"`
	Conditions        []Condition `yaml:"conditions"`
	// Exceptions are requests that the plugin does not see, although all the rest matches.
	Exceptions []Exception `yaml:"exceptions"`
}

// Rule is abi.Rule with YAML names.
type Rule struct {
	Operations  []string `yaml:"operations"`
	APIGroups   []string `yaml:"apiGroups"`
	APIVersions []string `yaml:"apiVersions"`
	Resources   []string `yaml:"resources"`
	// Kinds of the objects, for who thinks in kinds: all that is given has to match. The kind of
	// a request to deployments/scale is Scale. Where kinds are given, resources may be left
	// out, for all resources without their subresources.
	Kinds []string `yaml:"kinds"`
}

// Selector is a label selector.
type Selector struct {
	MatchLabels      map[string]string     `yaml:"matchLabels"`
	MatchExpressions []SelectorRequirement `yaml:"matchExpressions"`
}

// SelectorRequirement is one expression of a selector.
type SelectorRequirement struct {
	Key      string   `yaml:"key"`
	Operator string   `yaml:"operator"`
	Values   []string `yaml:"values"`
}

// Condition is a CEL expression over object, oldObject and request that has to be true.
type Condition struct {
	Name       string `yaml:"name"`
	Expression string `yaml:"expression"`
}

// Limits are host.Limits as an operator writes them.
type Limits struct {
	Fuel          int64    `yaml:"fuel"`
	Deadline      Duration `yaml:"deadline"`
	Memory        Bytes    `yaml:"memory"`
	Stack         Bytes    `yaml:"stack"`
	Output        Bytes    `yaml:"output"`
	HostCalls     int64    `yaml:"hostCalls"`
	HostReply     Bytes    `yaml:"hostReply"`
	Input         Bytes    `yaml:"input"`
	Log           Bytes    `yaml:"log"`
	Instances     int      `yaml:"instances"`
	StartFuel     int64    `yaml:"startFuel"`
	StartDeadline Duration `yaml:"startDeadline"`
}

// Authorization places an authorizer in the chain.
type Authorization struct {
	// Order: before or after RBAC. Before, it may deny what RBAC allows, and allow what RBAC
	// knows nothing of; after, it is asked only where RBAC has no opinion. Default: before.
	Order string `yaml:"order"`
}

// Scheduling weighs a scoring plugin.
type Scheduling struct {
	// Weight of the scores, relative to the other plugins'; default 1.
	Weight int64 `yaml:"weight"`
}

// Reconcile says under whose name a reconciler writes.
type Reconcile struct {
	// ServiceAccount, as namespace/name. Default: kube-system/ and the plugin's name.
	ServiceAccount string `yaml:"serviceAccount"`
}

// Duration is a time.Duration written as "50ms".
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return &strictyaml.FieldError{Line: n.Line, Problem: fmt.Sprintf("expected a duration such as 50ms or 2s, found %q", n.Value)}
	}
	*d = Duration(v)
	return nil
}

// Bytes is an amount written as "32Mi".
type Bytes int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error {
	q, err := resource.ParseQuantity(n.Value)
	if err != nil || q.Sign() < 0 {
		return &strictyaml.FieldError{Line: n.Line, Problem: fmt.Sprintf("expected an amount of bytes such as 32Mi, found %q", n.Value)}
	}
	*b = Bytes(q.Value())
	return nil
}

// Parse reads an entry strictly, fills in defaults and checks every value. path
// is the entry's place in its document ("plugins[2]"), for messages.
func Parse(n *yaml.Node, path string) (Entry, error) {
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		n = n.Content[0]
	}
	e := Entry{Line: n.Line}
	if err := strictyaml.Decode(n, &e, path); err != nil {
		return Entry{}, err
	}
	if err := e.complete(n, path); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// ParseTree is Parse of an entry that a program has made.
func ParseTree(tree map[string]any) (Entry, error) {
	var n yaml.Node
	if err := n.Encode(tree); err != nil {
		return Entry{}, fmt.Errorf("read plugin entry: %w", err)
	}
	return Parse(&n, "")
}

// ParseBytes is Parse of a document that holds one entry, such as an example's plugin.yaml.
func ParseBytes(data []byte) (Entry, error) {
	var n yaml.Node
	if err := yaml.Unmarshal(data, &n); err != nil {
		return Entry{}, fmt.Errorf("read plugin entry: %w", err)
	}
	if len(n.Content) == 0 {
		return Entry{}, errors.New("read plugin entry: the document is empty")
	}
	return Parse(&n, "")
}

// ParseAll reads the entries of a configuration.
func ParseAll(nodes []yaml.Node) ([]Entry, error) {
	var entries []Entry
	lines := map[string]int{}
	for i := range nodes {
		path := fmt.Sprintf("plugins[%d]", i)
		e, err := Parse(&nodes[i], path)
		if err != nil {
			return nil, err
		}
		if first, twice := lines[e.Name]; twice {
			return nil, &strictyaml.FieldError{
				Line: e.Line, Path: path + ".name",
				Problem: fmt.Sprintf("%q is the name of the entry in line %d too", e.Name, first),
			}
		}
		lines[e.Name] = e.Line
		entries = append(entries, e)
	}
	return entries, nil
}

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// complete fills in defaults and checks.
func (e *Entry) complete(n *yaml.Node, path string) error {
	set := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	set((*string)(&e.Mode), string(Enforce))
	set((*string)(&e.Isolation), string(Shared))
	set(&e.Authorization.Order, "before")
	set(&e.Reconcile.ServiceAccount, "kube-system/"+e.Name)
	if e.Scheduling.Weight == 0 {
		e.Scheduling.Weight = 1
	}
	for _, check := range []struct {
		field, problem string
		ok             bool
	}{
		{"name", fmt.Sprintf("expected 1 to 63 lower-case letters, digits, dashes and dots, found %q", e.Name), nameForm.MatchString(e.Name)},
		{"abi", fmt.Sprintf("expected one of %v, found %q", ABIs(), e.ABI), e.ABI == "" || slices.Contains(ABIs(), e.ABI)},
		{
			"digest", fmt.Sprintf("expected sha256: and 64 hexadecimal digits, found %q", e.Digest),
			e.Digest == "" || digestForm.MatchString(e.Digest),
		},
		{"failurePolicy", fmt.Sprintf("expected Fail or Ignore, found %q", e.FailurePolicy), e.FailurePolicy == "" || e.FailurePolicy == Fail ||
			e.FailurePolicy == Ignore},
		{
			"mode", fmt.Sprintf("expected Enforce, Warn, Audit or Shadow, found %q", e.Mode),
			slices.Contains([]Mode{Enforce, Warn, Audit, Shadow}, e.Mode),
		},
		{"isolation", fmt.Sprintf("expected shared or perCall, found %q", e.Isolation), e.Isolation == Shared || e.Isolation == PerCall},
		{
			"authorization.order", fmt.Sprintf("expected before or after (RBAC), found %q", e.Authorization.Order),
			e.Authorization.Order == "before" || e.Authorization.Order == "after",
		},
		{
			"scheduling.weight", fmt.Sprintf("expected 1 to 100, found %d", e.Scheduling.Weight),
			e.Scheduling.Weight >= 1 && e.Scheduling.Weight <= 100,
		},
		{
			"reconcile.serviceAccount", fmt.Sprintf("expected namespace/name, found %q", e.Reconcile.ServiceAccount),
			strings.Count(e.Reconcile.ServiceAccount, "/") == 1,
		},
	} {
		if !check.ok {
			return fault(n, path, check.field, check.problem)
		}
	}
	if err := e.checkWhere(n, path); err != nil {
		return err
	}
	if err := e.HostLimits().Validate(); err != nil {
		return fault(n, path, "limits", err.Error())
	}
	if err := e.checkPoints(n, path); err != nil {
		return err
	}
	if err := e.checkGrants(n, path); err != nil {
		return err
	}
	return e.checkMatch(n, path)
}

// checkWhere checks where the module comes from, or the modules of a group.
func (e *Entry) checkWhere(n *yaml.Node, path string) error {
	if e.Group != nil {
		return e.checkGroup(n, path)
	}
	if err := e.checkSource(n, path); err != nil {
		return err
	}
	return e.checkCandidate(n, path)
}

func (e *Entry) checkPoints(n *yaml.Node, path string) error {
	var known []string
	for _, p := range abi.Points() {
		known = append(known, string(p))
	}
	for i, p := range e.Points {
		if !slices.Contains(known, p) {
			return fault(n, path, fmt.Sprintf("points[%d]", i), fmt.Sprintf("unknown point %q; known: %s", p, strings.Join(known, ", ")))
		}
	}
	return nil
}

func (e *Entry) checkMatch(n *yaml.Node, path string) error {
	operations := []string{"CREATE", "UPDATE", "DELETE", "CONNECT", "*"}
	for i, r := range e.Match.Rules {
		at := fmt.Sprintf("match.rules[%d]", i)
		if len(r.Resources) == 0 && len(r.Kinds) == 0 {
			return fault(n, path, at, `resources are missing; "*" is all of them`)
		}
		for _, op := range r.Operations {
			if !slices.Contains(operations, op) {
				return fault(n, path, at+".operations", fmt.Sprintf("unknown operation %q; known: %s", op, strings.Join(operations, ", ")))
			}
		}
	}
	for name, s := range map[string]Selector{"namespaceSelector": e.Match.NamespaceSelector, "objectSelector": e.Match.ObjectSelector} {
		if _, err := metav1.LabelSelectorAsSelector(s.LabelSelector()); err != nil {
			return fault(n, path, "match."+name, err.Error())
		}
	}
	for i, c := range e.Match.Conditions {
		if c.Name == "" || c.Expression == "" {
			return fault(n, path, fmt.Sprintf("match.conditions[%d]", i), "a condition has a name and an expression")
		}
	}
	return e.checkExceptions(n, path)
}

// fault points at a field, with the line where it stands or would stand.
func fault(n *yaml.Node, path, field, problem string) error {
	line := n.Line
	at := n
	for _, part := range strings.Split(strings.TrimSuffix(strings.ReplaceAll(field, "]", ""), "."), ".") {
		name, _, _ := strings.Cut(part, "[")
		for i := 0; at.Kind == yaml.MappingNode && i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == name {
				line, at = at.Content[i].Line, at.Content[i+1]
				break
			}
		}
	}
	if path != "" {
		field = path + "." + field
	}
	return &strictyaml.FieldError{Line: line, Path: field, Problem: problem}
}

// LabelSelector is the selector in its API form; an empty one selects everything.
func (s Selector) LabelSelector() *metav1.LabelSelector {
	out := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, r := range s.MatchExpressions {
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values,
		})
	}
	return out
}

// Empty says whether the selector selects everything.
func (s Selector) Empty() bool { return len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 }

// HostLimits are the limits as the host takes them, zero where nothing is said.
func (e *Entry) HostLimits() host.Limits {
	l := e.Limits
	return host.Limits{
		Fuel: l.Fuel, Deadline: time.Duration(l.Deadline), Memory: int64(l.Memory), Stack: int64(l.Stack),
		Output: int64(l.Output), HostCalls: l.HostCalls, HostReply: int64(l.HostReply), Input: int64(l.Input), Log: int64(l.Log),
		Instances: l.Instances,
		StartFuel: l.StartFuel, StartDeadline: time.Duration(l.StartDeadline),
	}
}

// SettingsJSON are the settings as the plugin gets them; nil where there are none.
func (e *Entry) SettingsJSON() ([]byte, error) {
	if e.Settings.Kind == 0 {
		return nil, nil
	}
	var v any
	if err := e.Settings.Decode(&v); err != nil {
		return nil, &strictyaml.FieldError{Line: e.Settings.Line, Path: "settings", Problem: err.Error()}
	}
	out, err := json.Marshal(v)
	if err != nil {
		return nil, &strictyaml.FieldError{Line: e.Settings.Line, Path: "settings", Problem: "expected what JSON can hold: " + err.Error()}
	}
	return out, nil
}

// LikelyPoints are those at which a plugin takes part of which nothing is known but its
// entry: where the entry has settings for a point that is one of its points; else it
// validates, since what nobody knows may be what guards the cluster.
func (e *Entry) LikelyPoints() []string {
	switch {
	case len(e.Points) > 0:
		return e.Points
	case e.ABI == KubeSchedulerWasm || e.Scheduling.Weight != 1:
		return nil // a scheduler without it decides as it would without any plugin
	case e.Authorization.Order == "after":
		return []string{string(abi.Authorization)}
	case e.Reconcile.ServiceAccount != "kube-system/"+e.Name:
		return []string{string(abi.Reconcile)}
	}
	return []string{string(abi.AdmissionValidate)}
}

// Wants says whether the entry lets the plugin take part at a point.
func (e *Entry) Wants(p abi.Point) bool {
	return len(e.Points) == 0 || slices.Contains(e.Points, string(p))
}
