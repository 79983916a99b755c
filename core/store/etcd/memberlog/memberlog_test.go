// SPDX-License-Identifier: Apache-2.0

package memberlog_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/wasmplane/wasmplane/core/store/etcd/memberlog"
)

func TestCommitAll(t *testing.T) {
	for _, c := range []struct {
		name              string
		entries, commit   uint64
		snapshot          uint64 // the log has what is behind it
		torn              bool   // the last entry is half written
		wantCommit, wantN uint64
	}{
		{name: "two are not committed", entries: 5, commit: 3, wantCommit: 5, wantN: 5},
		{name: "all are", entries: 5, commit: 5, wantCommit: 5, wantN: 5},
		{name: "behind a snapshot", entries: 5, commit: 3, snapshot: 3, wantCommit: 5, wantN: 5},
		{name: "the last entry is torn", entries: 5, commit: 3, torn: true, wantCommit: 4, wantN: 4},
		{name: "nothing", wantCommit: 0, wantN: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			files := filepath.Join(dir, "member", "wal")
			if err := os.MkdirAll(filepath.Dir(files), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, files, c.entries, c.commit, c.snapshot)
			if c.torn {
				tear(t, files)
			}
			if err := memberlog.CommitAll(dir, zap.NewNop()); err != nil {
				t.Fatal(err)
			}
			w, err := wal.Open(zap.NewNop(), files, &walpb.Snapshot{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.Close() }()
			metadata, state, entries, err := w.ReadAll()
			if err != nil || string(metadata) != "whose" || state.GetCommit() != c.wantCommit || uint64(len(entries)) != c.wantN {
				t.Errorf("metadata %q, %v, %d entries, %v", metadata, state, len(entries), err)
			}
			if c.entries > 0 && (state.GetTerm() != 2 || state.GetVote() != 7) {
				t.Errorf("term and vote changed: %v", state)
			}
		})
	}
}

func TestALogThatIsNotThere(t *testing.T) {
	if err := memberlog.CommitAll(t.TempDir(), zap.NewNop()); err == nil {
		t.Error("no error")
	}
}

func write(t *testing.T, files string, n, commit, snapshot uint64) {
	t.Helper()
	w, err := wal.Create(zap.NewNop(), files, []byte("whose"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := uint64(1); i <= n; i++ {
		state := &raftpb.HardState{Term: new(uint64(2)), Vote: new(uint64(7)), Commit: new(i)}
		if i > commit {
			state = &raftpb.HardState{} // none is written
		}
		if err := w.Save(state, []*raftpb.Entry{{Index: new(i), Term: new(uint64(2)), Data: []byte("a write of a client")}}); err != nil {
			t.Fatal(err)
		}
		if i == snapshot {
			if err := w.SaveSnapshot(&walpb.Snapshot{Index: new(i), Term: new(uint64(2)), ConfState: &raftpb.ConfState{}}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// tear zeroes the end of the log's last record, as a disk does that had no time for its last sector.
func tear(t *testing.T, files string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(files, "*.wal"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	data, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	end := len(data)
	for end > 0 && data[end-1] == 0 {
		end--
	}
	if err := os.Truncate(logs[0], int64(end-20)); err != nil {
		t.Fatal(err)
	}
}
