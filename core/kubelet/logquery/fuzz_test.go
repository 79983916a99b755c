// SPDX-License-Identifier: Apache-2.0

package logquery_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/logquery"
)

// FuzzQuery: what is accepted names services that mean nothing else to a command, or one file.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"query=a", "query=/a&boot=1", "query=a&pattern=(&tailLines=2", "query=%2e%2e/x", "sinceTime=x"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := logquery.Parse(values)
		if err != nil || q == nil || q.Validate() != nil {
			return
		}
		if (len(q.Services) == 0) == (len(q.Files) == 0) || len(q.Files) > 1 || len(q.Services) > 4 {
			t.Errorf("%q: services %q, files %q", query, q.Services, q.Files)
		}
		for _, s := range q.Services {
			if s == "" || strings.ContainsAny(s, "*?[]/\\ \n\x00=") {
				t.Errorf("%q: service %q", query, s)
			}
		}
	})
}
