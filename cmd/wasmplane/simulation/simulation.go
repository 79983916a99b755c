// SPDX-License-Identifier: Apache-2.0

// Package simulation is the command `wasmplane simulate`: it reads a cluster, a workload and
// scheduler configurations, and shows what the scheduler would make of them.
package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/simulate/comparison"
	"github.com/wasmplane/wasmplane/core/simulate/input"
)

// options are the command's flags.
type options struct {
	input.Request
	configs      []string
	length, try  time.Duration
	plot, output string
	by           string
	lines        bool

	live, nodesOnly bool
	fromBackup      string
}

// Command is `wasmplane simulate`.
func Command(s *shell.Shell) *cobra.Command {
	o := options{}
	c := &cobra.Command{
		Use: "simulate -f FILE [--config FILE]...", Short: "Try scheduler configurations on a cluster that is not there, and compare them",
		Long: `Try scheduler configurations on a cluster that is not there, and compare them. The
scheduler's own code decides, with its native plugins and the Wasm plugins of each
configuration, in virtual time: a day of ten thousand pods takes seconds. It needs
no cluster, no root and no network, and the same seed gives the same output. With
--live it reads a cluster, and changes nothing there; with --from-backup a file.

The workload is manifests as kubectl takes them (of Pods, Deployments, StatefulSets,
Jobs, DaemonSets), with annotations that say when their pods come and how long they
run, or a document of kind Workload. docs/SIMULATE.md has all of it.`,
		Example: `  wasmplane simulate --nodes 100 -f workload.yaml
  wasmplane simulate --nodes 1000 --shapes shapes.yaml -f workload.yaml --config default.yaml --config packed.yaml --plot plots
  wasmplane simulate --live -f deployment.yaml --config default.yaml --config packed.yaml`,
		Args: shell.NoArgs,
	}
	f := c.Flags()
	access := s.Access(f)
	f.StringArrayVarP(&o.Files, "filename", "f", nil, "`FILE` or folder of the workload, may be given several times")
	f.IntVar(&o.Nodes, "nodes", 0, "`NUMBER` of nodes to make")
	f.StringVar(&o.Shapes, "shapes", "", "`FILE` that says what nodes are made (kind Shapes; default: 16 cpu, 64Gi, three zones)")
	f.StringArrayVar(&o.NodesFrom, "nodes-from", nil, "`FILE` with the nodes of a cluster and the pods on them, as kubectl get nodes,pods -A -o yaml writes it; may be given several times")
	f.BoolVar(&o.live, "live", false, "take the nodes, and the pods on them, of the cluster that --kubeconfig or --data-dir names")
	f.StringVar(&o.fromBackup, "from-backup", "", "take the nodes, and the pods on them, of an etcd snapshot `FILE`, as wasmplane backup or etcdctl writes it")
	f.BoolVar(&o.nodesOnly, "nodes-only", false, "with --live or --from-backup: without the pods")
	f.StringVar(&o.Prices, "prices", "", "`FILE` with prices of an hour by instance type (kind Prices), for nodes of a cluster")
	f.StringArrayVar(&o.configs, "config", nil, "configuration `FILE` whose scheduler and plugins are tried, may be given several times (default: the defaults)")
	f.Uint64Var(&o.Seed, "seed", 1, "`NUMBER` of which follows all that is left to chance")
	f.DurationVar(&o.length, "length", 0, "`TIME` that is simulated (default: until the last pod that comes has run, and an hour for those that run to the end)")
	f.DurationVar(&o.try, "try", time.Millisecond, "`TIME` that one try of the scheduler takes")
	f.StringVar(&o.by, "by", "", "measure groups of pods each by itself: by `LABEL`, or by namespace (--by namespace)")
	f.StringVar(&o.plot, "plot", "", "`DIR` for plots over time, as SVG")
	f.BoolVar(&o.lines, "lines", false, "draw the plots in the terminal, too")
	c.RunE = func(c *cobra.Command, _ []string) error { return run(c.Context(), s, access, &o) }
	shell.OutputFlag(c, &o.output, "json", "yaml")
	return c
}

