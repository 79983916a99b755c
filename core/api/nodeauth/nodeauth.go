// SPDX-License-Identifier: Apache-2.0

// Package nodeauth is upstream's Node authorizer: a kubelet reads the secrets,
// config maps, claims and volumes of the pods that are bound to its node, and no
// others. A graph that informers keep up to date answers without a request.
package nodeauth

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Authorizer answers for requests of nodes (users system:node:NAME in group
// system:nodes), and has no opinion of others.
type Authorizer struct {
	*node.NodeAuthorizer
	synced []cache.InformerSynced
}

// New makes an authorizer and registers its graph with f's informers of nodes,
// pods, persistent volumes, volume attachments, resource slices and pod
// certificate requests. The caller starts f.
func New(f informers.SharedInformerFactory) *Authorizer {
	graph := node.NewGraph()
	nodes, pods, pvs := f.Core().V1().Nodes(), f.Core().V1().Pods(), f.Core().V1().PersistentVolumes()
	attachments, slices := f.Storage().V1().VolumeAttachments(), f.Resource().V1().ResourceSlices()
	requests := f.Certificates().V1().PodCertificateRequests()
	node.AddGraphEventHandlers(graph, nodes, pods, pvs, attachments, slices, requests)
	return &Authorizer{
		NodeAuthorizer: node.NewAuthorizer(graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules()),
		synced: []cache.InformerSynced{
			nodes.Informer().HasSynced, pods.Informer().HasSynced, pvs.Informer().HasSynced,
			attachments.Informer().HasSynced, slices.Informer().HasSynced, requests.Informer().HasSynced,
		},
	}
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// Name implements authz.Authorizer.
func (a *Authorizer) Name() string { return "Node" }

// WaitForSync blocks until the graph has been filled once. Until then nodes are
// refused what they would be allowed later, and try again.
func (a *Authorizer) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), a.synced...) {
		return fmt.Errorf("fill the node authorizer's graph: %w", context.Cause(ctx))
	}
	return nil
}

// Identify says whether a user is a node, and which; name is "" for a member of
// system:nodes whose name is not system:node:NAME.
func Identify(u user.Info) (name string, isNode bool) {
	return nodeidentifier.NewDefaultNodeIdentifier().NodeIdentity(u)
}
