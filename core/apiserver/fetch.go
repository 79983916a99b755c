// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Bounds of bodies that are on their way or wait for a seat with their request.
const (
	bodyWait     = 30 * time.Second // for all of a body
	bodiesBytes  = 512 << 20        // of everybody
	bodiesOfUser = bodiesBytes / 8  // of one user
)

// fetched is a body that has come.
type fetched struct {
	io.Reader
	data []byte // nil where there is more than the bound of a body
}

// Close implements io.Closer; the server itself closes what was read from.
func (*fetched) Close() error { return nil }

// fetch reads the body before the request asks for a seat: no seat is held over
// what the client does. What comes too slowly is given up.
func (s *Server) fetch(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, who user.Info) (done func(), err error) {
	done = func() {}
	if req.ContentLength == 0 || req.Body == nil || longRunning(info) || s.longMount(info) ||
		req.Context().Value(http.ServerContextKey) == nil {
		return done, nil // nothing to wait for, or a stream, or a caller within the process
	}
	if req.ContentLength > maxBody && s.cfg.Aggregator == nil {
		return done, tooLargeBody()
	}
	most := int64(maxBody)
	if req.ContentLength > 0 {
		most = min(most, req.ContentLength)
	}
	if done, err = s.bodies.take(who, most); err != nil {
		return done, err
	}
	_ = http.NewResponseController(w).SetReadDeadline(
		s.cfg.Now().Add(min(bodyWait, s.cfg.RequestTimeout))) // what cannot have one is within the process
	body, err := readUpTo(req.Body, req.ContentLength)
	if err != nil {
		return done, err
	}
	f := &fetched{Reader: bytes.NewReader(body), data: body}
	if len(body) > maxBody {
		// Whoever reads it next says that it is too large, or passes it on to another server.
		f.Reader, f.data = io.MultiReader(f.Reader, req.Body), nil
	}
	req.Body = f
	return done, nil
}

// readUpTo reads a body of a known or unknown length up to the bound and one byte more.
func readUpTo(body io.Reader, length int64) ([]byte, error) {
	var b bytes.Buffer
	if length > 0 {
		b.Grow(int(min(length, 64<<10)) + bytes.MinRead) // no room for what may never come
	}
	if _, err := b.ReadFrom(io.LimitReader(body, maxBody+1)); err != nil {
		return nil, unread(err)
	}
	return b.Bytes(), nil
}

// bodies counts what bodies may take until their requests are answered.
type bodies struct {
	mu     sync.Mutex
	all    int64
	byUser map[string]int64
}

// take has a user have n bytes more, until done. Administrators always may.
func (b *bodies) take(who user.Info, n int64) (done func(), err error) {
	name := who.GetName()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) && (b.all+n > bodiesBytes || b.byUser[name]+n > bodiesOfUser) {
		return func() {}, apierrors.NewTooManyRequests("too many bytes of requests are on their way; try again later", 1)
	}
	if b.byUser == nil {
		b.byUser = map[string]int64{}
	}
	b.all += n
	b.byUser[name] += n
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.all -= n
		if b.byUser[name] -= n; b.byUser[name] == 0 {
			delete(b.byUser, name)
		}
	}, nil
}
