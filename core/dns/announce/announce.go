// SPDX-License-Identifier: Apache-2.0

// Package announce puts a cluster's DNS where clients look for it: the Service at the
// address that pods' resolv.conf names, and one EndpointSlice for each node that
// answers. It only writes objects, under the identity of the client that it is given. A
// Service that is there already is given, once, what an older version did not set and
// nobody else has; all else in it is left as it is.
package announce

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/run"
)

// ServiceName is what every distribution calls it: clients look for it there.
const ServiceName = "kube-dns"

// The annotation says which revision of our Service it has been brought to. Without it, a
// field that is not set could be one that an operator has removed.
const (
	revisionAnnotation = "wasmplane.dev/dns-service-revision"
	revision           = "2" // 2: spec.trafficDistribution
)

// Service makes the Service of the cluster's DNS at address, unless there is one. It
// has no selector: each node announces itself.
func Service(ctx context.Context, kube kubernetes.Interface, address netip.Addr) error {
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(53)}
	}
	services := kube.CoreV1().Services(metav1.NamespaceSystem)
	if there, err := services.Get(ctx, ServiceName, metav1.GetOptions{}); err == nil {
		return bring(ctx, kube, there)
	}
	_, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: ServiceName,
			Labels:      map[string]string{"k8s-app": ServiceName, "kubernetes.io/name": "CoreDNS"},
			Annotations: map[string]string{revisionAnnotation: revision},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: address.String(),
			Ports:     []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
			// Each node has one: pods go on asking theirs when another node dies.
			TrafficDistribution: ptr.To(corev1.ServiceTrafficDistributionPreferSameNode),
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// bring brings a Service that an older version has made to today's revision. One with a
// selector is an operator's own.
func bring(ctx context.Context, kube kubernetes.Interface, there *corev1.Service) error {
	if len(there.Spec.Selector) > 0 || there.Annotations[revisionAnnotation] != "" {
		return nil
	}
	there = there.DeepCopy()
	metav1.SetMetaDataAnnotation(&there.ObjectMeta, revisionAnnotation, revision)
	if there.Spec.TrafficDistribution == nil {
		there.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferSameNode)
	}
	_, err := kube.CoreV1().Services(there.Namespace).Update(ctx, there, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // another server does the same, or an operator changes it: the next start looks again
	}
	return err
}

// Endpoint puts the DNS of a node, which answers at address, behind the Service. It
// tries until it has, and reports false when ctx ended first.
func Endpoint(ctx context.Context, kube kubernetes.Interface, node string, address netip.Addr, log *slog.Logger) bool {
	slices := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	want := Slice(node, address, true)
	backoff := run.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	for {
		_, err := slices.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = slices.Update(ctx, want, metav1.UpdateOptions{})
		}
		if err == nil {
			return true
		}
		retryIn := backoff.Next()
		log.WarnContext(ctx, "the DNS cannot be announced; trying again", "node", node, "address", address, "retryIn", retryIn, "error", err)
		if !run.Sleep(ctx, retryIn) {
			return false
		}
	}
}

// Keep puts the DNS of a node behind the Service, and again whenever its slice was
// deleted, by somebody who took the node for gone, until ctx ends. announced is called
// after the first time.
func Keep(ctx context.Context, kube kubernetes.Interface, node string, address netip.Addr, log *slog.Logger, announced func()) {
	if !Endpoint(ctx, kube, node, address, log) {
		return
	}
	announced()
	informer := discoveryinformers.NewFilteredEndpointSliceInformer(kube, metav1.NamespaceSystem, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, ServiceName+"-"+node).String()
		})
	deleted := make(chan struct{}, 1)
	again := func() {
		select {
		case deleted <- struct{}{}:
		default: // it is going to be announced anyway
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { again() }}); err != nil {
		log.WarnContext(ctx, "the announcement of the DNS is not watched", "node", node, "error", err)
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) && len(informer.GetStore().ListKeys()) == 0 {
		again() // deleted before the watch began
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-deleted:
			if !Endpoint(ctx, kube, node, address, log) {
				return
			}
		}
	}
}

// ServesAnnotation of a Node says that a DNS answers at the first address of the node's
// pod range. It is how a machine that joined announces its own: it may write no
// EndpointSlice, so the controllers do, and it cannot name another address.
const ServesAnnotation = "wasmplane.dev/dns"

// Mark puts ServesAnnotation on the node, trying until it is there, and reports false when
// ctx ended first. kube has the node's own identity.
func Mark(ctx context.Context, kube kubernetes.Interface, node string, log *slog.Logger) bool {
	patch := []byte(`{"metadata":{"annotations":{"` + ServesAnnotation + `":"serves"}}}`)
	backoff := run.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	for {
		_, err := kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			return true
		}
		retryIn := backoff.Next()
		log.WarnContext(ctx, "the DNS cannot be announced; trying again", "node", node, "retryIn", retryIn, "error", err)
		if !run.Sleep(ctx, retryIn) {
			return false
		}
	}
}

// Slice is the EndpointSlice of a node's DNS.
func Slice(node string, address netip.Addr, ready bool) *discoveryv1.EndpointSlice {
	port := int32(53)
	named := func(name string, protocol corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: ServiceName + "-" + node,
			Labels: map[string]string{discoveryv1.LabelServiceName: ServiceName, discoveryv1.LabelManagedBy: "wasmplane-dns"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
		Ports: []discoveryv1.EndpointPort{named("dns", corev1.ProtocolUDP), named("dns-tcp", corev1.ProtocolTCP)},
	}
}
