// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/run"
)

func certificate(user string, begins time.Time, groups ...string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: groups}, NotBefore: begins.Truncate(time.Second)}
}

// A certificate from before the removal is refused, and nobody else's; one that is given
// out a second later is good, until the next removal.
func TestCheck(t *testing.T) {
	kube := fake.NewClientset()
	guard := New(kube)
	at := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	check := func(c *x509.Certificate) bool { return guard.Check(t.Context(), c, true) == nil }
	old, renewed := certificate("system:node:a", at, "system:nodes"), certificate("system:node:a", at.Add(time.Second), "system:nodes")
	if !check(old) {
		t.Error("nothing was removed, and a certificate is refused")
	}
	for range 2 {
		if err := Record(t.Context(), kube, "a", at); err != nil {
			t.Fatal(err)
		}
	}
	err := guard.Check(t.Context(), old, true)
	if err == nil || !strings.Contains(err.Error(), "node a was removed from the cluster at 2026-01-02T03:04:06Z") {
		t.Errorf("the old certificate: %v", err)
	}
	for _, c := range []*x509.Certificate{
		renewed, certificate("system:node:b", at, "system:nodes"), certificate("system:node:a", at), certificate("a", at, "system:nodes"),
	} {
		if !check(c) {
			t.Errorf("%s %v of %s is refused", c.Subject.CommonName, c.Subject.Organization, c.NotBefore)
		}
	}
	if err := Record(t.Context(), kube, "a", at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if check(renewed) {
		t.Error("a node that was removed again gets in")
	}
	// What no certificate can be from any more is forgotten.
	if err := Record(t.Context(), kube, "b", at.Add(keep+time.Hour)); err != nil {
		t.Fatal(err)
	}
	has, err := kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), ConfigMap, metav1.GetOptions{})
	if err != nil || len(has.Data) != 1 || has.Data["b"] == "" {
		t.Errorf("the record is %v, %v", has.Data, err)
	}
	// A record that cannot be read opens nothing.
	has.Data["b"] = "yesterday"
	if _, err := kube.CoreV1().ConfigMaps("kube-system").Update(t.Context(), has, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if check(certificate("system:node:b", at.Add(2*keep), "system:nodes")) {
		t.Error("a damaged record lets a node in")
	}
}

// Once the record is followed, requests are judged by it without asking the server.
func TestGuardFollowsTheRecord(t *testing.T) {
	kube := fake.NewClientset()
	guard := New(kube)
	ctx, stop := context.WithCancel(t.Context())
	ended := run.Go("guard", func() error { return guard.Run(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), guard.informer.HasSynced) {
		t.Fatal("the record is not followed")
	}
	now := time.Now()
	if err := Record(t.Context(), kube, "a", now); err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{}, 1)
	if _, err := guard.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { seen <- struct{}{} }}); err != nil {
		t.Fatal(err)
	}
	<-seen
	asked := len(kube.Actions())
	if guard.Check(ctx, certificate("system:node:a", now.Add(-time.Hour), "system:nodes"), false) == nil {
		t.Error("a removed node gets in")
	}
	if len(kube.Actions()) != asked {
		t.Error("the server was asked about a request")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
