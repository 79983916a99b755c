// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	mirroredBy = "endpointslicemirroring-controller.k8s.io"
	// mirrored is how many addresses of one subset are mirrored.
	mirrored = 1000
)

var endpointsKind = schema.GroupVersionKind{Version: "v1", Kind: "Endpoints"}

// Mirror makes EndpointSlices of Endpoints that somebody keeps by hand, for a
// Service without a selector: proxies go by slices only.
type Mirror struct {
	client    kubernetes.Interface
	endpoints corelisters.EndpointsLister
	services  corelisters.ServiceLister
	slices    discoverylisters.EndpointSliceLister
	loop      *controllers.Loop[controllers.Key]
}

// NewMirror makes the controller.
func NewMirror(env controllers.Env, workers int) (*Mirror, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	m := &Mirror{client: env.Client, endpoints: core.Endpoints().Lister(), services: core.Services().Lister(), slices: slices.Lister()}
	m.loop = controllers.NewLoop(env, "endpointslicemirroring-controller", workers, m.reconcile)
	m.loop.Watch(core.Endpoints().Informer(), controllers.KeyHandler(m.loop))
	m.loop.Watch(core.Services().Informer(), controllers.KeyHandler(m.loop))
	m.loop.Watch(slices.Informer(), controllers.EachObject(func(o metav1.Object) {
		if name := o.GetLabels()[discoveryv1.LabelServiceName]; name != "" && o.GetLabels()[discoveryv1.LabelManagedBy] == mirroredBy {
			m.loop.Add(controllers.Key{Namespace: o.GetNamespace(), Name: name})
		}
	}))
	return m, nil
}

// Run works until ctx ends.
func (m *Mirror) Run(ctx context.Context) error { return m.loop.Run(ctx) }

func (m *Mirror) reconcile(ctx context.Context, key controllers.Key) error {
	there, err := m.slices.EndpointSlices(key.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: mirroredBy,
	}))
	if err != nil {
		return err
	}
	service, err := m.services.Services(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	hasService := err == nil && service.Spec.Selector == nil && service.Spec.Type != corev1.ServiceTypeExternalName
	endpoints, err := m.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	want := map[string]*discoveryv1.EndpointSlice{}
	if err == nil && hasService && toMirror(endpoints) {
		controllers.About(ctx, endpointsKind.Kind, endpoints)
		want = mirror(endpoints)
	}
	return m.bring(ctx, want, there)
}

// toMirror: not what its author doesn't want mirrored, nor the locks of old leader
// elections.
func toMirror(e *corev1.Endpoints) bool {
	return e.DeletionTimestamp == nil && e.Labels[discoveryv1.LabelSkipMirror] != "true" &&
		e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey] == ""
}

// mirror makes one slice of each subset and address family. Its name follows from
// what sets it apart, so that it is never made twice.
func mirror(e *corev1.Endpoints) map[string]*discoveryv1.EndpointSlice {
	want := map[string]*discoveryv1.EndpointSlice{}
	for i := range e.Subsets {
		s := &e.Subsets[i]
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			list := append(endpointsOf(s.Addresses, family, true), endpointsOf(s.NotReadyAddresses, family, false)...)
			if len(list) == 0 {
				continue
			}
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: sliceName(e.Name, i, family), Namespace: e.Namespace,
					Labels: maps.Clone(e.Labels), Annotations: maps.Clone(e.Annotations),
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, endpointsKind)},
				},
				AddressType: family, Endpoints: list[:min(len(list), mirrored)], Ports: portsOf(s.Ports),
			}
			if slice.Labels == nil {
				slice.Labels = map[string]string{}
			}
			slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = e.Name, mirroredBy
			delete(slice.Labels, corev1.IsHeadlessService)
			delete(slice.Annotations, corev1.LastAppliedConfigAnnotation)
			want[slice.Name] = slice
		}
	}
	return want
}

func sliceName(endpoints string, subset int, family discoveryv1.AddressType) string {
	h := fnv.New32a()
	// Writes to a hash never fail.
	_, _ = fmt.Fprintf(h, "%s/%d/%s", endpoints, subset, family)
	suffix := "-" + rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
	return endpoints[:min(len(endpoints), validation.DNS1123SubdomainMaxLength-len(suffix))] + suffix
}

func endpointsOf(addresses []corev1.EndpointAddress, family discoveryv1.AddressType, ready bool) []discoveryv1.Endpoint {
	var list []discoveryv1.Endpoint
	for _, a := range addresses {
		if netutils.IsIPv6String(a.IP) != (family == discoveryv1.AddressTypeIPv6) {
			continue
		}
		e := discoveryv1.Endpoint{
			Addresses: []string{a.IP}, NodeName: a.NodeName, TargetRef: a.TargetRef,
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready)},
		}
		if a.Hostname != "" {
			e.Hostname = ptr.To(a.Hostname)
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.Addresses[0], b.Addresses[0]) })
	return list
}

func portsOf(ports []corev1.EndpointPort) []discoveryv1.EndpointPort {
	var list []discoveryv1.EndpointPort
	for _, p := range ports {
		list = append(list, discoveryv1.EndpointPort{
			Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To(p.Port),
			AppProtocol: p.AppProtocol,
		})
	}
	return list
}

// bring makes what is there what is wanted.
func (m *Mirror) bring(ctx context.Context, want map[string]*discoveryv1.EndpointSlice, there []*discoveryv1.EndpointSlice) error {
	var errs []error
	seen := map[string]bool{}
	for _, have := range there {
		seen[have.Name] = true
		api := m.client.DiscoveryV1().EndpointSlices(have.Namespace)
		wanted := want[have.Name]
		if wanted == nil || wanted.AddressType != have.AddressType {
			err := api.Delete(ctx, have.Name, controllers.DeleteExactly(have))
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, err)
			}
			continue
		}
		if same(have, wanted) {
			continue
		}
		next := have.DeepCopy()
		next.Labels, next.Annotations, next.OwnerReferences = wanted.Labels, wanted.Annotations, wanted.OwnerReferences
		next.Endpoints, next.Ports = wanted.Endpoints, wanted.Ports
		updated, err := api.Update(ctx, next, metav1.UpdateOptions{})
		if err == nil {
			controllers.Did(ctx, "mirrored", "EndpointSlice", updated)
		} else if !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("updating mirrored slice %s: %w", have.Name, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if seen[name] {
			continue
		}
		created, err := m.client.DiscoveryV1().EndpointSlices(want[name].Namespace).Create(ctx, want[name], metav1.CreateOptions{})
		switch {
		case err == nil:
			controllers.Did(ctx, "mirrored", "EndpointSlice", created)
		case apierrors.IsAlreadyExists(err):
			errs = append(errs, controllers.ErrStale)
		case !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			errs = append(errs, fmt.Errorf("creating mirrored slice %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func same(a, b *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && equality.Semantic.DeepEqual(a.Ports, b.Ports) &&
		maps.Equal(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Annotations, b.Annotations)
}
