// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestABrokenClusterEndsTheRun(t *testing.T) {
	untilToldTo := func(ctx context.Context) error { <-ctx.Done(); return nil }
	well := func(context.Context) error { return nil }
	lasting := func(t *testing.T, script string) *part {
		t.Helper()
		p, err := startPart(t.Context(), "the second node's kubelet", filepath.Join(t.TempDir(), "log"), "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.interrupt(time.Minute) })
		return p
	}
	t.Run("a process dies", func(t *testing.T) {
		h := health{
			parts: []*part{lasting(t, "exec sleep 600"), lasting(t, "echo no more disk; exit 3")}, ready: well, every: time.Hour,
			patience: time.Hour,
		}
		err := h.guard(t.Context(), untilToldTo)
		for _, want := range []string{"while tests ran", "second node's kubelet ended (exit status 3)", "no more disk"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not said: %v", want, err)
			}
		}
	})
	t.Run("a node is no longer ready", func(t *testing.T) {
		h := health{
			ready: func(context.Context) error { return errors.New("node second is not ready") }, every: time.Millisecond,
			patience: time.Millisecond,
		}
		if err := h.guard(t.Context(), untilToldTo); err == nil || !strings.Contains(err.Error(), "node second is not ready") {
			t.Errorf("%v", err)
		}
	})
	t.Run("all is well", func(t *testing.T) {
		h := health{parts: []*part{lasting(t, "exec sleep 600")}, ready: well, every: time.Millisecond, patience: time.Hour}
		want := errors.New("what the work says")
		if err := h.guard(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("%v", err)
		}
	})
	t.Run("the run is interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		h := health{ready: well, every: time.Hour, patience: time.Hour}
		if err := h.guard(ctx, untilToldTo); err != nil {
			t.Errorf("%v", err)
		}
	})
}

func TestNodesAreReadyOrNamed(t *testing.T) {
	node := func(name, ready string) string {
		return `{"metadata":{"name":"` + name + `"},"status":{"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":"` + ready + `","message":"why"}]}}`
	}
	list := func(nodes ...string) []byte { return []byte(`{"items":[` + strings.Join(nodes, ",") + `]}`) }
	for name, c := range map[string]struct {
		list []byte
		want string
	}{
		"both":              {list(node("first", "True"), node("second", "True"), node("a test's own", "False")), ""},
		"one is not":        {list(node("first", "True"), node("second", "Unknown")), `node "second" is not ready: Unknown why`},
		"one is gone":       {list(node("first", "True")), `there is no node "second"`},
		"not a list at all": {[]byte("x"), "read the list"},
		"one says nothing":  {list(`{"metadata":{"name":"first"}}`, node("second", "True")), `node "first" is not ready: it says nothing`},
	} {
		err := notReady(c.list, "first", "second")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
