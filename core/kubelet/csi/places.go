// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

const (
	kind       = "kubernetes.io/csi"
	recordFile = "vol_data.json"
	ephemeral  = "Ephemeral"
	persistent = "Persistent"
	yes        = "true"
)

// volumeRecord is the file beside a place: which volume it is for. The names are
// upstream's, which has strings alone; the last two are ours.
type volumeRecord struct {
	Name       string `json:"specVolID,omitempty"`
	Handle     string `json:"volumeHandle"`
	Driver     string `json:"driverName"`
	Node       string `json:"nodeName,omitempty"`
	Attachment string `json:"attachmentID,omitempty"`
	Lifecycle  string `json:"volumeLifecycleMode,omitempty"`
	// Attached volumes are named by the node's status as long as the file is there.
	Attached string `json:"attached,omitempty"`
	// SetUp: all was done that comes after the driver's part.
	SetUp string `json:"setUp,omitempty"`
}

func (r *volumeRecord) id() id { return id{r.Driver, r.Handle} }

// readRecord answers nil where there is none.
func readRecord(dir string) (*volumeRecord, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which volume is at %s: %w", dir, err)
	}
	var r volumeRecord
	if err := json.Unmarshal(b, &r); err != nil || !driverName.MatchString(r.Driver) || r.Handle == "" {
		return nil, fmt.Errorf("%s does not say which volume of which driver it is for: unmount what is below %s, and remove the file", filepath.Join(dir, recordFile), dir)
	}
	return &r, nil
}

// write makes dir, and the file in it before anything else.
func (r *volumeRecord) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the place of a volume: %w", err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode which volume is at %s: %w", dir, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, recordFile), b, 0o600); err != nil {
		return fmt.Errorf("write which volume is at %s: %w", dir, err)
	}
	return nil
}

// place is where a volume is, or may be.
type place struct {
	volumeRecord
	dir string
}

// published are the places of pods that some volume is for.
func (c *Config) published() ([]place, error) {
	return c.records("pods/*/volumes/kubernetes.io~csi/*/" + recordFile)
}

// stages are the places where volumes are staged for the whole node.
func (c *Config) stages() ([]place, error) {
	return c.records("plugins/" + kind + "/*/*/" + recordFile)
}

func (c *Config) records(pattern string) ([]place, error) {
	files, err := fs.Glob(os.DirFS(c.RootDir), pattern)
	if err != nil {
		return nil, fmt.Errorf("look for volumes: %w", err)
	}
	var out []place
	var all []error
	for _, f := range files {
		dir := filepath.Join(c.RootDir, filepath.Dir(f))
		r, err := readRecord(dir)
		if err != nil {
			all = append(all, err)
		}
		if r != nil {
			out = append(out, place{*r, dir})
		}
	}
	return out, errors.Join(all...)
}

// stage of a volume: the directory of its record, and below it the one that a driver gets.
func (c *Config) stage(v id) string {
	return filepath.Join(c.RootDir, "plugins", kind, v.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(v.handle))))
}

func stagePath(dir string) string  { return filepath.Join(dir, "globalmount") }
func targetPath(dir string) string { return filepath.Join(dir, "mount") }

// vacate removes a place after its driver has said that it has taken the volume down:
// the kernel has to say so too. Nothing is ever removed through a mount.
func vacate(driver, dir, mount string) error {
	left, err := linuxhost.MountsBelow(mount)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("driver %s answered that it has unmounted the volume, and %s is mounted still: see the driver's logs on this node", driver, left[0])
	}
	// Where a mount comes late, of a call that was given up on, the kernel refuses to
	// rename; and what has been renamed can no more be mounted upon by its name.
	aside := filepath.Join(dir, ".left")
	if err := os.Rename(mount, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the place of a volume cannot be removed: %w", err)
	}
	if there, err := volume.IsMount(aside); err != nil || there {
		return errors.Join(err, fmt.Errorf("%s: mounted: %v", aside, there))
	}
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove the place of a volume: %w", err)
	}
	return remove(dir)
}

// remove takes away the record, what a crash may have left of writing it, and the directory.
func remove(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the place of a volume: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove the record of a volume: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("remove the place of a volume: %w", err)
	}
	return nil
}
