// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/cluster"
)

// liveObject are the flags by which a command reads from a cluster.
type liveObject struct {
	ref, namespace, kubeconfig string
	s                          settings
	object                     map[string]any
}

func (l *liveObject) flags(a *app, c *cobra.Command) {
	c.Flags().StringVar(&l.ref, "live", "", "`KIND/NAME` of an object in the cluster to ask about; host functions read the cluster too")
	l.clusterFlags(a, c)
}

func (l *liveObject) clusterFlags(a *app, c *cobra.Command) {
	a.addDataDir(c.Flags(), &l.s)
	c.Flags().StringVarP(&l.namespace, "namespace", "n", "", "`NAMESPACE` of the object")
	c.Flags().StringVar(&l.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, then the data directory's)")
}

// cluster opens the cluster that the flags name.
func (a *app) cluster(c *cobra.Command, l *liveObject) (*cluster.Cluster, error) {
	path, err := a.kubeconfig(c.Flags(), &l.s, l.kubeconfig)
	if err != nil {
		return nil, err
	}
	return cluster.Open(path)
}

// readLive reads the object that --live names, and puts the cluster behind the
// plugin's host functions.
func (a *app) readLive(c *cobra.Command, q *question, cfg *author.Config) error {
	if q.live.ref == "" {
		return nil
	}
	kind, name, ok := strings.Cut(q.live.ref, "/")
	if !ok || kind == "" || name == "" {
		return fmt.Errorf("--live: expected KIND/NAME such as deployment/nginx, found %q", q.live.ref)
	}
	cl, err := a.cluster(c, &q.live)
	if err != nil {
		return err
	}
	cfg.Objects, cfg.Namespaces = cl, cl.Namespaces
	q.live.object, err = cl.Read(c.Context(), kind, q.live.namespace, name)
	return err
}

// question is the case of a live object; nil where none is asked about.
func (l *liveObject) question(q *question) *cases.Case {
	if l.object == nil {
		return nil
	}
	return &cases.Case{Name: l.ref, Point: q.point, Operation: q.operation, User: q.user, Groups: q.groups, Object: l.object, To: q.to}
}