func (o *options) check() error {
	switch {
	case len(o.Files) == 0:
		return errors.New("what comes? Give a workload by -f FILE (docs/SIMULATE.md)")
	case o.Nodes < 0 || o.Nodes > mostNodes:
		return fmt.Errorf("--nodes: expected 1 to %d, found %d", mostNodes, o.Nodes)
	case o.Shapes != "" && o.Nodes == 0:
		return errors.New("--shapes says what nodes are made, --nodes how many: give both")
	case o.live && o.fromBackup != "":
		return errors.New("--live takes the cluster that runs, --from-backup one of a backup: give one of them")
	case o.nodesOnly && !o.live && o.fromBackup == "":
		return errors.New("--nodes-only belongs to --live or --from-backup")
	case o.length < 0 || o.try < 0:
		return errors.New("--length and --try: expected 0 or more")
	}
	return nil
}

// mostNodes of a simulation.
const mostNodes = 100_000

func run(ctx context.Context, s *shell.Shell, access *shell.Access, o *options) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := o.cluster(ctx, s, access); err != nil {
		return err
	}
	in, err := input.Read(ctx, o.Request)
	if err != nil {
		return err
	}
	if len(in.Arrivals) == 0 {
		return fmt.Errorf("%s: no pods come: expected Pods, Deployments, StatefulSets, Jobs, DaemonSets or a Workload", strings.Join(o.Files, ", "))
	}
	for _, note := range in.Notes {
		s.PrintLine("note: " + note)
	}
	length := o.length
	if length == 0 {
		length = enough(in.Arrivals)
	}
	all, err := o.simulate(ctx, s, in, length)
	if err != nil {
		return err
	}
	if o.plot != "" {
		if err := plot(o.plot, all); err != nil {
			return err
		}
	}
	if o.output != "" {
		return s.Show(map[string]any{"seed": o.Seed, "hours": length.Hours(), "nodes": len(in.Cluster.Nodes), "results": all}, o.output)
	}
	fmt.Fprintf(s.Out, "%d pods on %d nodes in %s, seed %d\n\n", len(in.Arrivals), len(in.Cluster.Nodes), length, o.Seed)
	if err := comparison.Write(s.Out, all); err != nil {
		return err
	}
	if o.lines {
		return comparison.Lines(s.Out, all)
	}
	return nil
}

// groupOf a pod, which is measured with others of it; nil = no groups are.
func (o *options) groupOf() func(*corev1.Pod) string {
	switch o.by {
	case "":
		return nil
	case "namespace":
		return func(p *corev1.Pod) string { return p.Namespace }
	}
	return func(p *corev1.Pod) string { return p.Labels[o.by] }
}

// simulate each of the configurations.
func (o *options) simulate(ctx context.Context, s *shell.Shell, in *input.Input, length time.Duration) ([]*simulate.Result, error) {
	policies, err := o.policies(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, p := range policies {
			p.close(context.WithoutCancel(ctx))
		}
	}()
	var all []*simulate.Result
	for _, p := range policies {
		began := time.Now()
		r, err := simulate.Run(ctx, simulate.Config{
			Cluster: in.Cluster, Arrivals: in.Arrivals, Length: length, Try: o.try, Seed: o.Seed, Policy: p.Policy, Logger: p.logger,
			GroupOf: o.groupOf(),
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		took := time.Since(began)
		s.PrintLine(fmt.Sprintf("%s: %d tries in %s (%s each)", p.Name, r.Tries, took.Round(10*time.Millisecond),
			(took / time.Duration(max(r.Tries, 1))).Round(time.Microsecond)))
		all = append(all, r)
	}
	return all, nil
}

// enough time for all that comes to end, and an hour for what does not: in whole minutes.
func enough(all []simulate.Arrival) (length time.Duration) {
	for i := range all {
		length = max(length, all[i].At+cmp.Or(all[i].Lasts, time.Hour))
	}
	return (length + time.Minute - 1).Truncate(time.Minute)
}

func plot(dir string, all []*simulate.Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder for plots: %w", err)
	}
	for _, p := range comparison.Plots() {
		if err := os.WriteFile(filepath.Join(dir, p.Name+".svg"), []byte(p.SVG(all)), 0o644); err != nil { //nolint:gosec // a picture is for everybody
			return fmt.Errorf("write a plot: %w", err)
		}
	}
	return nil
}
