// SPDX-License-Identifier: Apache-2.0

// Package memberlog changes the log of a member of etcd whose process does not run, for what etcd itself has no command.
// It owns no files: a caller gives a copy of the member's data directory, and keeps the original.
package memberlog

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
)

// CommitAll marks everything that is in the log of a data directory as committed. A member that goes on without the
// others drops what is not (etcd, bootstrap of a forced new cluster), and a member learns late what is: etcd keeps the
// number of the last committed entry in memory until it writes the next entry. So the entries behind that number may
// have been answered to clients, and only those that know of no answer may be dropped. None is known here: all stay.
func CommitAll(dir string, log *zap.Logger) error {
	files := filepath.Join(dir, "member", "wal")
	if err := commitAll(files, log); err != nil {
		return fmt.Errorf("commit what is in the log %s: %w", files, err)
	}
	return nil
}

func commitAll(files string, log *zap.Logger) (err error) {
	snapshots, err := wal.ValidSnapshotEntries(log, files)
	if err != nil {
		return err
	}
	start := &walpb.Snapshot{}
	if len(snapshots) > 0 {
		start = snapshots[len(snapshots)-1]
	}
	w, err := wal.Open(log, files, start)
	if err != nil {
		return err
	}
	_, state, entries, err := w.ReadAll()
	if errors.Is(err, io.ErrUnexpectedEOF) { // torn in its last entry, which nobody was told about
		if err := w.Close(); err != nil {
			return err
		}
		if !wal.Repair(log, files) {
			return errors.New("its end is damaged, and cannot be cut off")
		}
		if w, err = wal.Open(log, files, start); err != nil {
			return err
		}
		_, state, entries, err = w.ReadAll()
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil || len(entries) == 0 {
		return err
	}
	last := entries[len(entries)-1].GetIndex()
	if last <= state.GetCommit() {
		return nil
	}
	state.Commit = &last
	return w.Save(state, nil)
}
