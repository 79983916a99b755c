// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/proxy/healthports"
)

// silenced is a slice whose endpoints nobody has heard of.
func silenced(service, node string, ips ...string) *discoveryv1.EndpointSlice {
	s := slice(service, node, ips...)
	for i := range s.Endpoints {
		s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(false)}
	}
	return s
}

// follower is a proxy without tables, and what it would plan now for a Service that has changed.
func follower(t *testing.T) (p *Proxy, leads func() (to string, changed bool)) {
	t.Helper()
	p = &Proxy{
		wake: make(chan struct{}, 1), pulse: &healthports.Pulse{Now: time.Now}, measured: newMeasures(),
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
		dirty:    map[types.NamespacedName]bool{},
	}
	web := service("web", "10.96.0.10")
	p.service(web, false)
	return p, func() (to string, changed bool) {
		all, _ := p.take()
		in, changed := all[types.NamespacedName{Namespace: "default", Name: "web"}]
		for _, e := range v4().after(in.before).endpoints(in.slices, &web.Spec.Ports[0], func(endpoint) bool { return true }) {
			to += e.at.Addr().String() + " "
		}
		return to, changed
	}
}

// A Service whose endpoints were silent with this node goes on with them until they are heard of, for a while.
func TestAServiceGoesOnAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, leads := follower(t)
		defer p.stopForgetting()
		want := func(when, to string) {
			t.Helper()
			if is, _ := leads(); is != to {
				t.Errorf("%s it leads to %q, not %q", when, is, to)
			}
		}
		fail := func(err error) { p.failed(t.Context(), &cache.Reflector{}, err) }
		p.slice(slice("web", "n2", "10.0.0.1", "10.0.0.2"), false)
		want("at first", "10.0.0.1 10.0.0.2 ")
		p.slice(silenced("web", "n2", "10.0.0.1", "10.0.0.2"), false)
		want("when the API is heard", "")
		p.slice(slice("web", "n2", "10.0.0.1", "10.0.0.2"), false)
		fail(io.EOF) // as a watch ends every few minutes
		p.slice(silenced("web", "n2", "10.0.0.1"), false)
		want("after a watch has ended", "")

		p.slice(slice("web", "n2", "10.0.0.1", "10.0.0.2"), false)
		fail(errors.New("no answer"))
		time.Sleep(time.Minute)
		fail(errors.New("no answer"))
		p.slice(silenced("web", "n2", "10.0.0.1", "10.0.0.3"), false)
		want("after an outage", "10.0.0.1 ") // which is listed, and was ready
		time.Sleep(10 * time.Second)
		p.slice(slice("web", "n2", "10.0.0.3"), false)
		want("when one is heard of", "10.0.0.3 ")
		p.slice(silenced("web", "n2", "10.0.0.1", "10.0.0.3"), false)
		want("when that isn't ready any more", "")

		p.slice(slice("web", "n2", "10.0.0.1"), false)
		fail(errors.New("no answer"))
		p.slice(silenced("web", "n2", "10.0.0.1"), false)
		want("after another outage", "10.0.0.1 ")
		leaves := silenced("web", "n2", "10.0.0.1")
		leaves.Endpoints[0].Conditions.Terminating = ptr.To(true)
		p.slice(leaves, false)
		want("when it ends", "")
		p.slice(silenced("web", "n2", "10.0.0.1"), false)
		want("when it did not", "10.0.0.1 ")
		time.Sleep(corrected - time.Second)
		if _, changed := leads(); changed {
			t.Error("it is given up too early")
		}
		time.Sleep(2 * time.Second)
		if to, changed := leads(); to != "" || !changed {
			t.Errorf("nobody is heard of, and it leads to %q still (changed: %t)", to, changed)
		}
	})
}

// An outage that begins before the last one's endpoints were corrected forgets nothing.
func TestAnOutageAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, leads := follower(t)
		defer p.stopForgetting()
		p.slice(slice("web", "n2", "10.0.0.1"), false)
		for range 3 {
			p.failed(t.Context(), &cache.Reflector{}, errors.New("no answer"))
			time.Sleep(corrected + time.Second)
			p.slice(silenced("web", "n2", "10.0.0.1"), false)
			if to, _ := leads(); to != "10.0.0.1 " {
				t.Errorf("it leads to %q", to)
			}
			time.Sleep(corrected / 2)
		}
	})
}
