// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/wasmplane/wasmplane/core/dial"
)

// tlsOnly asks without TLS on this machine's own loopback only: the library would take private addresses for safe.
type tlsOnly struct{ rt http.RoundTripper }

// PlainHTTPError is a registry that answers without TLS, where nobody said that it may.
type PlainHTTPError struct{ Host string }

func (e *PlainHTTPError) Error() string {
	return fmt.Sprintf("registry %s does not speak TLS", e.Host)
}

// RoundTrip implements http.RoundTripper.
func (t tlsOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if ip := net.ParseIP(r.URL.Hostname()); r.URL.Scheme != "https" && (ip == nil || !ip.IsLoopback()) && r.URL.Hostname() != "localhost" {
		return nil, &PlainHTTPError{r.URL.Host}
	}
	return t.rt.RoundTrip(r)
}

// Transport is how a registry is asked.
func (r Registry) transport() http.RoundTripper {
	rt := dial.Bounded(r.Transport, answerLimit)
	if r.PlainHTTP {
		return rt
	}
	return tlsOnly{rt}
}

// Credentials of a registry in a Secret: of a docker config, or a user's name and password. ok says that there are some.
// A name and a password do not say whose they are: they are for a registry that is named beside the Secret, and never
// for one that somebody else chose.
func Credentials(data map[string][]byte, registry string, named bool) (auth authn.Authenticator, key string, ok bool, err error) {
	if data["username"] != nil && !named {
		return nil, "", false, nil
	}
	basic := authn.Basic{Username: string(data["username"]), Password: string(data["password"])}
	if data["username"] == nil {
		text := data[".dockerconfigjson"]
		if text == nil {
			return nil, "", false, errors.New("it holds neither .dockerconfigjson nor username and password")
		}
		var config struct {
			Auths map[string]struct{ Auth, Username, Password string } `json:"auths"`
		}
		if json.Unmarshal(text, &config) != nil { // whose error would quote it
			return nil, "", false, errors.New("its .dockerconfigjson is no docker config")
		}
		for host, a := range config.Auths {
			host = strings.TrimPrefix(strings.TrimPrefix(host, "https://"), "http://")
			host, _, _ = strings.Cut(host, "/")
			if host != registry && host != strings.TrimPrefix(registry, "index.") {
				continue
			}
			basic, ok = authn.Basic{Username: a.Username, Password: a.Password}, true
			if a.Auth == "" {
				break
			}
			plain, err := base64.StdEncoding.DecodeString(a.Auth)
			user, password, both := strings.Cut(string(plain), ":")
			if err != nil || !both {
				return nil, "", false, errors.New("its credentials of " + host + " cannot be read")
			}
			basic = authn.Basic{Username: user, Password: strings.TrimRight(password, "\x00")}
			break
		}
		if !ok {
			return nil, "", false, nil
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", basic.Username, basic.Password))
	return &basic, hex.EncodeToString(sum[:]), true, nil
}
