// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// slow is a registry that takes every request and answers none; ended receives when a request ends.
func slow(t *testing.T) (address string, asked, ended chan struct{}) {
	t.Helper()
	asked, ended = make(chan struct{}, 100), make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), asked, ended
}

// nearby lets tenants' sources be on this machine, where those of tests are.
func nearby() *dial.Policy {
	p := dial.Operator(nil)
	return &p
}

func slowEntries(t *testing.T, address string, names ...string) []manifest.Entry {
	t.Helper()
	text := "plugins:\n"
	for _, name := range names {
		text += "  - {name: " + name + ", points: [admission.validate], source: 'oci://" + address + "/x/" + name + ":1', digest: 'sha256:" +
			strings.Repeat("0", 64) + "', fetch: {plainHTTP: true, timeout: 24h}}\n"
	}
	out := entries(t, text)
	for i := range out {
		out[i].Namespace = "team"
	}
	return out
}

// TestASlowSourceHoldsNobodyUp: while a tenant's registry does not answer, an administrator's
// plugin comes into force, and is changed; the tenant's object is deleted, and its requests end.
func TestASlowSourceHoldsNobodyUp(t *testing.T) {
	address, asked, ended := slow(t)
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Tenants: nearby()})
	pending := l.Begin(t.Context(), loader.Tenant, slowEntries(t, address, "team-a", "team-b", "team-c"))
	<-asked
	for _, message := range []string{"first", "second"} {
		if err := l.Apply(t.Context(), loader.File, entries(t, "plugins: [{name: mine, points: [admission.validate], source: 'file:canned.wasm', settings: {allowed: false, message: "+message+"}}]")); err != nil {
			t.Fatal(err)
		}
		if err := validate(t, l.AdmissionPlugins()[0]); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("the administrator's plugin: %v", err)
		}
	}
	// Each load begins on its own: one may not have come to its wait yet.
	eventually(t, "one plugin is fetched, two wait for their turn", func() bool {
		waits := map[string]int{}
		for _, s := range l.Status() {
			waits[s.Waiting]++
		}
		return waits["being fetched"] == 1 && waits["waiting for its turn to be fetched"] == 2
	})
	l.Begin(t.Context(), loader.Tenant, nil)
	<-ended
	if err := pending.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "the plugin's entry is gone") {
		t.Error(err)
	}
	if list := l.Status(); len(list) != 1 {
		t.Errorf("left: %+v", list)
	}
}

// TestAnotherEntryEndsTheLoadOfTheOneBefore, and the same does not begin it again.
func TestAnotherEntryEndsTheLoadOfTheOneBefore(t *testing.T) {
	address, asked, ended := slow(t)
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Tenants: nearby()})
	first := l.Begin(t.Context(), loader.API, slowEntries(t, address, "p"))
	<-asked
	again := l.Begin(t.Context(), loader.API, slowEntries(t, address, "p"))
	select {
	case <-ended:
		t.Fatal("the same entry ended its own load")
	case <-asked:
		t.Fatal("the same entry began twice")
	default:
	}
	if err := l.Apply(t.Context(), loader.API, entries(t, "plugins: [{name: p, points: [admission.validate], source: 'file:canned.wasm', settings: {allowed: true}}]")); err != nil {
		t.Fatal(err)
	}
	<-ended
	for _, p := range []*loader.Pending{first, again} {
		if err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "the plugin has another entry now") {
			t.Error(err)
		}
	}
	if s := l.Status(); len(s) != 1 || !s[0].Ready || s[0].Waiting != "" {
		t.Errorf("%+v", s)
	}
}

// TestATenantsTimesAreTheOperators: a day is not a tenant's to take.
func TestATenantsTimesAreTheOperators(t *testing.T) {
	e := manifest.Entry{Fetch: manifest.Fetch{Timeout: manifest.Duration(24 * time.Hour), MaxSize: 256 << 20}}
	if got := loader.Bounded(loader.Tenant, e).Fetch; time.Duration(got.Timeout) != time.Minute || got.MaxSize != 32<<20 {
		t.Errorf("a tenant's: %+v", got)
	}
	if got := loader.Bounded(loader.API, e).Fetch; got.Timeout != e.Fetch.Timeout {
		t.Errorf("an operator's: %+v", got)
	}
}
