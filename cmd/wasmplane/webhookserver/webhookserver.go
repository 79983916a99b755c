// SPDX-License-Identifier: Apache-2.0

// Package webhookserver serves the admission, conversion and authorization plugins of
// this process to another cluster's API server: it listens with a certificate of its own
// authority, keeps itself registered for admission, and writes the files by which that
// API server asks the authorizers. Reviews of authorization are answered only to whoever
// shows the certificate that was made for the API server.
package webhookserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/kubeconfig"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/reviewserver"
)

// Options say how a cluster's API server reaches the webhooks.
type Options struct {
	// Address to listen at; default ":9443".
	Address string
	// URL, without a path, or Service, as NAMESPACE/NAME:PORT. Without both, the URL is made of Address.
	URL, Service string
	// Exclude are namespaces whose objects no plugin sees.
	Exclude []string
	// AuthorizationDir gets the files for the API server; "" = DATA_DIR/webhook/authorization.
	AuthorizationDir string
}

// hosts are the names and addresses that the serving certificate is for.
func (w *Options) hosts(domain string) ([]string, error) {
	hosts := []string{"localhost", "127.0.0.1"}
	if host, _, err := net.SplitHostPort(w.Address); err != nil {
		return nil, fmt.Errorf("--address: %w", err)
	} else if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		hosts = append(hosts, host)
	}
	switch {
	case w.URL != "" && w.Service != "":
		return nil, errors.New("--url and --service: one of them says how the API server reaches the webhooks")
	case w.Service != "":
		namespace, name, _, err := reviewserver.ParseService(w.Service)
		if err != nil {
			return nil, fmt.Errorf("--service: %w", err)
		}
		full := name + "." + namespace + ".svc"
		hosts = append(hosts, full, full+"."+domain)
	case w.URL != "":
		u, err := url.Parse(w.URL)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" {
			return nil, fmt.Errorf("--url: expected https:// and a host, such as https://10.0.0.5:9443, found %q", w.URL)
		}
		hosts = append(hosts, u.Hostname())
	case len(hosts) == 2:
		return nil, errors.New("say how the API server reaches the webhooks: --url https://HOST:PORT, --service NAMESPACE/NAME:PORT, or an --address with a host")
	default:
		w.URL = "https://" + w.Address
	}
	return hosts, nil
}

// Config of a Server.
type Config struct {
	Options
	// Dir gets the authority of the serving certificate, Files those for the API server.
	Dir, Files string
	// ClusterDomain is the domain of the cluster's Services: "cluster.local".
	ClusterDomain string
	Logger        *slog.Logger
	// Note says to a person what else they have to do.
	Note func(string)
}

// Server answers the reviews of a cluster with the plugins of a process.
type Server struct {
	cfg       Config
	authority *pki.Authority
	serving   *pki.Pair
	loader    *loader.Loader
	changed   chan struct{}
	written   map[string][]byte // files for the API server, as they were written
}

// New checks the options and makes the serving certificate.
func New(cfg Config) (*Server, error) {
	if cfg.Address == "" {
		cfg.Address = ":9443"
	}
	hosts, err := cfg.hosts(cfg.ClusterDomain)
	if err != nil {
		return nil, err
	}
	authority, err := pki.Open(pki.Config{Dir: cfg.Dir, ClusterDomain: cfg.ClusterDomain, Log: cfg.Logger})
	if err != nil {
		return nil, err
	}
	serving, err := authority.Serving("webhook", hosts...)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, authority: authority, serving: serving, changed: make(chan struct{}, 1)}, nil
}

// Run serves the plugins of l to the cluster of kube, and keeps itself registered there,
// until ctx ends. ready is called when it is registered.
func (w *Server) Run(ctx context.Context, kube kubernetes.Interface, l *loader.Loader, ready func()) error {
	w.loader = l
	return run.Together(ctx, w.authority.Run, w.serve, func(ctx context.Context) error { return w.register(ctx, kube, ready) })
}

// Changed has it register anew, because the set of plugins has changed.
func (w *Server) Changed() {
	select {
	case w.changed <- struct{}{}:
	default: // it is going to already
	}
}

// mayAuthorize: the client shows the certificate that we made for the API server.
func (w *Server) mayAuthorize(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.authority.ClusterCA())
	leaf := r.TLS.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil && leaf.Subject.CommonName == apiServerUser
}

