// SPDX-License-Identifier: Apache-2.0

package certwatch

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/pki"
)

func TestACertificateInItsLastDaysIsReported(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	a, err := pki.Open(pki.Config{Dir: dir.PKI()})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.Client(pki.Admin())
	if err != nil {
		t.Fatal(err)
	}
	end := pair.Certificate().Leaf.NotAfter
	for _, c := range []struct {
		name string
		now  time.Time
		want string
	}{
		{"a month before", end.Add(-30 * 24 * time.Hour), ""},
		{"two days before", end.Add(-48 * time.Hour), " ends at "},
		{"a day after", end.Add(24 * time.Hour), " ended at "},
	} {
		t.Run(c.name, func(t *testing.T) {
			kube := fake.NewClientset()
			w := &Watch{Dir: dir, Node: "here", Kube: kube, Log: slog.New(slog.DiscardHandler)}
			w.report(t.Context(), c.now)
			events, err := kube.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if len(events.Items) > 0 {
					t.Errorf("events: %v", events.Items)
				}
				return
			}
			if len(events.Items) != 1 {
				t.Fatalf("%d events, want 1", len(events.Items))
			}
			e := events.Items[0]
			if e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != "here" || e.Reason != reason ||
				!strings.Contains(e.Message, c.want) || !strings.Contains(e.Message, "pki/admin.pem") {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestMetricsNameEveryCertificate(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	a, err := pki.Open(pki.Config{Dir: dir.PKI()})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(&Watch{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	found, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range found[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if want := float64(a.ClusterCA().NotAfter.Unix()); got["pki/ca.crt"] != want || got["pki/front-proxy-ca.crt"] == 0 {
		t.Errorf("got %v, want pki/ca.crt at %v and pki/front-proxy-ca.crt", got, want)
	}
}

func TestWhatIsBeingDroppedIsNotReported(t *testing.T) {
	var log bytes.Buffer
	dir := datadir.Dir(t.TempDir())
	a, err := pki.Open(pki.Config{Dir: dir.PKI()})
	if err != nil {
		t.Fatal(err)
	}
	s, to, err := a.Successor(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []pki.Step{pki.Trusting, pki.Signing} {
		if _, err := a.Follow(step, to, &s); err != nil {
			t.Fatal(err)
		}
	}
	w := &Watch{Dir: dir, Node: "here", Kube: fake.NewClientset(), Log: slog.New(slog.NewTextHandler(&log, nil))}
	w.report(t.Context(), a.ClusterCA().NotAfter.Add(-time.Hour))
	if strings.Contains(log.String(), "ca.old.crt") || strings.Contains(log.String(), "cross") || !strings.Contains(log.String(), "ca.crt") {
		t.Errorf("log: %s", log.String())
	}
}
