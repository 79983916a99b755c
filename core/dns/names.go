// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/wasmplane/wasmplane/core/run"
)

// names are the cluster's own, in CoreDNS's kubernetes plugin.
type names struct{ plugin *kubernetes.Kubernetes }

// newNames configures the plugin with a stanza of CoreDNS's own configuration
// language, because it offers no other way.
func newNames(cfg Config, next plugin.Handler) (*names, error) {
	stanza := fmt.Sprintf("kubernetes %s in-addr.arpa ip6.arpa {\n pods insecure\n fallthrough in-addr.arpa ip6.arpa\n ttl %d\n}", cfg.Domain, max(1, int(cfg.TTL/time.Second)))
	c := caddy.NewTestController("dns", stanza)
	c.Next()
	k, err := kubernetes.ParseStanza(c)
	if err != nil {
		return nil, fmt.Errorf("configure CoreDNS's kubernetes plugin: %w", err)
	}
	k.ClientConfig, k.Next = fixed{cfg.Client}, next
	return &names{k}, nil
}

// run follows the API until ctx ends, and closes ready once it knows everything.
func (n *names) run(ctx context.Context, ready chan<- struct{}) {
	done := run.Go("dns: caches", func() error { // ends when Stop is called below
		n.plugin.APIConn.Run()
		return nil
	})
	defer func() {
		_ = n.plugin.APIConn.Stop()
		<-done
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !n.plugin.APIConn.HasSynced() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	close(ready)
	<-ctx.Done()
}

// connect makes the plugin's client. It is apart from newNames because it starts
// to allocate for the cluster.
func (n *names) connect(ctx context.Context) error {
	if _, _, err := n.plugin.InitKubeCache(ctx); err != nil {
		return fmt.Errorf("connect CoreDNS to the API: %w", err)
	}
	return nil
}

// lookup resolves what an ExternalName Service points at, through the whole chain.
type lookup struct{ handler plugin.Handler }

// Lookup implements kubernetes.Upstreamer.
func (l lookup) Lookup(ctx context.Context, state request.Request, name string, kind uint16) (*dns.Msg, error) {
	question := state.NewWithQuestion(name, kind)
	w := nonwriter.New(state.W)
	rcode, err := l.handler.ServeDNS(ctx, w, question.Req)
	if err != nil {
		return nil, err
	}
	if w.Msg == nil {
		m := new(dns.Msg)
		return m.SetRcode(question.Req, rcode), nil
	}
	return w.Msg, nil
}

// fixed is a clientcmd.ClientConfig of a configuration that is already made.
type fixed struct{ cfg *rest.Config }

func (f fixed) RawConfig() (clientcmdapi.Config, error) { return clientcmdapi.Config{}, nil }
func (f fixed) ClientConfig() (*rest.Config, error)     { return rest.CopyConfig(f.cfg), nil }
func (f fixed) Namespace() (string, bool, error)        { return "", false, nil }
func (f fixed) ConfigAccess() clientcmd.ConfigAccess    { return nil }

var _ clientcmd.ClientConfig = fixed{}
