// SPDX-License-Identifier: Apache-2.0

// Package removal is the record of nodes that an operator took out of the cluster, and
// what refuses their certificates: a machine that still runs must not register again with
// the one that it has. The record is a ConfigMap of kube-system that says of each name when
// its node was removed; a certificate from before is refused, by every server, and
// one that the machine is given when it joins anew is not. A node that was merely deleted
// (kubectl delete node) may come back, as everywhere. A light server that was removed is in the record
// too: it is the servers that keep the store which refuse it.
package removal

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

const (
	// ConfigMap of kube-system is the record: the name of a node, and a time (RFC 3339).
	ConfigMap = "wasmplane-removed-nodes"
	// keep is longer than any certificate of a node lives.
	keep       = 400 * 24 * time.Hour
	nodePrefix = "system:node:"
)

// Record writes down that a node is removed. It comes before the Node is deleted, so that
// its kubelet finds the door closed.
func Record(ctx context.Context, kube kubernetes.Interface, node string, at time.Time) error {
	maps := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	changed := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultBackoff, changed, func() error {
		has, err := maps.Get(ctx, ConfigMap, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			first := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ConfigMap}, Data: map[string]string{node: format(at)}}
			_, err = maps.Create(ctx, first, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		if has.Data == nil {
			has.Data = map[string]string{}
		}
		for name, text := range has.Data {
			if then, err := time.Parse(time.RFC3339, text); err == nil && at.Sub(then) > keep {
				delete(has.Data, name)
			}
		}
		has.Data[node] = format(at)
		_, err = maps.Update(ctx, has, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("record that node %s is removed: %w", node, err)
	}
	return nil
}

// format rounds up: certificates begin at whole seconds, and one that began in the second
// of the removal is from before it.
func format(at time.Time) string {
	return at.Add(time.Second - time.Nanosecond).UTC().Truncate(time.Second).Format(time.RFC3339)
}

// Guard refuses the certificates of removed nodes.
type Guard struct {
	client   kubernetes.Interface
	informer cache.SharedIndexInformer
}

// New makes a guard that follows the record through client.
func New(client kubernetes.Interface) *Guard {
	only := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", ConfigMap).String()
	}
	f := informers.NewSharedInformerFactoryWithOptions(
		client, 0, informers.WithNamespace(metav1.NamespaceSystem), informers.WithTweakListOptions(only))
	return &Guard{client: client, informer: f.Core().V1().ConfigMaps().Informer()}
}

// Run follows the record until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	g.informer.RunWithContext(ctx)
	return nil
}

// Check is an error for a certificate of a node that was removed since it began. now asks
// the server, which whoever registers a node must: the Node's deletion may be known here
// before the record is.
func (g *Guard) Check(ctx context.Context, c *x509.Certificate, now bool) error {
	node, ok := strings.CutPrefix(c.Subject.CommonName, nodePrefix)
	if !ok || !slices.Contains(c.Subject.Organization, user.NodesGroup) {
		return nil
	}
	at, err := g.removed(ctx, node, now)
	if err != nil {
		return err
	}
	if c.NotBefore.Before(at) {
		return fmt.Errorf("node %s was removed from the cluster at %s, and its certificate is from before: it must join anew", node, at.Format(time.RFC3339))
	}
	return nil
}

// RemovedSince tells whether the machine of that name was removed after a certificate of its began.
func (g *Guard) RemovedSince(ctx context.Context, name string, begins time.Time) (bool, error) {
	at, err := g.removed(ctx, name, false)
	return begins.Before(at), err
}

// removed is when the machine of that name was removed; zero = it was not.
func (g *Guard) removed(ctx context.Context, name string, now bool) (at time.Time, err error) {
	record, err := g.record(ctx, now)
	if err != nil || record == nil {
		return at, err
	}
	text, ok := record.Data[name]
	if !ok {
		return at, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err != nil {
		return at, fmt.Errorf("config map %s/%s: when %s was removed cannot be read, so that its certificate is refused: %w", metav1.NamespaceSystem, ConfigMap, name, err)
	}
	return at, nil
}

func (g *Guard) record(ctx context.Context, now bool) (*corev1.ConfigMap, error) {
	if !now && g.informer.HasSynced() {
		has, ok, err := g.informer.GetStore().GetByKey(metav1.NamespaceSystem + "/" + ConfigMap)
		if err != nil || !ok {
			return nil, err
		}
		record, ok := has.(*corev1.ConfigMap)
		if !ok {
			return nil, errors.New("the record of removed nodes is no config map")
		}
		return record, nil
	}
	record, err := g.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nothing was removed
	}
	if err != nil {
		return nil, fmt.Errorf("ask which nodes were removed: %w", err)
	}
	return record, nil
}
