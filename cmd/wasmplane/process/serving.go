// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // workqueue_*

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	kubeletserver "github.com/wasmplane/wasmplane/core/kubelet/server"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/secureserving"
)

// serve serves the metrics and health of a part that runs by itself, until ctx ends.
func (c *Component) serve(p Part) func(context.Context) error {
	s := config.Serving{Listen: config.NoListen}
	if p.serving != nil {
		s = p.serving(c.Options.Config)
	}
	return func(ctx context.Context) error {
		listener, err := c.Listen(ctx, "metrics and health of "+p.Name, s.Listen, net.JoinHostPort("127.0.0.1", p.port))
		if err != nil {
			return err
		}
		if listener == nil {
			<-ctx.Done()
			return nil
		}
		server, err := c.metricsServer(p, s, listener)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		return server.Run(ctx)
	}
}

// Listen listens where the configuration says; nil = nowhere. The usual address may be taken, by another cluster of
// this machine: that is logged, and keeps nobody from working. What is served there is named in messages.
func (c *Component) Listen(ctx context.Context, what, configured, usual string) (net.Listener, error) {
	if configured == config.NoListen {
		return nil, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", cmp.Or(configured, usual))
	if configured == "" && errors.Is(err, syscall.EADDRINUSE) {
		c.Options.Logger.WarnContext(ctx, "the usual address is taken, and nothing is served there; choose another in the configuration",
			"served", what, "address", usual)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w; choose another address in the configuration, or none", what, err)
	}
	return l, nil
}

// Roots are the authorities that a client's configuration names, read again when their
// file changes.
func Roots(c *rest.Config) (func() *x509.CertPool, error) {
	if c.CAFile != "" && len(c.CAData) == 0 {
		return cabundle.Follow(c.CAFile)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CAData) {
		return nil, errors.New("the kubeconfig names no certificate authority (certificate-authority)")
	}
	return func() *x509.CertPool { return roots }, nil
}

func (c *Component) metricsServer(p Part, s config.Serving, listener net.Listener) (*secureserving.Server, error) {
	conf := secureserving.Config{
		Component: p.Name, Upstream: p.upstream, Flags: c.Options.Flags, Listener: listener, Logger: c.Options.Logger,
		Gatherer: prometheus.Gatherers{c.Metrics, legacyregistry.DefaultGatherer},
	}
	if p.also != nil {
		conf.Also = p.also(c)
	}
	if c.watch != nil {
		conf.Live = append(conf.Live, secureserving.Check{Name: c.watch.Name(), Do: c.watch.Check})
	}
	if p.readyCheck != "" {
		conf.Ready = append(conf.Ready, secureserving.Check{Name: p.readyCheck, Do: func(*http.Request) error {
			if c.catchingUp.Load() {
				return fmt.Errorf("the %s has not seen the cluster yet", p.Name)
			}
			return nil
		}})
	}
	if p.open {
		return secureserving.New(conf)
	}
	set, err := client.New(c.Config)
	if err != nil {
		return nil, err
	}
	roots, err := Roots(c.Config)
	if err != nil {
		return nil, fmt.Errorf("the cluster's authority: %w", err)
	}
	if conf.Authenticator, conf.Authorizer, err = kubeletserver.Delegate(set.Kube, roots); err != nil {
		return nil, err
	}
	if conf.TLS, err = secureserving.Certificate(c.Options.Config.Path(s.CertFile), c.Options.Config.Path(s.KeyFile), listener.Addr(),
		c.Options.Logger); err != nil {
		return nil, err
	}
	return secureserving.New(conf)
}
