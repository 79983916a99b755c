// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// masterLabel marks the leases of apiservers; it is upstream's.
	masterLabel      = "apiserver.kubernetes.io/identity"
	masterLabelValue = "kube-apiserver"
	// endpointAnnotation on such a lease is the address of the apiserver.
	endpointAnnotation = "wasmplane.dev/endpoint"
	skipMirror         = "endpointslice.kubernetes.io/skip-mirror"
)

// masters keeps the addresses of running apiservers behind the `kubernetes`
// Service. Each apiserver renews a Lease that carries its address; each puts the
// addresses of all fresh leases in place, so that any one of them can die.
//
// A lease is fresh while it goes on changing, measured by our own clock: clocks
// of other machines may be wrong by any amount.
type masters struct {
	cfg  Config
	mu   sync.Mutex // one reconciliation at a time
	seen map[string]sighting
	now  func() time.Time
}

type sighting struct {
	version string
	at      time.Time
}

func newMasters(cfg Config) *masters {
	return &masters{cfg: cfg, seen: map[string]sighting{}, now: time.Now}
}

func (m *masters) leaseName() string {
	sum := sha256.Sum256([]byte(m.cfg.Identity))
	return "apiserver-" + hex.EncodeToString(sum[:13])
}

// run renews and reconciles until ctx ends, then takes this apiserver out.
func (m *masters) run(ctx context.Context) error {
	tick := time.NewTicker(m.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			m.leave(ctx)
			return nil
		case <-tick.C:
			if err := m.reconcile(ctx); err != nil && ctx.Err() == nil {
				m.cfg.Log.WarnContext(ctx, "could not refresh the addresses of the kubernetes Service; will try again", "error", err)
			}
		}
	}
}

// leave is quick or not at all: others notice soon that this one is gone.
func (m *masters) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.cfg.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, m.leaseName(), metav1.DeleteOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		err = m.publish(ctx, true)
	}
	if err != nil {
		m.cfg.Log.DebugContext(ctx, "could not take this apiserver out of the kubernetes Service", "error", err)
	}
}

func (m *masters) reconcile(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.renew(ctx); err != nil {
		return fmt.Errorf("renew the apiserver's lease: %w", err)
	}
	return m.publish(ctx, false)
}

func (m *masters) renew(ctx context.Context) error {
	api := m.cfg.Client.CoordinationV1().Leases(metav1.NamespaceSystem)
	wanted := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.leaseName(), Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{masterLabel: masterLabelValue}, Annotations: map[string]string{endpointAnnotation: m.cfg.Endpoint.String()},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &m.cfg.Identity, LeaseDurationSeconds: ptr.To(int32(m.life() / time.Second)),
			RenewTime: &metav1.MicroTime{Time: m.now()},
		},
	}
	has, err := api.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, wanted, metav1.CreateOptions{})
	case err == nil:
		has = has.DeepCopy()
		has.Labels, has.Annotations, has.Spec = wanted.Labels, wanted.Annotations, wanted.Spec
		_, err = api.Update(ctx, has, metav1.UpdateOptions{})
	}
	return err
}

func (m *masters) life() time.Duration { return max(3*m.cfg.Refresh, time.Second) }

// live lists the addresses of apiservers whose leases change, and deletes leases
// that have not for ten lives.
func (m *masters) live(ctx context.Context) ([]netip.AddrPort, error) {
	api := m.cfg.Client.CoordinationV1().Leases(metav1.NamespaceSystem)
	leases, err := api.List(ctx, metav1.ListOptions{LabelSelector: masterLabel + "=" + masterLabelValue})
	if err != nil {
		return nil, fmt.Errorf("list the leases of apiservers: %w", err)
	}
	now, seen := m.now(), map[string]sighting{}
	var found []netip.AddrPort
	for _, l := range leases.Items {
		s, known := m.seen[l.Name]
		if !known || s.version != l.ResourceVersion {
			s = sighting{l.ResourceVersion, now}
		}
		seen[l.Name] = s
		at, err := netip.ParseAddrPort(l.Annotations[endpointAnnotation])
		switch age := now.Sub(s.at); {
		case err != nil: // an apiserver of another make
		case age < m.life():
			found = append(found, at)
		case age > 10*m.life():
			if err := api.Delete(ctx, l.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &l.ResourceVersion}}); err != nil &&
				!apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return nil, fmt.Errorf("delete the lease of an apiserver that is gone: %w", err)
			}
		}
	}
	m.seen = seen
	slices.SortFunc(found, func(a, b netip.AddrPort) int { return a.Compare(b) })
	return slices.Compact(found), nil
}

