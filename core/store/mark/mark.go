// SPDX-License-Identifier: Apache-2.0

// Package mark keeps in the store itself which versions of wasmplane serve it, so that a
// binary that is too old refuses at its start instead of reading what it does not know.
//
// A version is one of a release, v1.2.3 with what may follow. Others, such as those of
// builds from a working tree, are neither written nor held against anybody.
package mark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/wasmplane/wasmplane/core/store"
)

// prefix of the keys, one for each data directory that has served the store. It lies beside
// what the API keeps, so no watch and no backup of upstream's tools minds it.
const prefix = "/wasmplane.dev/servers/"

// Version is a release's, as far as the store is concerned.
type Version struct{ Major, Minor int }

var release = regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})\.\d+`)

// Parse reads a version; ok is false for one that is no release's.
func Parse(text string) (v Version, ok bool) {
	m := release.FindStringSubmatch(text)
	if m == nil {
		return v, false
	}
	v.Major, _ = strconv.Atoi(m[1])
	v.Minor, _ = strconv.Atoi(m[2])
	return v, true
}

// After tells whether v is newer than o.
func (v Version) After(o Version) bool {
	return v.Major > o.Major || v.Major == o.Major && v.Minor > o.Minor
}

// Next tells whether v follows o, or is it: what an upgrade may step over.
func (v Version) Next(o Version) bool {
	return v == o || v.Major == o.Major && v.Minor == o.Minor+1 || v.Major == o.Major+1 && v.Minor == 0
}

// String is the version as people write it.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// record is what the store keeps of a server.
type record struct {
	Version string `json:"version"`
}

// Check fails where the server of that identity, whose version is given, is too old for the
// store: older than it was itself, more than one minor version older than another server, or,
// where it has never served this store, older than any.
func Check(ctx context.Context, st store.Store, identity, version string) error {
	ours, ok := Parse(version)
	if !ok {
		return nil
	}
	page, err := st.List(ctx, prefix, store.ListOptions{})
	if err != nil {
		return fmt.Errorf("ask the store which versions have served it: %w", err)
	}
	known := false
	var own, newest Version
	var text string // of the newest
	for _, kv := range page.Items {
		var r record
		if err := json.Unmarshal(kv.Value, &r); err != nil {
			return fmt.Errorf("the store's key %s, which says what version has served it, cannot be read: %w; if nothing newer than this wasmplane %s has, remove it (etcdctl del %s)", kv.Key, err, version, kv.Key)
		}
		v, ok := Parse(r.Version)
		if !ok {
			continue
		}
		if kv.Key == prefix+identity {
			known, own = true, v
		}
		if text == "" || v.After(newest) {
			newest, text = v, r.Version
		}
	}
	if !newest.After(ours) || known && !own.After(ours) && newest.Next(ours) {
		return nil
	}
	return fmt.Errorf("the store was served by wasmplane %s last, and this is %s, which does not know what that has written: start wasmplane %s or newer, or restore a backup from before the upgrade (wasmplane restore)", text, version, newest)
}

// Write says that the server of that identity serves the store with this version.
func Write(ctx context.Context, st store.Store, identity, version string) error {
	if _, ok := Parse(version); !ok {
		return nil
	}
	value, err := json.Marshal(record{Version: version})
	if err != nil {
		return err
	}
	before, err := st.Get(ctx, prefix+identity)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("read which version has served the store: %w", err)
	}
	if string(before.Value) == string(value) {
		return nil
	}
	if _, err := st.Put(ctx, prefix+identity, value, before.ModRevision, 0); err != nil {
		return fmt.Errorf("write which version serves the store: %w", err)
	}
	return nil
}
