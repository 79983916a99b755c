// SPDX-License-Identifier: Apache-2.0

// Package localdir is a node's part in its own storage class (package localvolume):
// it says that the node has room, has the node's driver make the volumes that are to be
// here, removes those that are being deleted, and warns on claims when the disk is nearly
// full. Directories of volumes of kind local are made by the kubelet, with their first pod.
//
// It sees the volumes of this node alone, and writes nothing to them but that what was
// behind them is gone. Everything can be done again: after a crash it goes on.
package localdir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/localvolume"
	"github.com/wasmplane/wasmplane/core/run"
)

// Driver makes and removes volumes.
type Driver interface {
	// Provide makes a volume, unless it is there.
	Provide(ctx context.Context, want *localvolume.Wanted) error
	// Has tells whether a volume is there.
	Has(id string) (bool, error)
	// Remove removes a volume, unless it is in use.
	Remove(ctx context.Context, id string) error
}

// Config of a Keeper. NodeName, Root, Driver and Client are required.
type Config struct {
	NodeName string
	// Root is the directory in which volumes of kind local are.
	Root string
	// Driver makes the others.
	Driver Driver
	Client kubernetes.Interface
	// Offer: new volumes may be made here. Those that are there are looked after anyhow.
	Offer bool
	// Free says how much of the disk is free, of 1; nil: it is looked up.
	Free   func() (float64, error)
	Logger *slog.Logger
}

// Keeper looks after the directories of a node.
type Keeper struct {
	cfg     Config
	volumes corelisters.PersistentVolumeLister
	events  record.EventRecorder
	queue   workqueue.TypedRateLimitingInterface[string]
	synced  cache.InformerSynced
	warned  map[types.UID]bool // claims that were warned since the disk became full
}

const (
	// nearlyFull is the part of the disk below which claims are warned; the kubelet evicts at a tenth.
	nearlyFull = 0.15
	look       = time.Minute
	// patience is how long a worker waits for a volume that is being made. A copy goes on without
	// it: a few large ones would keep up all workers.
	patience = time.Second
)

// New makes the directory.
func New(cfg Config) (*Keeper, error) {
	if cfg.NodeName == "" || !filepath.IsAbs(cfg.Root) || cfg.Client == nil || cfg.Driver == nil {
		return nil, errors.New("local volumes need a node, an absolute directory, a driver and a client")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{cfg: cfg}
	if cfg.Free == nil {
		k.cfg.Free = k.free
	}
	if err := localvolume.Root(cfg.Root); err != nil {
		return nil, err
	}
	return k, nil
}

// Run works until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: k.cfg.Client.CoreV1().Events("")})
	k.events = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: k.cfg.NodeName})
	k.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond,
		time.Minute))
	inf := informers.NewSharedInformerFactoryWithOptions(k.cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = labels.Set{localvolume.NodeLabel: localvolume.LabelOf(k.cfg.NodeName)}.String()
	}))
	volumes := inf.Core().V1().PersistentVolumes()
	k.volumes, k.synced = volumes.Lister(), volumes.Informer().HasSynced
	add := func(o any) {
		if pv, ok := o.(*corev1.PersistentVolume); ok {
			k.queue.Add(pv.Name)
		}
	}
	if _, err := volumes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, o any) { add(o) },
	}); err != nil {
		return fmt.Errorf("watch this node's volumes: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer inf.Shutdown()
	defer cancel()
	inf.Start(ctx.Done())
	return run.Parallel(k.announce, k.work, k.work, k.work, k.work, k.watchDisk)(ctx)
}

// announce says on the node what it offers, once the node is there.
func (k *Keeper) announce(ctx context.Context) error {
	offer, where, driver, limits := any(nil), any(nil), any(nil), any(nil) // null removes
	if k.cfg.Offer {
		offer, where, driver, limits = "true", k.cfg.Root, "true", localvolume.LimitImage
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]any{localvolume.Offered: offer},
		"annotations": map[string]any{
			localvolume.DirectoryAnnotation: where, localvolume.DriverAnnotation: driver, localvolume.LimitsAnnotation: limits,
		},
	}})
	if err != nil {
		return fmt.Errorf("describe the node's volumes: %w", err)
	}
	again := run.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	for {
		_, err := k.cfg.Client.CoreV1().Nodes().Patch(ctx, k.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			break
		}
		if !apierrors.IsNotFound(err) && ctx.Err() == nil {
			k.cfg.Logger.WarnContext(ctx, "the node cannot say that it offers local volumes; trying again", "node", k.cfg.NodeName, "error", err)
		}
		if !again.Wait(ctx) {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

func (k *Keeper) work(ctx context.Context) error {
	run.Work(ctx, "local volumes", 1, k.queue, func(ctx context.Context, name string) {
		err := k.reconcile(ctx, name)
		if err == nil || ctx.Err() != nil {
			k.queue.Forget(name)
			return
		}
		k.cfg.Logger.WarnContext(ctx, "a local volume cannot be looked after; trying again", "kind", "PersistentVolume", "name", name,
			"error", err)
		k.queue.AddRateLimited(name)
	})
	return nil
}

// reconcile makes a volume that is to be here, or removes one that is being deleted and
// then says so.
func (k *Keeper) reconcile(ctx context.Context, name string) error {
	pv, err := k.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at volume %s: %w", name, err)
	}
	if pv.DeletionTimestamp == nil {
		return k.provide(ctx, pv)
	}
	if !slices.Contains(pv.Finalizers, localvolume.Finalizer) || !localvolume.Ours(pv) ||
		!localvolume.On(k.cfg.NodeName, pv) {
		return nil
	}
	if slices.Contains(pv.Finalizers, "kubernetes.io/pv-protection") || pv.Status.Phase == corev1.VolumeBound {
		return nil // a claim is bound to it still
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		k.cfg.Logger.InfoContext(ctx, "a volume is deleted that is to be retained; its data stay", "kind", "PersistentVolume", "name", name)
	} else if err := k.remove(ctx, pv); err != nil {
		k.events.Event(pv, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
		return err
	}
	next := pv.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == localvolume.Finalizer })
	if _, err := k.cfg.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("say that the directory of volume %s is gone: %w", name, err)
	}
	return nil
}

