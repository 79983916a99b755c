// SPDX-License-Identifier: Apache-2.0

package zaplog_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/wasmplane/wasmplane/core/store/etcd/zaplog"
)

// Errors of etcd are errors, its warnings are for who looks for them, and what it
// says all the time is dropped.
func TestLevels(t *testing.T) {
	var out bytes.Buffer
	var said string
	log := zaplog.To(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), func(what string) { said = what })
	log.Info("chatter")
	log.Warn("slow disk", zap.String("took", "1s"))
	log.With(zap.Int("member", 7)).Error("lost", zap.Error(nil))
	log.Error("failed to update storage version")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		`level=DEBUG msg="etcd: slow disk" took=1s`,
		`level=ERROR msg="etcd: lost" member=7`,
		`level=DEBUG msg="etcd: failed to update storage version"`,
	} {
		if i >= len(lines) || !strings.HasSuffix(lines[i], want) {
			t.Fatalf("logged\n%s\nwant %s in line %d", out.String(), want, i)
		}
	}
	if len(lines) != 3 {
		t.Errorf("logged\n%s", out.String())
	}
	defer func() {
		if recover() == nil || said != "the end: no space" {
			t.Errorf("etcd goes on after a fatal error, which says %q", said)
		}
	}()
	log.Fatal("the end", zap.Error(errors.New("no space")))
}
