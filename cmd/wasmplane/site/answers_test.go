// SPDX-License-Identifier: Apache-2.0

package site

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
)

func TestARefusalIsASignOfLifeAndAnErrorOfTheServerIsNot(t *testing.T) {
	c := config.Default()
	c.APIServer.Listen = "127.0.0.1:0"
	s := Site{
		Options:   process.Options{Config: c, Dir: datadir.Dir(t.TempDir()), Logger: slog.New(slog.DiscardHandler)},
		Advertise: netip.MustParseAddr("127.0.0.1"),
	}
	if err := s.Answers(t.Context()); err == nil {
		t.Fatal("an API that does not listen answers")
	}
	l, err := s.Listen(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	var status atomic.Int64
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
	}))
	_ = api.Listener.Close()
	api.Listener = l
	api.StartTLS()
	defer api.Close()
	for code, alive := range map[int64]bool{http.StatusOK: true, http.StatusForbidden: true, http.StatusInternalServerError: false} {
		status.Store(code)
		if err := s.Answers(t.Context()); (err == nil) != alive {
			t.Errorf("status %d: %v", code, err)
		}
	}
}
