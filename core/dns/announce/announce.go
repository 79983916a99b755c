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
	"sync/atomic"
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
	// dualRevision is that of a Service in a cluster of two IP families: it has an address of each.
	dualRevision = "3"
)

func revisionOf(addresses []netip.Addr) string {
	if len(addresses) > 1 {
		return dualRevision
	}
	return revision
}

// Addresses are those at which the DNS of a node answers, of its pod ranges: its pods have
// their gateways there.
func Addresses(ranges []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, r := range ranges {
		out = append(out, r.Masked().Addr().Next())
	}
	return out
}

// Service makes the Service of the cluster's DNS at addresses, one or one of each IP family,
// unless there is one. It has no selector: each node announces itself.
func Service(ctx context.Context, kube kubernetes.Interface, addresses []netip.Addr) error {
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(53)}
	}
	services := kube.CoreV1().Services(metav1.NamespaceSystem)
	if there, err := services.Get(ctx, ServiceName, metav1.GetOptions{}); err == nil {
		return bring(ctx, kube, there, addresses)
	}
	var policy *corev1.IPFamilyPolicy // the API's default: one family
	if len(addresses) > 1 {
		policy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	}
	_, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: ServiceName,
			Labels:      map[string]string{"k8s-app": ServiceName, "kubernetes.io/name": "CoreDNS"},
			Annotations: map[string]string{revisionAnnotation: revisionOf(addresses)},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: addresses[0].String(), ClusterIPs: texts(addresses), IPFamilyPolicy: policy,
			Ports: []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
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
// selector is an operator's own. In a cluster that has become one of two families it gets
// its second address, once: an operator may take it away again.
func bring(ctx context.Context, kube kubernetes.Interface, there *corev1.Service, addresses []netip.Addr) error {
	was, is := there.Annotations[revisionAnnotation], revisionOf(addresses)
	if len(there.Spec.Selector) > 0 || was == is || was == dualRevision {
		return nil
	}
	there = there.DeepCopy()
	metav1.SetMetaDataAnnotation(&there.ObjectMeta, revisionAnnotation, is)
	if was == "" && there.Spec.TrafficDistribution == nil {
		there.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferSameNode)
	}
	if is == dualRevision && len(there.Spec.ClusterIPs) == 1 && there.Spec.ClusterIPs[0] == addresses[0].String() {
		there.Spec.IPFamilyPolicy, there.Spec.ClusterIPs = ptr.To(corev1.IPFamilyPolicyPreferDualStack), texts(addresses)
		there.Spec.IPFamilies = nil // as the addresses say
	}
	_, err := kube.CoreV1().Services(there.Namespace).Update(ctx, there, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // another server does the same, or an operator changes it: the next start looks again
	}
	return err
}

func texts(list []netip.Addr) (out []string) {
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
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

// Keep puts the DNS of a node, which answers at addresses, behind the Service, and again
// whenever one of its slices was deleted, by somebody who took the node for gone, until ctx
// ends. announced is called after the first time.
func Keep(ctx context.Context, kube kubernetes.Interface, node string, addresses []netip.Addr, log *slog.Logger, announced func()) {
	var left atomic.Int32
	left.Store(int32(len(addresses)))
	var keeping sync.WaitGroup
	for _, a := range addresses {
		keeping.Go(func() {
			keep(ctx, kube, node, a, log, func() {
				if left.Add(-1) == 0 {
					announced()
				}
			})
		})
	}
	keeping.Wait()
}

func keep(ctx context.Context, kube kubernetes.Interface, node string, address netip.Addr, log *slog.Logger, announced func()) {
	if !Endpoint(ctx, kube, node, address, log) {
		return
	}
	announced()
	informer := discoveryinformers.NewFilteredEndpointSliceInformer(kube, metav1.NamespaceSystem, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, sliceName(node, address)).String()
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

// ServesAnnotation of a Node says that a DNS answers at the first address of each of the node's
// pod ranges. It is how a machine that joined announces its own: it may write no
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

// sliceName is the EndpointSlice's. No two nodes have one of the same name.
func sliceName(node string, address netip.Addr) string {
	if address.Is6() {
		return ServiceName + "6-" + node
	}
	return ServiceName + "-" + node
}

// Slice is the EndpointSlice of a node's DNS, for the family of the address.
func Slice(node string, address netip.Addr, ready bool) *discoveryv1.EndpointSlice {
	port, family := int32(53), discoveryv1.AddressTypeIPv4
	if address.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	named := func(name string, protocol corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: sliceName(node, address),
			Labels: map[string]string{discoveryv1.LabelServiceName: ServiceName, discoveryv1.LabelManagedBy: "wasmplane-dns"},
		},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			Hints: &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}}, // as the Service asks: PreferSameNode
		}},
		Ports: []discoveryv1.EndpointPort{named("dns", corev1.ProtocolUDP), named("dns-tcp", corev1.ProtocolTCP)},
	}
}
