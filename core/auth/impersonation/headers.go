// SPDX-License-Identifier: Apache-2.0

package impersonation

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Wanted is whom the headers of a request name; nil where they name nobody. It takes these
// headers away: nothing behind may act on them again.
func Wanted(header http.Header) (*user.DefaultInfo, error) {
	w := &user.DefaultInfo{
		Name: header.Get(authenticationv1.ImpersonateUserHeader), UID: header.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: slices.Clone(header.Values(authenticationv1.ImpersonateGroupHeader)),
	}
	var err error
	if w.Extra, err = extraOf(header); err != nil {
		return nil, err
	}
	if w.Name == "" {
		if w.UID != "" || len(w.Groups) > 0 || len(w.Extra) > 0 {
			return nil, fmt.Errorf("requested %#v without impersonating a user name", w)
		}
		return nil, nil
	}
	for name := range header {
		if strings.HasPrefix(name, "Impersonate-") {
			header.Del(name)
		}
	}
	return w, nil
}

func extraOf(header http.Header) (map[string][]string, error) {
	var extra map[string][]string
	for name, values := range header {
		escaped, ok := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok {
			continue
		}
		key, err := url.PathUnescape(strings.ToLower(escaped))
		if err != nil {
			return nil, fmt.Errorf("header %s: the key after %s is not well escaped", name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		}
		if extra == nil {
			extra = map[string][]string{}
		}
		extra[key] = append(extra[key], values...)
	}
	return extra, nil
}
