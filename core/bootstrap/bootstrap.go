// SPDX-License-Identifier: Apache-2.0

// Package bootstrap creates the objects that every cluster needs: its namespaces, roles and
// bindings, system priority classes, the network of Services, and the `kubernetes` Service
// by which pods reach the API, with the addresses of all running apiservers behind it.
//
// It goes through the API like every client, and brings a running cluster up to
// date in the same way as it begins a new one: what is missing is made, what an
// operator added stays, what an operator protected (the annotation
// rbac.authorization.kubernetes.io/autoupdate: "false") is left alone.
//
// Before there are roles nobody may make roles. Bootstrap therefore runs under
// the server's own identity, system:apiserver in the break-glass group, which
// exists only inside the server's process, for this package, the server's
// informers and its admission plugins. No component that could also run as a
// process of its own has it: those are in the table of components (package
// roles), each with the least that it needs.
package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
)

// Config describes the cluster to begin.
type Config struct {
	// Client has the server's own identity; see the package's words on it.
	Client kubernetes.Interface
	// ServiceCIDRs are the networks of Services, one, or one of each IP family.
	// The first address of each is the `kubernetes` Service.
	ServiceCIDRs []netip.Prefix
	// Endpoint is where pods reach this apiserver.
	Endpoint netip.AddrPort
	// Identity tells this apiserver from others; default: its Endpoint.
	Identity string
	// Cluster is published, and held against what another server has published.
	Cluster Cluster
	// ClientCA and FrontProxyCA are published in PEM for extension apiservers.
	ClientCA, FrontProxyCA []byte
	// FrontProxyNames are the common names of authenticating proxies.
	FrontProxyNames []string
	// Patience bounds how long a failing start is tried again; default 60 s.
	Patience time.Duration
	// Refresh is how often the apiserver says that it lives; default 10 s. It is
	// taken for gone after three times as much.
	Refresh time.Duration
	// Log tells what was made; default: nothing is logged.
	Log *slog.Logger
}

func (c *Config) complete() error {
	switch {
	case c.Client == nil:
		return errors.New("bootstrap: Client is nil")
	case len(c.ServiceCIDRs) == 0:
		return errors.New("bootstrap: ServiceCIDRs is empty: name the network of Services")
	case !c.Endpoint.IsValid() || c.Endpoint.Addr().IsUnspecified():
		return fmt.Errorf("bootstrap: Endpoint %s is no address that pods can reach the apiserver at", c.Endpoint)
	}
	for _, p := range c.ServiceCIDRs {
		if !p.IsValid() || p != p.Masked() {
			return fmt.Errorf("bootstrap: service network %s: write it as its first address, %s", p, p.Masked())
		}
	}
	if c.Identity == "" {
		c.Identity = c.Endpoint.String()
	}
	if c.Patience <= 0 {
		c.Patience = time.Minute
	}
	if c.Refresh <= 0 {
		c.Refresh = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Bootstrap makes and keeps what the cluster needs.
type Bootstrap struct {
	cfg     Config
	ready   chan struct{}
	fair    chan struct{}
	masters *masters
	// disagreed is the default ServiceCIDR of which was told that it is not the configuration's.
	disagreed types.UID
}

// New checks the configuration.
func New(cfg Config) (*Bootstrap, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Bootstrap{cfg: cfg, ready: make(chan struct{}), fair: make(chan struct{}), masters: newMasters(cfg)}, nil
}

// Ready is closed once everything is there and clients with roles can work.
func (b *Bootstrap) Ready() <-chan struct{} { return b.ready }

// Fair is closed once flow schemas and priority levels have been looked at for the first time.
// Nothing waits for them: see keepFairness.
func (b *Bootstrap) Fair() <-chan struct{} { return b.fair }

// Run brings the cluster up to date, and then keeps this apiserver's address in
// the `kubernetes` Service until ctx ends, when it takes the address out again.
func (b *Bootstrap) Run(ctx context.Context) error {
	err := b.persist(ctx)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was stopped: what it did not get done is no failure
	}
	if err != nil {
		return err
	}
	close(b.ready)
	var g errgroup.Group
	g.Go(func() error { return b.masters.run(ctx) })
	g.Go(func() error { b.keepFairness(ctx); return nil })
	g.Go(func() error { b.keepServiceNetwork(ctx); return nil })
	g.Go(func() error { b.keepLegacyTokenTracking(ctx); return nil })
	return g.Wait()
}

// errMisconfigured does not go away by trying again.
var errMisconfigured = errors.New("the configuration does not fit the cluster")

// persist tries until everything is in place or patience ends.
func (b *Bootstrap) persist(ctx context.Context) error {
	patience, cancel := context.WithTimeout(ctx, b.cfg.Patience)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		err := b.ensure(patience)
		if err == nil || errors.Is(err, errMisconfigured) {
			return err
		}
		b.cfg.Log.DebugContext(ctx, "bootstrap is not complete yet", "error", err)
		select {
		case <-patience.Done():
			return fmt.Errorf("bootstrap the cluster: %w", err)
		case <-tick.C:
		}
	}
}

// ensure makes everything once. Namespaces and cluster-wide objects come first,
// side by side, then what lives in namespaces. The service network comes before
// the Service that takes an address from it.
func (b *Bootstrap) ensure(ctx context.Context) error {
	policy := roles.Policy()
	if err := b.checkAuthority(ctx); err != nil {
		return err
	}
	if err := together(ctx,
		b.namespaces,
		b.priorityClasses,
		b.serviceNetwork,
		func(ctx context.Context) error { return b.clusterRoles(ctx, policy) },
		func(ctx context.Context) error { return b.clusterBindings(ctx, policy) },
	); err != nil {
		return err
	}
	return together(ctx,
		func(ctx context.Context) error { return b.roles(ctx, policy) },
		b.authenticationConfig,
		b.cluster,
		b.legacyTokenTracking,
		b.kubernetesService,
		b.masters.reconcile,
	)
}

