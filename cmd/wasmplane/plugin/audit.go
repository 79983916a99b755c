// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/plugins/author/cluster"
	"github.com/wasmplane/wasmplane/plugins/author/recording"
)

func (a commands) audit() *cobra.Command {
	var l liveObject
	var output string
	var all bool
	c := &cobra.Command{
		Use:   "audit [PLUGIN]",
		Short: "Ask a validating plugin about everything that is stored already",
		Long: `Ask a validating plugin about everything that is stored already: each object that
it matches, as if it were made anew now. Objects and what host functions read come
through the API, under the kubeconfig's identity; nothing is changed.

-o policyreport prints PolicyReport objects (wgpolicyk8s.io/v1alpha2), one for
each namespace and a ClusterPolicyReport: pipe them into kubectl apply -f -.

Exit code: 0 no object fails, 1 some do, or the plugin failed.`,
		Example: `  wasmplane plugin audit
  wasmplane plugin audit no-latest.wasm -n shop -o policyreport | kubectl apply -f -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := openConfig(args)
			if err != nil {
				return err
			}
			cl, err := l.cluster()
			if err != nil {
				return err
			}
			audit, err := cluster.RunAudit(c.Context(), cfg, cl, l.namespace, a.PrintLine)
			if err != nil {
				return err
			}
			for _, u := range audit.Unread {
				a.PrintLine("not read: " + u)
			}
			if err := a.showAudit(audit, output, all); err != nil {
				return err
			}
			if audit.Summary[cluster.ResultFail]+audit.Summary[cluster.ResultError] > 0 {
				return &shell.ExitError{Code: exitFailed}
			}
			return nil
		},
	}
	l.clusterFlags(a, c)
	c.Flags().BoolVar(&all, "all", false, "list the objects that pass, too")
	shell.OutputFlag(c, &output, "json", "yaml", "policyreport")
	return c
}

func (a commands) showAudit(audit *cluster.Audit, output string, all bool) error {
	switch output {
	case "":
	case "policyreport":
		return a.Show(audit.PolicyReports(), "yaml")
	default:
		return a.Show(audit, output)
	}
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "RESULT\tNAMESPACE\tOBJECT\tMESSAGE")
	for _, f := range audit.Findings {
		if f.Result == cluster.ResultPass && !all {
			continue
		}
		message := f.Message
		if f.Field != "" {
			message += " (" + f.Field + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s/%s\t%s\n", f.Result, f.Namespace, strings.ToLower(f.Kind), f.Name, message)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s := audit.Summary
	fmt.Fprintf(a.Out, "%s: %d pass, %d fail, %d warn, %d error\n", audit.Plugin, s[cluster.ResultPass], s[cluster.ResultFail],
		s[cluster.ResultWarn], s[cluster.ResultError])
	return nil
}

func (a commands) record() *cobra.Command {
	var log, out, output string
	var limits recording.Limits
	c := &cobra.Command{
		Use:   "record [PLUGIN] --audit-log FILE --out FILE",
		Short: "Record what a plugin is asked and decides, from an audit log",
		Long: `Record what a plugin is asked and decides about the requests of an audit log, so
that a candidate can be held against it: wasmplane plugin replay.

The log is the apiserver's own (audit.k8s.io/v1, JSON lines), with a policy of
level Request for creates and updates, RequestResponse for patches. The server
does nothing more for a recording than write its log, and any cluster's will do.

The contents of Secrets are left out, token requests too. The recording is
bounded, and nobody else may read the file. Whatever else a log holds (users'
names, objects) is in it: keep it as you keep the log.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if log == "" || out == "" {
				return errors.New("--audit-log and --out are needed: the log to read (- is the standard input) and the file to make")
			}
			cfg, err := openConfig(args)
			if err != nil {
				return err
			}
			var in io.Reader = os.Stdin
			if log != "-" {
				f, err := os.Open(log)
				if err != nil {
					return fmt.Errorf("--audit-log: %w", err)
				}
				defer func() { _ = f.Close() }()
				in = f
			}
			f, err := recording.Create(out)
			if err != nil {
				return err
			}
			done, err := recording.Make(c.Context(), cfg, in, f, limits)
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			if output != "" {
				return a.Show(done, output)
			}
			fmt.Fprintf(a.Out, "%d events, %d decisions recorded in %s\n", done.Events, done.Records, out)
			if done.Unusable > 0 {
				fmt.Fprintf(a.Out, "%d writes are without their object: raise their audit level to Request (patches: RequestResponse)\n", done.Unusable)
			}
			if done.Full {
				fmt.Fprintln(a.Out, "the recording is full before the end of the log: raise --max-records or --max-bytes")
			}
			return nil
		},
	}
	c.Flags().StringVar(&log, "audit-log", "", "`FILE` of the audit log; - is the standard input")
	c.Flags().StringVar(&out, "out", "", "`FILE` of the recording; it must not exist")
	c.Flags().IntVar(&limits.Records, "max-records", 10_000, "`NUMBER` of decisions to record at most")
	c.Flags().Int64Var(&limits.Bytes, "max-bytes", 64<<20, "`BYTES` that the recording may have")
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func (a commands) replay() *cobra.Command {
	var output string
	var strict bool
	var most int
	c := &cobra.Command{
		Use:   "replay RECORDING [PLUGIN]",
		Short: "Run recorded decisions against a candidate, and show what would change",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := openConfig(args[1:])
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("read the recording: %w", err)
			}
			defer func() { _ = f.Close() }()
			done, err := recording.Replay(c.Context(), cfg, f)
			if err != nil {
				return err
			}
			if output != "" {
				err = a.Show(done, output)
			} else {
				a.showReplay(done, most)
			}
			if err == nil && strict && done.Same != done.Records {
				return &shell.ExitError{Code: exitFailed}
			}
			return err
		},
	}
	c.Flags().BoolVar(&strict, "fail-on-change", false, "exit with 1 where any decision would change")
	c.Flags().IntVar(&most, "show", 20, "`NUMBER` of changes to show in full")
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func (a commands) showReplay(done *recording.Replayed, most int) {
	for i, change := range done.Changes {
		if i == most {
			fmt.Fprintf(a.Out, "... and more: -o json lists them\n")
			break
		}
		fmt.Fprintf(a.Out, "%s  %s (- recorded, + candidate)\n  %s\n", change.Record.Time.UTC().Format("2006-01-02 15:04:05"),
			change.Record.About, strings.ReplaceAll(change.Diff, "\n", "\n  "))
	}
	fmt.Fprintf(a.Out, "%d decisions, %d the same, %d would change\n", done.Records, done.Same, done.Records-done.Same)
	for _, kind := range slices.Sorted(maps.Keys(done.Kinds)) {
		fmt.Fprintf(a.Out, "  %s: %d\n", kind, done.Kinds[kind])
	}
}
