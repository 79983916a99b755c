// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// ending is a connection that tells when it is closed.
type ending struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

func (e *ending) Close() error {
	e.once.Do(func() { close(e.ended) })
	return e.Conn.Close()
}

// TestNoConnectionOutlivesWhatItWasMadeOf: neither one that is idle nor one that a request
// uses is used again after a certificate has changed.
func TestNoConnectionOutlivesWhatItWasMadeOf(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-release
		}
	}))
	defer s.Close()
	made := make(chan *ending, 10)
	certificate := "old" // the test's goroutine alone asks
	renewed := NewRenewed(func() string { return certificate }, func(string) *http.Transport {
		return &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			e := &ending{Conn: c, ended: make(chan struct{})}
			made <- e
			return e, nil
		}}
	})
	ask := func(path string) io.ReadCloser {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := renewed.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		return res.Body
	}
	whole := func(body io.ReadCloser) {
		t.Helper()
		if _, err := io.Copy(io.Discard, body); err != nil {
			t.Error(err)
		}
		_ = body.Close()
	}

	held := ask("/held")
	used := <-made
	whole(ask("/"))
	idle := <-made
	certificate = "new"
	whole(ask("/"))
	if len(made) != 1 {
		t.Fatalf("%d connections were made for the first request after the change, want 1", len(made))
	}
	<-idle.ended
	select {
	case <-used.ended:
		t.Error("a request that was under way was cut off")
	default:
	}
	close(release)
	whole(held)
	<-used.ended
	renewed.CloseIdleConnections()
	<-(<-made).ended
}
