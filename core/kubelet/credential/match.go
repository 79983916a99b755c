// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"net"
	"net/url"
	"path"
	"strings"

	"github.com/distribution/reference"
)

// parse takes a pattern apart: a host, perhaps with a port, and a path.
func parse(pattern string) (*url.URL, error) { return url.Parse("https://" + pattern) }

// matches says whether a pattern is for an image: the hosts have as many parts, each of which
// matches; the ports are the same; and the pattern's path begins the image's.
func matches(pattern string, image reference.Named) bool {
	u, err := parse(pattern)
	if err != nil {
		return false
	}
	host, port := reference.Domain(image), ""
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	if u.Port() != port || !strings.HasPrefix("/"+reference.Path(image), u.Path) {
		return false
	}
	want, got := strings.Split(u.Hostname(), "."), strings.Split(host, ".")
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], got[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
