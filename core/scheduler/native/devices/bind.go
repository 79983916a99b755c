// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Reserve implements framework.Reserve: what Filter found on the node is taken now.
func (d *Plugin) Reserve(_ context.Context, s *framework.State, p *framework.PodInfo, node string) *framework.Status {
	c := cycleOf(s)
	if c == nil {
		return nil
	}
	at := c.nodes[node]
	for _, w := range c.claims {
		switch {
		case w.claim.Status.Allocation != nil:
			continue
		case w.pending != nil:
			w.decided = w.pending
		case at != nil && at.allocations[w] != nil:
			w.decided = at.allocations[w]
		case w.extended:
			continue // the node has them by a device plugin
		default:
			return framework.AsStatus(errors.New("claim allocation not found for node"))
		}
		if w.extended {
			w.claim = at.extended
		}
		taken := w.claim.DeepCopy()
		taken.Status.Allocation = w.decided
		if err := d.ledger.decide(taken, p.Pod.UID, c.group); err != nil {
			return unresolvable("%s", err)
		}
	}
	return nil
}

// Unreserve implements framework.Reserve.
func (d *Plugin) Unreserve(ctx context.Context, s *framework.State, p *framework.PodInfo, _ string) {
	c := cycleOf(s)
	if c == nil {
		return
	}
	d.ledger.giveUp(p.Pod.UID)
	if d.client == nil {
		return
	}
	for _, w := range c.claims {
		switch {
		case w.extended && w.claim.Name != notYet:
			// What is left where this fails is deleted in the next try.
			_ = d.deleteClaim(ctx, w.claim)
		case resourceclaim.IsReservedForPod(p.Pod, w.claim, false):
			patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"reservedFor":[{"$patch":"delete","uid":%q}]}}`, w.claim.UID, p.Pod.UID)
			// Where this fails the pod still holds the claim in its next try, or the claim's controller takes it off.
			if now, err := d.client.ResourceV1().ResourceClaims(w.claim.Namespace).Patch(ctx, w.claim.Name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{}, "status"); err == nil {
				d.ledger.wrote(now, time.Time{})
			}
		}
	}
}

// Patience implements framework.Patient.
func (d *Plugin) Patience() time.Duration { return d.timeout + time.Minute }

// Prepares implements framework.Preparing.
func (d *Plugin) Prepares(s *framework.State, _ *framework.PodInfo, _ string) bool {
	c := cycleOf(s)
	return c != nil && d.client != nil && len(c.claims) > 0
}

// PreBind implements framework.PreBind: it writes what was decided, and waits until devices
// that have to be attached are.
func (d *Plugin) PreBind(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) *framework.Status {
	c := cycleOf(s)
	if c == nil || d.client == nil {
		return nil
	}
	for _, w := range c.claims {
		if resourceclaim.IsReservedForPod(p.Pod, w.claim, false) || w.extended && w.decided == nil {
			continue
		}
		if err := d.write(ctx, w, p.Pod); err != nil {
			return asRefusal(err)
		}
		if w.extended {
			if err := d.report(ctx, p.Pod, w.claim.Name, c.nodes[node].mappings); err != nil {
				return asRefusal(err)
			}
		}
	}
	return framework.AsStatus(d.await(ctx, c))
}

// asRefusal is a status without the error itself: a claim that is gone is no pod that is gone.
func asRefusal(err error) *framework.Status {
	return &framework.Status{Code: framework.Error, Reasons: []string{err.Error()}}
}

// write brings a claim's allocation, if it was decided in this try, and its use by the pod
// to the API.
func (d *Plugin) write(ctx context.Context, w *wanted, p *corev1.Pod) error {
	decided := w.claim.UID
	all := d.client.ResourceV1().ResourceClaims(w.claim.Namespace)
	var created time.Time
	if w.claim.Name == notYet {
		made := w.claim.DeepCopy()
		made.Name, made.UID = "", ""
		made, err := all.Create(ctx, made, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create claim for extended resources: %w", err)
		}
		w.claim, created = made, time.Now()
	}
	latest := w.claim
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := d.writeOnce(ctx, latest, w.decided, p)
		if apierrors.IsConflict(err) {
			if fresh, err := all.Get(ctx, latest.Name, metav1.GetOptions{}); err == nil && fresh.UID == latest.UID {
				latest = fresh
			}
		}
		if err == nil {
			latest = now
		}
		return err
	})
	if err != nil {
		return err
	}
	w.claim = latest
	d.ledger.wrote(latest, created)
	if w.decided != nil {
		d.ledger.done(decided)
	}
	return nil
}

func (d *Plugin) writeOnce(ctx context.Context, on *resourcev1.ResourceClaim, decided *resourcev1.AllocationResult,
	p *corev1.Pod,
) (*resourcev1.ResourceClaim, error) {
	all, c := d.client.ResourceV1().ResourceClaims(on.Namespace), on.DeepCopy()
	name := c.Namespace + "/" + c.Name
	switch {
	case c.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s got deleted in the meantime", name)
	case decided == nil && c.Status.Allocation == nil:
		return nil, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", name)
	case decided != nil && c.Status.Allocation != nil && !sameDevices(decided, c.Status.Allocation):
		return nil, fmt.Errorf("claim %s got allocated elsewhere in the meantime", name)
	}
	if c.Status.Allocation == nil {
		if !slices.Contains(c.Finalizers, resourcev1.Finalizer) {
			c.Finalizers = append(c.Finalizers, resourcev1.Finalizer)
			now, err := all.Update(ctx, c, metav1.UpdateOptions{})
			if err != nil {
				return nil, fmt.Errorf("add finalizer to claim %s: %w", name, err)
			}
			c = now
		}
		c.Status.Allocation = decided.DeepCopy()
	}
	if c.Status.Allocation.AllocationTimestamp == nil {
		c.Status.Allocation.AllocationTimestamp = new(metav1.Now())
	}
	if !resourceclaim.IsReservedForPod(p, c, false) {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	now, err := all.UpdateStatus(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("add allocation and reservation to claim %s: %w", name, err)
	}
	return now, nil
}

// sameDevices says whether another pod of the group has written what was decided.
func sameDevices(a, b *resourcev1.AllocationResult) bool {
	return slices.EqualFunc(a.Devices.Results, b.Devices.Results, func(a, b resourcev1.DeviceRequestAllocationResult) bool {
		return a.Request == b.Request && a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device
	})
}

// report writes to the pod which claim has its extended resources.
func (d *Plugin) report(ctx context.Context, p *corev1.Pod, claim string, mappings []corev1.ContainerExtendedResourceRequest) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status": map[string]any{
			"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{RequestMappings: mappings, ResourceClaimName: claim},
		},
	})
	if err != nil {
		return fmt.Errorf("encode a pod's status: %w", err)
	}
	_, err = d.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// look is how often the cache is asked whether all devices are attached.
const look = 200 * time.Millisecond

// await returns when the devices of all claims are attached, or cannot be any more.
func (d *Plugin) await(ctx context.Context, c *cycle) error {
	again := time.NewTicker(look)
	defer again.Stop()
	for {
		ready, err := d.allAttached(c)
		if ready || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

func (d *Plugin) allAttached(c *cycle) (bool, error) {
	for _, w := range c.claims {
		if w.claim.Status.Allocation == nil {
			continue
		}
		ready, err := attached(w.claim)
		if err != nil || ready {
			if err != nil {
				return false, err
			}
			continue
		}
		now, err := d.ledger.claim(w.claim.Namespace, w.claim.Name)
		if err != nil {
			return false, fmt.Errorf("claim %s has gone: %s", w.claim.Name, err) //nolint:errorlint // it is not the pod that has gone
		}
		w.claim = now
		switch ready, err := attached(now); {
		case now.Status.Allocation == nil:
			return false, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", now.Name)
		case err != nil:
			return false, err
		case !ready && overdue(now, d.timeout, time.Now()):
			return false, fmt.Errorf("device binding timeout: claim=%s", now.Name)
		case !ready:
			return false, nil
		}
	}
	return true, nil
}

// Frees implements framework.Freeing.
func (d *Plugin) Frees(s *framework.State) bool {
	c := cycleOf(s)
	return c != nil && c.free != nil && d.client != nil
}

// Free implements framework.Freeing: a claim that keeps the pod from every node lets go of its
// devices, so that others can be found.
func (d *Plugin) Free(ctx context.Context, s *framework.State, _ *framework.PodInfo) *framework.Status {
	if !d.Frees(s) {
		return nil
	}
	w := cycleOf(s).free
	if w.extended {
		return framework.AsStatus(d.deleteClaim(ctx, w.claim))
	}
	next := w.claim.DeepCopy()
	next.Status.ReservedFor, next.Status.Allocation, next.Status.Devices = nil, nil, nil
	now, err := d.client.ResourceV1().ResourceClaims(next.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return framework.AsStatus(fmt.Errorf("deallocate claim %s/%s: %w", next.Namespace, next.Name, err))
	}
	d.ledger.wrote(now, time.Time{})
	return nil
}

// deleteClaim that was made for extended resources.
func (d *Plugin) deleteClaim(ctx context.Context, c *resourcev1.ResourceClaim) error {
	all := d.client.ResourceV1().ResourceClaims(c.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := all.Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.UID != c.UID {
			return nil
		}
		if at := slices.Index(now.Finalizers, resourcev1.Finalizer); at >= 0 {
			now.Finalizers = slices.Delete(now.Finalizers, at, at+1)
			if _, err := all.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		return all.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete claim %s/%s for extended resources: %w", c.Namespace, c.Name, err)
	}
	return nil
}
