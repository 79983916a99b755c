// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/diskimage"
	"github.com/wasmplane/wasmplane/core/kubelet/mounttable"
)

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// whereIs says which file system a path is in, and where in it.
func whereIs(path string, all []mounttable.Mount) (device, root string) {
	best := mounttable.Mount{}
	for _, m := range all {
		if within(path, m.Point) && len(m.Point) >= len(best.Point) { // a later one is above
			best = m
		}
	}
	rest, err := filepath.Rel(best.Point, path)
	if err != nil {
		return "", ""
	}
	return best.Device, filepath.Join(best.Root, rest)
}

// unused refuses where the volume is mounted somewhere.
func (i *item) unused() error {
	users, err := i.users()
	if err != nil {
		return internal(err)
	}
	if len(users) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %s is in use at %s", i.id, users[0])
	}
	return nil
}

// users are the places at which a volume, or something in it, is mounted, and those in it
// at which something else is.
func (i *item) users() ([]string, error) {
	if i.image() {
		return i.imageUsers()
	}
	path, err := filepath.EvalSymlinks(i.data())
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at a volume: %w", err)
	}
	all, err := mounttable.Read()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range all {
		if within(m.Point, path) {
			out = append(out, m.Point)
		}
	}
	if i.Block {
		dev, err := diskimage.Attached(path)
		if err != nil || dev == "" {
			return out, err
		}
		path = dev
	}
	device, root := whereIs(path, all)
	for _, m := range all {
		if m.Device == device && within(m.Root, root) && m.Point != path {
			out = append(out, m.Point)
		}
	}
	return out, nil
}

// imageUsers are those of an image: its own mount is none, for it has no user that is not one of the others.
func (i *item) imageUsers() ([]string, error) {
	over, err := diskimage.Devices(i.data())
	if err != nil {
		return nil, err
	}
	own, err := filepath.EvalSymlinks(i.dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at a volume: %w", err)
	}
	own = filepath.Join(own, mountName)
	all, err := mounttable.Read()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range all {
		of := slices.ContainsFunc(over, func(d diskimage.Device) bool { return d.Number == m.Device })
		if m.Point != own && (of || within(m.Point, own)) {
			out = append(out, m.Point)
		}
	}
	return out, nil
}
