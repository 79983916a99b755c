// SPDX-License-Identifier: Apache-2.0

package join

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/join/succession"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

// A worker trusts whom the cluster names, has its certificates signed by the one that
// signs, and says so on its Node.
func TestAWorkerFollowsAnotherAuthority(t *testing.T) {
	authority := func() *pki.Authority {
		a, err := pki.Open(pki.Config{Dir: filepath.Join(t.TempDir(), "pki")})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	before, after := authority(), authority()
	const life = 24 * time.Hour
	dir := t.TempDir()
	c := Config{Dir: dir, Node: "w", Now: time.Now}
	if err := c.certificate(t.Context(), signer(t, before, 0, life), before.ClusterCA()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(caFile(dir), before.CAPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	member := Member{Node: "w", Pin: before.Trusts()}
	kube := signer(t, after, 0, life) // as its servers do by now
	if err := kube.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w"}}); err != nil {
		t.Fatal(err)
	}
	both := string(after.CAPEM()) + string(before.CAPEM())
	if err := kube.Tracker().Add(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: clusterinfo.ConfigMap},
		Data:       map[string]string{clusterinfo.Authorities: both},
	}); err != nil {
		t.Fatal(err)
	}
	client, err := RenewClient(dir, member, kube, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	serving, err := RenewServing(dir, "w", []netip.Addr{netip.MustParseAddr("192.0.2.1")}, kube, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	ended := run.Go("worker", func() error {
		return run.Parallel(client.Run, serving.Run, FollowAuthority(dir, member, kube, slog.New(slog.DiscardHandler)))(ctx)
	})
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	want := succession.Report{
		Trusts: []string{after.Trusts(), before.Trusts()}, Signed: []string{after.Trusts(), after.Trusts()},
	}.String()
	look := run.Backoff{First: 10 * time.Millisecond, Longest: time.Second}
	for last := ""; last != want; {
		node, err := kube.CoreV1().Nodes().Get(ctx, "w", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if last = node.Annotations[succession.Annotation]; last != want && !look.Wait(ctx) {
			t.Fatalf("it reports %q, want %q", last, want)
		}
	}
	if data, err := os.ReadFile(caFile(dir)); err != nil || string(data) != both {
		t.Errorf("it trusts %q, %v", data, err)
	}
	if has, err := Read(dir); err != nil || has.Pin != after.Trusts() {
		t.Errorf("it is of the cluster %+v, %v", has, err)
	}
	shown, err := serving.GetCertificate(nil)
	if err != nil || shown.Leaf.CheckSignatureFrom(after.ClusterCA()) != nil {
		t.Errorf("its server shows %v, %v", shown, err)
	}
}
