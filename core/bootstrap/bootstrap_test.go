// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

func client(t *testing.T, s *apiservertest.Server) kubernetes.Interface {
	t.Helper()
	cfg := s.Config(user.APIServerUser, user.SystemPrivilegedGroup)
	cfg.WarningHandler, cfg.QPS = rest.NoWarnings{}, -1
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func config(c kubernetes.Interface, endpoint string) Config {
	return Config{
		Client: c, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Endpoint: netip.MustParseAddrPort(endpoint),
		ClientCA: []byte("CA"), FrontProxyCA: []byte("FP"), FrontProxyNames: []string{"front-proxy-client"},
		Refresh: 50 * time.Millisecond, Patience: time.Minute,
	}
}

// start runs a bootstrap until the returned function is called.
func start(t *testing.T, cfg Config) (stop func()) {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-done:
		t.Fatalf("ended: %v", err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func endpoints(t *testing.T, c kubernetes.Interface) []string {
	t.Helper()
	s, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range s.Endpoints {
		all = append(all, e.Addresses...)
	}
	return all
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("still not so: %s", what)
		case <-tick.C:
		}
	}
}

func TestAFreshClusterGetsWhatItNeeds(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c, ctx := client(t, s), t.Context()
	began := time.Now()
	stop := start(t, config(c, "192.0.2.1:6443"))
	t.Logf("an empty cluster took %s", time.Since(began))
	for _, name := range namespaces() {
		if _, err := c.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	svc, err := c.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if svc.Spec.ClusterIP != "10.96.0.1" || svc.Spec.Ports[0].Port != 443 || svc.Spec.Ports[0].TargetPort.IntVal != 6443 {
		t.Errorf("the kubernetes Service is %+v", svc.Spec)
	}
	if got := endpoints(t, c); !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("endpoints %q", got)
	}
	cm, err := c.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if cm.Data["requestheader-allowed-names"] != `["front-proxy-client"]` || cm.Data["client-ca-file"] != "CA" {
		t.Errorf("config map %v", cm.Data)
	}
	cidr, err := c.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(cidr.Status.Conditions) != 1 || cidr.Status.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("service network %+v", cidr.Status)
	}
	all, err := c.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != len(roles.Policy().ClusterRoles) {
		t.Errorf("%d cluster roles, want %d", len(all.Items), len(roles.Policy().ClusterRoles))
	}
	stop()

	began = time.Now()
	before := map[string]string{}
	for _, r := range all.Items {
		before[r.Name] = r.ResourceVersion
	}
	start(t, config(c, "192.0.2.1:6443"))()
	t.Logf("a known cluster took %s", time.Since(began))
	again, err := c.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range again.Items {
		if again.Items[i].ResourceVersion != before[again.Items[i].Name] {
			t.Errorf("%s was written again", again.Items[i].Name)
		}
	}
}

