// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/watchcache"
)

func TestUpstreamsMetricsAreOfTheResourcesThatAreKnown(t *testing.T) {
	w := newWorld(t)
	w.thing("ns/before", "red")
	c, r := w.cache(watchcache.Config{})
	x := w.watch(r, watchcache.WatchOptions{})
	rev := w.thing("ns/after", "blue")
	w.next(x, 1)
	known := watchcache.NewCollector(c, func(prefix string) (schema.GroupResource, bool) {
		return schema.GroupResource{Group: "example.com", Resource: strings.Trim(strings.TrimPrefix(prefix, "/registry/"), "/")}, true
	})
	want := fmt.Sprintf(`
# HELP apiserver_storage_events_received_total Changes that came from the store, by resource.
# TYPE apiserver_storage_events_received_total counter
apiserver_storage_events_received_total{group="example.com",resource="things"} 1
# HELP apiserver_watch_cache_events_received_total Counter of events received in watch cache broken by resource type.
# TYPE apiserver_watch_cache_events_received_total counter
apiserver_watch_cache_events_received_total{group="example.com",resource="things"} 1
# HELP apiserver_watch_cache_initializations_total Counter of watch cache initializations broken by resource type.
# TYPE apiserver_watch_cache_initializations_total counter
apiserver_watch_cache_initializations_total{group="example.com",resource="things"} 1
# HELP apiserver_watch_cache_resource_version Current resource version of watch cache broken by resource type.
# TYPE apiserver_watch_cache_resource_version gauge
apiserver_watch_cache_resource_version{group="example.com",resource="things"} %d
`, rev)
	if err := testutil.CollectAndCompare(known, strings.NewReader(want), "apiserver_storage_events_received_total",
		"apiserver_watch_cache_events_received_total", "apiserver_watch_cache_initializations_total",
		"apiserver_watch_cache_resource_version"); err != nil {
		t.Error(err)
	}
	unknown := watchcache.NewCollector(c, func(string) (schema.GroupResource, bool) { return schema.GroupResource{}, false })
	if n := testutil.CollectAndCount(unknown); n != 0 {
		t.Errorf("%d metrics of a resource that is not known", n)
	}
}
