// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"net/url"
	"strings"

	"github.com/distribution/reference"

	"github.com/wasmplane/wasmplane/core/kubelet/pull"
)

// parse takes a pattern apart: a host, perhaps with a port, and a path.
func parse(pattern string) (*url.URL, error) { return url.Parse("https://" + pattern) }

// matches says whether a pattern is for an image: its host matches, and its path begins the image's.
func matches(pattern string, image reference.Named) bool {
	u, err := parse(pattern)
	return err == nil && pull.HostMatches(u.Host, reference.Domain(image)) && strings.HasPrefix("/"+reference.Path(image), u.Path)
}
