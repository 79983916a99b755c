// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mounted is a line of the kernel's table: what of which file system is where.
type mounted struct{ device, root, point string }

// table of mounts. Paths are as the kernel writes them: those of this driver have
// nothing in them that it would escape, and others only look different to ours.
func table() ([]mounted, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	var out []mounted
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if fields := strings.Fields(s.Text()); len(fields) > 4 {
			out = append(out, mounted{fields[2], fields[3], fields[4]})
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return out, nil
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// whereIs says which file system a path is in, and where in it.
func whereIs(path string, all []mounted) (device, root string) {
	best := mounted{}
	for _, m := range all {
		if within(path, m.point) && len(m.point) >= len(best.point) { // a later one is above
			best = m
		}
	}
	rest, err := filepath.Rel(best.point, path)
	if err != nil {
		return "", ""
	}
	return best.device, filepath.Join(best.root, rest)
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
	path, err := filepath.EvalSymlinks(i.data())
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at a volume: %w", err)
	}
	all, err := table()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range all {
		if within(m.point, path) {
			out = append(out, m.point)
		}
	}
	if i.Block {
		dev, err := attached(path)
		if err != nil || dev == "" {
			return out, err
		}
		path = dev
	}
	device, root := whereIs(path, all)
	for _, m := range all {
		if m.device == device && within(m.root, root) && m.point != path {
			out = append(out, m.point)
		}
	}
	return out, nil
}
