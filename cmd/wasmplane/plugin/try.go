// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/inspection"
)

// Exit codes of plugin test.
const (
	exitFailed = 1 // cases failed
	exitCannot = 2 // they could not be run
)

func (a commands) test() *cobra.Command {
	var files []string
	var engine, output string
	c := &cobra.Command{
		Use:   "test [PLUGIN|SUITE]",
		Short: "Run a plugin's cases, compiled and interpreted, without a cluster",
		Long: `Run a plugin's cases: questions with the decisions that are expected to them.
Each runs on the compiler and on the interpreter, which have to agree.

Cases stand in cases.yaml, cases.json or cases/*.yaml beside the plugin, as a list:

  - name: a pod without an owner is refused
    object: {apiVersion: v1, kind: Pod, metadata: {name: web}}
    expect: {decision: deny, message: name an owner}

The question is one of
  object, oldObject, operation, subresource, user, groups, dryRun   for admission
  object, to (the other version's apiVersion)                       for customresource.convert
  pod, nodes, running (the pods on them)                            for scheduling
  input                                  the whole document, for every point (sdk/spec);
                                         an AdmissionReview or an AdmissionRequest, too
with settings (instead of the entry's) and what host functions find: objects, images (by
reference: digest, manifest, config), access (user, verb, resource, ...: allowed).
Expected are any of decision (allow, deny, patch, convert, no opinion, not asked, failed,
score, plan, judge), message (/between slashes/ a regular expression), field,
reason, code, causes, patch, object (what has to be in it), warnings, auditAnnotations,
reasons, score, verdicts (by node), plan (what has to be in it), error.
Instead of expect, answer is the guest's whole answer as the ABI has it (null: an
empty one) and error the guest's own; document and kind are then the question.

SUITE is a file of kind Suite (test.gatekeeper.sh) or Test (cli.kyverno.io), or a folder
with such files in it or below: the tests of Gatekeeper's policies, with the templates
and constraints that they name, whose Rego is compiled and run here, and those of
Kyverno's policies in CEL. Tests of other kinds of Kyverno's are skipped. So do the
rules test_ in files *_test.rego of a folder of policies in Rego, or of a bundle
(FILE.tar.gz), as with ` + "`opa test`" + `: without network, 5 s each.

The entry's limits hold, but for those of time: how busy this machine is decides
nothing, and fuel is counted alike everywhere.

Exit code: 0 all passed, 1 some failed, 2 they could not be run.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			failed, err := a.runCases(c.Context(), args, files, engine, output)
			if err != nil {
				fmt.Fprintln(a.Err, "error:", err)
				return &shell.ExitError{Code: exitCannot}
			}
			if failed > 0 {
				return &shell.ExitError{Code: exitFailed}
			}
			return nil
		},
	}
	c.Flags().StringArrayVar(&files, "cases", nil, "`FILE` of cases, may be given several times (default: those beside the plugin)")
	c.Flags().StringVar(&engine, "engine", cases.Both, "`ENGINE`: compiled, interpreted or both")
	shell.OutputFlag(c, &output, "json")
	return c
}

func (a commands) runCases(ctx context.Context, args, files []string, engine, output string) (failed int, err error) {
	if len(files) == 0 {
		if list, err := testsAt(target(args), engine); err != nil || len(list) > 0 {
			if err != nil {
				return 0, err
			}
			return a.runTests(ctx, list, output)
		}
	}
	cfg, err := openConfig(args)
	if err != nil {
		return 0, err
	}
	list, err := cases.Read(cfg.Dir, files)
	if err != nil {
		return 0, err
	}
	var results []cases.Result
	failed, err = cases.Test(ctx, cfg, list, engine, func(r cases.Result) {
		results = append(results, r)
		if output == "" {
			a.showResult(r)
		}
	})
	if err != nil {
		return failed, err
	}
	if output == "json" {
		return failed, a.Show(map[string]any{"plugin": cfg.Entry.Name, "passed": len(results) - failed, "failed": failed, "results": results},
			output)
	}
	fmt.Fprintf(a.Out, "%s: %d passed, %d failed\n", cfg.Entry.Name, len(results)-failed, failed)
	return failed, nil
}

func (a commands) showResult(r cases.Result) {
	if r.Passed {
		fmt.Fprintf(a.Out, "pass  %s  (%d fuel)\n", r.Name, r.Decision.Usage.Fuel)
		return
	}
	fmt.Fprintf(a.Out, "FAIL  %s\n", r.Name)
	for _, d := range r.Details() {
		fmt.Fprintln(a.Out, "      "+strings.ReplaceAll(d, "\n", "\n      "))
	}
}

// question are the flags by which a command is given one question.
type question struct {
	object, old, input, caseName, point, operation, user, to string
	groups                                                   []string
	live                                                     liveObject
}

func (q *question) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&q.object, "filename", "f", "", "`FILE` of an object to ask about, YAML or JSON; - is the standard input")
	f.StringVar(&q.old, "old", "", "`FILE` of the object before an update")
	f.StringVar(&q.input, "input", "", "`FILE` of the point's whole document (sdk/spec, section 7)")
	f.StringVar(&q.caseName, "case", "", "`NAME` of one of the plugin's cases")
	f.StringVar(&q.point, "point", "", "`POINT` to ask at, where the plugin takes part at several")
	f.StringVar(&q.operation, "operation", "", "`OPERATION` of the request (default: by what is given)")
	f.StringVar(&q.to, "to", "", "`APIVERSION` into which the object is to be converted (customresource.convert)")
	f.StringVar(&q.user, "as", "", "`USER` who asks")
	f.StringArrayVar(&q.groups, "as-group", nil, "`GROUP` of the user, may be given several times")
}

// read makes a case of the flags.
func (q *question) read(cfg *author.Config) (*cases.Case, error) {
	if q.caseName != "" {
		list, err := cases.Read(cfg.Dir, nil)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if list[i].Name == q.caseName {
				return &list[i], nil
			}
		}
		return nil, fmt.Errorf("no case is named %q", q.caseName)
	}
	k := &cases.Case{Name: "request", Point: q.point, Operation: q.operation, User: q.user, Groups: q.groups, To: q.to}
	for _, f := range []struct {
		path string
		into *map[string]any
	}{{q.object, &k.Object}, {q.old, &k.OldObject}, {q.input, &k.Input}} {
		if f.path == "" {
			continue
		}
		if err := readTree(f.path, f.into); err != nil {
			return nil, err
		}
	}
	if k.Object == nil && k.OldObject == nil && k.Input == nil {
		return nil, fmt.Errorf("nothing to ask about: give an object with -f, a document with --input, a case with --case, or a live object with --live KIND/NAME")
	}
	return k, nil
}

func readTree(path string, into *map[string]any) error {
	in := os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("read the object: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	if err := yaml.NewDecoder(in).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (a commands) run() *cobra.Command {
	var q question
	var output string
	c := &cobra.Command{
		Use:   "run [PLUGIN]",
		Short: "Ask a plugin one question, from a file or about a live object, and show what it decides",
		Example: `  wasmplane plugin run -f pod.yaml
  kubectl create deployment web --image=nginx --dry-run=client -o yaml | wasmplane plugin run -f -
  wasmplane plugin run --live deployment/web -n shop
  wasmplane plugin run -f crontab-v1.yaml --to example.com/v2
  wasmplane plugin run --case "a pod without an owner is refused"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := openConfig(args)
			if err != nil {
				return err
			}
			if err := readLive(c.Context(), &q, &cfg); err != nil {
				return err
			}
			k := q.live.question(&q)
			if k == nil {
				if k, err = q.read(&cfg); err != nil {
					return err
				}
			}
			d, err := cases.Once(c.Context(), cfg, k)
			if err != nil {
				return err
			}
			if err := a.Show(d, output); err != nil {
				return err
			}
			if s := d.Stack(); s != "" {
				a.PrintLine(s)
			}
			return nil
		},
	}
	q.flags(c)
	q.live.flags(a, c)
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func (a commands) bench() *cobra.Command {
	var q question
	var output string
	var duration time.Duration
	c := &cobra.Command{
		Use:   "bench [PLUGIN]",
		Short: "Measure a plugin: time, fuel and memory of its calls",
		Long: `Measure a plugin's calls, one after the other, on the compiled module with fuel
and limits on: all of its cases, or one question. Times are from the adapter's
entry to the plugin's answer.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := openConfig(args)
			if err != nil {
				return err
			}
			var list []cases.Case
			if q.object+q.old+q.input+q.caseName == "" {
				list, err = cases.Read(cfg.Dir, nil)
			} else {
				var k *cases.Case
				if k, err = q.read(&cfg); k != nil {
					list = []cases.Case{*k}
				}
			}
			if err != nil {
				return err
			}
			results, err := cases.MeasureAll(c.Context(), cfg, list, duration)
			if err != nil {
				return err
			}
			if output != "" {
				return a.Show(results, output)
			}
			w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "CASE\tDECISION\tP50\tP90\tP99\tMAX\tCALLS/S\tFUEL\tMEMORY")
			for _, b := range results {
				fuel := fmt.Sprint(b.FuelMean)
				if b.FuelMin != b.FuelMax {
					fuel = fmt.Sprintf("%d-%d", b.FuelMin, b.FuelMax)
				}
				fmt.Fprintf(w, "%.40s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%s\t%d Ki\n", b.Case, b.Decision, micro(b.P50), micro(b.P90), micro(b.P99),
					micro(b.Max), b.PerSecond, fuel, b.Memory>>10)
			}
			return w.Flush()
		},
	}
	q.flags(c)
	c.Flags().DurationVar(&duration, "duration", time.Second, "`TIME` to measure each case for")
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func micro(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d)/1e3) }

func (a commands) inspect() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "inspect [PLUGIN]",
		Short: "Show what a module is: hooks, fields, needs, imports, ABI; other projects' modules too",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := openConfig(args)
			if err != nil {
				return err
			}
			cfg.CacheDir = "" // what compiling takes is shown
			about, err := inspection.Inspect(c.Context(), cfg)
			if err != nil {
				return err
			}
			if output != "" {
				return a.Show(about, output)
			}
			return a.showAbout(about)
		},
	}
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func (a commands) showAbout(about *inspection.About) error {
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	line := func(name string, values ...string) {
		for _, v := range values {
			fmt.Fprintf(w, "%s\t%s\n", name, v)
			name = ""
		}
	}
	yes := map[bool]string{true: "yes", false: "no"}
	line("name", strings.TrimSpace(about.Name+" "+about.Version))
	line("abi", string(about.ABI))
	line("digest", about.Digest)
	line("size", fmt.Sprintf("%d bytes", about.Bytes))
	line("settings", yes[about.Settings])
	line("  schema", inspection.SchemaLines(about.SettingsSchema)...)
	line("names in errors", map[bool]string{true: "functions and lines", false: "functions only"}[about.Lines && about.Names])
	if !about.Names {
		line("", "none: build with --debug to see them")
	}
	for _, n := range about.Needs {
		line("needs", fmt.Sprintf("%s (grants: {%s}; granted here: %s)", n.Function, n.Grant, yes[n.Granted]))
	}
	for _, h := range about.Hooks {
		line("hook", fmt.Sprintf("%s (op %d, %s)", h.Point, h.Op, h.Encoding))
		line("  match", h.Match...)
		fields := h.Fields
		if len(fields) == 0 && len(h.Columns) == 0 {
			fields = []string{"the whole document"}
		}
		line("  fields", fields...)
		line("  columns", h.Columns...)
		line("  pod", h.Pod...)
		if h.Primary != "" {
			line("  primary", h.Primary)
		}
		line("  owned", h.Owned...)
	}
	line("imports", about.Imports...)
	line("exports", strings.Join(about.Exports, ", "))
	if about.StartUp > 0 {
		line("start-up", about.StartUp.Round(time.Millisecond/10).String()+" (compiled without a cache)")
	}
	if about.Problem != "" {
		line("problem", about.Problem)
	}
	return w.Flush()
}
