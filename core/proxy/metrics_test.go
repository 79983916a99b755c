// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func triggered(at string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: at},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
}

// What is measured is the way of a change that the proxy has seen: not of one from before it began, and of each once.
func TestTriggersAreMeasuredOnce(t *testing.T) {
	m := newMeasures()
	at := m.began.Add(time.Second).UTC().Format(time.RFC3339Nano)
	for what, c := range map[string]struct {
		before *discoveryv1.EndpointSlice
		now    string
		want   bool
	}{
		"new":                 {nil, at, true},
		"another":             {triggered("2020-01-01T00:00:00Z"), at, true},
		"the same":            {triggered(at), at, false},
		"before the proxy":    {nil, "2020-01-01T00:00:00Z", false},
		"no time":             {nil, "soon", false},
		"nothing to speak of": {nil, "", false},
	} {
		if _, got := m.triggerOf(c.before, triggered(c.now)); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}

// A change whose write failed is measured by the write that succeeds.
func TestTriggersWaitForTheirTable(t *testing.T) {
	p := &Proxy{measured: newMeasures()}
	v4, v6 := family{word: "ip"}, family{ip6: true, word: "ip6"}
	all := []trigger{{at: time.Now()}, {ip6: true, at: time.Now()}}
	p.measured.synced(v4, false, time.Now(), nil)
	p.measured.inForce(v4, all)
	p.measured.synced(v6, true, time.Now(), errors.New("busy"))
	p.again(v6, all)
	if len(p.triggers) != 1 || !p.triggers[0].ip6 {
		t.Errorf("what waits is %+v", p.triggers)
	}
	for name, want := range map[string]int{
		"kubeproxy_network_programming_duration_seconds":          1,
		"kubeproxy_sync_proxy_rules_duration_seconds":             2,
		"kubeproxy_sync_full_proxy_rules_duration_seconds":        1,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds":       1, // of the family that was written
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total": 1,
	} {
		if got := testutil.CollectAndCount(p, name); got != want {
			t.Errorf("%s has %d series, want %d", name, got, want)
		}
	}
}
