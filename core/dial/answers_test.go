// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestAnswersAreBounded: whoever is asked chooses the answer, and libraries read it whole.
func TestAnswersAreBounded(t *testing.T) {
	const limit = 1000
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 10<<20))
	_ = z.Close()
	ended := make(chan struct{})
	answers := map[string]http.HandlerFunc{
		"small":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, limit)) },
		"one more": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, limit+1)) },
		"a length that is a lie": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(1<<40))
			_, _ = w.Write([]byte("x"))
		},
		"without an end": func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		},
		"a bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		},
		"headers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answers[r.URL.Query().Get("a")](w, r) }))
	defer server.Close()
	client := Operator(nil).Client(nil, time.Minute, limit)
	defer client.CloseIdleConnections()
	for name := range answers {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.RawQuery = "a=" + strings.ReplaceAll(name, " ", "+")
		var body []byte
		resp, err := client.Do(req)
		if err == nil {
			body, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		var large *TooLargeError
		switch {
		case name == "small":
			if err != nil || len(body) != limit {
				t.Errorf("%s: %d bytes, %v", name, len(body), err)
			}
		case name == "headers":
			if err == nil {
				t.Errorf("%s: taken", name)
			}
		case !errors.As(err, &large) || len(body) > limit:
			t.Errorf("%s: %d bytes, %v", name, len(body), err)
		}
	}
	<-ended // the server is let go
}

// TestAWebhooksRedirectIsNotFollowed, not even to the same host: the credentials that the
// question has are the named place's alone.
func TestAWebhooksRedirectIsNotFollowed(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	client := &http.Client{Transport: Webhook(1000)(Operator(nil).Guard(&http.Transport{DisableKeepAlives: true}))}
	resp, err := client.Post(server.URL, "", strings.NewReader("secret")) // it is refused
	if err == nil {
		_ = resp.Body.Close()
	}
	var redirect *RedirectError
	if !errors.As(err, &redirect) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
