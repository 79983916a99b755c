// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// diskClasses are faults of the disk of one machine that is all there is, and of what is on it.
func diskClasses() []class {
	outage := bounds{failed: unbounded, writes: 2 * down, goesOn: 2 * down}
	// A disk that holds everything takes no write while it is full.
	full := bounds{failed: unbounded, writes: 4 * down, goesOn: 4 * down, calls: unbounded, service: 4 * down, restarts: replicas}
	const says = `(?i)damaged|restore`
	return []class{
		{
			"disk-frozen", "the disk answers nobody for 4 s", alone, false,
			func(w *world) error { return w.frozen(w.first(), 4*time.Second) },
			bounds{
				failed: unbounded, writes: 10 * time.Second,
				goesOn: 10 * time.Second,
			},
		},
		{
			"wal-torn", "kill -9 in the middle of a write: half a record is at the end of the store's log", alone, true,
			func(w *world) error { return w.tampered(tornRecord) }, outage,
		},
		{
			"wal-of-no-length", "the machine died when the store began another log: its file is empty", alone, false,
			func(w *world) error { return w.tampered(emptyLog) }, outage,
		},
		{
			"wal-flipped", "one bit in the store's log flips: refused, with what to do; the file is put back", alone, false,
			func(w *world) error { return w.damaged(flippedLog, says) }, outage,
		},
		{
			"wal-cut", "the first half of the store's log is all there is: refused; the file is put back", alone, false,
			func(w *world) error { return w.damaged(headlessLog, says) }, outage,
		},
		{
			"wal-gone", "the store's log is gone: refused; it is put back", alone, false,
			func(w *world) error {
				return w.damaged(func(dir string) error { return os.RemoveAll(filepath.Join(dir, "wal")) }, says)
			}, outage,
		},
		{
			"database-flipped", "bits in the database's first pages flip: refused; the file is put back", alone, false,
			func(w *world) error { return w.damaged(flippedPages, says) }, outage,
		},
		{
			"database-cut", "all but the first pages of the database is gone: refused; the file is put back", alone, false,
			func(w *world) error { return w.damaged(halfDatabase, says) }, outage,
		},
		{
			"database-of-no-length", "the database is empty: refused; the file is put back", alone, false,
			func(w *world) error {
				return w.damaged(func(dir string) error { return os.Truncate(database(dir), 0) }, says)
			}, outage,
		},
		{"log-removed", "wasmplane.log is removed, and a folder is in its place at the next start", alone, false, logInTheWay, outage},
		{
			"disk-full", "no byte is left on the disk for 8 s", alone, false,
			func(w *world) error { return w.full(w.first(), fill) }, full,
		},
		{
			"inodes-used-up", "no inode is left on the disk for 8 s", alone, false,
			func(w *world) error { return w.full(w.first(), fillInodes) }, full,
		},
		{
			"worker-disk-full", "no byte is left for 8 s on a worker's disk, where its images and logs are", many, false, workerDiskFull,
			bounds{restarts: replicas},
		},
		{"disk-full-at-start", "the server is killed and started while no byte is left, then room is made", alone, false, fullAtStart, full},
	}
}

// frozen has the machine's disk answer nobody for a while.
func (w *world) frozen(m *machine, d time.Duration) error {
	err := harness.Execute("fsfreeze", "--freeze", m.disk)
	w.hold(d)
	return errors.Join(err, harness.Execute("fsfreeze", "--unfreeze", m.disk))
}

// full has a disk full for a while. A server that ends of it says why, and is started again once there is room, as by
// its supervisor.
func (w *world) full(m *machine, fill func(dir string) error) error {
	dir := filepath.Join(m.disk, "filler")
	err := fill(dir)
	w.hold(stop)
	err = errors.Join(err, os.RemoveAll(dir))
	select {
	case <-m.process.Done():
		return errors.Join(err, m.printed("disk is full"), m.start())
	default:
		return err
	}
}

// workerDiskFull has a worker get an image for which it has no room: it says so, and gets it once there is some.
func workerDiskFull(w *world) error {
	m, archive := w.machines[w.on.servers], filepath.Join(w.cluster.Dir, "toolbox.tar")
	if err := harness.Toolbox(w.cluster.Dir, archive); err != nil {
		return err
	}
	load := []string{m.binary, "image", "import", archive, "--data-dir", m.data}
	err := w.full(m, func(dir string) error {
		if err := fill(dir); err != nil {
			return err
		}
		if err := m.do(load...); err == nil {
			return errors.New("an image was imported onto a full disk")
		} else if !strings.Contains(err.Error(), "no space left") {
			return fmt.Errorf("the import does not say that the disk is full: %w", err)
		}
		return nil
	})
	return errors.Join(err, m.do(load...))
}

