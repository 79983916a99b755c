// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/cluster"
)

// liveObject are the flags by which a command reads from a cluster.
type liveObject struct {
	ref, namespace string
	access         *shell.Access
	object         map[string]any
}

func (l *liveObject) flags(a commands, c *cobra.Command) {
	c.Flags().StringVar(&l.ref, "live", "", "`KIND/NAME` of an object in the cluster to ask about; host functions read the cluster too")
	l.clusterFlags(a, c)
}

func (l *liveObject) clusterFlags(a commands, c *cobra.Command) {
	l.access = a.Access(c.Flags())
	c.Flags().StringVarP(&l.namespace, "namespace", "n", "", "`NAMESPACE` of the object")
}

// cluster opens the cluster that the flags name.
func (l *liveObject) cluster() (*cluster.Cluster, error) {
	set, err := l.access.Client("plugin")
	if err != nil {
		return nil, err
	}
	return cluster.New(set), nil
}

// readLive reads the object that --live names, and puts the cluster behind the
// plugin's host functions.
func readLive(ctx context.Context, q *question, cfg *author.Config) error {
	if q.live.ref == "" {
		return nil
	}
	kind, name, ok := strings.Cut(q.live.ref, "/")
	if !ok || kind == "" || name == "" {
		return fmt.Errorf("--live: expected KIND/NAME such as deployment/nginx, found %q", q.live.ref)
	}
	cl, err := q.live.cluster()
	if err != nil {
		return err
	}
	cfg.Objects, cfg.Namespaces = cl, cl.Namespaces
	q.live.object, err = cl.Read(ctx, kind, q.live.namespace, name)
	return err
}

// question is the case of a live object; nil where none is asked about.
func (l *liveObject) question(q *question) *cases.Case {
	if l.object == nil {
		return nil
	}
	return &cases.Case{Name: l.ref, Point: q.point, Operation: q.operation, User: q.user, Groups: q.groups, Object: l.object, To: q.to}
}
