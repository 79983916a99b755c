// SPDX-License-Identifier: Apache-2.0

package snapshotfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Contents reads what a snapshot holds under some prefixes, without a server: the newest value of each key, in the
// order of the keys. The file may be anybody's; it is only read, and nothing is written beside it.
func Contents(file string, prefixes []string, each func(key string, value []byte) error) (err error) {
	if _, err := Check(file); err != nil {
		return err
	}
	defer func() { // the database's panics are about damaged pages
		if r := recover(); r != nil {
			err = fmt.Errorf("snapshot %s: the database in it is damaged: %v", file, r)
		}
	}()
	db, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("snapshot %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	newest := map[string][]byte{}
	if err := db.View(func(tx *bbolt.Tx) error { return newestOf(tx, prefixes, newest) }); err != nil {
		return fmt.Errorf("snapshot %s: %w", file, err)
	}
	for _, key := range slices.Sorted(maps.Keys(newest)) {
		if err := each(key, newest[key]); err != nil {
			return err
		}
	}
	return nil
}

// revisions is the bucket of all writes in their order: the revision (8 bytes, '_', 8 bytes), and 't' behind it
// where the write was a deletion.
const (
	revisions      = "key"
	revisionBytes  = 17
	tombstoneBytes = 18
)

func newestOf(tx *bbolt.Tx, prefixes []string, newest map[string][]byte) error {
	bucket := tx.Bucket([]byte(revisions))
	if bucket == nil {
		return errors.New("it holds no keys of a store")
	}
	return bucket.ForEach(func(revision, data []byte) error {
		deleted := len(revision) == tombstoneBytes && revision[revisionBytes] == 't'
		if !deleted && len(revision) != revisionBytes {
			return fmt.Errorf("a revision of %d bytes: expected %d", len(revision), revisionBytes)
		}
		var write mvccpb.KeyValue
		if err := proto.Unmarshal(data, &write); err != nil {
			return fmt.Errorf("read revision %x: %w", revision, err)
		}
		if !slices.ContainsFunc(prefixes, func(p string) bool { return bytes.HasPrefix(write.Key, []byte(p)) }) {
			return nil
		}
		if deleted {
			delete(newest, string(write.Key))
			return nil
		}
		newest[string(write.Key)] = bytes.Clone(write.Value)
		return nil
	})
}
