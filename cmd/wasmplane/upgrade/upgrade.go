// SPDX-License-Identifier: Apache-2.0

// Package upgrade replaces the binary of the process that runs in a data directory, and goes
// back by itself where the new one does not do. The store is saved before, the former
// binary stays beside the new one, pods are not touched, and nothing is changed before
// everything that can be checked has been.
package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/core/store/mark"
)

// Options of an upgrade.
type Options struct {
	Dir datadir.Dir
	Source
	// Restart is the command that starts the process anew; "" = its supervisor does, or it is
	// started in the background as it was.
	Restart string
	// Timeout bounds the wait until the new process is healthy; Stable is how long it has to
	// stay so.
	Timeout, Stable time.Duration
	// Stop ends the process of the directory.
	Stop func(context.Context) error
	// Report is told what is done.
	Report func(string)
	// Cluster is asked about the others; it can be reached now.
	Cluster Cluster
}

// Cluster is the cluster as the machine sees it.
type Cluster interface {
	// Check fails where this machine must not be upgraded to that release now.
	Check(ctx context.Context, is release) error
	// Lock keeps others from being upgraded meanwhile.
	Lock(ctx context.Context) (unlock func(context.Context), err error)
	// Healthy fails where what runs on this machine does not do its work.
	Healthy(ctx context.Context) error
	// Stored tells whether this machine's process has a store that can be saved.
	Stored() bool
}

// keptBackups is how many backups of upgrades are kept.
const keptBackups = 3

// ErrRolledBack means that the former binary runs again.
var ErrRolledBack = errors.New("the upgrade did not work out, and the former binary runs again")

// Run upgrades the machine.
func Run(ctx context.Context, o Options) error {
	i, err := find(ctx, o.Dir)
	if err != nil {
		return err
	}
	i.command, i.stop = o.Restart, o.Stop
	if err := notPackaged(i.binary); err != nil {
		return err
	}
	was, err := ask(ctx, fmt.Sprintf("/proc/%d/exe", i.pid))
	if err != nil {
		return err
	}
	remove, err := o.keep(string(o.Dir))
	if err != nil {
		return err
	}
	defer remove()
	if err := o.verify(); err != nil {
		return err
	}
	next := i.binary + ".next"
	defer func() { _ = os.Remove(next) }()
	if err := o.unpack(next); err != nil {
		return err
	}
	is, err := ask(ctx, next)
	if err != nil {
		return err
	}
	if same, err := equal(next, i.binary); err != nil || same {
		if same {
			o.Report(fmt.Sprintf("%s is that binary already, of wasmplane %s.", i.binary, is.version))
		}
		return err
	}
	if err := mayFollow(was, is); err != nil {
		return err
	}
	if err := o.Cluster.Check(ctx, is); err != nil {
		return err
	}
	unlock, err := o.Cluster.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock(context.WithoutCancel(ctx))
	o.Report(fmt.Sprintf("from wasmplane %s (Kubernetes %s) to %s (Kubernetes %s)", was.version, was.kubernetes, is.version, is.kubernetes))
	if err := o.save(ctx, is.version); err != nil {
		return err
	}
	if err := o.Cluster.Check(ctx, is); err != nil { // again: the backup took its time, and the lease kept others out
		return fmt.Errorf("%w; nothing was changed", err)
	}
	return o.replace(ctx, i, next, is)
}

// notPackaged fails where the binary is the package manager's to replace.
func notPackaged(binary string) error {
	list, err := os.ReadFile("/var/lib/dpkg/info/wasmplane.list")
	if err == nil && slices.Contains(strings.Split(string(list), "\n"), binary) {
		return fmt.Errorf("%s is of the package wasmplane: upgrade that (apt-get install ./wasmplane_VERSION_ARCH.deb), after a `wasmplane backup`", binary)
	}
	return nil
}

func equal(a, b string) (bool, error) {
	one, err := digest(a)
	if err != nil {
		return false, err
	}
	other, err := digest(b)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // somebody has removed what still runs
	}
	return one == other, err
}

// mayFollow fails where a version cannot be put in the place of another.
func mayFollow(was, is release) error {
	for _, v := range []struct{ of, was, is string }{
		{"wasmplane", was.version, is.version},
		{"Kubernetes", was.kubernetes, is.kubernetes},
	} {
		from, ok := mark.Parse(v.was)
		to, too := mark.Parse(v.is)
		switch {
		case !ok || !too: // of a working tree
		case from.After(to):
			return fmt.Errorf("%s %s is older than %s, which has written the store: going back takes the backup from before that upgrade (wasmplane restore) and the binary of then", v.of, v.is, v.was)
		case !to.Next(from):
			return fmt.Errorf("%s %s is more than one minor version after %s: upgrade to each minor version in turn", v.of, v.is, v.was)
		}
	}
	return nil
}

