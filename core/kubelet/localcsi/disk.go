// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/localvolume"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// disk is the directory of the driver: volumes/ID and snapshots/ID, each with a record
// and its data; new/ has what is being made and old/ what is being removed.
type disk struct{ root string }

const (
	volumes    = "volumes"
	snapshots  = "snapshots"
	recordFile = "record.json"
	// dataName is a directory, or the sparse file of a device or of an image.
	dataName = "data"
	// mountName is where an image is mounted while it is staged, and treeName what of it pods get: all but what its
	// file system has for itself.
	mountName = "mount"
	treeName  = "volume"
)

// record says what an item is. It is written before the item is renamed into place.
type record struct {
	// Name by which it was asked for.
	Name string `json:"name"`
	// Block: pods get the device itself, over a file.
	Block bool `json:"block,omitempty"`
	// Limit is what holds its pods to its size where they get a directory: localvolume.LimitImage, a file system of
	// that size in a file, or "", nothing.
	Limit string `json:"limit,omitempty"`
	Bytes int64  `json:"bytes"`
	// Source of a clone is volumes/ID or snapshots/ID, and that of a snapshot volumes/ID.
	Source string    `json:"source,omitempty"`
	Made   time.Time `json:"made"`
}

// item is a volume or a snapshot that is there.
type item struct {
	record
	shelf string
	id    string
	dir   string
}

func (i *item) data() string  { return filepath.Join(i.dir, dataName) }
func (i *item) mount() string { return filepath.Join(i.dir, mountName) }

// key of a call about it.
func (i *item) key() string { return filepath.Join(i.shelf, i.id) }

// image: a file system in a file.
func (r *record) image() bool { return r.Limit == localvolume.LimitImage && !r.Block }

// validID is all that may be an ID: it becomes the name of a directory.
var validID = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// idOf is the ID of what is called so: asked for again, it is the same.
func idOf(name string) string {
	const hashed = "sha256-"
	if validID.MatchString(name) && (len(name) < len(hashed) || name[:len(hashed)] != hashed) {
		return name
	}
	return fmt.Sprintf("%s%x", hashed, sha256.Sum256([]byte(name)))[:len(hashed)+40]
}

// open makes what is not there, and removes what was half made or half removed.
func (d disk) open() error {
	for _, dir := range []string{volumes, snapshots} {
		if err := os.MkdirAll(filepath.Join(d.root, dir), 0o700); err != nil {
			return fmt.Errorf("make the directory of local volumes: %w", err)
		}
	}
	if err := os.Chmod(d.root, 0o700); err != nil { //nolint:gosec // a directory
		return fmt.Errorf("close the directory of local volumes: %w", err)
	}
	for _, dir := range []string{"new", "old"} {
		if err := linuxhost.UnmountBelow(filepath.Join(d.root, dir)); err != nil {
			return fmt.Errorf("unmount local volumes that were half made: %w", err)
		}
		if err := os.RemoveAll(filepath.Join(d.root, dir)); err != nil {
			return fmt.Errorf("remove local volumes that were half made: %w", err)
		}
		for _, shelf := range []string{volumes, snapshots} {
			if err := os.MkdirAll(filepath.Join(d.root, dir, shelf), 0o700); err != nil {
				return fmt.Errorf("make the directory of local volumes: %w", err)
			}
		}
	}
	return nil
}

// get answers nil where there is no such item, and where id cannot be one.
func (d disk) get(shelf, id string) (*item, error) {
	if !validID.MatchString(id) {
		return nil, nil
	}
	i := &item{shelf: shelf, id: id, dir: filepath.Join(d.root, shelf, id)}
	b, err := os.ReadFile(filepath.Join(i.dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what %s is: %w", i.dir, err)
	}
	if err := json.Unmarshal(b, &i.record); err != nil {
		return nil, fmt.Errorf("%s does not say what the volume is: %w", filepath.Join(i.dir, recordFile), err)
	}
	return i, nil
}

// list is sorted by ID.
func (d disk) list(shelf string) ([]*item, error) {
	entries, err := os.ReadDir(filepath.Join(d.root, shelf))
	if err != nil {
		return nil, fmt.Errorf("list local %s: %w", shelf, err)
	}
	var out []*item
	for _, e := range entries {
		i, err := d.get(shelf, e.Name())
		if err != nil {
			return nil, err
		}
		if i != nil {
			out = append(out, i)
		}
	}
	return out, nil
}

// create makes an item whole, or not at all. fill makes what is at the path it is given.
func (d disk) create(shelf, id string, r *record, fill func(data string) error) (err error) {
	half := filepath.Join(d.root, "new", shelf, id)
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("remove what was half made: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(half))
		}
	}()
	if err := os.Mkdir(half, 0o700); err != nil {
		return fmt.Errorf("make a local volume: %w", err)
	}
	if err := fill(filepath.Join(half, dataName)); err != nil {
		return err
	}
	if err := r.write(half); err != nil {
		return err
	}
	if err := os.Rename(half, filepath.Join(d.root, shelf, id)); err != nil {
		return fmt.Errorf("put a local volume into its place: %w", err)
	}
	return syncDir(filepath.Join(d.root, shelf))
}

func (r *record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode what a local volume is: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, recordFile), b, 0o600); err != nil {
		return fmt.Errorf("write what a local volume is: %w", err)
	}
	return nil
}

// remove takes an item away: from the rename on it is gone. Links in it are removed and
// never followed; called again it goes on where it stopped.
func (d disk) remove(shelf, id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	old := filepath.Join(d.root, "old", shelf, id)
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("remove a local volume: %w", err)
	}
	if err := os.Rename(filepath.Join(d.root, shelf, id), old); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("take a local volume away: %w", err)
	}
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("remove a local volume: %w", err)
	}
	return nil
}

// space is how large the file system is, and what is free of it.
func (d disk) space() (total, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.root, &st); err != nil {
		return 0, 0, fmt.Errorf("look at the disk of local volumes: %w", err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil //nolint:gosec // sizes of disks
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open a directory of local volumes: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write a directory of local volumes to the disk: %w", err)
	}
	return nil
}
