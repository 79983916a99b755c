// SPDX-License-Identifier: Apache-2.0

// Package memberdir looks after the directory of one member of the store: which
// process has it, whether its files are damaged, whether its disk is full.
//
// It guarantees an answer at once, where etcd would wait without end for a lock or
// end the process. It never writes to the files of etcd.
package memberdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Inspect looks at the files before etcd does. It answers up to which entry of the log the database has
// everything, and an error where etcd would end the process: it reads the database in a goroutine of its own, where
// nobody can catch its panic about damaged pages, and never gets ready with a log that has lost entries.
func Inspect(dir string) (applied uint64, err error) {
	file := filepath.Join(dir, "member", "snap", "db")
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return 0, nil // etcd makes it of the log, or refuses by itself
	}
	if err != nil {
		return 0, err
	}
	if applied, err = readDatabase(file, info.Size()); err != nil {
		return 0, fmt.Errorf("its database %s is damaged: %w", file, err)
	}
	logs := filepath.Join(dir, "member", "wal")
	found, err := filepath.Glob(filepath.Join(logs, "*.wal"))
	if err == nil && len(found) == 0 && applied > 0 {
		err = fmt.Errorf("its log in %s is gone, while its database is there", logs)
	}
	return applied, err
}

// readDatabase reads the pages that all others are reached by.
func readDatabase(file string, size int64) (applied uint64, err error) {
	// A page that is not there is a fault of memory, which would end the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	db, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("it has %d bytes, and its pages need %d: it was cut", size, tx.Size())
		}
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			if index := meta.Get([]byte("consistent_index")); len(index) == 8 {
				applied = binary.BigEndian.Uint64(index)
			}
		}
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			b.Cursor().First()
			b.Cursor().Last()
			return nil
		})
	})
	return applied, err
}

// leastRoom is less than etcd needs to write anything.
const leastRoom = 1 << 20

// Full is the end of an error about a directory whose disk is full, and empty otherwise: what etcd says then sounds like damage.
// Its message is looked at first, as some room may be free again: etcd removes a log that it could not write.
func Full(dir, message string) string {
	if strings.Contains(message, unix.ENOSPC.Error()) {
		return "; the disk is full: make room and start again"
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return ""
	}
	if free := st.Bavail * uint64(st.Bsize); free < leastRoom {
		return fmt.Sprintf("; the disk is full (%d KiB are free): make room and start again", free>>10)
	}
	if st.Files > 0 && st.Ffree == 0 {
		return "; the disk is full (no inode is free): remove files and start again"
	}
	return ""
}
