// SPDX-License-Identifier: Apache-2.0

// Package snapshotfile reads the snapshots of a store, as files: whether one is whole,
// and what it holds. No server is needed, and files may be anybody's.
package snapshotfile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// Info describes a snapshot.
type Info struct {
	Bytes    int64
	Keys     int
	Revision int64
	// SHA256 is the digest of the whole file, in hex.
	SHA256 string
}

// Check reads a snapshot through: the digest at its end, which etcd's
// Snapshot call writes and a copy of a database file lacks, and the database's own
// structure.
func Check(file string) (Info, error) {
	info, err := checkDigest(file)
	if err != nil {
		return info, fmt.Errorf("snapshot %s: %w", file, err)
	}
	status, err := statusOf(file)
	if err != nil {
		return info, fmt.Errorf("snapshot %s: %w", file, err)
	}
	info.Keys, info.Revision = status.TotalKey, status.Revision
	return info, nil
}

// statusOf turns the database's panics about damaged pages into errors.
func statusOf(file string) (status snapshot.Status, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the database in it is damaged: %v", r)
		}
	}()
	return snapshot.NewV3(zap.NewNop()).Status(file)
}

func checkDigest(file string) (info Info, err error) {
	f, err := os.Open(file)
	if err != nil {
		return info, err
	}
	defer func() { _ = f.Close() }()
	stat, err := f.Stat()
	if err != nil {
		return info, err
	}
	info.Bytes = stat.Size()
	// A database is a whole number of pages; the digest comes after them.
	if info.Bytes%512 != sha256.Size {
		return info, errors.New("it has no digest at its end: it is cut off, or it is a copied database file and no snapshot (take one with `wasmplane backup` or `etcdctl snapshot save`)")
	}
	content, whole := sha256.New(), sha256.New()
	if _, err := io.CopyN(io.MultiWriter(content, whole), f, info.Bytes-sha256.Size); err != nil {
		return info, err
	}
	var want [sha256.Size]byte
	if _, err := io.ReadFull(f, want[:]); err != nil {
		return info, err
	}
	whole.Write(want[:])
	info.SHA256 = hex.EncodeToString(whole.Sum(nil))
	if got := content.Sum(nil); string(got) != string(want[:]) {
		return info, errors.New("its content does not match its digest: it was damaged or changed since it was taken")
	}
	return info, nil
}
