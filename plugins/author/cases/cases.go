// SPDX-License-Identifier: Apache-2.0

// Package cases asks plugins what the cases in their folders ask, on both engines, and
// says what differs from what is expected; and it measures what a case costs. There is
// one form of a case, that of Case, for authors, examples and the tool alike.
package cases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/textdiff"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Case is one question with the answer that is expected to it.
type Case struct {
	Name string `yaml:"name"`
	// Point; may be left out where the plugin takes part at one only, or where the
	// question says it: an object is for admission, nodes are for a node table.
	Point string `yaml:"point"`
	// Settings instead of those of the entry.
	Settings yaml.Node `yaml:"settings"`
	// Objects that host functions read. The grants of the entry decide what the plugin sees of them.
	Objects []map[string]any `yaml:"objects"`
	// Images by reference, as registries would answer; no registry is asked.
	Images map[string]Image `yaml:"images"`
	// Access that authorizers would allow; everything else they would not.
	Access []Access `yaml:"access"`

	// Input is the document of the point, as sdk/spec has it. For admission it may be an
	// AdmissionReview, or an AdmissionRequest.
	Input map[string]any `yaml:"input"`
	// For admission, shorter: what the rest of the request is follows from these.
	Object      map[string]any `yaml:"object"`
	OldObject   map[string]any `yaml:"oldObject"`
	Operation   string         `yaml:"operation"`
	Subresource string         `yaml:"subresource"`
	User        string         `yaml:"user"`
	Groups      []string       `yaml:"groups"`
	DryRun      bool           `yaml:"dryRun"`
	// Implied: nobody makes the request, but that for another object is going to lead to it (ExpansionTemplates).
	Implied bool `yaml:"implied"`
	// For customresource.convert: the apiVersion into which the object is converted.
	To string `yaml:"to"`
	// For scheduling: the nodes, the pods on them, and the pod that is to be placed.
	Nodes   []map[string]any `yaml:"nodes"`
	Running []map[string]any `yaml:"running"`
	Pod     map[string]any   `yaml:"pod"`

	// Expect is what the decision has to be; what is not given is not looked at.
	Expect *Expect `yaml:"expect"`

	// For looking at the ABI itself: the document, the kind of an object that does not name
	// its own, and the whole answer of the guest, or its error.
	Kind     string         `yaml:"kind"`
	Document map[string]any `yaml:"document"`
	Answer   yaml.Node      `yaml:"answer"`
	Error    string         `yaml:"error"`

	file string
}

// Expect is an expected decision.
type Expect struct {
	// Decision: allow, deny, patch, convert, no opinion, not asked, failed, score, plan, judge.
	Decision string `yaml:"decision"`
	// Message; between slashes, a regular expression.
	Message string `yaml:"message"`
	Field   string `yaml:"field"`
	Reason  string `yaml:"reason"`
	Code    int32  `yaml:"code"`
	// Causes: all of them, in order.
	Causes []map[string]any `yaml:"causes"`
	// Patch, exactly; Object: these values have to be in what the object becomes.
	// A null in it: nothing is there.
	Patch            []map[string]any  `yaml:"patch"`
	Object           map[string]any    `yaml:"object"`
	Warnings         []string          `yaml:"warnings"`
	AuditAnnotations map[string]string `yaml:"auditAnnotations"`
	Reasons          []string          `yaml:"reasons"`
	Score            *int64            `yaml:"score"`
	// Verdicts by node: a score, or the reason.
	Verdicts map[string]any `yaml:"verdicts"`
	// Plan: these values have to be in it; lists have to be the same.
	Plan  map[string]any `yaml:"plan"`
	Error string         `yaml:"error"`
}

// Read reads the cases of a plugin: the given files, or else cases.yaml and
// cases/*.yaml (or .json) in its folder.
func Read(dir string, files []string) ([]Case, error) {
	if len(files) == 0 {
		for _, pattern := range []string{author.CasesFile, "cases.json", "cases/*.yaml", "cases/*.yml", "cases/*.json"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s holds no cases: write them into %s (see: wasmplane plugin test --help)", dir, author.CasesFile)
		}
	}
	var all []Case
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read the cases: %w", err)
		}
		var cases []Case
		d := yaml.NewDecoder(bytes.NewReader(b))
		d.KnownFields(true)
		if err := d.Decode(&cases); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		for i := range cases {
			if cases[i].file = f; cases[i].Name == "" {
				cases[i].Name = fmt.Sprintf("case %d", i+1)
			}
		}
		all = append(all, cases...)
	}
	return all, nil
}