// requestsEnd is how long the reviews in flight have when the server stops.
const requestsEnd = 15 * time.Second

// serve answers reviews until ctx ends, and those that run to their end.
func (w *Server) serve(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", w.cfg.Address)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --address", err)
	}
	srv := &http.Server{
		Handler: reviewserver.Handler(reviewserver.Config{
			Admission: w.loader.AdmissionPlugins, Converters: w.loader.CustomResources, Authorizers: w.loader.Authorizers,
			MayAuthorize: w.mayAuthorize, Logger: w.cfg.Logger,
		}),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 3 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	done := run.Go("webhook server", func() error { return srv.Serve(tls.NewListener(l, pki.ServerTLS(w.serving))) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestsEnd)
	defer cancel()
	err = srv.Shutdown(end)
	<-done
	return err
}

// register keeps the cluster's configurations and the files for its API server right.
func (w *Server) register(ctx context.Context, kube kubernetes.Interface, ready func()) error {
	o := &w.cfg
	r := &reviewserver.Registration{
		Client: kube, URL: o.URL, Service: o.Service, CA: w.authority.RootsPEM, Exclude: o.Exclude, Logger: w.cfg.Logger, Versions: w.versions,
	}
	return r.Run(ctx, w.changed, func() {
		if err := w.writeFiles(); err != nil {
			w.cfg.Logger.ErrorContext(ctx, "the files for the API server could not be written", "error", err)
		}
		ready()
	})
}

// versions are those in force of the plugins that take part in admission.
func (w *Server) versions() []*point.Version {
	var out []*point.Version
	for _, p := range w.loader.AdmissionPlugins() {
		if one := w.loader.Plugin(p.Name()); one != nil && one.Current() != nil {
			out = append(out, one.Current())
		}
	}
	return out
}

// apiServerUser is who the API server is to us.
const apiServerUser = "wasmplane:api-server"

// writeFiles writes what an API server needs in order to ask our authorizers, where there are any.
func (w *Server) writeFiles() error {
	before, after := w.loader.Authorizers()
	if len(before)+len(after) == 0 {
		return nil
	}
	dir := w.cfg.AuthorizationDir
	if dir == "" {
		dir = w.cfg.Files
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the API server's files: %w", err)
	}
	a := reviewserver.Authorization{Before: len(before) > 0, After: len(after) > 0, FailOpen: w.failOpen()}
	files := map[string]string{}
	for _, order := range []string{"before", "after"} {
		files[order] = filepath.Join(dir, order+".kubeconfig")
		k, err := kubeconfig.Of(w.authority, "wasmplane-webhook", w.url()+"/authorize/"+order,
			pki.Identity{Name: "api-server", User: apiServerUser})
		if err != nil {
			return err
		}
		k.Embed = true // the file is carried to where the API server runs
		if err := kubeconfig.Write(files[order], k); err != nil {
			return err
		}
	}
	name := filepath.Join(dir, "authorization.yaml")
	text := reviewserver.AuthorizationConfiguration(a, files)
	if bytes.Equal(w.written[name], text) {
		return nil
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		return fmt.Errorf("write the API server's authorization configuration: %w", err)
	}
	w.written = map[string][]byte{name: text}
	w.cfg.Note(fmt.Sprintf("authorization plugins: start the API server with --authorization-config=%s (and the kubeconfig files beside it) instead of --authorization-mode", name))
	return nil
}

// url is where the API server's authorizer finds us: it does not resolve Services.
func (w *Server) url() string {
	o := &w.cfg
	if o.Service == "" {
		return strings.TrimSuffix(o.URL, "/")
	}
	namespace, name, port, _ := reviewserver.ParseService(o.Service) // checked at the start
	return fmt.Sprintf("https://%s.%s.svc:%d", name, namespace, port)
}

func (w *Server) failOpen() bool {
	for _, s := range w.loader.Status() {
		e, ok := w.loader.Entry(s.Name)
		if ok && e.FailurePolicy != manifest.Ignore && e.Mode == manifest.Enforce {
			for _, p := range s.Points {
				if p == "authorization" {
					return false
				}
			}
		}
	}
	return true
}
