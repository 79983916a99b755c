// SPDX-License-Identifier: Apache-2.0

package roles

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/dns"
	"github.com/wasmplane/wasmplane/core/run/presence"
)

// works says whether a component that starts with what c grants gets ready.
type works func(ctx context.Context, t *testing.T, cfg *rest.Config, patience time.Duration) bool

func dnsWorks(ctx context.Context, t *testing.T, cfg *rest.Config, patience time.Duration) bool {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	_ = l.Close()
	s, err := dns.New(dns.Config{Client: cfg, Listen: []netip.AddrPort{at}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	return within(patience, s.Ready())
}

// proxyWorks fills the informers that the proxy reads.
func proxyWorks(ctx context.Context, t *testing.T, cfg *rest.Config, patience time.Duration) bool {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := informers.NewSharedInformerFactory(client, 0)
	services, slices := f.Core().V1().Services().Informer(), f.Discovery().V1().EndpointSlices().Informer()
	f.Start(ctx.Done())
	defer func() { cancel(); f.Shutdown() }()
	return within(patience, services.HasSyncedChecker().Done()) && within(patience, slices.HasSyncedChecker().Done())
}

func within(patience time.Duration, ready <-chan struct{}) bool {
	select {
	case <-ready:
		return true
	case <-time.After(patience):
		return false
	}
}

// Every right that DNS and the proxy have for reading is one that they need.
func TestOneRightTooFew(t *testing.T) {
	for _, c := range []struct {
		name  string
		who   user.Info
		needs []string // the rights without which it cannot begin
		works works
	}{
		{"dns", CoreDNS(), []string{"services", "namespaces", "endpointslices"}, dnsWorks},
		{"proxy", Components("n1")[2].User, []string{"services", "endpointslices"}, proxyWorks},
	} {
		t.Run(c.name, func(t *testing.T) {
			grants := GrantsOf(Policy(), c.who)
			try := func(g Grants, patience time.Duration) bool {
				s := apiservertest.Start(t, apiservertest.Options{Authorizer: g.Authorizer()})
				cfg := s.Config(c.who.GetName(), c.who.GetGroups()...)
				cfg.QPS = -1
				return c.works(t.Context(), t, cfg, patience)
			}
			if !try(grants, time.Minute) {
				t.Fatal("it does not work with its own rights")
			}
			tried := 0
			for _, less := range grants.EachLess() {
				_, resource, _ := strings.Cut(less.Missing, " ")
				for _, need := range c.needs {
					if resource == need {
						tried++
						if try(less.Grants, 1500*time.Millisecond) {
							t.Errorf("it works without %q", less.Missing)
						}
					}
				}
			}
			if tried < len(c.needs) {
				t.Errorf("only %d of its rights were taken away", tried)
			}
		})
	}
}

// TestWhoReportsAboutPluginsKeepsALease, and nobody else there: nodes report to nobody.
func TestWhoReportsAboutPluginsKeepsALease(t *testing.T) {
	for _, c := range []struct {
		who  user.Info
		held bool
	}{
		{&user.DefaultInfo{Name: user.KubeScheduler}, true},
		{&user.DefaultInfo{Name: user.KubeControllerManager}, true},
		{&user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}, false},
	} {
		s := apiservertest.Start(t, apiservertest.Options{Authorizer: GrantsOf(Policy(), c.who).Authorizer()})
		kube, err := kubernetes.NewForConfig(s.Config(c.who.GetName(), c.who.GetGroups()...))
		if err != nil {
			t.Fatal(err)
		}
		k := presence.New(presence.Config{Client: kube, Namespace: PluginNamespace, Group: "plugins", Identity: c.who.GetName()})
		err = k.Beat(t.Context())
		if k.Held() != c.held || (err == nil) != c.held {
			t.Errorf("%s: held %v, %v", c.who.GetName(), k.Held(), err)
		}
	}
}