// Result is how one case came out.
type Result struct {
	Name     string           `json:"name"`
	File     string           `json:"file,omitempty"`
	Passed   bool             `json:"passed"`
	Problems []string         `json:"problems,omitempty"` // what differs, several lines each
	Decision *author.Decision `json:"decision,omitempty"`
	Stack    string           `json:"stack,omitempty"`
}

// Details is all that there is to show of a case that failed.
func (r *Result) Details() []string {
	details := append(slices.Clone(r.Problems), r.Stack)
	if r.Decision != nil && r.Decision.Printed != "" {
		details = append(details, "it printed:\n"+r.Decision.Printed)
	}
	return slices.DeleteFunc(details, func(text string) bool { return text == "" })
}

// Engines on which cases run.
const (
	Compiled    = "compiled"
	Interpreted = "interpreted"
	Both        = "both"
)

// Test runs cases on one engine or on both, which must agree: in what was
// decided, and in the fuel that it took. report is called with each result.
func Test(ctx context.Context, cfg author.Config, cases []Case, engine string, report func(Result)) (failed int, err error) {
	if !slices.Contains([]string{Compiled, Interpreted, Both}, engine) {
		return 0, fmt.Errorf("engine %q is unknown: compiled, interpreted or both was expected", engine)
	}
	runs := map[string]*runner{}
	for name, interpreter := range map[string]bool{Compiled: false, Interpreted: true} {
		if engine == Both || engine == name {
			c := cfg
			c.Interpreter = interpreter
			runs[name] = &runner{cfg: c, open: map[string]*opened{}}
		}
	}
	defer func() {
		for _, r := range runs {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	for i := range cases {
		r := testOne(ctx, runs, &cases[i])
		if ctx.Err() != nil {
			return failed, ctx.Err()
		}
		if !r.Passed {
			failed++
		}
		report(r)
	}
	return failed, nil
}

func testOne(ctx context.Context, runs map[string]*runner, c *Case) Result {
	res := Result{Name: c.Name, File: c.file}
	decisions := map[string]*author.Decision{}
	for name, run := range runs {
		d, err := run.ask(ctx, c)
		if err != nil {
			res.Problems = append(res.Problems, err.Error())
			return res
		}
		decisions[name] = d
	}
	res.Decision = decisions[Compiled]
	if res.Decision == nil {
		res.Decision = decisions[Interpreted]
	}
	res.Stack = res.Decision.Stack()
	if a, b := decisions[Compiled], decisions[Interpreted]; a != nil && b != nil {
		if diff := agree(a, b); diff != "" {
			res.Problems = append(res.Problems, "the compiled module and the interpreted one do not agree (- interpreted, + compiled):\n"+diff)
		}
	}
	res.Problems = append(res.Problems, c.check(res.Decision)...)
	res.Passed = len(res.Problems) == 0
	return res
}

// agree compares everything but the time.
func agree(a, b *author.Decision) string {
	x, y := *a, *b
	x.Usage.Microseconds, y.Usage.Microseconds = 0, 0
	x.Usage.Memory, y.Usage.Memory = 0, 0
	x.Printed, y.Printed = "", "" // a stack that a guest prints of itself may hold what differs
	return textdiff.Diff(y, x)
}

// opened is a plugin with the objects that its cases put behind its host functions.
type opened struct {
	*author.Plugin
	stand *stand // changes from case to case
}

// runner keeps a plugin open for each settings that cases use.
type runner struct {
	cfg  author.Config
	open map[string]*opened
}

func (r *runner) close(ctx context.Context) error {
	var errs []error
	for _, o := range r.open {
		errs = append(errs, o.Close(ctx))
	}
	return errors.Join(errs...)
}

func (r *runner) with(ctx context.Context, settings yaml.Node) (*opened, error) {
	e := author.WithSettings(r.cfg.Entry, settings)
	key, err := e.SettingsJSON()
	if err != nil {
		return nil, err
	}
	if o := r.open[string(key)]; o != nil {
		return o, nil
	}
	// What a case shows must not depend on how busy the machine is. Fuel, which is counted
	// alike everywhere, bounds the calls here; time only ends what waits for ever.
	e.Limits.Deadline = max(e.Limits.Deadline, manifest.Duration(time.Minute))
	e.Limits.StartDeadline = max(e.Limits.StartDeadline, manifest.Duration(time.Minute))
	cfg := r.cfg
	cfg.Entry = e
	o := &opened{stand: &stand{}}
	cfg.Objects, cfg.Images, cfg.Access = o.stand, o.stand, o.stand
	cfg.Namespaces = func(ctx context.Context, name string) (map[string]string, bool) {
		return o.stand.namespaces(ctx, name)
	}
	if o.Plugin, err = author.Open(ctx, cfg); err != nil {
		return nil, err
	}
	r.open[string(key)] = o
	return o, nil
}

func (r *runner) ask(ctx context.Context, c *Case) (*author.Decision, error) {
	o, err := r.with(ctx, c.Settings)
	if err != nil {
		return nil, err
	}
	if *o.stand, err = newStand(c); err != nil {
		return nil, err
	}
	return c.Ask(ctx, o.Plugin)
}

// Ask puts the case's question to a plugin.
func (c *Case) Ask(ctx context.Context, p *author.Plugin) (*author.Decision, error) {
	c.unwrap()
	if len(c.Nodes) > 0 && p.Cycles() {
		return c.schedule(ctx, p.Cycle)
	}
	pt, err := c.point(p)
	if err != nil {
		return nil, err
	}
	if pt == abi.SchedulingTable {
		return c.schedule(ctx, p.Judge)
	}
	return p.Ask(ctx, pt, c.document())
}

// schedule has the case's pod and nodes judged.
func (c *Case) schedule(ctx context.Context,
	judge func(context.Context, *corev1.Pod, author.Nodes) (*author.Decision, error),
) (*author.Decision, error) {
	n, err := author.NodesOf(c.Nodes, c.Running)
	if err != nil {
		return nil, err
	}
	pod, err := author.PodOf(c.Pod)
	if err != nil {
		return nil, err
	}
	return judge(ctx, pod, n)
}

func (c *Case) point(p *author.Plugin) (abi.Point, error) {
	if c.Point != "" {
		return abi.Point(c.Point), nil
	}
	points := p.Points()
	if len(c.Nodes) > 0 && slices.Contains(points, abi.SchedulingTable) {
		return abi.SchedulingTable, nil
	}
	switch {
	case c.To != "":
		return abi.CustomResourceConvert, nil
	case c.Object != nil || c.OldObject != nil:
		points = slices.DeleteFunc(points, func(pt abi.Point) bool {
			return !strings.HasPrefix(string(pt), "admission.") && pt != abi.CustomResourceValidate
		})
	}
	if len(points) != 1 {
		return "", fmt.Errorf("the plugin takes part at %s: say point: in the case", p.PointNames())
	}
	return points[0], nil
}

// document is the input, completed from the shorter fields. It is the caller's own.
func (c *Case) document() map[string]any {
	doc := map[string]any{}
	maps.Copy(doc, c.Input)
	maps.Copy(doc, c.Document)
	if _, given := doc["kind"]; !given && c.Kind != "" && doc["object"] != nil {
		if o, ok := doc["object"].(map[string]any); ok && o["kind"] == nil {
			doc["kind"] = map[string]any{"group": groupOf(c.Kind), "version": "v1", "kind": c.Kind}
			doc["resource"] = map[string]any{"group": groupOf(c.Kind), "version": "v1", "resource": strings.ToLower(c.Kind) + "s"}
		}
	}
	set := func(key string, value any, given bool) {
		if given {
			doc[key] = value
		}
	}
	set("object", c.Object, c.Object != nil)
	set("oldObject", c.OldObject, c.OldObject != nil)
	set("operation", c.Operation, c.Operation != "")
	set("subResource", c.Subresource, c.Subresource != "")
	set("dryRun", true, c.DryRun)
	set("implied", true, c.Implied)
	set("desiredAPIVersion", c.To, c.To != "")
	if c.User != "" || len(c.Groups) > 0 {
		var groups []any
		for _, g := range c.Groups {
			groups = append(groups, g)
		}
		doc["userInfo"] = map[string]any{"username": c.User, "groups": groups}
	}
	tree, _ := integers(doc).(map[string]any)
	return tree
}

// groupOf are the groups of the kinds that hold pods, for cases that give no apiVersion.
func groupOf(kind string) string {
	switch kind {
	case "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet":
		return "apps"
	case "Job", "CronJob":
		return "batch"
	}
	return ""
}

// integers copies a tree with the types of numbers that trees of API objects have.
func integers(v any) any {
	switch x := v.(type) {
	case int:
		return int64(x)
	case time.Time:
		return x.Format(time.RFC3339)
	case map[string]any:
		out := make(map[string]any, len(x))
		for k := range x {
			out[k] = integers(x[k])
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = integers(x[i])
		}
		return out
	}
	return v
}

// Once loads a plugin, asks it one question and unloads it.
func Once(ctx context.Context, cfg author.Config, c *Case) (d *author.Decision, err error) {
	cfg.Entry = author.WithSettings(cfg.Entry, c.Settings)
	if cfg.Objects == nil {
		fixed, err := newStand(c)
		if err != nil {
			return nil, err
		}
		cfg.Objects, cfg.Images, cfg.Access, cfg.Namespaces = fixed, &fixed, &fixed, fixed.namespaces
	}
	p, err := author.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	return c.Ask(ctx, p)
}

// check says what of a decision is not as expected.
func (c *Case) check(d *author.Decision) []string {
	if c.Expect == nil {
		return c.checkAnswer(d)
	}
	var problems []string
	e := c.Expect
	differ := func(what string, want, got any) {
		if text := textdiff.Diff(want, got); text != "" {
			problems = append(problems, what+":\n"+text)
		}
	}
	if d.Decision == author.Failed && e.Decision != author.Failed && e.Error == "" {
		return []string{"the plugin failed: " + d.Error}
	}
	if e.Decision != "" {
		differ("decision", e.Decision, d.Decision)
	}
	if e.Message != "" && !textMatches(e.Message, d.Message) {
		differ("message", e.Message, d.Message)
	}
	if e.Error != "" && !textMatches(e.Error, d.Error) {
		differ("error", e.Error, d.Error)
	}
	for _, f := range []struct{ name, want, got string }{{"field", e.Field, d.Field}, {"reason", e.Reason, d.Reason}} {
		if f.want != "" {
			differ(f.name, f.want, f.got)
		}
	}
	if e.Code != 0 {
		differ("code", e.Code, d.Code)
	}
	if e.Causes != nil {
		differ("causes", e.Causes, d.Causes)
	}
	if e.Patch != nil {
		differ("patch", e.Patch, d.Patch)
	}
	if e.Object != nil {
		object := d.Object
		if object == nil { // nothing was changed
			object, _ = c.document()["object"].(map[string]any)
		}
		differ("object", e.Object, only(textdiff.Plain(e.Object), textdiff.Plain(object)))
	}
	if e.Warnings != nil {
		differ("warnings", e.Warnings, d.Warnings)
	}
	if e.AuditAnnotations != nil {
		differ("auditAnnotations", e.AuditAnnotations, d.AuditAnnotations)
	}
	if e.Reasons != nil {
		differ("reasons", e.Reasons, d.Reasons)
	}
	if e.Score != nil {
		differ("score", e.Score, d.Score)
	}
	if e.Verdicts != nil {
		differ("verdicts", e.Verdicts, d.Verdicts)
	}
	if e.Plan != nil {
		differ("plan", e.Plan, only(textdiff.Plain(e.Plan), textdiff.Plain(d.Plan)))
	}
	return problems
}

// checkAnswer compares the whole answer.
func (c *Case) checkAnswer(d *author.Decision) []string {
	if c.Error != "" {
		if d.Error != c.Error {
			return []string{"error:\n" + textdiff.Diff(c.Error, d.Error)}
		}
		return nil
	}
	if d.Decision == author.Failed {
		return []string{"the plugin failed: " + d.Error}
	}
	if c.Answer.Kind == 0 {
		return []string{"the case expects nothing: say what under expect"}
	}
	var want any
	if err := c.Answer.Decode(&want); err != nil {
		return []string{"answer: " + err.Error()}
	}
	if text := textdiff.Diff(want, d.Answer); text != "" {
		return []string{"answer:\n" + text}
	}
	return nil
}

func textMatches(want, got string) bool {
	if len(want) > 1 && want[0] == '/' && want[len(want)-1] == '/' {
		re, err := regexp.Compile(want[1 : len(want)-1])
		return err == nil && re.MatchString(got)
	}
	return want == got
}

// only is what got has at the places that want names: keys that want does not
// name are left out, lists are kept whole but for the keys of their items.
func only(want, got any) any {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return got
		}
		out := map[string]any{}
		for k := range w {
			switch v, there := g[k]; {
			case there:
				out[k] = only(w[k], v)
			case w[k] == nil:
				out[k] = nil // nothing is expected, and nothing is there
			}
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return got
		}
		out := make([]any, len(g))
		for i := range g {
			out[i] = only(w[i], g[i])
		}
		return out
	}
	return got
}
