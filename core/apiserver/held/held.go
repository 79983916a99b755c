// SPDX-License-Identifier: Apache-2.0

// Package held bounds what requests keep in the server's memory that stay for long: watches, logs that are followed,
// commands. Such a request keeps its line and its headers, of up to a MiB, and several times as much where they hold a
// selector; and a selector is compared with each event. A user may have any number of them.
//
// Requests of an ordinary size are not counted. Whose share one is of is package share's to say.
package held

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/apiserver/share"
)

const (
	// Ordinary is the size of a request, its line and its headers in bytes, up to which it is not counted.
	Ordinary = 8 << 10
	// PerUser is how much the other requests of one user have together, or of all accounts of a namespace.
	PerUser = 2 << 20
	// Total is how much those of all users have together, but for administrators.
	Total = 32 << 20
)

// Requests are those that stay now. The zero value is ready to use.
type Requests struct {
	mu    sync.Mutex
	total int
	of    map[string]int
}

// Hold counts a request until release is called, or refuses it.
func (h *Requests) Hold(who user.Info, r *http.Request) (release func(), err error) {
	n := size(r)
	if n <= Ordinary || slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return func() {}, nil
	}
	owner := share.Of(who)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.of[owner]+n > PerUser:
		return nil, refusal("those of "+strings.ToValidUTF8(owner, "?"), PerUser, h.of[owner])
	case h.total+n > Total:
		return nil, refusal("all requests", Total, h.total)
	}
	if h.of == nil {
		h.of = map[string]int{}
	}
	h.of[owner] += n
	h.total += n
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.total -= n
		if h.of[owner] -= n; h.of[owner] == 0 {
			delete(h.of, owner)
		}
	}), nil
}

func refusal(whose string, most, has int) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("too many large requests that stay open: %s with lines and headers above %d bytes "+
		"may have %d bytes together, and have %d", whose, Ordinary, most, has), 10)
}

func size(r *http.Request) int {
	n := len(r.URL.RawQuery) + len(r.URL.Path)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}
