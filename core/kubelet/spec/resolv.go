// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"os"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ReadResolv reads a machine's resolver configuration (resolv.conf(5)), for pods
// that want the node's own. What cannot be read is empty.
func ReadResolv(path string) *cri.DNSConfig {
	var out cri.DNSConfig
	data, err := os.ReadFile(path)
	if err != nil {
		return &out
	}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			out.Servers = append(out.Servers, words[1])
		case "search":
			out.Searches = words[1:]
		case "options":
			out.Options = words[1:]
		}
	}
	return &out
}
