// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

// Bounds of what drivers report.
const (
	// healthLasts is how long a report counts that names no time, as upstream.
	healthLasts = 30 * time.Second
	// healthLongest bounds the time that a report names: a device that nobody speaks of is not healthy for ever.
	healthLongest = 24 * time.Hour
	mostReported  = 10_000 // devices of a driver
	longestPool   = resourcev1.PoolNameMaxLength
	longestDevice = 63   // a DNS label
	mostMessage   = 1024 // bytes
)

// place is a device of a driver.
type place struct{ pool, device string }

// report is what a driver said last of a device.
type report struct {
	health  corev1.ResourceHealthStatus
	message string
	until   time.Time
}

// wellbeing is how the devices of the node are, as their drivers say.
type wellbeing struct {
	mu       sync.Mutex
	by       map[string]map[place]report // by driver
	affected map[types.UID]bool          // pods whose devices have changed, until somebody asks
	changed  chan struct{}
}

func newWellbeing() *wellbeing {
	return &wellbeing{by: map[string]map[place]report{}, affected: map[types.UID]bool{}, changed: make(chan struct{}, 1)}
}

// healthService is the service by which a driver reports the health of its devices; "" = it does not.
func healthService(versions []string) string {
	for _, service := range []string{healthv1.DRAResourceHealthService, healthv1alpha1.DRAResourceHealthService} {
		if slices.Contains(versions, service) {
			return service
		}
	}
	return ""
}

// begin follows the reports of drivers that have registered since it was called last.
func (n *Node) begin(ctx context.Context, watches *run.Tasks) {
	n.drivers.mu.Lock()
	defer n.drivers.mu.Unlock()
	for _, d := range slices.Concat(slices.Collect(maps.Values(n.drivers.by))...) {
		if d.health == "" || d.forget != nil {
			continue
		}
		one, cancel := context.WithCancel(ctx)
		d.forget = cancel
		watches.Go("health of the devices of "+d.name, func() {
			defer cancel()
			n.follow(one, d)
		})
	}
}

// follow what a driver reports until it is gone. A stream that breaks is begun again; what was said before counts for
// as long as it said.
func (n *Node) follow(ctx context.Context, d *driver) {
	retry := run.Backoff{First: time.Second, Longest: time.Minute}
	for {
		heard, err := n.listen(ctx, d)
		if status.Code(err) == codes.Unimplemented {
			return // the driver has the service and no health to report
		}
		if heard {
			retry = run.Backoff{First: time.Second, Longest: time.Minute}
		}
		n.cfg.Logger.DebugContext(ctx, "the health of a driver's devices is not heard of", "driver", d.name, "error", err)
		if !retry.Wait(ctx) {
			return
		}
	}
}

// listen to one stream of reports. heard: there was at least one.
func (n *Node) listen(ctx context.Context, d *driver) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the stream ends with it
	client := healthv1.NewDRAResourceHealthClient(d.conn)
	if d.health == healthv1alpha1.DRAResourceHealthService {
		client = healthv1.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(d.conn)}
	}
	stream, err := client.NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
	if err != nil {
		return false, err
	}
	err = pluginwatch.Each(ctx, stream.Recv, func(update *healthv1.NodeWatchResourcesResponse) error {
		heard = true
		n.tell(d.name, n.health.take(d.name, update.GetDevices(), time.Now()))
		return nil
	})
	return heard, err
}

// take what a driver reports; it answers which devices are another way than before.
func (h *wellbeing) take(driver string, devices []*healthv1.DeviceHealth, now time.Time) (changed []place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.by[driver]
	if known == nil {
		known = map[place]report{}
		h.by[driver] = known
	}
	for _, d := range devices {
		at := place{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}
		before, there := known[at]
		if at.device == "" || len(at.device) > longestDevice || len(at.pool) > longestPool || !there && len(known) >= mostReported {
			continue
		}
		next := report{health: corev1.ResourceHealthStatusUnknown, message: cut(d.GetMessage()), until: now.Add(healthLasts)}
		switch d.GetHealth() {
		case healthv1.HealthStatus_HEALTHY:
			next.health = corev1.ResourceHealthStatusHealthy
		case healthv1.HealthStatus_UNHEALTHY:
			next.health = corev1.ResourceHealthStatusUnhealthy
		case healthv1.HealthStatus_UNKNOWN:
		}
		if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
			next.until = now.Add(min(time.Duration(min(s, int64(healthLongest/time.Second)))*time.Second, healthLongest))
		}
		known[at] = next
		if next.health != cmp.Or(before.health, corev1.ResourceHealthStatusUnknown) || next.message != before.message {
			changed = append(changed, at)
		}
	}
	return changed
}

