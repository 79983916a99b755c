// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// A worker that did not reach the servers for a while is taken for dead there, and its pods for not ready. When it
// reaches them again, the proxy hears that before the kubelet has corrected it, and would refuse connections that were
// served all the time. So a Service that has no ready endpoint when the API is heard again goes on with those that were ready
// before the outage and are listed still, until one is ready or this time is over: the kubelet's own watches are tried
// again every 30 s at the latest.
const corrected = 40 * time.Second

// outage is what there was before the API was silent. The proxy's lock guards it.
type outage struct {
	// silent: no request is answered. over is since when they are again; zero: nothing is kept.
	silent bool
	over   time.Time
	before map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice
	end    *time.Timer
}

// burst is how long what was missed may take to arrive, after the first of it.
const burst = time.Second

// failed is told of each failure to follow the slices.
func (p *Proxy) failed(ctx context.Context, r *cache.Reflector, err error) {
	if !errors.Is(err, io.EOF) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		p.mu.Lock()
		p.outage.silent = true
		p.mu.Unlock()
	}
	cache.DefaultWatchErrorHandler(ctx, r, err)
}

// heard is called before a slice is taken on. Lock held.
func (p *Proxy) heard() {
	if !p.outage.silent {
		return
	}
	o := &p.outage
	if o.end != nil {
		o.end.Stop()
	}
	if o.before == nil {
		o.before = make(map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice, len(p.slices))
	}
	for key, list := range p.slices {
		if anyReady(list) { // else what was ready before the outage before this one is kept on
			o.before[key] = maps.Clone(list)
		}
	}
	o.silent, o.over = false, time.Now()
	o.end = time.AfterFunc(corrected, p.forget)
}

// forget ends what is kept of an outage: the API's word counts from here on.
func (p *Proxy) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outage.silent {
		return // the next one has begun: nothing was corrected
	}
	for key := range p.outage.before {
		p.change(key)
	}
	p.outage.before = nil
	p.nudge()
}

func (p *Proxy) stopForgetting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outage.end != nil {
		p.outage.end.Stop()
	}
}

// kept are the slices of before the outage of a Service that has no ready endpoint since. Lock held.
func (p *Proxy) kept(key types.NamespacedName) map[string]*discoveryv1.EndpointSlice {
	before, found := p.outage.before[key]
	if found && time.Since(p.outage.over) > burst && anyReady(p.slices[key]) {
		delete(p.outage.before, key)
		return nil
	}
	return before
}

func anyReady(list map[string]*discoveryv1.EndpointSlice) bool {
	for _, s := range list {
		for i := range s.Endpoints {
			if ptr.Deref(s.Endpoints[i].Conditions.Ready, true) {
				return true
			}
		}
	}
	return false
}
