// SPDX-License-Identifier: Apache-2.0

package all

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/controllers/nodeipam"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestChoose(t *testing.T) {
	names := func(selection ...string) []string {
		t.Helper()
		chosen, err := choose(list(), selection)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range chosen {
			out = append(out, e.name)
		}
		return out
	}
	if got := names("*"); len(got) == 0 || !slices.Contains(got, "deployment-controller") {
		t.Errorf("*: %v", got)
	}
	if got := names("*", "-job-controller"); slices.Contains(got, "job-controller") || len(got) != len(names("*"))-1 {
		t.Errorf("without job: %v", got)
	}
	if got := names("job-controller"); !slices.Equal(got, []string{"job-controller"}) {
		t.Errorf("only job: %v", got)
	}
	_, err := choose(list(), []string{"*", "-deploymnt-controller"})
	if err == nil || !strings.Contains(err.Error(), `"deploymnt-controller"`) || !strings.Contains(err.Error(), "deployment-controller,") {
		t.Errorf("a typo: %v", err)
	}
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range Names() {
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
	}
}

// Every controller starts, works, and ends with the term of leadership; the next
// term works as well, and nothing is left over.
func TestTwoTerms(t *testing.T) {
	kube := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	set := &client.Set{Kube: kube, Metadata: metadatafake.NewSimpleMetadataClient(scheme), Dynamic: dynamicfake.NewSimpleDynamicClient(scheme)}
	m, err := New(Config{
		Clients:  func(string) (*client.Set, error) { return set, nil },
		RootCA:   func() []byte { return []byte("pem") },
		NodeIPAM: nodeipam.Config{CIDRs: []string{"10.0.0.0/16"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		controllertest.Eventually(t, func() error {
			if _, err := kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
				return err
			}
			_, err := kube.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return err
		})
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := kube.CoreV1().ServiceAccounts("default").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBadConfig(t *testing.T) {
	clients := func(string) (*client.Set, error) { return nil, nil }
	for name, cfg := range map[string]Config{
		"no clients":         {},
		"unknown controller": {Clients: clients, Controllers: []string{"x"}},
		"unknown workers":    {Clients: clients, Workers: map[string]int{"x": 1}},
		"no workers":         {Clients: clients, Workers: map[string]int{"job-controller": 0}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
