// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/client"
)

// cluster reads the cluster that runs, or the one that a backup was taken of.
func (o *options) cluster(ctx context.Context, s *shell.Shell, access *shell.Access) error {
	if o.fromBackup != "" {
		return o.backup()
	}
	if !o.live {
		return nil
	}
	set, err := access.Client("simulate")
	if err != nil {
		return err
	}
	o.From = "the cluster"
	return o.list(ctx, s, set)
}

// list what the scheduler looks at. Nodes and pods have to be readable; of the rest it is said what is not.
func (o *options) list(ctx context.Context, s *shell.Shell, set *client.Set) error {
	for _, one := range listed(set.Kube) {
		if o.nodesOnly && one.what != "nodes" {
			continue
		}
		err := pager.New(one.list).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
			o.Cluster = append(o.Cluster, object)
			return nil
		})
		switch {
		case err == nil:
		case one.needed:
			return fmt.Errorf("list %s of %s: %w", one.what, o.From, err)
		case apierrors.IsForbidden(err):
			s.PrintLine("note: " + one.what + " are left out: you may not list them")
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("list %s of %s: %w", one.what, o.From, err)
		}
	}
	return nil
}

type kindOf struct {
	what   string
	needed bool
	list   pager.ListPageFunc
}

func listed(kube kubernetes.Interface) []kindOf {
	core, apps := kube.CoreV1(), kube.AppsV1()
	return []kindOf{
		{"nodes", true, page(core.Nodes().List)},
		{"pods", true, page(core.Pods("").List)},
		{"namespaces", false, page(core.Namespaces().List)},
		{"services", false, page(core.Services("").List)},
		{"replication controllers", false, page(core.ReplicationControllers("").List)},
		{"replica sets", false, page(apps.ReplicaSets("").List)},
		{"stateful sets", false, page(apps.StatefulSets("").List)},
		{"disruption budgets", false, page(kube.PolicyV1().PodDisruptionBudgets("").List)},
		{"priority classes", false, page(kube.SchedulingV1().PriorityClasses().List)},
		{"pod groups", false, page(kube.SchedulingV1beta1().PodGroups("").List)},
	}
}

func page[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) pager.ListPageFunc {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		found, err := list(ctx, o)
		if err == nil && !meta.IsListType(found) {
			err = errors.New("expected a list")
		}
		return found, err
	}
}
