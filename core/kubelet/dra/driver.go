// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

// driver that has registered.
type driver struct {
	name, socket string
	service      string // of drav1 or drav1beta1
	health       string // service by which it reports the health of its devices; "" = none
	conn         *grpc.ClientConn
	forget       context.CancelFunc // ends the following of its reports; nil = not begun
}

// drivers of a node. One that is rolled over has two for a while: the latest that can be
// reached counts.
type drivers struct {
	cfg Config
	mu  sync.Mutex
	by  map[string][]*driver
	// away is since when drivers cannot be reached: the zero time where they can, or could a moment ago.
	away map[string]time.Time
}

// find a driver by its name; an error in upstream's words where there is none.
func (d *drivers) find(name string) (*driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.by[name]
	for _, one := range slices.Backward(all) {
		if one.conn.GetState() == connectivity.Ready {
			return one, nil
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered: see whether the driver's pod runs on this node", name)
	}
	return all[len(all)-1], nil
}

// Register implements pluginwatch.Handler.
func (n *Node) Register(_ context.Context, p pluginwatch.Plugin) error {
	if wrong := validation.IsDNS1123Subdomain(p.Name); len(wrong) > 0 || len(p.Name) > resourcev1.DriverNameMaxLength {
		return fmt.Errorf("%q is no name of a driver: a DNS subdomain of at most %d characters", p.Name, resourcev1.DriverNameMaxLength)
	}
	at := slices.IndexFunc(p.Versions, func(v string) bool { return v == drav1.DRAPluginService || v == drav1beta1.DRAPluginService })
	if at < 0 {
		return fmt.Errorf("driver %s supports %q, and this node %q", p.Name, p.Versions,
			[]string{drav1.DRAPluginService, drav1beta1.DRAPluginService})
	}
	conn, err := pluginwatch.Connect(p.Endpoint)
	if err != nil {
		return err
	}
	conn.Connect()
	n.drivers.mu.Lock()
	defer n.drivers.mu.Unlock()
	n.drivers.remove(p.Name, p.Socket)
	n.drivers.away[p.Name] = time.Time{}
	n.drivers.by[p.Name] = append(n.drivers.by[p.Name], &driver{
		name: p.Name, socket: p.Socket, service: p.Versions[at], health: healthService(p.Versions), conn: conn,
	})
	return nil
}

// Withdraw implements pluginwatch.Handler.
func (n *Node) Withdraw(_ context.Context, p pluginwatch.Plugin) {
	n.drivers.mu.Lock()
	defer n.drivers.mu.Unlock()
	n.drivers.remove(p.Name, p.Socket)
}

// remove the driver that registered by a socket.
func (d *drivers) remove(name, socket string) {
	d.by[name] = slices.DeleteFunc(d.by[name], func(one *driver) bool {
		if one.socket != socket {
			return false
		}
		if one.forget != nil {
			one.forget()
		}
		_ = one.conn.Close() // it is the driver that has gone
		return true
	})
	if len(d.by[name]) == 0 {
		delete(d.by, name)
	}
}

// bound of a call.
type bound struct {
	time time.Duration
	with func(context.Context, time.Duration) (context.Context, context.CancelFunc)
}

func (d *driver) prepare(ctx context.Context, b bound, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	ctx, cancel := b.with(ctx, b.time)
	defer cancel()
	if d.service == drav1beta1.DRAPluginService {
		answer, err := drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(d.conn)}.NodePrepareResources(ctx, r)
		return answer, d.explain(err, b.time)
	}
	answer, err := drav1.NewDRAPluginClient(d.conn).NodePrepareResources(ctx, r)
	return answer, d.explain(err, b.time)
}

func (d *driver) unprepare(ctx context.Context, b bound,
	r *drav1.NodeUnprepareResourcesRequest,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	ctx, cancel := b.with(ctx, b.time)
	defer cancel()
	if d.service == drav1beta1.DRAPluginService {
		answer, err := drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(d.conn)}.NodeUnprepareResources(ctx, r)
		return answer, d.explain(err, b.time)
	}
	answer, err := drav1.NewDRAPluginClient(d.conn).NodeUnprepareResources(ctx, r)
	return answer, d.explain(err, b.time)
}

// explain whose failure it was, and what to look at.
func (d *driver) explain(err error, within time.Duration) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.DeadlineExceeded:
		return fmt.Errorf("driver %s has not answered within %s: see the logs of its pod on this node: %w", d.name, within, err)
	case codes.Unavailable:
		return fmt.Errorf("driver %s cannot be reached: see whether its pod on this node runs: %w", d.name, err)
	default:
		return fmt.Errorf("driver %s: %w", d.name, err)
	}
}

// look is how often it is looked whether drivers can be reached.
const look = time.Second

// watch follows the health of devices, and deletes the slices of drivers that are away for too long: nothing on the node can
// use their devices. At first all are, since nobody knows which drivers there were: one that
// runs publishes its slices anew.
func (n *Node) watch(ctx context.Context) error {
	d := &n.drivers
	tick := time.NewTicker(look)
	defer tick.Stop()
	tasks := run.Tasks{}
	defer tasks.Wait()
	tasks.Go("resource slices", func() { d.wipe(ctx, "") })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, name := range d.absent() {
			tasks.Go("resource slices", func() { d.wipe(ctx, name) })
		}
		n.begin(ctx, &tasks)
		n.expire(time.Now())
	}
}

// absent are the drivers that have been away for too long just now.
func (d *drivers) absent() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	here := map[string]bool{}
	for name, all := range d.by {
		for _, one := range all {
			switch one.conn.GetState() {
			case connectivity.Ready:
				here[name] = true
			case connectivity.Idle:
				one.conn.Connect()
			default: // it is away, or on its way back
			}
		}
	}
	for name := range here {
		d.away[name] = time.Time{}
	}
	for name, since := range d.away {
		switch {
		case here[name]:
		case since.IsZero():
			d.away[name] = time.Now()
		case time.Since(since) >= d.cfg.Absence:
			out = append(out, name)
			delete(d.away, name) // until it can be reached again
		}
	}
	return out
}

// wipe deletes the slices of a driver, or of all that are not here, on this node.
func (d *drivers) wipe(ctx context.Context, name string) {
	selector := fields.Set{resourcev1.ResourceSliceSelectorNodeName: d.cfg.NodeName}
	if name != "" {
		selector[resourcev1.ResourceSliceSelectorDriver] = name
	}
	retry := run.Backoff{First: time.Second, Longest: 5 * time.Minute}
	for {
		err := d.cfg.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: selector.String()})
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		d.cfg.Logger.DebugContext(ctx, "resource slices of a driver that is away are not deleted yet", "driver", name, "error", err)
		if !retry.Wait(ctx) {
			return
		}
	}
}