// save saves the store, where there is one, and forgets older backups of upgrades.
func (o Options) save(ctx context.Context, version string) error {
	if !o.Cluster.Stored() {
		return nil
	}
	if err := os.MkdirAll(o.Dir.Backups(), 0o700); err != nil {
		return fmt.Errorf("save the store before the upgrade: %w", err)
	}
	const begin = "before-"
	file := filepath.Join(o.Dir.Backups(), begin+time.Now().UTC().Format("20060102T150405")+"-"+filepath.Base(version)+".db")
	info, err := backup.Save(ctx, backup.Options{
		Config: config.Default(), Dir: o.Dir, Logger: slog.New(slog.DiscardHandler), Kubeconfig: o.Dir.Kubeconfig(),
	}, file, false, nil)
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	o.Report(fmt.Sprintf("the store is saved, revision %d, in %s", info.Revision, file))
	all, err := filepath.Glob(filepath.Join(o.Dir.Backups(), begin+"*.db"))
	if err != nil {
		return err
	}
	slices.Sort(all) // by their time
	for _, old := range all[:max(0, len(all)-keptBackups)] {
		if err := os.Remove(old); err != nil {
			return fmt.Errorf("remove an old backup: %w", err)
		}
	}
	return nil
}

// replace puts the new binary in the place of the old one, and goes back where it does not do.
func (o Options) replace(ctx context.Context, i *instance, next string, is release) error {
	about, err := json.Marshal(map[string]string{"to": is.version, "binary": i.binary, "previous": i.binary + ".previous"})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(o.Dir.Upgrade(), about, 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(o.Dir.Upgrade()) }()
	previous := i.binary + ".previous"
	if err := swap(i.binary, previous, next); err != nil {
		return err
	}
	o.Report(fmt.Sprintf("the new binary is in its place, the former one is %s; starting anew %s", previous, i.by()))
	err = o.trial(ctx, i, is.version)
	if err == nil {
		o.Report(fmt.Sprintf("wasmplane %s runs and is healthy", is.version))
		return nil
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx) // half way is no place to stay
	}
	o.Report("the new binary does not do: " + err.Error())
	if text := o.last(); text != "" {
		o.Report("it logged last:\n" + text)
	}
	o.Report("going back to the former binary")
	failed := i.binary + ".failed"
	if e := errors.Join(os.Rename(i.binary, failed), os.Rename(previous, i.binary), atomicfile.SyncDir(filepath.Dir(i.binary))); e != nil {
		return errors.Join(err, e)
	}
	if e := i.end(ctx); e != nil {
		return errors.Join(err, fmt.Errorf("end the process of the new binary: %w", e))
	}
	if e := o.trial(ctx, i, ""); e != nil {
		return errors.Join(err, fmt.Errorf("the former binary, %s, does not start again either: %w", i.binary, e))
	}
	return fmt.Errorf("%w (the new one is %s): %w", ErrRolledBack, failed, err)
}

// swap keeps the binary under another name and puts the next one in its place; at no moment
// there is none.
func swap(binary, previous, next string) error {
	if err := os.Remove(previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace the binary: %w", err)
	}
	if err := errors.Join(os.Link(binary, previous), os.Rename(next, binary)); err != nil {
		return fmt.Errorf("replace the binary: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(binary))
}

// trial starts the process anew and waits until it has been healthy for a while. version is
// what it has to be; "" = whatever it is.
func (o Options) trial(ctx context.Context, i *instance, version string) error {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	began := time.Now()
	before, err := o.Dir.Owner()
	if err != nil {
		return err
	}
	ended, err := i.restart(ctx)
	if err != nil {
		return err
	}
	var since time.Time // it is healthy without a break; zero = it is not
	pid := 0
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := o.healthy(ctx, before, version, began)
		switch {
		case err != nil || now != pid:
			pid, since = now, time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		if err == nil && !since.IsZero() && time.Since(since) >= o.Stable {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("it was not healthy for %s within %s", o.Stable, o.Timeout), err)
		case failed, is := <-ended:
			if is && failed != nil {
				return errors.Join(failed, err)
			}
			ended = nil
		case <-tick.C:
		}
	}
}

// healthy answers the process that has the directory, if it is another one than before, has
// become ready since and does its work.
func (o Options) healthy(ctx context.Context, before int, version string, since time.Time) (int, error) {
	// Who looks at the lock is in the way of a process that starts and is of a version that does not wait for it.
	ready, err := o.Dir.ReadReady()
	if err != nil {
		return 0, err
	}
	if ready.PID == before || ready.Since.Before(since) {
		return 0, errors.New("no other process is ready yet")
	}
	pid, err := o.Dir.Owner()
	if err != nil {
		return 0, err
	}
	if pid != ready.PID {
		return 0, fmt.Errorf("process %d was ready, and does not run any more", ready.PID)
	}
	if version != "" && ready.Version != version {
		return 0, fmt.Errorf("process %d runs wasmplane %s: who starts it takes another binary", pid, ready.Version)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return pid, o.Cluster.Healthy(ctx)
}

// last is the end of what a process has printed and logged.
func (o Options) last() string {
	var b strings.Builder
	for _, file := range []string{o.Dir.Restart(), o.Dir.Log()} {
		for _, line := range tail(file, 10) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

func tail(file string, lines int) []string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	const enough = 16 << 10
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-enough), io.SeekStart) // from the beginning otherwise
	}
	text, err := io.ReadAll(io.LimitReader(f, enough))
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return all[max(0, len(all)-lines):]
}
