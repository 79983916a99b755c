// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	undecodable *prometheus.CounterVec
	reloads     prometheus.Counter
	slow        prometheus.Counter
	progress    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, c *Cache) (*metrics, error) {
	m := &metrics{
		undecodable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_watchcache_undecodable_total", Help: "Stored values that could not be read, by key prefix. Lists and watches that would have them fail.",
		}, []string{"prefix"}),
		reloads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wasmplane_watchcache_reloads_total", Help: "How often the whole state was loaded anew because the store had forgotten the cache's revision.",
		}),
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wasmplane_watchcache_slow_watchers_total", Help: "Watchers that were cut off because they fell behind the history.",
		}),
		progress: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wasmplane_watchcache_progress_requests_total", Help: "How often the store was asked for the progress of the watch.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, x := range []prometheus.Collector{
		m.undecodable, m.reloads, m.slow, m.progress,
		gauge("wasmplane_watchcache_revision", "Revision up to which the cache has seen everything.",
			func() float64 { return float64(c.Revision()) }),
		gauge("wasmplane_watchcache_stored_bytes", "Bytes that objects take as they are stored.",
			func() float64 { return float64(c.stored.Load()) }),
		gauge("wasmplane_watchcache_encoded_bytes", "Bytes of objects in other encodings that are kept.",
			func() float64 { return float64(c.forms.encodedBytes()) }),
		gauge("wasmplane_watchcache_decoded_bytes", "Estimated bytes of objects that are decoded.",
			func() float64 { return float64(c.forms.decodedBytes()) }),
		gauge("wasmplane_watchcache_watchers", "Watchers at this moment.", func() float64 { return float64(c.watchers()) }),
	} {
		if err := reg.Register(x); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

func (c *Cache) watchers() int {
	n := 0
	for _, r := range c.resources.Load().list {
		r.mu.Lock()
		r.watchers.each(func(*Watcher) { n++ })
		r.mu.Unlock()
	}
	return n
}

// figures are what is known of one resource, since it was registered.
type figures struct {
	received, dispatched uint64 // events from the store, and those handed to whoever watches
	loads                int    // how often the whole state was loaded
	capacity             int    // how many events are remembered at most
	revision             int64  // of the newest change
}

// figures by the prefixes of resources.
func (c *Cache) figures() map[string]figures {
	out := map[string]figures{}
	for _, r := range c.resources.Load().list {
		r.mu.Lock()
		f := figures{received: r.received, dispatched: r.passed, loads: r.epoch, capacity: c.cfg.History, revision: r.revision}
		r.mu.Unlock()
		out[r.prefix] = f
	}
	return out
}