// provide has a volume made before its first pod comes: a copy is of what its source is
// now.
func (k *Keeper) provide(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Spec.CSI == nil || !localvolume.Ours(pv) || !localvolume.On(k.cfg.NodeName, pv) || pv.Status.Phase == corev1.VolumeReleased {
		return nil
	}
	want, err := localvolume.WantedOf(pv)
	if err == nil {
		waits, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err = k.cfg.Driver.Provide(waits, want)
		if err != nil && waits.Err() != nil && ctx.Err() == nil {
			k.queue.AddAfter(pv.Name, patience)
			return nil
		}
	}
	if err != nil && ctx.Err() == nil {
		k.events.Event(about(pv), corev1.EventTypeWarning, "ProvisioningFailed", err.Error())
	}
	return err
}

// about is the claim of a volume, where its owner looks.
func about(pv *corev1.PersistentVolume) runtime.Object {
	if pv.Spec.ClaimRef != nil {
		return pv.Spec.ClaimRef
	}
	return pv
}

// copied refuses while something is still to be made of a volume that is being deleted.
func (k *Keeper) copied(pv *corev1.PersistentVolume) error {
	all, err := k.volumes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("look for copies of volume %s: %w", pv.Name, err)
	}
	for _, other := range all {
		want, err := localvolume.WantedOf(other)
		if err != nil || other.DeletionTimestamp != nil || want.Source != localvolume.SourceVolume+pv.Name {
			continue
		}
		if there, err := k.cfg.Driver.Has(want.ID); err != nil || !there {
			return errors.Join(err, fmt.Errorf("volume %s is to be a copy of it, and is not made yet", other.Name))
		}
	}
	return nil
}

// remove never removes through a mount, which a pod may have left in its volume.
func (k *Keeper) remove(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Spec.CSI != nil {
		want, err := localvolume.WantedOf(pv)
		if err == nil {
			err = k.copied(pv)
		}
		if err != nil {
			return err
		}
		return k.cfg.Driver.Remove(ctx, want.ID)
	}
	if mounts, err := linuxhost.MountsBelow(filepath.Join(k.cfg.Root, filepath.Base(pv.Name))); err != nil {
		return err
	} else if len(mounts) > 0 {
		return fmt.Errorf("%s is mounted in the volume: unmount it, and the directory is removed", mounts[0])
	}
	return localvolume.Remove(k.cfg.Root, pv)
}

func (k *Keeper) watchDisk(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), k.synced) {
		return nil
	}
	again := time.NewTicker(look)
	defer again.Stop()
	for {
		k.lookAtDisk(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// lookAtDisk warns the claims of this node's volumes, each once, while the disk is nearly full.
func (k *Keeper) lookAtDisk(ctx context.Context) {
	free, err := k.cfg.Free()
	if err != nil {
		k.cfg.Logger.WarnContext(ctx, "how full the disk of the local volumes is cannot be found out", "error", err)
		return
	}
	if free >= nearlyFull {
		k.warned = nil
		return
	}
	all, err := k.volumes.List(labels.Everything())
	if err != nil {
		return
	}
	now := map[types.UID]bool{}
	for _, pv := range all {
		ref := pv.Spec.ClaimRef
		if ref == nil || pv.Status.Phase != corev1.VolumeBound || !localvolume.Ours(pv) {
			continue
		}
		now[ref.UID] = true
		if !k.warned[ref.UID] {
			k.events.Eventf(ref, corev1.EventTypeWarning, "VolumeDiskNearlyFull", "%.0f %% of the disk of node %s are free, which volume %s shares: remove what is not needed", free*100, k.cfg.NodeName, pv.Name)
		}
	}
	k.warned = now
}

func (k *Keeper) free() (float64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(k.cfg.Root, &st); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", k.cfg.Root, err)
	}
	if st.Blocks == 0 {
		return 1, nil
	}
	return float64(st.Bavail) / float64(st.Blocks), nil
}
