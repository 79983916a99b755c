// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/sides"
)

// side is one of the two that are compared.
type side struct {
	*sides.Side
	again atomic.Int64 // requests that it answered 429
}

func ours(tb testing.TB) *side {
	tb.Helper()
	return &side{Side: sides.Ours(tb)}
}

func theirs(tb testing.TB) *side {
	tb.Helper()
	return &side{Side: sides.Theirs(tb, "--authorization-mode", "RBAC")}
}

func (s *side) client() *http.Client { return s.Client() }

// must sends a request that has to be answered well.
func (s *side) must(ctx context.Context, tb testing.TB, c *http.Client, method, path, body string) {
	tb.Helper()
	if err := s.send(ctx, c, method, path, "application/json", body); err != nil {
		tb.Fatal(err)
	}
}

// send sends a request and reads the answer to its end.
func (s *side) send(ctx context.Context, c *http.Client, method, path, mediaType, body string) error {
	resp, err := s.request(ctx, c, method, path, mediaType, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// patience is how often a request is sent to a server that says it is busy.
const patience = 300

// request sends a request until it is answered other than by 429: a hundred
// watches that one user begins at once are more than fairness lets in, on both
// sides. An answer that is an error is one.
func (s *side) request(ctx context.Context, c *http.Client, method, path, mediaType, body string) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := s.once(ctx, c, method, path, mediaType, body)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode < 300 {
			return resp, nil
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests || attempt == patience {
			return nil, fmt.Errorf("%s: %s %s answered %d: %s", s.Name, method, path, resp.StatusCode, text)
		}
		s.again.Add(1)
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

func (s *side) once(ctx context.Context, c *http.Client, method, path, mediaType, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	switch method {
	case http.MethodGet:
		req.Header.Set("Accept", mediaType)
	default:
		req.Header.Set("Content-Type", mediaType)
	}
	return c.Do(req)
}
