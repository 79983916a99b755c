// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/simulate/arrivals"
)

// RecordCommand is `wasmplane record`.
func RecordCommand(s *shell.Shell) *cobra.Command {
	c := &cobra.Command{Use: "record", Short: "Record what a cluster does"}
	c.AddCommand(recordWorkload(s))
	return c
}

// recording is what is recorded, and for how long.
type recording struct {
	namespace, to string
	length        time.Duration
	anonymous     bool
}

func recordWorkload(s *shell.Shell) *cobra.Command {
	o := recording{}
	c := &cobra.Command{
		Use: "workload --to FILE", Short: "Record the pods that come to a cluster, for wasmplane simulate",
		Long: `Record the pods that come to a cluster, for wasmplane simulate: when each is created, how
long it runs, what it requests and what restricts its nodes. A pod that runs already
comes at the beginning, one that is still there at the end runs to the end. It ends
after --for or with Ctrl-C. Commands, environment, volumes and annotations of pods are
never recorded; --anonymous replaces names, images and labels too. Pods of
DaemonSets and static pods come with nodes and are left out. It needs the right to
list and watch pods.`,
		Example: `  wasmplane record workload --for 24h --to day.yaml
  wasmplane record workload --for 1h --anonymous --to hour.yaml && wasmplane simulate --live --nodes-only -f hour.yaml`,
		Args: shell.NoArgs,
	}
	access := s.Access(c.Flags())
	c.Flags().StringVarP(&o.namespace, "namespace", "n", "", "only pods of this `NAMESPACE` (default: all)")
	c.Flags().StringVar(&o.to, "to", "", "`FILE` to write, which must not exist")
	c.Flags().DurationVar(&o.length, "for", 0, "`TIME` after which the recording ends (default: with Ctrl-C)")
	c.Flags().BoolVar(&o.anonymous, "anonymous", false, "replace the names of pods, owners, namespaces, containers and images, and the labels of pods")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case o.to == "":
			return errors.New("where is it written? Give --to FILE")
		case o.length < 0:
			return fmt.Errorf("--for: expected a time above 0, found %s", o.length)
		}
		set, err := access.Client("record")
		if err != nil {
			return err
		}
		return o.record(c.Context(), s, set)
	}
	return c
}

func (o *recording) record(ctx context.Context, s *shell.Shell, set *client.Set) (err error) {
	// An informer would try for ever what is not allowed.
	if _, err := set.Kube.CoreV1().Pods(o.namespace).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	file, err := unfinished(o.to)
	if err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	defer func() { err = errors.Join(err, file.end(err == nil)) }()
	if o.length > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, o.length)
		defer stop()
	}
	var names *arrivals.Names
	if o.anonymous {
		names = arrivals.NewNames()
	}
	r := arrivals.New(file, names, time.Now)
	inf := informers.NewSharedInformerFactoryWithOptions(set.Kube, 0, informers.WithNamespace(o.namespace)).Core().V1().Pods().Informer()
	if err := r.Run(ctx, inf, func() { s.PrintLine("recording to " + o.to) }); err != nil {
		return err
	}
	sum, err := r.Finish()
	if err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	fmt.Fprintf(s.Out, "%d pods recorded; left out: %d of nodes (DaemonSets, static), %d that were deleted before they had a node\n", sum.Pods, sum.OfNodes, sum.NeverRan)
	if sum.Truncated {
		s.PrintLine("note: the recording ended early: a simulation takes no more pods")
	}
	return nil
}

// part is a file that is written under another name until it is whole: who finds the file has all of it.
type part struct {
	*os.File
	to string
}

// unfinished begins a file that must not exist.
func unfinished(to string) (*part, error) {
	if _, err := os.Lstat(to); err == nil {
		return nil, &os.PathError{Op: "create", Path: to, Err: os.ErrExist}
	}
	file, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".*.part")
	if err != nil {
		return nil, err
	}
	return &part{file, to}, nil
}

// end gives the file its name where it is whole; otherwise nothing is left.
func (p *part) end(whole bool) error {
	err := p.Close()
	if whole && err == nil {
		// Unlike a rename, a link replaces nothing that somebody has written meanwhile. Not every file system has links.
		if err = os.Link(p.Name(), p.to); err != nil && !errors.Is(err, os.ErrExist) {
			return os.Rename(p.Name(), p.to)
		}
	}
	return errors.Join(err, os.Remove(p.Name()))
}
