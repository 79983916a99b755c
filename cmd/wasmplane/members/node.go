// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"

	"github.com/wasmplane/wasmplane/core/auth/removal"
	"github.com/wasmplane/wasmplane/core/controllers"
)

// Node is the command of that name.
func (s Shell) Node() *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "Take nodes out of use, back into it, and out of the cluster"}
	c.AddCommand(s.nodeCordon(true), s.nodeCordon(false), s.nodeDrain(), s.nodeRemove())
	return c
}

func (s Shell) nodeCordon(on bool) *cobra.Command {
	c := &cobra.Command{Use: "cordon NODE", Short: "Give a node no new pods; those that run stay", Args: cobra.ExactArgs(1)}
	if !on {
		c = &cobra.Command{Use: "uncordon NODE", Short: "Give a node pods again", Args: cobra.ExactArgs(1)}
	}
	access := s.Access(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		kube, err := s.client(access)
		if err != nil {
			return err
		}
		if err := s.cordon(c.Context(), kube, args[0], on); err != nil {
			return err
		}
		fmt.Fprintln(s.Out, "node", args[0], map[bool]string{true: "is given no new pods", false: "is given pods again"}[on])
		return nil
	}
	return c
}

func (s Shell) cordon(ctx context.Context, kube kubernetes.Interface, name string, on bool) error {
	node, err := findNode(ctx, kube, name)
	if err != nil {
		return err
	}
	if err := drain.RunCordonOrUncordon(&drain.Helper{Ctx: ctx, Client: kube, Out: s.Out, ErrOut: s.Err}, node, on); err != nil {
		return fmt.Errorf("mark node %s: %w", name, err)
	}
	return nil
}

func findNode(ctx context.Context, kube kubernetes.Interface, name string) (*corev1.Node, error) {
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no node %q; `wasmplane kubectl get nodes` shows those that there are", name)
	}
	if err != nil {
		return nil, fmt.Errorf("look at node %s: %w", name, err)
	}
	return node, nil
}

func (s Shell) nodeDrain() *cobra.Command {
	var timeout time.Duration
	var emptyDirs, force bool
	c := &cobra.Command{
		Use: "drain NODE", Short: "Give a node no new pods, and move those that run to others", Args: cobra.ExactArgs(1),
		Long: `Give a node no new pods, and evict those that run, so that their controllers make
them anew on other nodes. Budgets of disruption hold: an eviction that one forbids
is tried again until the time is over. Pods of DaemonSets stay.`,
	}
	access := s.Access(c.Flags())
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "`TIME` after which it gives up")
	c.Flags().BoolVar(&emptyDirs, "delete-emptydir-data", false, "evict pods with emptyDir volumes too; what is in them is lost")
	c.Flags().BoolVar(&force, "force", false, "delete pods too that no controller makes anew")
	c.RunE = func(c *cobra.Command, args []string) error {
		kube, err := s.client(access)
		if err != nil {
			return err
		}
		if err := s.cordon(c.Context(), kube, args[0], true); err != nil {
			return err
		}
		err = drain.RunNodeDrain(&drain.Helper{
			Ctx: c.Context(), Client: kube, Force: force, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: emptyDirs,
			Timeout: timeout, Out: s.Out, ErrOut: s.Err,
		}, args[0])
		if err != nil {
			return fmt.Errorf("drain node %s: %w; it is given no new pods (`wasmplane node uncordon %s` undoes that)", args[0], err, args[0])
		}
		fmt.Fprintln(s.Out, "node", args[0], "is drained")
		return nil
	}
	return c
}

func (s Shell) nodeRemove() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "remove NODE", Short: "Take a node whose machine is gone out of the cluster", Args: cobra.ExactArgs(1),
		Long: `Take a node whose machine is gone out of the cluster: its pods are made anew on
other nodes, and its name is free. A machine that lives leaves by itself: run
wasmplane down on it. Should it still run, or come back, the cluster refuses its
certificate; it can join anew.

A server is taken out of those that keep the store, too, while more than half of the
others answer. One that comes back later is told so, and stops.`,
	}
	access := s.Access(c.Flags())
	c.Flags().BoolVar(&force, "force", false, "remove it though its kubelet answers")
	c.RunE = func(c *cobra.Command, args []string) error {
		kube, err := s.client(access)
		if err != nil {
			return err
		}
		server, err := removeServer(c.Context(), kube, args[0], force)
		if err != nil {
			return err
		}
		if server {
			fmt.Fprintln(s.Out, "server", args[0], "is removed")
		}
		node, err := findNode(c.Context(), kube, args[0])
		if err != nil && server {
			return nil // not every server runs a node
		}
		if err != nil {
			return err
		}
		if controllers.NodeReady(node) && !force && !server {
			return fmt.Errorf("node %s lives: run `wasmplane down` on its machine, which takes it out; --force removes it all the same, and the cluster refuses the machine from then on", node.Name)
		}
		// A server has the authority's key: nothing keeps it out but other keys.
		if !server {
			if err := removal.Record(c.Context(), kube, node.Name, time.Now()); err != nil {
				return err
			}
		}
		err = kube.CoreV1().Nodes().Delete(c.Context(), node.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove node %s: %w", node.Name, err)
		}
		fmt.Fprintln(s.Out, "node", node.Name, "is removed")
		return nil
	}
	return c
}
