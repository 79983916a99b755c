// SPDX-License-Identifier: Apache-2.0

// Package nodeauth is upstream's Node authorizer: a kubelet reads the secrets,
// config maps, claims and volumes of the pods that are bound to its node, and no
// others. A graph that informers keep up to date answers without a request. Beyond
// upstream's, a node may delete itself: a machine that leaves takes its node along.
package nodeauth

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/wasmplane/wasmplane/core/localvolume"
)

// Authorizer answers for requests of nodes (users system:node:NAME in group
// system:nodes), and has no opinion of others.
type Authorizer struct {
	*node.NodeAuthorizer
	volumes corelisters.PersistentVolumeLister
	synced  []cache.InformerSynced
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
		volumes:        pvs.Lister(),
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

// Authorize implements authorizer.Authorizer: upstream's answer, and for the node's
// own directories (package localvolume) that it lists and watches those volumes that
// are on it, by their label, and writes to them. What it may write is admission's. And
// a node may delete itself.
func (a *Authorizer) Authorize(ctx context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
	if r.GetAPIGroup() == "" && r.IsResourceRequest() && r.GetSubresource() == "" {
		name, isNode := Identify(r.GetUser())
		switch isNode = isNode && name != ""; {
		case isNode && r.GetResource() == "persistentvolumes" && a.local(name, r),
			isNode && r.GetResource() == "nodes" && r.GetVerb() == "delete" && r.GetName() == name:
			return authorizer.DecisionAllow, "", nil
		}
	}
	return a.NodeAuthorizer.Authorize(ctx, r)
}

func (a *Authorizer) local(node string, r authorizer.Attributes) bool {
	switch r.GetVerb() {
	case "list", "watch":
		requirements, err := r.GetLabelSelector()
		return err == nil && slices.ContainsFunc(requirements, func(l labels.Requirement) bool {
			one := l.Operator() == selection.In || l.Operator() == selection.Equals || l.Operator() == selection.DoubleEquals
			return one && l.Key() == localvolume.NodeLabel && l.Values().Equal(sets.NewString(localvolume.LabelOf(node)))
		})
	case "update":
		pv, err := a.volumes.Get(r.GetName())
		return err == nil && localvolume.On(node, pv)
	}
	return false
}

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
