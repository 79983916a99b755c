// SPDX-License-Identifier: Apache-2.0

// Package attachdetach writes VolumeAttachments: which volumes of CSI drivers have to be
// attached to which nodes. The drivers' own attachers carry them out. plan.go, which is
// pure, decides about each volume.
//
// A node's status lists the volumes that it may have mounted (volumesInUse, by its kubelet):
// those stay attached. They are detached nevertheless if the Node has the taint
// out-of-service, or if it is not ready, or gone, six minutes after the last pod that used
// the volume is gone.
package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/attachment"
	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	aVolume = "PersistentVolume"
	aNode   = "Node"
	// The indexes of attachments.
	byVolume, byNode = "volume", "node"
)

// item is what a reconcile is about: a volume, or the status of a node.
type item struct{ kind, name string }

// Controller makes and removes VolumeAttachments.
type Controller struct {
	client      kubernetes.Interface
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	nodes       corelisters.NodeLister
	drivers     storagelisters.CSIDriverLister
	pods        cache.Indexer
	attachments cache.Indexer
	events      record.EventRecorder
	loop        *controllers.Loop[item]
	now         func() time.Time

	mu sync.Mutex
	// idle is since when attachments have no user, by name; told are the pods that were
	// told why they wait, by volume.
	idle map[string]time.Time
	told map[string]map[types.UID]string
	// made are attachments that the cache has not shown yet, by volume.
	made map[string][]string
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	pods, claims, volumes, nodes := core.Pods().Informer(), core.PersistentVolumeClaims(), core.PersistentVolumes(), core.Nodes()
	attachments, drivers := storage.VolumeAttachments().Informer(), storage.CSIDrivers()
	if err := errors.Join(controllers.IndexByClaim(pods), controllers.IndexByNode(pods)); err != nil {
		return nil, fmt.Errorf("attach-detach-controller: %w", err)
	}
	for name, of := range map[string]func(*storagev1.VolumeAttachment) string{
		byVolume: volumeOf, byNode: func(a *storagev1.VolumeAttachment) string { return a.Spec.NodeName },
	} {
		if err := controllers.AddIndex(attachments, name, func(o any) ([]string, error) {
			if a, ok := o.(*storagev1.VolumeAttachment); ok && of(a) != "" {
				return []string{of(a)}, nil
			}
			return nil, nil
		}); err != nil {
			return nil, fmt.Errorf("attach-detach-controller: %w", err)
		}
	}
	c := &Controller{
		client: env.Client, claims: claims.Lister(), volumes: volumes.Lister(), nodes: nodes.Lister(), drivers: drivers.Lister(),
		pods: pods.GetIndexer(), attachments: attachments.GetIndexer(), events: env.Recorder("attachdetach-controller"),
		now: time.Now, idle: map[string]time.Time{}, told: map[string]map[types.UID]string{}, made: map[string][]string{},
	}
	c.loop = controllers.NewLoop(env, "persistentvolume-attach-detach-controller", workers, c.reconcile)
	c.loop.Watch(pods, controllers.Changes(c.pod))
	c.loop.Watch(claims.Informer(), controllers.EachObject(func(o metav1.Object) {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName != "" {
			c.loop.Add(item{aVolume, claim.Spec.VolumeName})
		}
	}))
	c.loop.Watch(volumes.Informer(), controllers.EachObject(func(o metav1.Object) { c.loop.Add(item{aVolume, o.GetName()}) }))
	c.loop.Watch(attachments, controllers.Changes(c.attachment))
	c.loop.Watch(nodes.Informer(), controllers.Changes(c.node))
	c.loop.Watch(drivers.Informer(), controllers.EachObject(c.driver))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func volumeOf(a *storagev1.VolumeAttachment) string {
	if name := a.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

// pod queues the volumes of a pod that comes to a node, ends, or goes.
func (c *Controller) pod(old, current metav1.Object) {
	before, _ := old.(*corev1.Pod)
	now, _ := current.(*corev1.Pod)
	if before != nil && now != nil && before.Spec.NodeName == now.Spec.NodeName &&
		controllers.PodFinished(before) == controllers.PodFinished(now) {
		return
	}
	of := now
	if of == nil {
		of = before
	}
	if of == nil || of.Spec.NodeName == "" {
		return
	}
	for _, key := range controllers.PodClaims(of) {
		if claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name); err == nil && claim.Spec.VolumeName != "" {
			c.loop.Add(item{aVolume, claim.Spec.VolumeName})
		}
	}
}

func (c *Controller) node(old, current metav1.Object) {
	of := current
	if of == nil {
		of = old
	}
	before, _ := old.(*corev1.Node)
	now, _ := current.(*corev1.Node)
	if before != nil && now != nil && slices.Equal(before.Status.VolumesInUse, now.Status.VolumesInUse) &&
		slices.Equal(before.Status.VolumesAttached, now.Status.VolumesAttached) &&
		controllers.NodeReady(before) == controllers.NodeReady(now) && outOfService(before) == outOfService(now) {
		return
	}
	c.loop.Add(item{aNode, of.GetName()})
	for _, a := range c.attachmentsOf(byNode, of.GetName()) {
		c.loop.Add(item{aVolume, volumeOf(a)})
	}
	if old == nil {
		// Its pods may have been there before it.
		pods, _ := controllers.PodsOn(c.pods, of.GetName()) // fails only without the index
		for _, pod := range pods {
			c.pod(nil, pod)
		}
	}
}

func (c *Controller) attachmentsOf(index, name string) []*storagev1.VolumeAttachment {
	all, _ := controllers.Indexed[*storagev1.VolumeAttachment](c.attachments, index, name) // fails only without the index
	return all
}

// attachment queues its volume and node, and tells pods what its attacher has to say.
func (c *Controller) attachment(old, current metav1.Object) {
	before, _ := old.(*storagev1.VolumeAttachment)
	now, _ := current.(*storagev1.VolumeAttachment)
	of := now
	if of == nil {
		of = before
	}
	if of == nil || volumeOf(of) == "" {
		return
	}
	c.loop.Add(item{aVolume, volumeOf(of)})
	c.loop.Add(item{aNode, of.Spec.NodeName})
	if before == nil || now == nil {
		return
	}
	switch failed := now.Status.AttachError; {
	case now.Status.Attached && !before.Status.Attached:
		c.event(now, corev1.EventTypeNormal, "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", volumeOf(now)))
	case failed != nil && (before.Status.AttachError == nil || before.Status.AttachError.Message != failed.Message):
		c.event(now, corev1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", volumeOf(now),
			failed.Message))
	}
}

