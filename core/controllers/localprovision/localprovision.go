// SPDX-License-Identifier: Apache-2.0

// Package localprovision makes, expands and deletes the PersistentVolumes that are on
// nodes' own disks (package localvolume), for claims of classes whose provisioner is
// local.wasmplane.io. It has no driver to ask: what it writes, the node carries out.
//
// A volume is made once the scheduler has chosen a node for the claim's first
// consumer, and only if the node offers room; otherwise the choice is taken back, so
// that another node may be chosen. A copy is made on the node that has its source,
// whichever was chosen. What is in the way is an event on the claim. What is
// behind the volume is the node's own to make and to remove.
//
// The first node that offers room brings the class with it (class.go).
package localprovision

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

// item is a claim, a volume, or the class.
type item struct{ kind, namespace, name string }

// Parts has the loop give namespaces their turns.
func (i item) Parts() (namespace, name string) { return i.namespace, i.name }

const (
	aClaim  = "PersistentVolumeClaim"
	aVolume = "PersistentVolume"
	aClass  = "StorageClass"
)

// Controller makes and deletes volumes.
type Controller struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	nodes   corelisters.NodeLister
	classes storagelisters.StorageClassLister
	events  record.EventRecorder
	loop    *controllers.Loop[item]
}

// New makes the controller.
func New(env controllers.Env, workers int, snapshots dynamic.Interface) (*Controller, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	claims, volumes, nodes, classes := core.PersistentVolumeClaims(), core.PersistentVolumes(), core.Nodes(), storage.StorageClasses()
	c := &Controller{
		client: env.Client, dynamic: snapshots, claims: claims.Lister(), volumes: volumes.Lister(), nodes: nodes.Lister(),
		classes: classes.Lister(),
		events:  env.Recorder("local-volume-controller"),
	}
	c.loop = controllers.NewLoop(env, "local-volume-controller", workers, c.reconcile)
	c.loop.Watch(claims.Informer(), controllers.EachObject(func(o metav1.Object) {
		c.loop.Add(item{aClaim, o.GetNamespace(), o.GetName()})
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && claim.Status.Phase == corev1.ClaimBound {
			for _, clone := range c.waiting(claim) {
				c.loop.Add(clone)
			}
		}
	}))
	c.loop.Watch(volumes.Informer(), controllers.EachObject(func(o metav1.Object) {
		if pv, ok := o.(*corev1.PersistentVolume); ok && localvolume.Ours(pv) {
			c.loop.Add(item{kind: aVolume, name: pv.Name})
		}
	}))
	c.loop.Watch(nodes.Informer(), controllers.Changes(c.node))
	c.loop.Watch(classes.Informer(), controllers.Changes(func(old, current metav1.Object) {
		if class, ok := current.(*storagev1.StorageClass); ok && old == nil && class.Provisioner == localvolume.Provisioner {
			c.every() // claims that came before their class
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) node(old, current metav1.Object) {
	if current == nil {
		// Its volumes wait for it no longer.
		gone, err := c.volumes.List(labels.SelectorFromSet(labels.Set{localvolume.NodeLabel: localvolume.LabelOf(old.GetName())}))
		if err != nil {
			return
		}
		for _, pv := range gone {
			c.loop.Add(item{kind: aVolume, name: pv.Name})
		}
		return
	}
	if offers(current) && (old == nil || !offers(old)) {
		c.loop.Add(item{kind: aClass})
	}
}

func offers(node metav1.Object) bool { return node.GetLabels()[localvolume.Offered] == "true" }

func (c *Controller) every() {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return
	}
	for _, claim := range all {
		c.loop.Add(item{aClaim, claim.Namespace, claim.Name})
	}
}

func (c *Controller) reconcile(ctx context.Context, key item) error {
	switch key.kind {
	case aClaim:
		claim, err := c.claims.PersistentVolumeClaims(key.namespace).Get(key.name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return c.provision(ctx, claim)
	case aVolume:
		pv, err := c.volumes.Get(key.name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return c.reclaim(ctx, pv)
	default:
		return c.offer(ctx)
	}
}

// provision makes the volume of a claim.
func (c *Controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.DeletionTimestamp != nil {
		return nil
	}
	if claim.Spec.VolumeName != "" {
		return c.grow(ctx, claim)
	}
	class, err := c.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if apierrors.IsNotFound(err) || err == nil && class.Provisioner != localvolume.Provisioner {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, aClaim, claim)
	if why := unfit(claim, class); why != "" {
		c.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", why)
		return nil // only a change of the claim, or of the class, helps
	}
	name := claim.Annotations[volume.AnnSelectedNode]
	if name == "" {
		return nil
	}
	if _, err := c.volumes.Get(localvolume.Name(claim)); err == nil {
		return nil
	}
	from, err := c.copyOf(ctx, claim)
	if err != nil {
		return err
	}
	if from.why != "" {
		c.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", from.why)
		return controllers.ErrNotYet
	}
	if name, err = c.where(from, name); err != nil {
		return err
	}
	node, why, err := c.room(claim, name)
	if err != nil {
		return err
	}
	if why != "" {
		return c.reschedule(ctx, claim, why)
	}
	pv, err := localvolume.New(claim, node, class, from.of)
	if err != nil {
		return c.reschedule(ctx, claim, err.Error())
	}
	if err := c.driver(ctx); err != nil {
		return err
	}
	made, err := c.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the volume of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	controllers.Did(ctx, "made the volume of a claim", aVolume, made)
	c.events.Event(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", provisioned(pv, class))
	return nil
}

// provisioned says that a volume was made, and of one whose size is not enforced that it is so.
func provisioned(pv *corev1.PersistentVolume, class *storagev1.StorageClass) string {
	message := "Successfully provisioned volume " + pv.Name
	if *pv.Spec.VolumeMode == corev1.PersistentVolumeFilesystem && class.Parameters[localvolume.LimitParameter] == "" {
		message += fmt.Sprintf(": pods may write more to it than its size; a class with the parameter %s: %s makes volumes that are held to theirs",
			localvolume.LimitParameter, localvolume.LimitImage)
	}
	return message
}

// unfit says why no local volume can be what a claim asks for; "" = one can.
func unfit(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	one := func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
	}
	_, limit := localvolume.LimitOf(class.Parameters)
	switch {
	case class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return fmt.Sprintf("class %s binds before a node is known, and a local volume is of one node: make a class with volumeBindingMode: WaitForFirstConsumer", class.Name)
	case !slices.ContainsFunc(claim.Spec.AccessModes, one) || slices.ContainsFunc(claim.Spec.AccessModes,
		func(m corev1.PersistentVolumeAccessMode) bool { return !one(m) }):
		return fmt.Sprintf("local volumes are of one node: accessModes may be ReadWriteOnce or ReadWriteOncePod, found %v", claim.Spec.AccessModes)
	case limit != nil:
		return limit.Error()
	case claim.Spec.Selector != nil:
		return "a volume that is made has no labels to be selected by: leave out spec.selector, or make the volume by hand"
	}
	return ""
}

// where a volume is made: on the chosen node, but a copy where its source is. The scheduler
// knows nothing of sources; it finds the volume bound to another node than it chose, and the
// pod follows.
func (c *Controller) where(from source, chosen string) (string, error) {
	if from.node == "" || from.node == localvolume.LabelOf(chosen) {
		return chosen, nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return "", err
	}
	for _, n := range nodes {
		if localvolume.LabelOf(n.Name) == from.node {
			return n.Name, nil
		}
	}
	return from.node, nil // which is not there, and room says so
}

// room is the chosen node, or why the volume cannot be there.
func (c *Controller) room(claim *corev1.PersistentVolumeClaim, name string) (*corev1.Node, string, error) {
	node, err := c.nodes.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("node %s is not there any more", name), nil
	case err != nil:
		return nil, "", err
	case !offers(node):
		return nil, fmt.Sprintf("node %s offers no local volumes (node.localVolumes of its configuration)", name), nil
	}
	if slices.ContainsFunc(node.Status.Conditions, func(n corev1.NodeCondition) bool {
		return n.Type == corev1.NodeDiskPressure && n.Status == corev1.ConditionTrue
	}) {
		return nil, fmt.Sprintf("the disk of node %s is nearly full", name), nil
	}
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	why, err := c.beyond(node, want)
	return node, why, err
}

// beyond says why a node's disk has no room for as much as is asked for; "" = it has.
// What was promised to others counts, whether or not it is written.
func (c *Controller) beyond(node *corev1.Node, want resource.Quantity) (string, error) {
	disk, ok := node.Status.Capacity[corev1.ResourceEphemeralStorage]
	if !ok {
		return "", nil
	}
	here, err := c.volumes.List(labels.SelectorFromSet(labels.Set{localvolume.NodeLabel: localvolume.LabelOf(node.Name)}))
	if err != nil {
		return "", err
	}
	promised := resource.Quantity{Format: resource.BinarySI}
	for _, pv := range here {
		promised.Add(pv.Spec.Capacity[corev1.ResourceStorage])
	}
	left := disk.DeepCopy()
	if left.Sub(promised); left.Cmp(want) >= 0 {
		return "", nil
	}
	why := fmt.Sprintf("%s are asked for, and the disk of node %s has %s", want.String(), node.Name, round(disk))
	if !promised.IsZero() {
		why += fmt.Sprintf(", of which %s are promised to other volumes", promised.String())
	}
	return why, nil
}

func round(q resource.Quantity) string {
	return resource.NewQuantity(q.Value()>>20<<20, resource.BinarySI).String()
}

// reschedule gives the choice of a node back to the scheduler.
func (c *Controller) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim, why string) error {
	c.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", why)
	next := claim.DeepCopy()
	delete(next.Annotations, volume.AnnSelectedNode)
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("take the node back from claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	controllers.Did(ctx, "took the chosen node back: "+why, aClaim, nil)
	return nil
}

// reclaim deletes volumes that were released, and lets those go whose node has gone.
func (c *Controller) reclaim(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !localvolume.Ours(pv) {
		return nil
	}
	controllers.About(ctx, aVolume, pv)
	if pv.DeletionTimestamp != nil {
		return c.abandon(ctx, pv)
	}
	if pv.Status.Phase != corev1.VolumeReleased || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	opts := controllers.DeleteExactly(pv)
	opts.Preconditions.ResourceVersion = &pv.ResourceVersion // it may have been kept, or claimed, since
	err := c.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, opts)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete volume %s, which was released: %w", pv.Name, err)
	}
	controllers.Did(ctx, "deleted, because it was released", aVolume, nil)
	return nil
}

// abandon takes the finalizer off a volume whose node has left the cluster: nobody
// else could. What is on that machine's disk stays there.
func (c *Controller) abandon(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !slices.Contains(pv.Finalizers, localvolume.Finalizer) || pv.Labels[localvolume.NodeLabel] == "" {
		return nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if localvolume.On(n.Name, pv) {
			return nil
		}
	}
	live, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("look for the node of volume %s: %w", pv.Name, err)
	}
	for i := range live.Items {
		if localvolume.On(live.Items[i].Name, pv) {
			return nil
		}
	}
	next := pv.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == localvolume.Finalizer })
	if _, err := c.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("let volume %s go, whose node has left: %w", pv.Name, err)
	}
	controllers.Did(ctx, "let go, because its node has left", aVolume, nil)
	return nil
}
