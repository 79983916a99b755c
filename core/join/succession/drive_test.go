// SPDX-License-Identifier: Apache-2.0

package succession

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

func openPKI(t *testing.T, dir string) *pki.Authority {
	t.Helper()
	a, err := pki.Open(pki.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// One server, and a worker that does not follow: the driver names it, and goes on without it.
func TestADriverTakesTheChangeToItsEnd(t *testing.T) {
	dir := t.TempDir()
	server := openPKI(t, dir)
	before := server.Trusts()
	address := func(ip string) corev1.NodeStatus {
		return corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}}
	}
	in := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	kube := fake.NewClientset(
		&corev1.Node{ObjectMeta: in("", "one"), Status: address("192.0.2.1")},
		&corev1.Node{ObjectMeta: in("", "simulated-1"), Status: address("127.0.0.1")},
		&corev1.Node{ObjectMeta: in("", "worker"), Status: address("192.0.2.2")},
		&discoveryv1.EndpointSlice{
			ObjectMeta: in("default", "kubernetes"),
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
		},
		&corev1.ConfigMap{ObjectMeta: in("kube-system", clusterinfo.ConfigMap), Data: map[string]string{clusterinfo.Authority: before}},
		&corev1.ConfigMap{ObjectMeta: in("default", rootCA), Data: map[string]string{"ca.crt": string(server.CAPEM())}},
	)
	maps := kube.CoreV1().ConfigMaps("default")
	follower := &Server{
		Kube: kube, Authority: server, Address: "192.0.2.1", Log: slog.New(slog.DiscardHandler),
		Changed: func(ctx context.Context) error {
			m, err := maps.Get(ctx, rootCA, metav1.GetOptions{})
			if err == nil {
				m.Data["ca.crt"] = string(server.CAPEM())
				_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
			}
			return err
		},
	}
	ended := run.Go("server", func() error { return follower.Run(t.Context()) })
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	now := time.Now()
	d := &Driver{
		Kube: func() (kubernetes.Interface, error) { return kube, nil }, Authority: openPKI(t, dir),
		Members: func(context.Context, kubernetes.Interface) ([]Member, error) { return nil, nil }, Now: func() time.Time { return now },
	}
	look := func() World {
		t.Helper()
		w, err := d.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	if w := look(); w.State.Phase != "" {
		t.Fatalf("a change is underway: %+v", w)
	}
	if err := d.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Begin(t.Context()); err == nil || !strings.Contains(err.Error(), "changes already") {
		t.Errorf("it begins twice: %v", err)
	}
	var seen []string
	step := run.Backoff{First: 5 * time.Millisecond, Longest: 200 * time.Millisecond}
	for {
		w := look()
		if w.State.Phase == "" {
			break
		}
		next, wait := Next(w)
		if w.State.Phase == Published && len(d.Without) == 0 && len(wait.Machines) == 1 {
			if m := wait.Machines[0]; m.Name != "worker" || m.Server {
				t.Errorf("it waits for %+v", m)
			}
			d.Without = []string{"worker"}
		}
		if !wait.Over() {
			if !step.Wait(t.Context()) {
				t.Fatalf("it waits for ever: %+v", wait)
			}
			now = now.Add(10 * time.Second)
			continue
		}
		seen = append(seen, string(w.State.Phase))
		if err := d.Enter(t.Context(), w, next); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(seen, " "); got != "offered published promoted announced dropped" {
		t.Errorf("phases %s", got)
	}
	after := openPKI(t, dir).Trusts()
	about, err := kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), clusterinfo.ConfigMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after == before || about.Data[clusterinfo.Authority] != after ||
		about.Data[clusterinfo.Authorities] != string(server.CAPEM()) {
		t.Errorf("from %s to %s; machines are told %v", before, after, about.Data)
	}
	if underway, err := Underway(t.Context(), kube); underway || err != nil {
		t.Errorf("it is underway still: %v", err)
	}
}
