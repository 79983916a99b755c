// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// Checkpoints are made by nodes that have a folder for them.
func (n *node) Checkpoints() (string, error) { return n.checkpoints, nil }

// Checkpoint fails with what it was asked, where it is told to.
func (r *runtime) Checkpoint(_ context.Context, id, archive string, seconds int64) error {
	if r.writing != nil {
		r.writing <- struct{}{}
		<-r.writing
	}
	if seconds == 7 {
		return fmt.Errorf("%s in %d seconds to %s", id, seconds, archive)
	}
	return nil
}

func TestCheckpoints(t *testing.T) {
	w := start(t)
	w.n1.checkpoints = "/folder"
	for _, c := range []struct {
		as, path string
		code     int
		want     string
	}{
		{"create/checkpoint/n1", "ns/p/c", 200, `{"items":["/folder/checkpoint-p_ns-c-`},
		{"create/proxy/n1", "ns/p/c?timeout=x&timeout=60", 200, `{"items":["/folder/`},
		{"get/checkpoint/n1", "ns/p/c", 403, "subresource(s)=[checkpoint]"},
		{"create/stats/n1", "ns/p/c", 403, "verb=create"},
		{"create/checkpoint/n1", "ns/p/c?timeout=7", 500, "checkpointing of ns/p/c failed (id-p in 7 seconds to /folder/checkpoint-p_ns-c-"},
		{"create/checkpoint/n1", "ns/p/waits", 500, "checkpointing of ns/p/waits failed"},
		{"create/checkpoint/n1", "ns/p/none", 404, "container none does not exist"},
		{"admin", "ns/none/c", 404, "pod does not exist"},
		{"create/checkpoint/n1", "ns/p/c?timeout=-1", 400, "timeout: expected seconds"},
		{"create/checkpoint/n1", "ns/p/c?timeout=3601", 400, "timeout: expected seconds"},
		{"create/checkpoint/n2", "ns/q/c", 404, "node.containerCheckpoints"},
	} {
		if code, body := w.do(c.as, "POST", "/checkpoint/"+c.path); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%q %s: %d %s, want %d %s", c.as, c.path, code, body, c.code, c.want)
		}
	}
}

// One is made at a time, whoever asks.
func TestCheckpointsOneAtATime(t *testing.T) {
	w := start(t)
	w.n1.checkpoints, w.rt.writing = "/folder", make(chan struct{})
	first := make(chan int, 1)
	go func() {
		code, _ := w.do("admin", "POST", "/checkpoint/ns/p/c")
		first <- code
	}()
	<-w.rt.writing
	if code, body := w.do("admin", "POST", "/checkpoint/ns/p/c"); code != 429 || !strings.Contains(body, "try again later") {
		t.Errorf("a second: %d %s", code, body)
	}
	w.rt.writing <- struct{}{}
	if code := <-first; code != 200 {
		t.Errorf("the first: %d", code)
	}
}
