// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// mostRemoved bounds how many removals a folder remembers. One that is forgotten may come back from a machine that was away all the time.
const mostRemoved = 64

// turnFile counts how often an archive was removed from the cluster and taken over again: an odd number is a removal. The larger
// number is the later word, so that machines that hear of each other in any order come to agree, whatever their clocks say.
func turnFile(dir, name string) string { return filepath.Join(dir, "."+name+".turn") }

// Turn of an archive in a folder; 0 = it was never removed.
func Turn(dir, name string) (int, error) {
	text, err := os.ReadFile(turnFile(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	turn, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || turn < 0 {
		return 0, fmt.Errorf("%s holds %.20q, expected a number; remove it, and load or remove the archive again", turnFile(dir, name), text)
	}
	return turn, nil
}

// IsRemoval says what a turn is.
func IsRemoval(turn int) bool { return turn%2 == 1 }

// SetTurn remembers a later turn; an earlier one is no news.
func SetTurn(dir, name string, turn int) error {
	now, err := Turn(dir, name)
	if err != nil || turn <= now {
		return err
	}
	return atomicfile.Write(turnFile(dir, name), []byte(strconv.Itoa(turn)+"\n"), 0o600)
}

// Want ends a removal: the archive is loaded again.
func Want(dir, name string) error {
	turn, err := Turn(dir, name)
	if err != nil || !IsRemoval(turn) {
		return err
	}
	return SetTurn(dir, name, turn+1)
}

// Removed are the archives of a folder that were removed, with their turns.
func Removed(dir string) (map[string]int, error) {
	files, err := filepath.Glob(filepath.Join(dir, ".*.tar.turn"))
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "."), ".turn")
		turn, err := Turn(dir, name)
		if err != nil {
			return nil, err
		}
		if IsKept(name) && IsRemoval(turn) {
			out[name] = turn
		}
	}
	return out, nil
}

// Remove takes an archive out of a folder, and remembers that, so that it does not come back from another machine: by the next
// turn, or by the one that the other machine has; 0 = the next. The images that it has pinned are recorded for Unpinned.
// One that is not there is remembered, too.
func Remove(dir, name string, turn int) error {
	if !IsKept(name) {
		return fmt.Errorf("%q is no name of an archive that was taken over", name)
	}
	now, err := Turn(dir, name)
	if err != nil {
		return err
	}
	if turn == 0 {
		turn = now + 1 + now%2
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(dir, name)
	if err := recordPinned(file); err != nil {
		return err
	}
	if err := SetTurn(dir, name, turn); err != nil {
		return err
	}
	for _, f := range []string{imported(file), filepath.Join(dir, "."+name+".part"), file} {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return forgetRemovals(dir)
}

// unpin is the file with the pinned images of an archive that was removed.
func unpin(file string) string {
	return filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".unpin")
}

// recordPinned writes which images an archive has pinned. One that is damaged is removed all the same, and its images stay pinned.
func recordPinned(file string) error {
	a, err := openFile(file)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	images := slices.DeleteFunc(slices.Clone(a.Images), func(i Image) bool { return !i.Pinned })
	text, err := json.Marshal(images)
	if err = errors.Join(err, a.Close()); err != nil || len(images) == 0 {
		return err
	}
	return atomicfile.Write(unpin(file), text, 0o600)
}

// forgetRemovals keeps the newest.
func forgetRemovals(dir string) error {
	removed, err := Removed(dir)
	if err != nil || len(removed) <= mostRemoved {
		return err
	}
	type one struct {
		name string
		at   int64
	}
	var all []one
	for name := range removed {
		if info, err := os.Stat(turnFile(dir, name)); err == nil {
			all = append(all, one{name, info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(all, func(a, b one) int { return cmp.Compare(b.at, a.at) })
	for _, o := range all[min(mostRemoved, len(all)):] {
		if err := os.Remove(turnFile(dir, o.name)); err != nil {
			return err
		}
	}
	return nil
}

// Unpinned are images that archives have pinned which were removed, and which no archive of the folder pins now. done
// is called when they are unpinned.
func Unpinned(dir string) (out []Image, done func() error, err error) {
	files, err := filepath.Glob(filepath.Join(dir, ".*.tar.unpin"))
	if err != nil || len(files) == 0 {
		return nil, func() error { return nil }, err
	}
	kept, err := pinnedNow(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		var images []Image
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &images)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read which images an archive had: %s: %w", file, err)
		}
		for _, i := range images {
			if !kept[i.Name] {
				out = append(out, i)
			}
		}
	}
	return out, func() (err error) {
		for _, file := range files {
			err = errors.Join(err, os.Remove(file))
		}
		return err
	}, nil
}

func pinnedNow(dir string) (map[string]bool, error) {
	files, err := Kept(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, file := range files {
		a, err := Open(file)
		if err != nil {
			return nil, err
		}
		for _, i := range a.Images {
			out[i.Name] = out[i.Name] || i.Pinned
		}
		if err := a.Close(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// NameOf is how an archive is called once it was taken over.
func NameOf(ctx context.Context, from Source) (string, error) {
	p, err := headOf(ctx, from)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", from.Name, err)
	}
	return p.kept(), nil
}
