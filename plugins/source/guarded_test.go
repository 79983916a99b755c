// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// inside is a server near by, which answers with what a tenant must not learn.
func inside(t *testing.T, address string, asked *atomic.Int64, answer http.HandlerFunc) (s *httptest.Server, ca string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		answer(w, r)
	}))
	_ = s.Listener.Close()
	s.Listener = l
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, strings.ReplaceAll(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})), "\n", `\n`)
}

// TestATenantsSourceReachesNothingNear is how a tenant read the answers of services on
// the control plane's own machine.
func TestATenantsSourceReachesNothingNear(t *testing.T) {
	var asked, behind atomic.Int64
	secret := func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the database's password", http.StatusTeapot)
	}
	s, ca := inside(t, "127.0.0.1", &asked, secret)
	beyond, _ := inside(t, "127.0.0.2", &behind, secret)
	redirecting, other := inside(t, "127.0.0.1", &asked, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, beyond.URL+"/x", http.StatusFound)
	})
	allowed := dial.Public([]netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, nil)
	of := func(url, ca, namespace string) *manifest.Entry {
		e := entry(t, "source: "+url+"\nfetch: {ca: \""+ca+"\", timeout: 5s}\ndigest: "+module)
		e.Namespace = namespace
		return e
	}
	const unreachable = "fetch the module: not reachable: sources of a namespace's plugins are on the internet, " +
		"or where the operator allows it (egress.tenants)"
	const refused = unreachable + " " // the tenant is told the same, and the operator more
	for _, c := range []struct {
		name    string
		entry   *manifest.Entry
		tenants *dial.Policy
		want    string
		asks    bool
	}{
		{"loopback", of(s.URL+"/x", ca, "red"), nil, refused, false},
		{"loopback by a name", of(strings.Replace(s.URL, "127.0.0.1", "localhost", 1)+"/x", ca, "red"), nil, refused, false},
		{"a registry", of("oci://"+host(s)+"/a/b:1", ca, "red"), nil, refused, false},
		{"metadata", of("https://169.254.169.254/latest", ca, "red"), nil, refused, false},
		{"where the operator allows it, an answer is not told", of(s.URL+"/x", ca, "red"), &allowed, unreachable, true},
		{"a registry where the operator allows it", of("oci://"+host(s)+"/a/b:1", ca, "red"), &allowed, unreachable, true},
		{"a redirect from there to elsewhere", of(redirecting.URL+"/x", other, "red"), &allowed, refused, true},
		{"an operator's own is told what happened", of(s.URL+"/x", ca, ""), nil, "418", true},
		{"an operator's, to where machines tell about themselves", of("https://169.254.169.254/latest", ca, ""), nil, "metadata", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked.Store(0)
			var log bytes.Buffer
			var reported atomic.Value
			report := func(ctx context.Context, refused *dial.RefusedError) {
				reported.Store(fmt.Sprint(attempts.From(ctx).Object.Namespace, "/", attempts.From(ctx).Object.Name, " ", refused))
			}
			tenants, operators := dial.Public(nil, nil), dial.Operator(nil)
			if c.tenants != nil {
				tenants = *c.tenants
			}
			tenants.Report, operators.Report = report, report
			f := fetcher(t, source.Config{Tenants: &tenants, Operators: &operators, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			_, err := f.Fetch(t.Context(), c.entry)
			told, _ := reported.Load().(string)
			if (c.want == refused || c.want == "metadata") != strings.HasPrefix(told, c.entry.Namespace+"/"+c.entry.Name+" ") {
				t.Errorf("the ledger is told %q", told)
			}
			if want := strings.TrimSpace(c.want); err == nil || !strings.Contains(err.Error(), want) || want == unreachable && err.Error() != want {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if c.entry.Namespace != "" {
				for _, leak := range []string{"password", "418", "127.0.0", "refused:", "teapot"} {
					if strings.Contains(err.Error(), leak) {
						t.Errorf("the tenant is told %q: %v", leak, err)
					}
				}
				if !strings.Contains(log.String(), "could not fetch the module") || !strings.Contains(log.String(), "namespace=red") {
					t.Errorf("the operator is not told: %s", log.String())
				}
			}
			if (asked.Load() > 0) != c.asks || behind.Load() > 0 {
				t.Errorf("the server was asked %d times, the one behind it %d times", asked.Load(), behind.Load())
			}
		})
	}
}

// TestALimitIsNamedToTenants, and what is their own.
func TestALimitIsNamedToTenants(t *testing.T) {
	var asked atomic.Int64
	s, ca := inside(t, "127.0.0.1", &asked, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1500)) })
	allowed := dial.Public([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, nil)
	for more, want := range map[string]string{
		"maxSize: 1Ki":         "fetch.maxSize",
		"maxSize: 1Mi":         "it has another digest than the entry pins",
		"secret: red/registry": "fetch.secret: ",
	} {
		e := entry(t, "source: "+s.URL+"/x\nfetch: {ca: \""+ca+"\", "+more+"}\ndigest: "+module)
		e.Namespace = "red"
		if _, err := fetcher(t, source.Config{Tenants: &allowed}).Fetch(t.Context(), e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
}