// publish puts the live addresses in place. With nobody alive, only an apiserver
// that is leaving may empty the list: otherwise the answer is a sign of trouble.
func (m *masters) publish(ctx context.Context, leaving bool) error {
	live, err := m.live(ctx)
	if err != nil {
		return err
	}
	if len(live) == 0 && !leaving {
		return errors.New("no apiserver has a live lease, not even this one: the addresses stay as they are")
	}
	// One port for all: the Service has one target port.
	var addrs []netip.Addr
	for _, a := range live {
		if a.Port() == m.cfg.Endpoint.Port() {
			addrs = append(addrs, a.Addr())
		}
	}
	return errors.Join(m.endpoints(ctx, addrs), m.slice(ctx, addrs))
}

func (m *masters) endpoints(ctx context.Context, addrs []netip.Addr) error {
	api := m.cfg.Client.CoreV1().Endpoints(metav1.NamespaceDefault) // clients still read it
	var subsets []corev1.EndpointSubset                             //nolint:staticcheck // see above
	if len(addrs) > 0 {
		s := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "https", Port: int32(m.cfg.Endpoint.Port()), Protocol: corev1.ProtocolTCP}}} //nolint:staticcheck // see above
		for _, a := range addrs {
			s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: a.String()})
		}
		subsets = append(subsets, s)
	}
	has, err := api.Get(ctx, kubernetesName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, &corev1.Endpoints{ //nolint:staticcheck // see above
			ObjectMeta: metav1.ObjectMeta{Name: kubernetesName, Labels: map[string]string{skipMirror: "true"}}, Subsets: subsets,
		}, metav1.CreateOptions{})
		err = made(err)
	case err == nil && (!equality.Semantic.DeepEqual(has.Subsets, subsets) || has.Labels[skipMirror] != "true"):
		has = has.DeepCopy()
		has.Subsets = subsets
		metav1.SetMetaDataLabel(&has.ObjectMeta, skipMirror, "true")
		_, err = api.Update(ctx, has, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("endpoints of the kubernetes Service: %w", err)
	}
	return nil
}

func (m *masters) slice(ctx context.Context, addrs []netip.Addr) error {
	api := m.cfg.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	kind := discoveryv1.AddressTypeIPv4
	if m.cfg.Endpoint.Addr().Is6() {
		kind = discoveryv1.AddressTypeIPv6
	}
	wanted := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: kubernetesName, Labels: map[string]string{discoveryv1.LabelServiceName: kubernetesName}},
		AddressType: kind,
		Endpoints:   []discoveryv1.Endpoint{},
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("https"), Port: ptr.To(int32(m.cfg.Endpoint.Port())), Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	}
	for _, a := range addrs {
		if a.Is6() == m.cfg.Endpoint.Addr().Is6() {
			wanted.Endpoints = append(wanted.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
		}
	}
	has, err := api.Get(ctx, kubernetesName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, wanted, metav1.CreateOptions{})
		err = made(err)
	case err == nil && !sameSlice(has, wanted):
		has = has.DeepCopy()
		has.Endpoints, has.Ports = wanted.Endpoints, wanted.Ports
		metav1.SetMetaDataLabel(&has.ObjectMeta, discoveryv1.LabelServiceName, kubernetesName)
		_, err = api.Update(ctx, has, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("endpoint slice of the kubernetes Service: %w", err)
	}
	return nil
}

func sameSlice(has, wanted *discoveryv1.EndpointSlice) bool {
	if has.Labels[discoveryv1.LabelServiceName] != kubernetesName || !equality.Semantic.DeepEqual(has.Ports, wanted.Ports) {
		return false
	}
	list := func(s *discoveryv1.EndpointSlice) string {
		var all []string
		for _, e := range s.Endpoints {
			all = append(all, fmt.Sprint(e.Addresses, e.Conditions.Ready != nil && *e.Conditions.Ready))
		}
		return strings.Join(all, " ")
	}
	return list(has) == list(wanted)
}
