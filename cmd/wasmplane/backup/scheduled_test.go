// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup/place"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

// forgetful is a place that changes what it is given.
type forgetful struct{ place.Folder }

func (f forgetful) Get(ctx context.Context, name string, w io.Writer) error {
	if err := f.Folder.Get(ctx, name, w); err != nil {
		return err
	}
	_, err := w.Write([]byte("x"))
	return err
}

// scheduled takes backups of an etcd of its own to a folder.
func scheduled(t *testing.T, schedule string) (s *Scheduled, folder place.Folder, failures chan string) {
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
	if _, err := server.Store().Put(t.Context(), "/registry/a", []byte("one"), 0, 0); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Backup = config.Backup{Schedule: schedule, Directory: filepath.Join(t.TempDir(), "backups"), Keep: 2}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	failures = make(chan string, 100)
	s, err = NewScheduled(c, server.Store(), t.TempDir(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler),
		func(_ context.Context, text string) { failures <- text })
	if err != nil {
		t.Fatal(err)
	}
	return s, place.Folder(c.Backup.Directory), failures
}

func namesIn(t *testing.T, in place.Place) (names []string) {
	t.Helper()
	found, err := List(t.Context(), in, "wasmplane")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, f.Name)
	}
	return names
}

func TestTheNewestBackupsAreKept(t *testing.T) {
	s, folder, _ := scheduled(t, "@daily")
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 4 {
		if err := s.Once(t.Context(), day.AddDate(0, 0, i)); err != nil {
			t.Fatal(err)
		}
		if i == 0 { // what others keep there is not counted, and not removed
			for _, name := range []string{"monday.db", "scheduled-other-20200101T000000Z.db", "scheduled-wasmplane-x.db"} {
				if err := os.WriteFile(filepath.Join(string(folder), name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	want := []string{"scheduled-wasmplane-20260103T000000Z.db", "scheduled-wasmplane-20260104T000000Z.db"}
	if got := namesIn(t, folder); !slices.Equal(got, want) {
		t.Errorf("kept are %q", got)
	}
	all, err := folder.List(t.Context(), "")
	if err != nil || len(all) != 5 {
		t.Errorf("in the folder are %v, %v", all, err)
	}
	if _, err := snapshotfile.Check(filepath.Join(string(folder), want[1])); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(s.scratch); err != nil || len(left) > 0 {
		t.Errorf("left in the folder for work: %v, %v", left, err)
	}
	if got := testutil.ToFloat64(s.last); got != float64(day.AddDate(0, 0, 3).Unix()) {
		t.Errorf("the newest is of %v", got)
	}
}

func TestABackupThatCannotBeReadBackIsNone(t *testing.T) {
	s, folder, _ := scheduled(t, "@daily")
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := s.Once(t.Context(), day); err != nil {
		t.Fatal(err)
	}
	s.to = forgetful{folder}
	if err := s.Once(t.Context(), day.AddDate(0, 0, 1)); err == nil || !strings.Contains(err.Error(), "cannot be read back") {
		t.Errorf("%v", err)
	}
	if got := namesIn(t, folder); len(got) != 1 {
		t.Errorf("after one that cannot be read back there are %q", got)
	}
}

func TestAMissedTimeIsMadeUpForAndFailuresAreReported(t *testing.T) {
	s, folder, failures := scheduled(t, "@daily")
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	if next, err := s.next(t.Context(), now); err != nil || !next.After(now) {
		t.Errorf("the first one is due %s, %v", next, err)
	}
	if err := s.Once(t.Context(), now.AddDate(0, 0, -3)); err != nil {
		t.Fatal(err)
	}
	if next, err := s.next(t.Context(), now); err != nil || next.After(now) {
		t.Errorf("one that was missed is due %s, %v", next, err)
	}

	// Once the process runs it is taken, or its failure is reported.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := os.RemoveAll(s.scratch); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.scratch, nil, 0o600); err != nil { // no folder can be made there
		t.Fatal(err)
	}
	ends := run.Go("backups", func() error { return s.Run(ctx) })
	if text := <-failures; !strings.Contains(text, "the scheduled backup to "+string(folder)) {
		t.Error(text)
	}
	cancel()
	if err := <-ends; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := testutil.ToFloat64(s.failures); n < 1 {
		t.Errorf("%v failures were counted", n)
	}
}

func TestNamesSayWhenAndOfWhat(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	if got, ok := Taken("a", Name("a", at)); !ok || !got.Equal(at) {
		t.Errorf("%s, %t", got, ok)
	}
	for _, name := range []string{Name("b", at), Name("a-b", at), "scheduled-a-", "scheduled-a-x.db", "before-a.db"} {
		if _, ok := Taken("a", name); ok {
			t.Errorf("%s is taken for one of cluster a", name)
		}
	}
}
