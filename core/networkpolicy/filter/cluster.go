// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
)

// ClusterNetworkPolicies are custom resources, whose definition administrators install, or take away, while nodes run.
const (
	// Definition is the name of theirs.
	Definition  = "clusternetworkpolicies." + policyv1alpha2.GroupName
	clusterKind = "ClusterNetworkPolicy"
)

var (
	definitions     = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	clusterPolicies = schema.GroupVersionResource{
		Group: policyv1alpha2.GroupName, Version: policyv1alpha2.GroupVersion.Version, Resource: "clusternetworkpolicies",
	}
)

// followDefinition follows policies of the cluster for as long as there is a definition of them, until ctx ends.
func (f *Filter) followDefinition(ctx context.Context) error {
	if f.cfg.Dynamic == nil {
		return nil
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(f.cfg.Dynamic, 0, metav1.NamespaceAll,
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + Definition })
	informer := factory.ForResource(definitions).Informer()
	changed := make(chan struct{}, 1)
	nudge := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { nudge() }, UpdateFunc: func(_, _ any) { nudge() }, DeleteFunc: func(any) { nudge() },
	}); err != nil {
		return fmt.Errorf("follow whether ClusterNetworkPolicies are defined: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	stop := func() {}
	defer func() { stop() }()
	following := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		serves := false
		for _, o := range informer.GetStore().List() {
			if u, ok := o.(*unstructured.Unstructured); ok && u.GetName() == Definition {
				serves = f.serves(ctx, u)
			}
		}
		switch {
		case serves && !following:
			end, err := f.followCluster(ctx)
			if err != nil {
				return err
			}
			stop = end
		case !serves && following:
			stop()
			stop = func() {}
			f.forgetCluster()
		}
		following = serves
	}
}

// serves says of a definition whether the version that is enforced here can be had by it.
func (f *Filter) serves(ctx context.Context, definition *unstructured.Unstructured) bool {
	established, served := readDefinition(definition)
	if established && !served {
		text := fmt.Sprintf(
			"The definition does not serve the version %s, which is the one that this node enforces: no ClusterNetworkPolicy is in force",
			policyv1alpha2.GroupVersion.Version,
		)
		f.cfg.Log.WarnContext(ctx, "cluster network policies are not enforced: their definition does not serve the version that is",
			"definition", Definition, "version", policyv1alpha2.GroupVersion.Version)
		f.events.Event(&corev1.ObjectReference{
			APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition", Name: Definition, UID: definition.GetUID(),
		}, corev1.EventTypeWarning, "NotEnforced", text)
	}
	return established && served
}

func readDefinition(definition *unstructured.Unstructured) (established, served bool) {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	established = slices.ContainsFunc(conditions, func(o any) bool {
		c, _ := o.(map[string]any)
		return c["type"] == "Established" && c["status"] == "True"
	})
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	return established, slices.ContainsFunc(versions, func(o any) bool {
		v, _ := o.(map[string]any)
		return v["name"] == policyv1alpha2.GroupVersion.Version && v["served"] == true
	})
}

// followCluster follows policies of the cluster, and nodes, which only they speak of, until end is called.
func (f *Filter) followCluster(ctx context.Context) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	policies := dynamicinformer.NewDynamicSharedInformerFactory(f.cfg.Dynamic, 0)
	nodes := informers.NewSharedInformerFactoryWithOptions(f.cfg.Client, 0, informers.WithTransform(slimNode))
	end = func() {
		cancel()
		policies.Shutdown()
		nodes.Shutdown()
	}
	_, errPolicies := f.hear(policies.ForResource(clusterPolicies).Informer(), f.clusterPolicy)
	_, errNodes := f.hear(nodes.Core().V1().Nodes().Informer(), f.node)
	if err := errors.Join(errPolicies, errNodes); err != nil {
		end()
		return nil, err
	}
	policies.Start(ctx.Done())
	nodes.Start(ctx.Done())
	return end, nil
}

// slimNode keeps of a node what policies can see.
func slimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels}}
	out.Status.Addresses = n.Status.Addresses
	return out, nil
}

// forgetCluster ends all policies of the cluster: their definition is gone, and they are with it.
func (f *Filter) forgetCluster() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.seen {
		if key.Namespace == "" {
			f.dropClusterPolicy(key.Name)
		}
	}
	for name := range f.seenNodes {
		f.dropNode(name)
	}
	f.changes++
	f.advance()
	f.nudge()
}

func (f *Filter) dropClusterPolicy(name string) {
	delete(f.seen, types.NamespacedName{Name: name})
	delete(f.unreadable, types.NamespacedName{Name: name})
	f.plan.RemoveClusterPolicy(name)
}

func (f *Filter) dropNode(name string) {
	delete(f.seenNodes, name)
	f.plan.RemoveNode(name)
}

func (f *Filter) clusterPolicy(o any, gone bool) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	if gone {
		f.dropClusterPolicy(u.GetName())
		return
	}
	key := types.NamespacedName{Name: u.GetName()}
	f.seen[key] = metav1.ObjectMeta{UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}
	np, err := readClusterPolicy(u)
	if err != nil {
		f.unreadable[key] = fmt.Errorf("%w; what was read of it before stays in force, if anything was", err)
		return
	}
	delete(f.unreadable, key)
	f.plan.SetClusterPolicy(np)
}

// readClusterPolicy fails only where the definition is not upstream's.
func readClusterPolicy(u *unstructured.Unstructured) (*policyv1alpha2.ClusterNetworkPolicy, error) {
	np := &policyv1alpha2.ClusterNetworkPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, np); err != nil {
		return nil, fmt.Errorf("it cannot be read as a %s of %s: %w", clusterKind, policyv1alpha2.GroupVersion, err)
	}
	return np, nil
}

func (f *Filter) node(o any, gone bool) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	if gone {
		f.dropNode(n.Name)
		return
	}
	f.seenNodes[n.Name] = n.ResourceVersion
	texts := make([]string, 0, len(n.Status.Addresses))
	for _, a := range n.Status.Addresses {
		texts = append(texts, a.Address) // some are names
	}
	f.plan.SetNode(n.Name, n.Labels, parse(texts))
}

// askCluster reads which policies of the cluster there are, and the nodes, if any speaks of them.
func (f *Filter) askCluster(ctx context.Context, now *state) error {
	if f.cfg.Dynamic == nil {
		return nil
	}
	definition, err := f.cfg.Dynamic.Resource(definitions).Get(ctx, Definition, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask whether ClusterNetworkPolicies are defined: %w", err)
	}
	if established, served := readDefinition(definition); !established || !served {
		return nil // nobody could have made one
	}
	// A server may be behind: it does not find the resource then, and is asked again.
	list, err := f.cfg.Dynamic.Resource(clusterPolicies).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("ask which ClusterNetworkPolicies there are: %w", err)
	}
	now.cluster = list.Items
	asks := func(u unstructured.Unstructured) bool {
		np, err := readClusterPolicy(&u)
		return err == nil && networkpolicy.AsksForNodes(np)
	}
	if slices.ContainsFunc(now.cluster, asks) {
		nodes, err := f.cfg.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("ask which nodes there are: %w", err)
		}
		now.nodes = nodes.Items
	}
	return nil
}