func (c *Controller) event(a *storagev1.VolumeAttachment, kind, reason, message string) {
	pv, err := c.volumes.Get(volumeOf(a))
	if err != nil {
		return
	}
	for _, pod := range c.users(pv) {
		if pod.Spec.NodeName == a.Spec.NodeName && !controllers.PodFinished(pod) {
			c.events.Event(pod, kind, reason, message)
		}
	}
}

// driver queues the volumes of a driver: what is said of it counts for them all.
func (c *Controller) driver(o metav1.Object) {
	all, err := c.volumes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, pv := range all {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == o.GetName() {
			c.loop.Add(item{aVolume, pv.Name})
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key item) error {
	if key.kind == aNode {
		return c.writeNode(ctx, key.name)
	}
	pv, err := c.volumes.Get(key.name)
	if apierrors.IsNotFound(err) || err == nil && pv.Spec.CSI == nil {
		// Its attacher keeps a volume that is attached; one that is gone can be nobody's.
		c.forget(key.name, nil)
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, aVolume, pv)
	if err := c.await(ctx, pv.Name); err != nil {
		return err
	}
	w, err := c.world(pv)
	if err != nil {
		return err
	}
	p := decide(w)
	c.remember(w, p)
	if p.again > 0 {
		c.loop.AddAfter(key, p.again)
	}
	return c.carryOut(ctx, w, p)
}

// await refuses to decide before the cache has shown what was made: a volume could be
// attached twice.
func (c *Controller) await(ctx context.Context, volume string) error {
	c.mu.Lock()
	made := slices.Clone(c.made[volume])
	c.mu.Unlock()
	for _, name := range made {
		if _, there, err := c.attachments.GetByKey(name); err != nil || there {
			continue
		}
		_, err := c.client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return controllers.ErrStale
		}
		if !apierrors.IsNotFound(err) { // it may have come and gone
			return fmt.Errorf("look for VolumeAttachment %s: %w", name, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.made, volume)
	return nil
}

// users are the pods that use a volume by the claim to which it is bound.
func (c *Controller) users(pv *corev1.PersistentVolume) []*corev1.Pod {
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return nil
	}
	claim, err := c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || claim.Spec.VolumeName != pv.Name || claim.UID != ref.UID {
		return nil
	}
	pods, _ := controllers.PodsWithClaim(c.pods, controllers.Key{Namespace: ref.Namespace, Name: ref.Name}) // fails only without the index
	return pods
}

func (c *Controller) world(pv *corev1.PersistentVolume) (*world, error) {
	driver, err := c.drivers.Get(pv.Spec.CSI.Driver)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err != nil {
		driver = nil
	}
	w := &world{
		volume: pv, required: attachment.Required(driver), pods: c.users(pv), attachments: c.attachmentsOf(byVolume, pv.Name),
		nodes: map[string]*corev1.Node{}, idle: map[string]time.Time{}, now: c.now(),
	}
	names := map[string]bool{}
	for _, p := range w.pods {
		names[p.Spec.NodeName] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range w.attachments {
		names[a.Spec.NodeName] = true
		if since, ok := c.idle[a.Name]; ok {
			w.idle[a.Name] = since
		}
	}
	for name := range names {
		if n, err := c.nodes.Get(name); err == nil {
			w.nodes[name] = n
		}
	}
	return w, nil
}

// remember keeps since when attachments have no user, and tells pods that have to wait, once.
func (c *Controller) remember(w *world, p plan) {
	c.mu.Lock()
	for _, a := range w.attachments {
		if !slices.Contains(p.idle, a.Name) {
			delete(c.idle, a.Name)
		} else if _, known := c.idle[a.Name]; !known {
			c.idle[a.Name] = w.now
		}
	}
	for name := range c.idle { // of attachments that are gone
		if _, there, err := c.attachments.GetByKey(name); err == nil && !there {
			delete(c.idle, name)
		}
	}
	c.mu.Unlock()
	for _, pod := range c.forget(w.volume.Name, p.blocked) {
		c.events.Event(pod, corev1.EventTypeWarning, "FailedAttachVolume", p.blocked[pod])
	}
}

// forget keeps of a volume only the pods that still wait, and answers those that have
// not been told why.
func (c *Controller) forget(volume string, blocked map[*corev1.Pod]string) (untold []*corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.told[volume]
	delete(c.told, volume)
	for pod, why := range blocked {
		if before[pod.UID] != why {
			untold = append(untold, pod)
		}
		if c.told[volume] == nil {
			c.told[volume] = map[types.UID]string{}
		}
		c.told[volume][pod.UID] = why
	}
	return untold
}

func (c *Controller) carryOut(ctx context.Context, w *world, p plan) error {
	for _, a := range p.detach {
		if !p.forced[a.Name] {
			// The node may have begun to use it since: it says so before it looks whether it is attached.
			fresh, err := c.client.CoreV1().Nodes().Get(ctx, a.Spec.NodeName, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("ask whether node %s uses volume %s: %w", a.Spec.NodeName, w.volume.Name, err)
			}
			if err == nil && slices.Contains(fresh.Status.VolumesInUse,
				attachment.Volume(w.volume.Spec.CSI.Driver, w.volume.Spec.CSI.VolumeHandle)) {
				continue // its event is on the way
			}
		}
		err := c.client.StorageV1().VolumeAttachments().Delete(ctx, a.Name, controllers.DeleteExactly(a))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("detach volume %s from node %s: %w", w.volume.Name, a.Spec.NodeName, err)
		}
		what := "detached it from node " + a.Spec.NodeName
		if p.forced[a.Name] {
			what += ", which cannot let go of it"
		}
		controllers.Did(ctx, what, "VolumeAttachment", a)
	}
	for _, node := range p.attach {
		made, err := c.client.StorageV1().VolumeAttachments().Create(ctx, attachmentOf(w.volume, node), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("attach volume %s to node %s: %w", w.volume.Name, node, err)
		}
		controllers.Did(ctx, "attached it to node "+node, "VolumeAttachment", made)
		c.mu.Lock()
		c.made[w.volume.Name] = append(c.made[w.volume.Name], made.Name)
		c.mu.Unlock()
	}
	return nil
}

func attachmentOf(pv *corev1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	c := pv.Spec.CSI
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachment.Name(c.Driver, c.VolumeHandle, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: c.Driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
		},
	}
}

// writeNode lists in a node's status what is attached to it.
func (c *Controller) writeNode(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	want := attachedTo(node, c.attachmentsOf(byNode, name), func(a *storagev1.VolumeAttachment) *corev1.PersistentVolume {
		pv, err := c.volumes.Get(volumeOf(a))
		if err != nil {
			return nil
		}
		return pv
	})
	if slices.Equal(want, sorted(node.Status.VolumesAttached)) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": want}})
	if err != nil {
		return fmt.Errorf("encode the volumes of node %s: %w", name, err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the volumes that are attached into the status of node %s: %w", name, err)
	}
	return nil
}
