// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func TestAServiceThatIsThereStaysAsItIs(t *testing.T) {
	kube := fake.NewClientset()
	for _, address := range []string{"10.96.0.10", "10.96.0.99"} {
		if err := Service(t.Context(), kube, []netip.Addr{netip.MustParseAddr(address)}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := kube.CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), ServiceName, metav1.GetOptions{})
	if err != nil || s.Spec.ClusterIP != "10.96.0.10" || len(s.Spec.Ports) != 2 || s.Spec.Selector != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

// A cluster that becomes one of two families gives its DNS a second address, once.
func TestASecondFamily(t *testing.T) {
	kube := fake.NewClientset()
	one := []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	both := append(one, netip.MustParseAddr("fd00:96::a"))
	bring := func(addresses []netip.Addr) *corev1.Service {
		t.Helper()
		if err := Service(t.Context(), kube, addresses); err != nil {
			t.Fatal(err)
		}
		s, err := kube.CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), ServiceName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := bring(one); s.Spec.IPFamilyPolicy != nil || len(s.Spec.ClusterIPs) != 1 {
		t.Errorf("of one family: %+v", s.Spec)
	}
	s := bring(both)
	if ptr.Deref(s.Spec.IPFamilyPolicy, "") != corev1.IPFamilyPolicyPreferDualStack ||
		strings.Join(s.Spec.ClusterIPs, " ") != "10.96.0.10 fd00:96::a" {
		t.Errorf("of two: %+v", s.Spec)
	}
	s.Spec.ClusterIPs, s.Spec.IPFamilyPolicy = s.Spec.ClusterIPs[:1], ptr.To(corev1.IPFamilyPolicySingleStack) // an operator
	if _, err := kube.CoreV1().Services(metav1.NamespaceSystem).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if s := bring(both); len(s.Spec.ClusterIPs) != 1 {
		t.Errorf("what an operator took away is back: %+v", s.Spec)
	}
}

func TestAServiceOfAnOlderVersionIsBroughtToToday(t *testing.T) {
	old := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ServiceName, Labels: map[string]string{"mine": "yes"}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10"},
		}
		change(s)
		return s
	}
	const zone = corev1.ServiceTrafficDistributionPreferSameZone
	for name, c := range map[string]struct {
		there *corev1.Service
		want  *string
	}{
		"made by an older version": {old(func(*corev1.Service) {}), ptr.To(corev1.ServiceTrafficDistributionPreferSameNode)},
		"an operator has chosen":   {old(func(s *corev1.Service) { s.Spec.TrafficDistribution = ptr.To(zone) }), ptr.To(zone)},
		"an operator has removed it": {old(func(s *corev1.Service) {
			s.Annotations = map[string]string{revisionAnnotation: revision}
		}), nil},
		"an operator's own": {old(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"k8s-app": "mine"} }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			kube := fake.NewClientset(c.there)
			for range 2 {
				if err := Service(t.Context(), kube, []netip.Addr{netip.MustParseAddr("10.96.0.10")}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := kube.CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), ServiceName, metav1.GetOptions{})
			if err != nil || !ptr.Equal(got.Spec.TrafficDistribution, c.want) || got.Labels["mine"] != "yes" {
				t.Errorf("%+v, %v; want %v", got, err, c.want)
			}
		})
	}
}

// A node whose address has changed corrects its own slice, and goes on trying while the
// API does not answer.
func TestANodeAnnouncesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		failures := 3
		kube.PrependReactor("create", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, errors.New("away")
		})
		for _, address := range []string{"10.244.1.1", "10.244.7.1"} {
			if !Endpoint(t.Context(), kube, "a", netip.MustParseAddr(address), slog.New(slog.DiscardHandler)) {
				t.Fatal("it gave up")
			}
			slice, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Get(t.Context(), ServiceName+"-a", metav1.GetOptions{})
			if err != nil || slice.Endpoints[0].Addresses[0] != address || slice.Labels["kubernetes.io/service-name"] != ServiceName {
				t.Errorf("%+v, %v", slice, err)
			}
		}
		failures = 1 << 30
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() {
			ended <- Endpoint(ctx, kube, "b", netip.MustParseAddr("10.244.2.1"), slog.New(slog.DiscardHandler))
		}()
		synctest.Wait()
		cancel()
		if <-ended {
			t.Error("it was announced though the API never answered")
		}
	})
}

// A slice that was deleted, because the node was taken for gone, is there again.
func TestADeletedAnnouncementIsMadeAgain(t *testing.T) {
	kube := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	announced, ended := make(chan struct{}), make(chan struct{})
	made := make(chan struct{}, 16)
	kube.PrependReactor("create", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		made <- struct{}{}
		return false, nil, nil
	})
	go func() {
		defer close(ended)
		Keep(ctx, kube, "a", []netip.Addr{netip.MustParseAddr("10.244.1.1")}, slog.New(slog.DiscardHandler), func() { close(announced) })
	}()
	<-announced
	<-made
	for range 3 {
		if err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Delete(ctx, ServiceName+"-a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		<-made
		for { // what was created is stored a moment later
			if _, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Get(ctx, ServiceName+"-a", metav1.GetOptions{}); err == nil {
				break
			}
		}
	}
	cancel()
	<-ended
}
