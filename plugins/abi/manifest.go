// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// OpSettings is the operation that passes a plugin its settings.
const OpSettings int32 = 0

// Point is a decision that plugins may take part in; tables.go lists them.
type Point string

// SideEffects is what a call changes besides its answer, by host functions that do
// something (events, state, https).
type SideEffects string

// The side effects that a hook declares.
const (
	// NoSideEffects is the default. In a dry run, host functions that would change something do nothing.
	NoSideEffects SideEffects = "None"
	// NoneOnDryRun: the plugin looks at dryRun by itself; it is told so by the request, too.
	NoneOnDryRun SideEffects = "NoneOnDryRun"
	// SomeSideEffects: dry runs that the hook matches are refused, as nobody can tell what they would do.
	SomeSideEffects SideEffects = "Some"
)

// Encoding is the form in which a hook wants its input.
type Encoding string

// The encodings.
const (
	JSON Encoding = "json"
	Flat Encoding = "flat"
)

// Manifest is what a module says of itself.
type Manifest struct {
	ABI     int    `json:"abi"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// Settings: the plugin takes settings; they are passed to every instance, and
	// the module is described again once it has them.
	Settings bool `json:"settings"`
	// SettingsSchema is the JSON schema of the settings, which package settingschema reads; nil = the plugin alone knows them.
	SettingsSchema json.RawMessage `json:"settingsSchema"`
	Hooks          []Hook          `json:"hooks"`
	// Groups of pods that hooks of scheduling see the usage of; nil = none are told apart.
	Groups *Groups `json:"groups"`
	// Needs are the host functions that the plugin cannot do without.
	Needs []string `json:"needs"`
	// RulesAreDefaults: the hooks' rules stand only where the entry has none, as
	// Kubewarden's do, instead of being narrowed by it. Modules of our ABI have no say in it.
	RulesAreDefaults bool `json:"-"`
}

// Hook is one operation of a module at one point.
type Hook struct {
	Op    int32 `json:"op"`
	Point Point `json:"point"`
	// Match narrows hooks at admission and at custom resources; an entry may narrow further.
	Match []Rule `json:"match"`
	// Fields that the input holds; none = the whole document.
	Fields       []string                `json:"fields"`
	Alternatives map[string]Alternatives `json:"alternatives"`
	Encoding     Encoding                `json:"encoding"`
	// Pure: the answer depends on nothing but the input, so that it may be cached.
	Pure bool `json:"pure"`
	// SideEffects of admission hooks; empty = None.
	SideEffects SideEffects `json:"sideEffects"`
	// Events that may let a pod through which a scheduling hook refused; none = any.
	Events []string `json:"events"`

	// Columns of the node table and Pod columns, for scheduling.table; Reasons are
	// what its verdicts refer to.
	Columns []Column `json:"columns"`
	Pod     []Column `json:"pod"`
	Reasons []string `json:"reasons"`

	// Primary and Owned kinds, for reconcile.
	Primary *Watch  `json:"primary"`
	Owned   []Watch `json:"owned"`

	places  map[string]Alternatives // the built-in alternatives and the hook's own
	paths   []Path
	columns []Path
	pod     []Path
}

// Rule is what admission requests a hook wants to see. An empty list matches
// everything; "*" does too. Resources may name a subresource: "pods/status".
type Rule struct {
	Operations []string `json:"operations" yaml:"operations"`
	Groups     []string `json:"apiGroups" yaml:"apiGroups"`
	Versions   []string `json:"apiVersions" yaml:"apiVersions"`
	Resources  []string `json:"resources" yaml:"resources"`
}

// ColumnType is how a cell of the node table is filled; tables.go lists them.
type ColumnType string

// Column is one column of the node table, or one cell of the pod's row.
type Column struct {
	Path   string     `json:"path"`
	Type   ColumnType `json:"type"`
	Equals *string    `json:"equals"`
}

// Watch names a kind that a reconciler reads.
type Watch struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	Kind     string `json:"kind"`
	Selector string `json:"selector"`
}

// Bounds of a manifest.
const (
	maxHooks   = 32
	maxFields  = 128
	maxColumns = 64
)

// ParseManifest reads and checks a manifest. Keys that it does not know are
// ignored, so that newer modules load here.
func ParseManifest(data []byte) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("describe answered no manifest but %.200q: %w", data, err)
	}
	if m.ABI != Version {
		return nil, fmt.Errorf("the module speaks ABI %d, this host speaks %d", m.ABI, Version)
	}
	var errs []error
	if len(m.Hooks) == 0 && !m.Settings {
		errs = append(errs, errors.New("it has no hooks"))
	}
	if string(m.SettingsSchema) == "null" {
		m.SettingsSchema = nil
	}
	if m.SettingsSchema != nil && !m.Settings {
		errs = append(errs, errors.New("settingsSchema: the plugin takes no settings (settings: true)"))
	}
	if len(m.Hooks) > maxHooks {
		return nil, fmt.Errorf("the manifest has %d hooks: at most %d are allowed", len(m.Hooks), maxHooks)
	}
	if m.Groups != nil {
		if err := m.Groups.check(); err != nil {
			errs = append(errs, fmt.Errorf("groups: %w", err))
		}
	}
	seen := map[Point]bool{}
	for i := range m.Hooks {
		h := &m.Hooks[i]
		if err := h.check(); err != nil {
			errs = append(errs, fmt.Errorf("hooks[%d]: %w", i, err))
		}
		if seen[h.Point] {
			errs = append(errs, fmt.Errorf("hooks[%d]: a second hook for point %s", i, h.Point))
		}
		seen[h.Point] = true
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("the module's manifest is wrong: %w", err)
	}
	return &m, nil
}

// Hook returns the hook at a point, nil where the module has none.
func (m *Manifest) Hook(p Point) *Hook {
	for i := range m.Hooks {
		if m.Hooks[i].Point == p {
			return &m.Hooks[i]
		}
	}
	return nil
}

// Points lists where the module has hooks.
func (m *Manifest) Points() []Point {
	var out []Point
	for _, h := range m.Hooks {
		out = append(out, h.Point)
	}
	return out
}

func (h *Hook) check() error {
	if !slices.Contains(Points(), h.Point) {
		return fmt.Errorf("unknown point %q: this host has %s", h.Point, joinPoints())
	}
	if h.Op == OpSettings {
		return errors.New("op 0 passes settings; hooks have other numbers")
	}
	switch h.Encoding {
	case "":
		h.Encoding = JSON
	case JSON, Flat:
	default:
		return fmt.Errorf("unknown encoding %q: json or flat was expected", h.Encoding)
	}
	switch h.SideEffects {
	case "":
		h.SideEffects = NoSideEffects
	case NoSideEffects, NoneOnDryRun, SomeSideEffects:
	default:
		return fmt.Errorf("unknown sideEffects %q: None, NoneOnDryRun or Some was expected", h.SideEffects)
	}
	for _, e := range h.Events {
		if !slices.Contains(SchedulingEvents(), e) {
			return fmt.Errorf("unknown event %q: this host has %s", e, strings.Join(SchedulingEvents(), ", "))
		}
	}
	if len(h.Fields) > maxFields {
		return fmt.Errorf("%d fields: at most %d are allowed", len(h.Fields), maxFields)
	}
	h.places = BuiltinAliases()
	if len(h.Alternatives) > 0 {
		h.places = maps.Clone(h.places) // they are everybody's
		maps.Copy(h.places, h.Alternatives)
	}
	var err error
	if h.paths, err = parsePaths(h.Fields, h.places); err != nil {
		return err
	}
	if h.columns, err = columnPaths(h.Columns); err != nil {
		return fmt.Errorf("columns: %w", err)
	}
	if h.pod, err = columnPaths(h.Pod); err != nil {
		return fmt.Errorf("pod: %w", err)
	}
	if h.Point == SchedulingTable && len(h.Columns) == 0 {
		return errors.New("a node table needs columns")
	}
	if len(h.Reasons) > maxReasons {
		return fmt.Errorf("%d reasons: at most %d are allowed", len(h.Reasons), maxReasons)
	}
	if h.Point == Reconcile {
		return h.checkReconcile()
	}
	return nil
}

func (h *Hook) checkReconcile() error {
	if h.Primary == nil {
		return errors.New("a reconciler needs a primary kind")
	}
	for _, w := range append([]Watch{*h.Primary}, h.Owned...) {
		if w.Version == "" || w.Resource == "" || w.Kind == "" {
			return errors.New("primary and owned kinds need version, resource and kind")
		}
	}
	return nil
}

func joinPoints() string {
	var names []string
	for _, p := range Points() {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

func parsePaths(texts []string, aliases map[string]Alternatives) ([]Path, error) {
	var paths []Path
	for _, text := range texts {
		p, err := ParsePath(text)
		if err != nil {
			return nil, err
		}
		for _, s := range p.steps {
			if s.kind != stepAlias {
				continue
			}
			if _, ok := aliases[s.name]; !ok {
				return nil, fmt.Errorf("path %q: no alternatives are declared for %s", text, s.name)
			}
		}
		paths = append(paths, p)
	}
	return paths, checkAlternatives(aliases)
}

func checkAlternatives(aliases map[string]Alternatives) error {
	for name, a := range aliases {
		for kind, text := range a {
			if text == "" {
				continue
			}
			p, err := ParsePath(text)
			if err != nil {
				return fmt.Errorf("alternatives of %s for %s: %w", name, kind, err)
			}
			for _, s := range p.steps {
				if s.kind != stepKey {
					return fmt.Errorf("alternatives of %s for %s: %q may hold names only", name, kind, text)
				}
			}
		}
	}
	return nil
}

func columnPaths(columns []Column) ([]Path, error) {
	if len(columns) > maxColumns {
		return nil, fmt.Errorf("%d columns: at most %d are allowed", len(columns), maxColumns)
	}
	var paths []Path
	for _, c := range columns {
		switch c.Type {
		case ColumnInt, ColumnMilli, ColumnString, ColumnBool:
		default:
			return nil, fmt.Errorf("%s: unknown type %q: int, milli, string or bool was expected", c.Path, c.Type)
		}
		p, err := ParsePath(c.Path)
		if err != nil {
			return nil, err
		}
		for _, s := range p.steps {
			if s.kind != stepKey {
				return nil, fmt.Errorf("%s: a column is one value, without [*] and alternatives", c.Path)
			}
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// NodePaths and PodPaths are the parsed paths of a table's columns.
func (h *Hook) NodePaths() []Path { return h.columns }

// PodPaths are the parsed paths of the pod's row.
func (h *Hook) PodPaths() []Path { return h.pod }
