// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Namespaces answers the labels of namespaces from the API, remembered for a few
// seconds: every admission request of a plugin with a namespaceSelector asks.
type Namespaces struct {
	Kube kubernetes.Interface

	mu    sync.Mutex
	known map[string]knownNamespace
}

type knownNamespace struct {
	labels map[string]string
	ok     bool
	until  time.Time
}

const (
	namespacesFor = 5 * time.Second
	maxNamespaces = 10_000
)

// Labels of a namespace; ok is false for one that is not there. While the API does not
// answer, what was known last counts.
func (n *Namespaces) Labels(ctx context.Context, name string) (map[string]string, bool) {
	n.mu.Lock()
	k, found := n.known[name]
	n.mu.Unlock()
	if found && time.Now().Before(k.until) {
		return k.labels, k.ok
	}
	ns, err := n.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return k.labels, k.ok && found // what was known last
	}
	k = knownNamespace{ok: err == nil, until: time.Now().Add(namespacesFor)}
	if err == nil {
		k.labels = ns.Labels
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil || len(n.known) > maxNamespaces {
		n.known = map[string]knownNamespace{}
	}
	n.known[name] = k
	return k.labels, k.ok
}
