package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/reviewserver"
)

// WebhookOptions say how a cluster's API server reaches the webhooks.
type WebhookOptions struct {
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
func (w *WebhookOptions) hosts(domain string) ([]string, error) {
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

// Webhook serves admission, conversion and authorization plugins to the cluster of a
// kubeconfig, and registers itself there for admission.
func Webhook(ctx context.Context, o Options, ready func(Info)) error {
	if o.Webhook.Address == "" {
		o.Webhook.Address = ":9443"
	}
	hosts, err := o.Webhook.hosts(o.Config.Cluster.Domain)
	if err != nil {
		return err
	}
	authority, err := pki.Open(pki.Config{Dir: o.Dir.Webhook(), ClusterDomain: o.Config.Cluster.Domain, Log: o.Logger})
	if err != nil {
		return err
	}
	serving, err := authority.Serving("webhook", hosts...)
	if err != nil {
		return err
	}
	return componentRun(ctx, o, "webhook", func(ctx context.Context, c *component, ready func()) error {
		w := &webhooks{c: c, authority: authority, serving: serving, changed: make(chan struct{}, 1)}
		off := c.plugins.onChange(w.tell)
		defer off()
		return run.Parallel(authority.Run, w.serve, func(ctx context.Context) error { return w.register(ctx, ready) })(ctx)
	}, ready)
}

// RemoveWebhook takes back what Webhook has registered.
func RemoveWebhook(ctx context.Context, o Options) error {
	cfg, err := client.FromKubeconfig(o.Kubeconfig, "webhook")
	if err != nil {
		return err
	}
	set, err := client.New(cfg)
	if err != nil {
		return err
	}
	return (&reviewserver.Registration{Client: set.Kube, Logger: o.Logger}).Remove(ctx)
}

type webhooks struct {
	c         *component
	authority *pki.Authority
	serving   *pki.Pair
	changed   chan struct{}
	written   map[string][]byte // files for the API server, as they were written
}

func (w *webhooks) tell() {
	select {
	case w.changed <- struct{}{}:
	default: // told already
	}
}

// mayAuthorize: the client shows the certificate that we made for the API server.
func (w *webhooks) mayAuthorize(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.authority.ClusterCA())
	leaf := r.TLS.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil && leaf.Subject.CommonName == apiServerUser
}

// serve answers reviews until ctx ends, and those that run to their end.
func (w *webhooks) serve(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", w.c.o.Webhook.Address)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --address", err)
	}
	srv := &http.Server{
		Handler: reviewserver.Handler(reviewserver.Config{
			Admission: w.c.plugins.loader.AdmissionPlugins, Converters: w.c.plugins.loader.CustomResources, Authorizers: w.c.plugins.loader.Authorizers,
			MayAuthorize: w.mayAuthorize, Logger: w.c.o.Logger,
		}),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 3 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(tls.NewListener(l, pki.ServerTLS(w.serving))) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err = srv.Shutdown(end)
	<-done
	return err
}

// register keeps the cluster's configurations and the files for its API server right.
func (w *webhooks) register(ctx context.Context, ready func()) error {
	set, err := client.New(w.c.config)
	if err != nil {
		return err
	}
	o := &w.c.o.Webhook
	r := &reviewserver.Registration{
		Client: set.Kube, URL: o.URL, Service: o.Service, CA: w.authority.CAPEM, Exclude: o.Exclude, Logger: w.c.o.Logger, Versions: w.versions,
	}
	return r.Run(ctx, w.changed, func() {
		if err := w.writeFiles(); err != nil {
			w.c.o.Logger.Error("the files for the API server could not be written", "error", err)
		}
		ready()
	})
}

// versions are those in force of the plugins that take part in admission.
func (w *webhooks) versions() []*point.Version {
	var out []*point.Version
	for _, p := range w.c.plugins.loader.AdmissionPlugins() {
		if one := w.c.plugins.loader.Plugin(p.Name()); one != nil && one.Current() != nil {
			out = append(out, one.Current())
		}
	}
	return out
}

// apiServerUser is who the API server is to us.
const apiServerUser = "wasmplane:api-server"

// writeFiles writes what an API server needs in order to ask our authorizers, where there are any.
func (w *webhooks) writeFiles() error {
	before, after := w.c.plugins.loader.Authorizers()
	if len(before)+len(after) == 0 {
		return nil
	}
	dir := w.c.o.Webhook.AuthorizationDir
	if dir == "" {
		dir = filepath.Join(string(w.c.o.Dir), "webhook", "authorization")
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
		k, err := w.authority.Kubeconfig("wasmplane-webhook", w.url()+"/authorize/"+order, pki.Identity{Name: "api-server", User: apiServerUser})
		if err != nil {
			return err
		}
		k.Embed = true // the file is carried to where the API server runs
		if err := pki.WriteKubeconfig(files[order], k); err != nil {
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
	w.c.o.note(fmt.Sprintf("authorization plugins: start the API server with --authorization-config=%s (and the kubeconfig files beside it) instead of --authorization-mode", name))
	return nil
}

// url is where the API server's authorizer finds us: it does not resolve Services.
func (w *webhooks) url() string {
	o := &w.c.o.Webhook
	if o.Service == "" {
		return strings.TrimSuffix(o.URL, "/")
	}
	namespace, name, port, _ := reviewserver.ParseService(o.Service) // checked at the start
	return fmt.Sprintf("https://%s.%s.svc:%d", name, namespace, port)
}

func (w *webhooks) failOpen() bool {
	for _, s := range w.c.plugins.loader.Status() {
		e, ok := w.c.plugins.loader.Entry(s.Name)
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

// clientNamespaces answers the labels of namespaces from the API, remembered for a
// few seconds: every admission request of a plugin with a namespaceSelector asks.
type clientNamespaces struct {
	kube kubernetes.Interface

	mu    sync.Mutex
	known map[string]knownNamespace
}

type knownNamespace struct {
	labels map[string]string
	ok     bool
	until  time.Time
}

const (
	namespacesFor  = 5 * time.Second
	mostNamespaces = 10_000
)

func (n *clientNamespaces) labels(ctx context.Context, name string) (map[string]string, bool) {
	n.mu.Lock()
	k, found := n.known[name]
	n.mu.Unlock()
	if found && time.Now().Before(k.until) {
		return k.labels, k.ok
	}
	ns, err := n.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return k.labels, k.ok && found // what was known last
	}
	k = knownNamespace{ok: err == nil, until: time.Now().Add(namespacesFor)}
	if err == nil {
		k.labels = ns.Labels
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil || len(n.known) > mostNamespaces {
		n.known = map[string]knownNamespace{}
	}
	n.known[name] = k
	return k.labels, k.ok
}