func cut(message string) string {
	if len(message) > mostMessage {
		return strings.ToValidUTF8(message[:mostMessage-3], "") + "..."
	}
	return message
}

// expire forgets what counts no more: how these devices are is not known then.
func (n *Node) expire(now time.Time) {
	n.health.mu.Lock()
	gone := map[string][]place{}
	for driver, known := range n.health.by {
		for at, r := range known {
			if now.After(r.until) {
				delete(known, at)
				gone[driver] = append(gone[driver], at)
			}
		}
		if len(known) == 0 {
			delete(n.health.by, driver)
		}
	}
	n.health.mu.Unlock()
	for driver, places := range gone {
		n.tell(driver, places)
	}
}

// tell that devices have changed, to whom pods with them are of interest.
func (n *Node) tell(driver string, places []place) {
	if len(places) == 0 {
		return
	}
	n.mu.Lock()
	var pods []types.UID
	for _, c := range n.claims {
		if slices.ContainsFunc(c.Drivers[driver], func(d device) bool { return slices.Contains(places, place{d.Pool, d.Device}) }) {
			pods = append(pods, c.Pods...)
		}
	}
	n.mu.Unlock()
	if len(pods) == 0 {
		return
	}
	n.health.mu.Lock()
	for _, uid := range pods {
		n.health.affected[uid] = true
	}
	n.health.mu.Unlock()
	select {
	case n.health.changed <- struct{}{}:
	default:
	}
}

// HealthChanged has an element when devices of pods are another way than before.
func (n *Node) HealthChanged() <-chan struct{} { return n.health.changed }

// Affected are the pods whose devices have changed since it was asked last.
func (n *Node) Affected() []types.UID {
	n.health.mu.Lock()
	defer n.health.mu.Unlock()
	out := slices.Collect(maps.Keys(n.health.affected))
	clear(n.health.affected)
	return out
}

// Health of the devices that a container has by claims, as its status shows it: an entry for each claim, or request
// of one, that it names.
func (n *Node) Health(p *corev1.Pod, container string) (out []corev1.ResourceStatus) {
	at := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if at < 0 {
		return nil
	}
	for _, ref := range p.Spec.Containers[at].Resources.Claims {
		i := slices.IndexFunc(p.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == ref.Name })
		if i < 0 {
			continue // validation lets none through
		}
		claim, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil || claim == nil {
			continue // it has not been made yet
		}
		called := "claim:" + ref.Name
		if ref.Request != "" {
			called += "/" + ref.Request
		}
		if devices := n.healthOf(name{p.Namespace, *claim}, p.UID, ref.Request); len(devices) > 0 {
			out = append(out, corev1.ResourceStatus{Name: corev1.ResourceName(called), Resources: devices})
		}
	}
	return out
}

// healthOf the devices of a claim that are for a request; "" = all.
func (n *Node) healthOf(claim name, pod types.UID, request string) (out []corev1.ResourceHealth) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claims[claim]
	if c == nil || !slices.Contains(c.Pods, pod) {
		return nil
	}
	n.health.mu.Lock()
	defer n.health.mu.Unlock()
	now, seen := time.Now(), map[corev1.ResourceID]bool{}
	for _, driver := range slices.Sorted(maps.Keys(c.Drivers)) {
		for _, d := range c.Drivers[driver] {
			id := corev1.ResourceID(fmt.Sprintf("%s/%s/%s", driver, d.Pool, d.Device))
			if len(d.CDI) > 0 {
				id = corev1.ResourceID(d.CDI[0])
			}
			if !d.meant([]string{request}) || seen[id] {
				continue
			}
			seen[id] = true
			one := corev1.ResourceHealth{ResourceID: id, Health: corev1.ResourceHealthStatusUnknown}
			if r, ok := n.health.by[driver][place{d.Pool, d.Device}]; ok && !now.After(r.until) {
				one.Health = r.health
				if r.message != "" {
					one.Message = &r.message
				}
			}
			out = append(out, one)
		}
	}
	return out
}
