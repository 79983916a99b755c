// SPDX-License-Identifier: Apache-2.0

// Package externaldata asks Gatekeeper's Providers: servers that know something about keys, such as the names of images, which
// constraints in Rego ask by external_data.
//
// A Provider is asked by POST, over https, with the authority that it names as the only one that is trusted. No
// redirect is followed; time, bytes, keys and what is remembered are bounded. Answers are remembered for three minutes.
package externaldata

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// The kind.
const (
	Group = "externaldata.gatekeeper.sh"
	Kind  = "Provider"
)

// Versions of the kind.
func Versions() []string { return []string{"v1beta1", "v1alpha1"} }

// Bounds.
const (
	defaultTimeout = 3 * time.Second
	longestTimeout = 30 * time.Second
	answerLimit    = 1 << 20 // bytes
	mostKeys       = 100     // of one question
	longestKey     = 4 << 10 // bytes
	mostKept       = 10_000
	mostKeptBytes  = 32 << 20 // of all answers that are remembered: whoever makes objects chooses the keys
	keptFor        = 3 * time.Minute
)

// Provider is a Provider that has been read.
type Provider struct {
	Name    string
	url     string
	timeout time.Duration
	roots   *x509.CertPool
	id      string // of what it says
}

// Read reads a Provider.
func Read(o map[string]any) (*Provider, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var p struct {
		APIVersion string        `json:"apiVersion"`
		Kind       string        `json:"kind"`
		Metadata   tree.Metadata `json:"metadata"`
		Spec       struct {
			URL                   string `json:"url"`
			Timeout               int    `json:"timeout"`
			CABundle              string `json:"caBundle"`
			InsecureTLSSkipVerify bool   `json:"insecureTLSSkipVerify"`
		} `json:"spec"`
		Status json.RawMessage `json:"status"`
	}
	if err := tree.Strict(text, &p, "provider"); err != nil {
		return nil, err
	}
	var errs []error
	u, err := url.Parse(p.Spec.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		errs = append(errs, errors.New("spec.url: expected https:// and a host, without credentials"))
	}
	if p.Spec.InsecureTLSSkipVerify {
		errs = append(errs, errors.New("spec.insecureTLSSkipVerify: a server that anybody could be is not asked here: give spec.caBundle"))
	}
	if p.Spec.Timeout < 0 || time.Duration(p.Spec.Timeout)*time.Second > longestTimeout {
		errs = append(errs, fmt.Errorf("spec.timeout: expected 1 to %d seconds", int(longestTimeout/time.Second)))
	}
	roots := x509.NewCertPool()
	if bundle, err := base64.StdEncoding.DecodeString(p.Spec.CABundle); err != nil || !roots.AppendCertsFromPEM(bundle) {
		errs = append(errs, errors.New("spec.caBundle: expected certificates in PEM, in base64"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	timeout := defaultTimeout
	if p.Spec.Timeout > 0 {
		timeout = time.Duration(p.Spec.Timeout) * time.Second
	}
	sum := sha256.Sum256(text)
	return &Provider{Name: p.Metadata.Name, url: p.Spec.URL, timeout: timeout, roots: roots, id: string(sum[:])}, nil
}

// Objects reads the objects of the API.
type Objects interface {
	// List lists the objects of a kind; one that is not served has none.
	List(ctx context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector) ([]runtime.Object, error)
}

// Providers asks them. It is safe for concurrent use.
type Providers struct {
	objects Objects
	dial    dial.Policy

	mu      sync.Mutex
	clients map[string]*http.Client // by what the Provider says
	kept    map[string]kept
	bytes   int
}

type kept struct {
	until time.Time
	value any
	bytes int
	// idempotent: the provider says that it gives the same answer when it is asked about its answer.
	idempotent bool
}

// New makes it. policy says which addresses may be connected to.
func New(objects Objects, policy dial.Policy) *Providers {
	return &Providers{objects: objects, dial: policy, clients: map[string]*http.Client{}, kept: map[string]kept{}}
}

// request and response are what is sent, by Gatekeeper's names.
type request struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Request    struct {
		Keys []string `json:"keys"`
	} `json:"request"`
}

type response struct {
	Kind     string `json:"kind"`
	Response struct {
		Items []struct {
			Key   string `json:"key"`
			Value any    `json:"value"`
			Error string `json:"error"`
		} `json:"items"`
		SystemError string `json:"systemError"`
		Idempotent  bool   `json:"idempotent"`
	} `json:"response"`
}

// Ask asks a Provider about keys. What goes wrong is in the answer, in Gatekeeper's form: responses and errors are pairs of a key and
// what is said of it, and system_error is about all.
func (p *Providers) Ask(ctx context.Context, name string, keys []string) map[string]any {
	r := p.look(ctx, name, keys)
	responses, problems := []any{}, []any{}
	for _, one := range r.keys {
		if one.problem != "" {
			problems = append(problems, []any{one.key, one.problem})
		} else {
			responses = append(responses, []any{one.key, one.value})
		}
	}
	return map[string]any{"responses": responses, "errors": problems, "status_code": r.status, "system_error": r.problem}
}

// result is what a Provider says of keys, or what was remembered of them.
type result struct {
	keys    []resultOf
	status  int
	problem string // with all of it
}

// resultOf one key: a value, or the problem with it.
type resultOf struct {
	key        string
	value      any
	problem    string
	idempotent bool
}

// look up keys, those that are not remembered at the Provider.
func (p *Providers) look(ctx context.Context, name string, keys []string) result {
	found := result{status: http.StatusOK}
	one, err := p.find(ctx, name)
	if err != nil {
		found.problem = err.Error()
		return found
	}
	var open []string
	for _, key := range keys {
		if v, ok := p.remembered(one, key); ok {
			found.keys = append(found.keys, resultOf{key: key, value: v.value, idempotent: v.idempotent})
		} else if !slices.Contains(open, key) {
			open = append(open, key)
		}
	}
	if len(open) == 0 {
		return found
	}
	if len(open) > mostKeys || slices.ContainsFunc(open, func(k string) bool { return len(k) > longestKey }) {
		found.problem = fmt.Sprintf("at most %d keys of %d bytes can be asked about at once", mostKeys, longestKey)
		return found
	}
	r, code, err := p.post(ctx, one, open)
	if found.status = code; err != nil {
		found.problem = err.Error()
		return found
	}
	for _, item := range r.Response.Items {
		switch {
		case !slices.Contains(open, item.Key): // nobody asked
		case item.Error != "":
			found.keys = append(found.keys, resultOf{key: item.Key, problem: item.Error})
		default:
			found.keys = append(found.keys, resultOf{key: item.Key, value: item.Value, idempotent: r.Response.Idempotent})
			p.remember(one, item.Key, item.Value, r.Response.Idempotent)
		}
	}
	found.problem = r.Response.SystemError
	return found
}

// Values asks a provider about keys for a mutator. What it answers says of each key its value, a text, or why it has none. A provider
// has to say that its answers are idempotent: a mutator asks about what it has put there itself.
func (p *Providers) Values(ctx context.Context, name string, keys []string) func(key string) (string, error) {
	r := p.look(ctx, name, keys)
	if r.problem != "" {
		err := fmt.Errorf("external data: %s", r.problem)
		return func(string) (string, error) { return "", err }
	}
	by := map[string]resultOf{}
	for _, one := range r.keys {
		if by[one.key].problem == "" || one.problem != "" { // a problem counts, whatever else is said of the key
			by[one.key] = one
		}
	}
	return func(key string) (string, error) {
		one, ok := by[key]
		switch text, isText := one.value.(string); {
		case !ok:
			return "", fmt.Errorf("provider %q says nothing of %q", name, key)
		case one.problem != "":
			return "", fmt.Errorf("provider %q says of %q: %s", name, key, one.problem)
		case !one.idempotent:
			return "", fmt.Errorf("provider %q does not say that its answers are idempotent, which mutation needs (response.idempotent)", name)
		case !isText:
			return "", fmt.Errorf("provider %q answers %q with what is no text", name, key)
		default:
			return text, nil
		}
	}
}

// find is a Provider as it is now.
func (p *Providers) find(ctx context.Context, name string) (*Provider, error) {
	list, err := p.objects.List(ctx, schema.GroupVersionKind{Group: Group, Version: Versions()[0], Kind: Kind}, "", labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("read the Providers: %w", err)
	}
	for _, o := range list {
		if u, ok := o.(*unstructured.Unstructured); ok && u.GetName() == name && u.GetDeletionTimestamp() == nil {
			return Read(u.Object)
		}
	}
	return nil, fmt.Errorf("there is no Provider %q", name)
}

func (p *Providers) remembered(one *Provider, key string) (kept, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.kept[one.id+key]
	return k, ok && time.Now().Before(k.until)
}

// remember keeps what a Provider said of a key.
func (p *Providers) remember(one *Provider, key string, value any, idempotent bool) {
	text, err := json.Marshal(value)
	if err != nil {
		return
	}
	size := 8*len(text) + len(key) + 256 // small parts take more in memory than in JSON
	p.mu.Lock()
	defer p.mu.Unlock()
	if size > mostKeptBytes/32 {
		return // it is asked for each time, and displaces nobody's
	}
	p.bytes -= p.kept[one.id+key].bytes
	if len(p.kept) >= mostKept || p.bytes+size > mostKeptBytes {
		clear(p.kept)
		p.bytes = 0
	}
	p.kept[one.id+key] = kept{time.Now().Add(keptFor), value, size, idempotent}
	p.bytes += size
}

// mostClients bounds the connections that are kept for Providers that were changed or deleted.
const mostClients = 64

func (p *Providers) client(one *Provider) *http.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.clients[one.id]; c != nil {
		return c
	}
	if len(p.clients) >= mostClients {
		for _, c := range p.clients {
			c.CloseIdleConnections()
		}
		clear(p.clients)
	}
	c := p.dial.DirectClient(&tls.Config{RootCAs: one.roots, MinVersion: tls.VersionTLS13}, one.timeout, answerLimit)
	p.clients[one.id] = c
	return c
}

// post sends a question.
func (p *Providers) post(ctx context.Context, one *Provider, keys []string) (*response, int, error) {
	q := request{APIVersion: Group + "/" + Versions()[0], Kind: "ProviderRequest"}
	q.Request.Keys = keys
	body, err := json.Marshal(q)
	if err != nil {
		return nil, 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, one.url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := p.client(one).Do(r)
	if err != nil { // whose text may name what is near the server
		return nil, http.StatusInternalServerError, fmt.Errorf("provider %q cannot be reached, or did not answer within %s", one.Name,
			one.timeout)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, resp.StatusCode, fmt.Errorf("provider %q answered with status %d", one.Name, resp.StatusCode)
	}
	out := &response{}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, resp.StatusCode, fmt.Errorf("provider %q did not answer with JSON of at most %d bytes", one.Name, answerLimit)
	}
	if !strings.EqualFold(out.Kind, "ProviderResponse") {
		return nil, resp.StatusCode, fmt.Errorf("provider %q did not answer with a ProviderResponse", one.Name)
	}
	return out, resp.StatusCode, nil
}
