// SPDX-License-Identifier: Apache-2.0

package mark

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

func started(t *testing.T) store.Store {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: t.TempDir(), Quota: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server.Store()
}

func TestAStoreOfANewerMinorIsRefused(t *testing.T) {
	st := started(t)
	write := func(who, version string) {
		t.Helper()
		if err := Write(t.Context(), st, who, version); err != nil {
			t.Fatal(err)
		}
	}
	check := func(who, version, complaint string) {
		t.Helper()
		err := Check(t.Context(), st, who, version)
		if complaint == "" && err != nil || complaint != "" && (err == nil || !strings.Contains(err.Error(), complaint)) {
			t.Errorf("%s of version %s: %v", who, version, err)
		}
	}
	check("a", "v1.2.3", "") // nobody has served it
	write("a", "v1.2.3")
	write("a", "v1.2.9") // patches change nothing
	check("a", "v1.2.0", "")
	check("a", "v1.3.0-rc.1", "")
	check("a", "v1.1.9", "served by wasmplane v1.2.9 last, and this is v1.1.9")
	check("a", "v0.9.0", "start wasmplane 1.2 or newer")
	check("b", "v1.2.0", "") // as another data directory, after a restore
	check("b", "v1.1.0", "served by wasmplane v1.2.9 last")

	// Servers are upgraded one after the other, and the old ones start until it is their turn.
	write("b", "v1.2.9")
	write("a", "v1.3.0-4-gabcdef0")
	check("b", "v1.2.9", "")
	check("b", "v1.1.9", "served by wasmplane v1.3.0-4-gabcdef0 last")
	check("a", "v1.2.9", "served by wasmplane v1.3.0-4-gabcdef0 last")
	check("c", "v1.2.9", "served by") // one that joins brings the newest
	write("a", "v1.4.0")
	check("b", "v1.2.9", "served by wasmplane v1.4.0 last") // two behind

	// Builds from a working tree are nobody's release.
	write("a", "0123456-dirty")
	check("a", "0123456-dirty", "")
	check("a", "v1.2.9", "served by wasmplane v1.4.0 last")
}

func TestAMarkThatCannotBeReadSaysWhatToDo(t *testing.T) {
	st := started(t)
	if _, err := st.Put(t.Context(), prefix+"a", []byte("garbage"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := Check(t.Context(), st, "a", "v1.2.3"); err == nil || !strings.Contains(err.Error(), "etcdctl del "+prefix+"a") {
		t.Error(err)
	}
}

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		from, to    string
		after, next bool
	}{
		{"v1.2.0", "v1.3.0", true, true},
		{"v1.2.0", "v1.4.0", true, false},
		{"v1.9.0", "v2.0.0", true, true},
		{"v1.9.0", "v2.1.0", true, false},
		{"v1.2.0", "v1.2.9", false, true},
		{"v1.3.0", "v1.2.0", false, false},
	} {
		from, _ := Parse(c.from)
		to, _ := Parse(c.to)
		if to.After(from) != c.after || to.Next(from) != c.next {
			t.Errorf("from %s to %s: after %t, next %t", c.from, c.to, to.After(from), to.Next(from))
		}
	}
}
