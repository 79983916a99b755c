// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// traffic is what a server has counted since it began, by what it counts: requests that it has answered, requests of its
// store, and events that it has sent to watchers. Unlike times it does not depend on what else the machine does.
type traffic map[counter]float64

// counter is one thing that is counted: of requests, of the store or of watches.
type counter struct{ group, what string }

// Groups of counters.
const (
	answered = "requests"
	stored   = "the store's"
	watched  = "watch events"
)

// traffic reads the server's metrics.
func (c *cluster) traffic() traffic {
	c.t.Helper()
	text, err := c.kube().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	t, err := parseTraffic(text)
	if err != nil {
		c.t.Fatal(err)
	}
	return t
}

func parseTraffic(text []byte) (traffic, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("the server's metrics: %w", err)
	}
	t := traffic{}
	add := func(name, group string, what func(label map[string]string) string) {
		for _, m := range families[name].GetMetric() {
			t[counter{group, what(labelsOf(m))}] += m.GetCounter().GetValue()
		}
	}
	add("apiserver_request_total", answered, func(l map[string]string) string {
		what := l["verb"] + " " + l["resource"]
		if l["subresource"] != "" {
			what += "/" + l["subresource"]
		}
		if !strings.HasPrefix(l["code"], "2") {
			what += " (" + l["code"] + ")"
		}
		return what
	})
	add("etcd_requests_total", stored, func(l map[string]string) string { return l["operation"] + " " + l["resource"] })
	add("apiserver_watch_events_total", watched, func(l map[string]string) string { return l["resource"] })
	return t, nil
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.GetLabel() {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// least is what a counter has to have grown by for each object in order to be told of.
const least = 0.02

// each says what was counted since before, for each of n objects: of each group the most frequent first.
func (t traffic) each(before traffic, n int) (lines []string) {
	for _, group := range []string{answered, stored, watched} {
		var total float64
		grown := map[string]float64{}
		for c, v := range t {
			if c.group == group {
				total += v - before[c]
				grown[c.what] = (v - before[c]) / float64(n)
			}
		}
		names := slices.SortedFunc(maps.Keys(grown), func(a, b string) int {
			return cmp.Or(cmp.Compare(grown[b], grown[a]), strings.Compare(a, b))
		})
		var told []string
		for _, name := range names {
			if grown[name] >= least {
				told = append(told, fmt.Sprintf("%s %.2f", name, grown[name]))
			}
		}
		lines = append(lines, fmt.Sprintf("%s %.1f: %s", group, total/float64(n), strings.Join(told, ", ")))
	}
	return lines
}

// TestTrafficOfEach: what was counted before is not counted, failures have their code, and what is seldom is left out.
func TestTrafficOfEach(t *testing.T) {
	before, err := parseTraffic([]byte(`apiserver_request_total{verb="POST",resource="pods",subresource="",code="201"} 5
`))
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseTraffic([]byte(`apiserver_request_total{verb="POST",resource="pods",subresource="",code="201"} 105
apiserver_request_total{verb="PATCH",resource="pods",subresource="status",code="200"} 100
apiserver_request_total{verb="PATCH",resource="pods",subresource="status",code="409"} 50
apiserver_request_total{verb="PATCH",resource="pods",subresource="status",code="404"} 1
etcd_requests_total{operation="create",resource="pods"} 100
apiserver_watch_events_total{resource="pods",group=""} 300
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"requests 2.5: PATCH pods/status 1.00, POST pods 1.00, PATCH pods/status (409) 0.50", "the store's 1.0: create pods 1.00",
		"watch events 3.0: pods 3.00",
	}
	if got := after.each(before, 100); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}
