// SPDX-License-Identifier: Apache-2.0

package process

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/config"
)

// A server that shares a store that is not its own could run twice, on a machine and on its clone: both would lead.
func TestWhoSharesAStoreIsToldFromItsClone(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	own, err := dir.Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*config.Configuration)
		shares bool
	}{
		"a store of its own": {func(*config.Configuration) {}, false},
		"a light server":     {func(c *config.Configuration) { c.Join.AsServer, c.Join.Light = true, true }, true},
		"an external etcd":   {func(c *config.Configuration) { c.Store.Endpoints = []string{"https://192.0.2.1:2379"} }, true},
	} {
		o := Options{Dir: dir, Config: &config.Configuration{}}
		c.change(o.Config)
		id, err := Identity(o)
		if err != nil || strings.HasSuffix(id, "_"+own) == c.shares {
			t.Errorf("%s: identity %q, of the directory %q, %v", name, id, own, err)
		}
		if ours, err := dir.Holds(id); err != nil || !ours {
			t.Errorf("%s: `status` does not know %q, %v", name, id, err)
		}
	}
}
