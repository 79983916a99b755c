// SPDX-License-Identifier: Apache-2.0

package held

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
)

func request(t *testing.T, selector, header int) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods?labelSelector="+strings.Repeat("a", selector), nil)
	r.Header.Set("X-A", strings.Repeat("a", header))
	return r
}

func TestLargeRequestsThatStayHaveShares(t *testing.T) {
	h := &Requests{}
	const large = 1 << 19
	hold := func(name string, group string, r *http.Request) (func(), error) {
		return h.Hold(&user.DefaultInfo{Name: name, Groups: []string{group}}, r)
	}
	var held []func()
	for i := range 10 { // small ones are not counted
		for name, c := range map[string]*http.Request{"small": request(t, Ordinary/4, Ordinary/4), "an administrator's": request(t, large, 0)} {
			group := map[string]string{"small": "", "an administrator's": user.SystemPrivilegedGroup}[name]
			if _, err := hold("ann", group, c); err != nil {
				t.Fatalf("%d: %s: %v", i, name, err)
			}
		}
	}
	for i := range 3 {
		release, err := hold("ann", "", request(t, large, 0))
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		held = append(held, release)
	}
	for name, r := range map[string]*http.Request{"a selector": request(t, large, 0), "a header": request(t, 0, large)} {
		if _, err := hold("ann", "", r); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "may have 2097152 bytes together") {
			t.Errorf("%s above the share: %v", name, err)
		}
	}
	// Accounts of a namespace have one share together.
	for i, name := range []string{"a", "b", "c", "d"} {
		_, err := hold("system:serviceaccount:ns:"+name, "", request(t, large, 0))
		if (err == nil) != (i < 3) {
			t.Errorf("account %s: %v", name, err)
		}
	}
	held[0]()
	held[0]()
	if _, err := hold("ann", "", request(t, large, 0)); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	if _, err := hold("ann", "", request(t, large, 0)); err == nil {
		t.Error("one that ended twice counts twice")
	}
	var err error
	for i := 0; err == nil && i < 200; i++ {
		_, err = hold("user"+strings.Repeat("x", i), "", request(t, large, 0))
	}
	if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "all requests with") || strings.Contains(err.Error(), "xx") ||
		h.total > Total {
		t.Errorf("all together: %v", err)
	}
	if _, err := hold("root", user.SystemPrivilegedGroup, request(t, large, 0)); err != nil {
		t.Errorf("an administrator, then: %v", err)
	}
}
