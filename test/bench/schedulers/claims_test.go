// SPDX-License-Identifier: Apache-2.0

package schedulers

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/resourceclaim"
)

// claimWorkers is how many pods and claims the controller of claims looks at at once, upstream's default.
const claimWorkers = 10

// claimController makes claims of templates, and removes those of pods that are gone. It is ours on all sides, and belongs
// to the load: what is compared is the scheduler. Upstream's measurement has upstream's in its process in the same way.
func (u *runner) claimController(ctx context.Context, client kubernetes.Interface) error {
	shared := informers.NewSharedInformerFactory(client, 0)
	c, err := resourceclaim.New(controllers.Env{
		Client: client, Reader: client, Informers: shared, Log: slog.New(slog.DiscardHandler),
		Recorder: func(string) record.EventRecorder { return &record.FakeRecorder{} },
	}, claimWorkers)
	if err != nil {
		return err
	}
	shared.Start(ctx.Done())
	u.beside.Go(func() {
		defer shared.Shutdown()
		if err := c.Run(ctx); err != nil {
			u.tb.Errorf("the controller of claims: %v", err)
		}
	})
	return nil
}

// classes are a lister of device classes as they were once.
type classes map[string]*resourcev1.DeviceClass

func (c classes) List() (out []*resourcev1.DeviceClass, err error) {
	for _, class := range c {
		out = append(out, class)
	}
	return out, nil
}

func (c classes) Get(name string) (*resourcev1.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("there is no device class %s", name)
}

// allocate gives the claims of a namespace devices of random nodes, as upstream's step does: they take room from the pods
// that come later.
func (u *runner) allocate(ctx context.Context, o op) error {
	claims, err := u.client.ResourceV1().ResourceClaims(o.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(claims.Items) == 0 {
		return err
	}
	nodes, err := u.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	offers, err := u.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	all, err := u.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	known := classes{}
	for i := range all.Items {
		known[all.Items[i].Name] = &all.Items[i]
	}
	// Each node's own slices alone: else each allocator would look at those of all nodes.
	local := map[string][]*resourcev1.ResourceSlice{}
	for i := range offers.Items {
		s := &offers.Items[i]
		if s.Spec.NodeName == nil {
			return fmt.Errorf("allocResourceClaims: devices of slice %s are of no one node, which is not done here", s.Name)
		}
		local[*s.Spec.NodeName] = append(local[*s.Spec.NodeName], s)
	}
	taken, compiled := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}, cel.NewCache(claimWorkers, cel.Features{})
	for i := range claims.Items {
		if err := allocate(ctx, &claims.Items[i], nodes.Items, local, known, taken, compiled); err != nil {
			return fmt.Errorf("claim %d of %d: %w", i, len(claims.Items), err)
		}
	}
	return each(ctx, len(claims.Items), func(ctx context.Context, i int) error {
		c := &claims.Items[i]
		_, err := u.client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
		return err
	})
}

// allocate a claim on a random node that has what it wants.
func allocate(ctx context.Context, c *resourcev1.ResourceClaim, nodes []corev1.Node, local map[string][]*resourcev1.ResourceSlice,
	known classes, taken structured.AllocatedState, compiled *cel.Cache,
) error {
	for _, n := range rand.Perm(len(nodes)) {
		offers := local[nodes[n].Name]
		if len(offers) == 0 {
			continue
		}
		allocator, err := structured.NewAllocator(ctx, structured.Features{}, taken, known, offers, compiled)
		if err != nil {
			return err
		}
		results, err := allocator.Allocate(ctx, &nodes[n], []*resourcev1.ResourceClaim{c})
		if err != nil {
			return err
		}
		if results == nil {
			continue
		}
		c.Status.Allocation = &results[0]
		for _, r := range results[0].Devices.Results {
			taken.AllocatedDevices.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
		}
		return nil
	}
	return fmt.Errorf("no node has the devices that it wants")
}

// replace has pods of a step handed over when they have their nodes; no more than so many exist at once.
func (b *bound) replace(step string, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.each, b.replaced = make(chan *corev1.Pod, most+1), step
}

// steadily deletes each pod that gets its node and makes another one, until the time is over: the cluster stays as full
// as it was. It answers how many pods got a node.
func (u *runner) steadily(ctx context.Context, o op, namespace string, makeOne func(context.Context, int) error) (got int, err error) {
	defer func() {
		u.pods.mu.Lock()
		defer u.pods.mu.Unlock()
		u.pods.each = nil
	}()
	end := time.NewTimer(o.steady)
	defer end.Stop()
	for next := o.Count; ; next++ {
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-end.C:
			if got == 0 {
				return 0, fmt.Errorf("no pod got a node in %s", o.steady)
			}
			return got, nil
		case p := <-u.pods.each:
			got++
			err := u.client.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			if err == nil {
				err = makeOne(ctx, next)
			}
			if err != nil {
				return got, err
			}
		}
	}
}

// volume gives a pod a volume of its own that is bound to its claim, where the step wants one.
func (u *runner) volume(ctx context.Context, o op, namespace string, i int, p *corev1.Pod) error {
	if o.VolumePath == "" {
		return nil
	}
	var v corev1.PersistentVolume
	var c corev1.PersistentVolumeClaim
	u.row.template(o.VolumePath, &o, i, &v)
	u.row.template(o.ClaimPath, &o, i, &c)
	c.Name, v.Name = fmt.Sprintf("pvc-%d", i), fmt.Sprintf("%s-vol-%d", namespace, i)
	switch source := &v.Spec.PersistentVolumeSource; {
	case source.CSI != nil:
		source.CSI.VolumeHandle = v.Name
	case source.AWSElasticBlockStore != nil:
		source.AWSElasticBlockStore.VolumeID = v.Name
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: c.Name}
	c.Spec.VolumeName = v.Name
	claims, volumes := u.client.CoreV1().PersistentVolumeClaims(namespace), u.client.CoreV1().PersistentVolumes()
	claim, err := claims.Create(ctx, &c, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	claim.Status.Phase = corev1.ClaimBound // which a create does not take
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return err
	}
	v.Spec.ClaimRef.UID = claim.UID
	volume, err := volumes.Create(ctx, &v, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	volume.Status.Phase = corev1.VolumeBound
	if _, err := volumes.UpdateStatus(ctx, volume, metav1.UpdateOptions{}); err != nil {
		return err
	}
	source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}
	p.Spec.Volumes = []corev1.Volume{{Name: "vol", VolumeSource: source}}
	return nil
}

// attachable writes what a node's drivers can attach, as kubelets do.
func (u *runner) attachable(ctx context.Context, o op, node string) error {
	if o.Allocatable == nil {
		return nil
	}
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: node, Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: strings.Join(o.Allocatable.Migrated, ",")},
	}}
	for driver, room := range o.Allocatable.Drivers {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: node, Allocatable: room})
	}
	_, err := u.client.StorageV1().CSINodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}
