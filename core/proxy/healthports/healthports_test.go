// SPDX-License-Identifier: Apache-2.0

package healthports

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
)

// TestAPulseIsLate once a change waits for a minute, whether it is written, failed, or came while another was written.
func TestAPulseIsLate(t *testing.T) {
	for name, begin := range map[string]func(p *Pulse){
		"it waits":             func(p *Pulse) { p.Queued() },
		"it is being written":  func(p *Pulse) { p.Queued(); p.Begun() },
		"it failed":            func(p *Pulse) { p.Queued(); p.Begun(); p.Ended(false) },
		"it came meanwhile":    func(p *Pulse) { p.Queued(); p.Begun(); p.Queued(); p.Ended(true) },
		"a repair failed":      func(p *Pulse) { p.Begun(); p.Ended(false) },
		"it came and it waits": func(p *Pulse) { p.Queued(); p.Queued() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &Pulse{Now: time.Now, Updated: time.Now()}
				begin(p)
				time.Sleep(Late - time.Nanosecond)
				if healthy, _, _ := p.State(); !healthy {
					t.Error("it is late too early")
				}
				time.Sleep(time.Nanosecond)
				if healthy, updated, now := p.State(); healthy || updated.Equal(now) {
					t.Error("it is not late")
				}
				p.Begun()
				p.Ended(true)
				if healthy, updated, now := p.State(); !healthy || !updated.Equal(now) {
					t.Error("it is late though everything is written")
				}
			})
		})
	}
}

// TestPortsFollowServices: each has a listener while it is wanted, and nothing is left in the end.
func TestPortsFollowServices(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	number := int32(free.Addr().(*net.TCPAddr).Port)
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ports := New(slog.New(slog.DiscardHandler), &Pulse{Now: time.Now, Updated: time.Now()})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	ask := func() (code, local int, service string) {
		t.Helper()
		r, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", number))
		if err != nil {
			return 0, 0, ""
		}
		defer r.Body.Close()
		var body struct {
			Service        struct{ Name string }
			LocalEndpoints int
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, body.LocalEndpoints, body.Service.Name
	}
	want := func(name string, local int) map[int32]*Want {
		return map[int32]*Want{number: {Service: types.NamespacedName{Namespace: "a", Name: name}, Port: number, Local: local}}
	}
	for _, c := range []struct {
		wanted  map[int32]*Want
		code    int
		local   int
		service string
	}{
		{want("web", 2), 200, 2, "web"},
		{want("web", 0), 503, 0, "web"},
		{want("other", 1), 200, 1, "other"},
		{nil, 0, 0, ""},
	} {
		ports.Sync(t.Context(), c.wanted)
		if code, local, service := ask(); code != c.code || local != c.local || service != c.service {
			t.Errorf("the port answers %d with %d endpoints of %q, want %+v", code, local, service, c)
		}
	}
	ports.Sync(t.Context(), want("web", 1))
	ports.CloseAll(t.Context())
	if code, _, _ := ask(); code != 0 {
		t.Errorf("a closed port answers %d", code)
	}
	goleak.VerifyNone(t, leaks)
}