func TestAnOperatorsChangesStay(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c, ctx := client(t, s), t.Context()
	start(t, config(c, "192.0.2.1:6443"))()
	api := c.RbacV1().ClusterRoles()
	extra := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}}
	edit := func(name string, f func(*rbacv1.ClusterRole)) {
		t.Helper()
		r, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f(r)
		if _, err := api.Update(ctx, r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	edit("system:kube-scheduler", func(r *rbacv1.ClusterRole) { r.Rules = []rbacv1.PolicyRule{extra} })
	edit("system:node-proxier", func(r *rbacv1.ClusterRole) {
		r.Rules, r.Annotations[rbacv1.AutoUpdateAnnotationKey] = []rbacv1.PolicyRule{extra}, "false"
	})
	if err := c.RbacV1().ClusterRoleBindings().Delete(ctx, "wasmplane:cluster-admins", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	start(t, config(c, "192.0.2.1:6443"))()
	scheduler, err := api.Get(ctx, "system:kube-scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(scheduler.Rules) < 10 || scheduler.Rules[0].APIGroups[0] != "example.com" {
		t.Errorf("rules %+v", scheduler.Rules)
	}
	proxier, err := api.Get(ctx, "system:node-proxier", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(proxier.Rules) != 1 {
		t.Errorf("a protected role was changed: %+v", proxier.Rules)
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Get(ctx, "wasmplane:cluster-admins", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// Three apiservers share the Service; one says goodbye, one just dies.
func TestTheKubernetesServiceFollowsTheApiservers(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := client(t, s)
	stopFirst := start(t, config(c, "192.0.2.1:6443"))
	stopSecond := start(t, config(c, "192.0.2.2:6443"))
	dying, err := New(config(c, "192.0.2.3:6443"))
	if err != nil {
		t.Fatal(err)
	}
	// The others write the same objects meanwhile.
	eventually(t, "the third is there", func() bool { return dying.masters.reconcile(t.Context()) == nil })
	eventually(t, "all three serve", func() bool { return len(endpoints(t, c)) == 3 })
	stopFirst()
	if got := endpoints(t, c); slices.Contains(got, "192.0.2.1") {
		t.Errorf("the first said goodbye, endpoints are %q", got)
	}
	eventually(t, "the third is found dead", func() bool { return slices.Equal(endpoints(t, c), []string{"192.0.2.2"}) })
	stopSecond()
	if got := endpoints(t, c); len(got) != 0 {
		t.Errorf("nobody serves, endpoints are %q", got)
	}
	kind, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || kind.AddressType != discoveryv1.AddressTypeIPv4 {
		t.Errorf("slice %+v, error %v", kind, err)
	}
}

// A cluster can be given a second family behind its first; not another first, nor one less.
func TestASecondFamily(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := client(t, s)
	start(t, config(c, "192.0.2.1:6443"))()
	cfg := config(c, "192.0.2.1:6443")
	cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix("fd00:96::/112"))
	start(t, cfg)()
	cidr, err := c.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || !slices.Equal(cidr.Spec.CIDRs, []string{"10.96.0.0/16", "fd00:96::/112"}) {
		t.Errorf("the service network is %v (%v)", cidr.Spec.CIDRs, err)
	}
	svc, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || !slices.Equal(svc.Spec.ClusterIPs, []string{"10.96.0.1"}) {
		t.Errorf("the kubernetes Service has %v (%v)", svc.Spec.ClusterIPs, err)
	}
	for _, wrong := range [][]netip.Prefix{
		{netip.MustParsePrefix("10.96.0.0/16")},
		{netip.MustParsePrefix("fd00:96::/112"), netip.MustParsePrefix("10.96.0.0/16")},
		{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:97::/112")},
	} {
		cfg.ServiceCIDRs = wrong
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be changed") {
			t.Errorf("%v: error %v", wrong, err)
		}
	}
}

// A configuration that was widened between two starts: the cluster goes on with its range and
// says so; the default ServiceCIDR, deleted, comes back as configured.
func TestAWiderServiceNetwork(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := client(t, s)
	start(t, config(c, "192.0.2.1:6443"))()
	cfg := config(c, "192.0.2.1:6443")
	cfg.ServiceCIDRs, cfg.Refresh = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/14")}, 20*time.Millisecond
	defer start(t, cfg)()
	api := c.NetworkingV1().ServiceCIDRs()
	cidrs := func() []string {
		t.Helper()
		cidr, err := api.Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return cidr.Spec.CIDRs
	}
	if got := cidrs(); !slices.Equal(got, []string{"10.96.0.0/16"}) {
		t.Errorf("the service network is %v", got)
	}
	told := func() (n int) {
		events, err := c.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason == "KubernetesDefaultServiceCIDRInconsistent" &&
				e.InvolvedObject.Kind == "ServiceCIDR" && e.InvolvedObject.Name == "kubernetes" {
				n++
			}
		}
		return n
	}
	eventually(t, "an event says that the configuration differs", func() bool { return told() > 0 })
	if err := api.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the default range is the configuration's", func() bool { return slices.Equal(cidrs(), []string{"10.96.0.0/14"}) })
	if n := told(); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

func TestAnotherServiceNetworkIsRefused(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := client(t, s)
	start(t, config(c, "192.0.2.1:6443"))()
	cfg := config(c, "192.0.2.1:6443")
	cfg.ServiceCIDRs, cfg.Patience = []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, time.Hour
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be changed") {
		t.Errorf("error %v", err)
	}
}

// TestAnotherAuthorityIsRefused: a server that signs with another authority than the
// cluster's would hand out what all others refuse. It writes nothing before it is told.
func TestAnotherAuthorityIsRefused(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := client(t, s)
	cfg := config(c, "192.0.2.1:6443")
	cfg.Cluster = Cluster{Name: "one", Domain: "cluster.local", PodCIDR: "10.1.0.0/16", Authority: "sha256:aa"}
	start(t, cfg)()
	published := func() map[string]string {
		t.Helper()
		m, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), clusterinfo.ConfigMap, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m.Data
	}
	want := map[string]string{
		"name": "one", "domain": "cluster.local", "podCIDR": "10.1.0.0/16", "serviceCIDR": cfg.ServiceCIDRs[0].String(),
		"authority": "sha256:aa",
	}
	if got := published(); !maps.Equal(got, want) {
		t.Errorf("the cluster is published as %q, want %q", got, want)
	}
	cfg.Cluster.Authority, cfg.Patience = "sha256:bb", time.Hour
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "replace its folder pki by a copy") {
		t.Errorf("error %v", err)
	}
	if got := published(); !maps.Equal(got, want) {
		t.Errorf("the refused server has written %q", got)
	}
	// The only server of its store has lost its folder pki: it goes on with a new one.
	cfg.Cluster.Alone = true
	start(t, cfg)()
	if got := published()[clusterinfo.Authority]; got != "sha256:bb" {
		t.Errorf("the authority is %q", got)
	}
}

// While the authority changes, a server may be a step behind: it starts, and leaves what
// machines are told to who drives the change.
func TestAServerStartsWhileTheAuthorityChanges(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := client(t, s)
	a, err := pki.Open(pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	own := func() Cluster {
		return Cluster{Name: "one", Authority: cabundle.Pin(a.ClusterCA()), Trusted: string(a.CAPEM())}
	}
	published := func() map[string]string {
		t.Helper()
		m, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), clusterinfo.ConfigMap, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m.Data
	}
	cfg := config(c, "192.0.2.1:6443")
	cfg.Cluster = own()
	start(t, cfg)()
	before := published()
	if before[clusterinfo.Authorities] != cfg.Cluster.Trusted {
		t.Errorf("machines are told of %q", before[clusterinfo.Authorities])
	}
	next, to, err := a.Successor(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []pki.Step{pki.Trusting, pki.Signing} {
		if _, err := a.Follow(step, to, &next); err != nil {
			t.Fatal(err)
		}
		cfg.Cluster = own()
		start(t, cfg)()
		if got := published(); !maps.Equal(got, before) {
			t.Errorf("step %s: the server has written %q", step, got)
		}
	}
}

// Upstream's flow schemas and levels are there; a suggested one that an operator
// changed stays changed, a mandatory one does not.
func TestFlowSchemasAreKept(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := client(t, s)
	b, err := New(config(c, "192.0.2.1:6443"))
	if err != nil {
		t.Fatal(err)
	}
	again := func() {
		t.Helper()
		if err := b.fairness(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again()
	schemas := c.FlowcontrolV1().FlowSchemas()
	list, err := schemas.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) < 10 {
		t.Fatalf("%d flow schemas, %v", len(list.Items), err)
	}
	again()
	after, err := schemas.List(t.Context(), metav1.ListOptions{})
	if err != nil || after.ResourceVersion == "" {
		t.Fatal(err)
	}
	for i := range list.Items {
		if i < len(after.Items) && after.Items[i].Generation != list.Items[i].Generation {
			t.Errorf("%s was written again for nothing", after.Items[i].Name)
		}
	}
	for name, want := range map[string]int32{"global-default": 1234, "catch-all": 10000} {
		fs, err := schemas.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		fs.Spec.MatchingPrecedence = 1234
		fs.Annotations = nil
		if _, err := schemas.Update(t.Context(), fs, metav1.UpdateOptions{}); err != nil && name != "catch-all" {
			t.Fatal(err) // a mandatory one cannot even be changed
		}
		again()
		if fs, err = schemas.Get(t.Context(), name, metav1.GetOptions{}); err != nil || fs.Spec.MatchingPrecedence != want {
			t.Errorf("%s: %d, %v", name, fs.Spec.MatchingPrecedence, err)
		}
	}
	if err := schemas.Delete(t.Context(), "probes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again()
	if _, err := schemas.Get(t.Context(), "probes", metav1.GetOptions{}); err != nil {
		t.Errorf("a deleted one: %v", err)
	}
}