// fill takes each byte of dir's disk.
func fill(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "bytes"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	at := int64(0)
	for size := int64(256 << 20); size >= 4096; {
		if err := syscall.Fallocate(int(f.Fd()), 0, at, size); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			return err
		} else {
			at += size
		}
	}
	return nil
}

// fillInodes takes each inode of dir's disk.
func fillInodes(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for n := 0; ; n++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(n)))
		if errors.Is(err, syscall.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = f.Close()
	}
}

// fullAtStart starts the server on a full disk, where it waits or ends with a sentence.
func fullAtStart(w *world) error {
	m := w.first()
	dir := filepath.Join(m.disk, "filler")
	err := errors.Join(m.kill(), fill(dir), m.launch())
	select {
	case <-m.process.Done():
		err = errors.Join(err, m.printed("disk is full"))
	case <-time.After(stop):
		err = errors.Join(err, m.kill())
	}
	return errors.Join(err, os.RemoveAll(dir), m.start())
}

func logInTheWay(w *world) error {
	m := w.first()
	file := filepath.Join(m.data, "wasmplane.log")
	err := errors.Join(os.Remove(file), m.kill(), os.RemoveAll(file), os.Mkdir(file, 0o700), m.refuses(`wasmplane\.log`), os.Remove(file))
	return errors.Join(err, m.start())
}

// tampered kills the server, changes what it left, and starts it: it bears that.
func (w *world) tampered(how func(dir string) error) error {
	m := w.first()
	if err := errors.Join(m.kill(), how(filepath.Join(m.data, "etcd", "member"))); err != nil {
		return err
	}
	return m.start()
}

// damaged kills the server and damages what it left. The server must refuse that and say what to do, after which
// all is put back, or have everything nevertheless, which is judged afterwards.
func (w *world) damaged(how func(dir string) error, says string) error {
	m := w.first()
	dir, aside := filepath.Join(m.data, "etcd", "member"), filepath.Join(m.disk, "aside")
	if err := errors.Join(m.kill(), harness.Execute("cp", "-a", dir, aside), how(dir)); err != nil {
		return err
	}
	if m.start() == nil {
		return os.RemoveAll(aside)
	}
	err := m.printed(says)
	return errors.Join(err, os.RemoveAll(dir), os.Rename(aside, dir), m.start())
}

func database(dir string) string { return filepath.Join(dir, "snap", "db") }

// lastLog is the log's last file that has something in it, and where that ends.
func lastLog(dir string) (file string, end int64, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if err != nil || len(files) == 0 {
		return "", 0, fmt.Errorf("there is no log in %s: %w", dir, err)
	}
	slices.Sort(files)
	file = files[len(files)-1]
	data, err := os.ReadFile(file)
	if err != nil {
		return "", 0, err
	}
	end = int64(len(data))
	for end > 0 && data[end-1] == 0 {
		end--
	}
	return file, (end + 7) / 8 * 8, nil
}

func writeAt(file string, at int64, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, at)
	return errors.Join(err, f.Sync(), f.Close())
}

func flip(file string, at int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	one := make([]byte, 1)
	if _, err := f.ReadAt(one, at); err != nil {
		return err
	}
	one[0] ^= 0x10
	return writeAt(file, at, one)
}

// tornRecord is the frame of a record of 4,000 bytes, of which the disk has the first 300.
func tornRecord(dir string) error {
	file, end, err := lastLog(dir)
	if err != nil {
		return err
	}
	record := binary.LittleEndian.AppendUint64(nil, 4000)
	for len(record) < 308 {
		record = append(record, 0xa5)
	}
	return writeAt(file, end, record)
}

// emptyLog is the next file of the log, without anything in it.
func emptyLog(dir string) error {
	file, _, err := lastLog(dir)
	if err != nil {
		return err
	}
	var sequence, index uint64
	if _, err := fmt.Sscanf(filepath.Base(file), "%016x-%016x.wal", &sequence, &index); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "wal", fmt.Sprintf("%016x-%016x.wal", sequence+1, index+1_000_000)), nil, 0o600)
}

func flippedLog(dir string) error {
	file, end, err := lastLog(dir)
	if err != nil {
		return err
	}
	return flip(file, end/2)
}

// headlessLog cuts the log in the middle of what was acknowledged.
func headlessLog(dir string) error {
	file, end, err := lastLog(dir)
	if err != nil {
		return err
	}
	return os.Truncate(file, end/2)
}

// flippedPages damages both pages that say where everything is.
func flippedPages(dir string) error {
	return errors.Join(flip(database(dir), 30), flip(database(dir), 4096+30))
}

// halfDatabase leaves the first four pages.
func halfDatabase(dir string) error { return os.Truncate(database(dir), 4*int64(os.Getpagesize())) }
