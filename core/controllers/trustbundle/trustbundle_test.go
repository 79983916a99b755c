// SPDX-License-Identifier: Apache-2.0

package trustbundle

import (
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func certificate(content string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(content)}))
}

func bundle(name, content string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: Signer, TrustBundle: content},
	}
}

// It is published, what somebody does to it is undone, and a new authority takes its place.
func TestPublished(t *testing.T) {
	first, second := certificate("first"), certificate("second")
	var ca atomic.Value
	ca.Store(first)
	others := bundle("mine", first)
	others.Spec.SignerName = "example.com/mine"
	c := controllertest.New(others, bundle("kubernetes.io:kube-apiserver-serving:old", first))
	ctl, err := New(c.Env(t), func() []byte { return []byte(ca.Load().(string)) })
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	api := c.Client.CertificatesV1().ClusterTrustBundles()
	is := func(content string) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			list, err := api.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			var of []string
			for _, b := range list.Items {
				if b.Spec.SignerName == Signer {
					of = append(of, b.Name+"="+b.Spec.TrustBundle)
				}
			}
			if want := nameOf(content) + "=" + content; !slices.Equal(of, []string{want}) || len(list.Items) != 2 {
				return fmt.Errorf("%q, want %q; all: %d", of, want, len(list.Items))
			}
			return nil
		})
	}
	is(first)
	if !strings.HasPrefix(nameOf(first), "kubernetes.io:kube-apiserver-serving:") {
		t.Error(nameOf(first))
	}
	if _, err := api.Update(t.Context(), bundle(nameOf(first), second), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	is(first)
	if err := api.Delete(t.Context(), nameOf(first), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	is(first)
	if _, err := api.Create(t.Context(), bundle("kubernetes.io:kube-apiserver-serving:x", second), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	is(first)
	ca.Store(first + second) // both, while an authority is replaced
	is(first + second)
}

func TestNoAuthorityChangesNothing(t *testing.T) {
	p := decide(certificates([]byte("no PEM")), []*certificatesv1.ClusterTrustBundle{bundle("a", "b")})
	if p.create != nil || len(p.remove) > 0 {
		t.Errorf("%+v", p)
	}
	if _, err := New(controllertest.New().Env(t), nil); err == nil {
		t.Error("no error without authorities")
	}
}

func TestOnlyCertificatesArePublished(t *testing.T) {
	key := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("secret")}))
	file := "# the first\n" + certificate("a") + key + certificate("a") + "\n" + certificate("b") + "trailing"
	if got, want := certificates([]byte(file)), certificate("a")+certificate("b"); got != want {
		t.Errorf("%q", got)
	}
}

// apply is what the API would have after a plan; there may be older than is.
func apply(is map[string]*certificatesv1.ClusterTrustBundle, p plan) error {
	if p.create != nil && is[p.create.Name] == nil {
		is[p.create.Name] = p.create
	}
	if p.update != nil {
		if is[p.update.Name] == nil {
			return errors.New("not found")
		}
		is[p.update.Name] = p.update
	}
	for _, b := range p.remove {
		if is[b.Name] == b { // the same one still
			delete(is, b.Name)
		}
	}
	return nil
}

// Whatever is there, and however often it is decided on an old picture, in the end the one right bundle is there, and another
// signer's is untouched.
func TestTheRightBundleIsLeft(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := certificate("a"), certificate("b")
		is := map[string]*certificatesv1.ClusterTrustBundle{}
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{nameOf(a), nameOf(b), "x", "others"}), rapid.ID).Draw(rt, "names") {
			is[name] = bundle(name, rapid.SampledFrom([]string{a, b, "spoilt"}).Draw(rt, "content"))
			if name == "others" {
				is[name].Spec.SignerName = "example.com/mine"
			}
		}
		others := is["others"]
		var pictures [][]*certificatesv1.ClusterTrustBundle
		for range rapid.IntRange(1, 5).Draw(rt, "steps") {
			var now []*certificatesv1.ClusterTrustBundle
			for _, o := range is {
				now = append(now, o)
			}
			pictures = append(pictures, now)
			old := pictures[rapid.IntRange(0, len(pictures)-1).Draw(rt, "picture")]
			_ = apply(is, decide(a, old)) // a failure is tried again
			if is["others"] != others {
				rt.Fatal("another signer's bundle was touched")
			}
		}
		var now []*certificatesv1.ClusterTrustBundle
		for _, o := range is {
			now = append(now, o)
		}
		if err := apply(is, decide(a, now)); err != nil {
			rt.Fatal(err)
		}
		delete(is, "others")
		if len(is) != 1 || is[nameOf(a)] == nil || is[nameOf(a)].Spec.TrustBundle != a {
			rt.Fatalf("left: %+v", is)
		}
	})
}