// together runs all of fs, and returns the errors of all.
func together(ctx context.Context, fs ...func(context.Context) error) error {
	errs := make([]error, len(fs))
	var g errgroup.Group
	for i, f := range fs {
		g.Go(func() error {
			errs[i] = f(ctx)
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// made treats an object that somebody else just made as made.
func made(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Namespaces that every cluster has.
func namespaces() []string {
	return []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, roles.PluginNamespace}
}

func (b *Bootstrap) namespaces(ctx context.Context) error {
	var g errgroup.Group
	for _, name := range namespaces() {
		g.Go(func() error {
			api := b.cfg.Client.CoreV1().Namespaces()
			_, err := api.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			}
			if made(err) != nil {
				return fmt.Errorf("namespace %s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

const systemCritical = 2000000000

func systemPriorityClasses() []*schedulingv1.PriorityClass {
	return []*schedulingv1.PriorityClass{{
		ObjectMeta:  metav1.ObjectMeta{Name: "system-node-critical"},
		Value:       systemCritical + 1000,
		Description: "Used for system critical pods that must not be moved from their current node.",
	}, {
		ObjectMeta:  metav1.ObjectMeta{Name: "system-cluster-critical"},
		Value:       systemCritical,
		Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
	}}
}

func (b *Bootstrap) priorityClasses(ctx context.Context) error {
	api := b.cfg.Client.SchedulingV1().PriorityClasses()
	for _, class := range systemPriorityClasses() {
		_, err := api.Get(ctx, class.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = api.Create(ctx, class, metav1.CreateOptions{})
		}
		if made(err) != nil {
			return fmt.Errorf("priority class %s: %w", class.Name, err)
		}
	}
	return nil
}

const kubernetesName = "kubernetes"

// authenticationConfig publishes how this apiserver authenticates, for extension
// apiservers behind it.
func (b *Bootstrap) authenticationConfig(ctx context.Context) error {
	return b.PublishAuthorities(ctx, b.cfg.ClientCA, b.cfg.FrontProxyCA)
}

// PublishAuthorities tells extension apiservers of authorities that have changed since the
// start, in PEM.
func (b *Bootstrap) PublishAuthorities(ctx context.Context, clients, frontProxy []byte) error {
	const name = "extension-apiserver-authentication"
	data := map[string]string{}
	if len(clients) > 0 {
		data["client-ca-file"] = string(clients)
	}
	if len(frontProxy) > 0 {
		data["requestheader-client-ca-file"] = string(frontProxy)
		for key, list := range map[string][]string{
			"requestheader-allowed-names":        append([]string{}, b.cfg.FrontProxyNames...),
			"requestheader-username-headers":     {"X-Remote-User"},
			"requestheader-uid-headers":          {"X-Remote-Uid"},
			"requestheader-group-headers":        {"X-Remote-Group"},
			"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		} {
			text, err := json.Marshal(list)
			if err != nil {
				return fmt.Errorf("config map %s: %w", name, err)
			}
			data[key] = string(text)
		}
	}
	if err := b.configMap(ctx, metav1.NamespaceSystem, name, data); err != nil {
		return fmt.Errorf("config map %s: %w", name, err)
	}
	return nil
}

// configMap sets the keys of data and leaves others alone.
func (b *Bootstrap) configMap(ctx context.Context, namespace, name string, data map[string]string) error {
	api := b.cfg.Client.CoreV1().ConfigMaps(namespace)
	has, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
		return made(err)
	}
	if err != nil {
		return err
	}
	changed := has.DeepCopy()
	same := true
	for k, v := range data {
		if old, ok := changed.Data[k]; !ok || old != v {
			same = false
			if changed.Data == nil {
				changed.Data = map[string]string{}
			}
			changed.Data[k] = v
		}
	}
	if same {
		return nil
	}
	_, err = api.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// kubernetesService is how pods reach the API.
func (b *Bootstrap) kubernetesService(ctx context.Context) error {
	api := b.cfg.Client.CoreV1().Services(metav1.NamespaceDefault)
	wanted := []corev1.ServicePort{{
		Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(int32(b.cfg.Endpoint.Port())),
	}}
	s, err := api.Get(ctx, kubernetesName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		single := corev1.IPFamilyPolicySingleStack
		_, err = api.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: kubernetesName, Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
			Spec: corev1.ServiceSpec{
				Ports: wanted, ClusterIP: b.cfg.ServiceCIDRs[0].Addr().Next().String(), IPFamilyPolicy: &single,
				SessionAffinity: corev1.ServiceAffinityNone, Type: corev1.ServiceTypeClusterIP,
			},
		}, metav1.CreateOptions{})
		if made(err) != nil {
			return fmt.Errorf("service %s: %w", kubernetesName, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", kubernetesName, err)
	}
	if p := s.Spec.Ports; len(p) == 1 && p[0].Port == 443 && p[0].TargetPort == wanted[0].TargetPort && p[0].Name == "https" {
		return nil
	}
	s = s.DeepCopy()
	s.Spec.Ports = wanted
	if _, err := api.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("service %s: %w", kubernetesName, err)
	}
	return nil
}
