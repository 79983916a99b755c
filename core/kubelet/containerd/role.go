// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd/command"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// roleVariable carries the role and its arguments. A variable and not argv[0],
// because re-executing os.Executable() loses argv[0].
const roleVariable = "WASMPLANE_CONTAINERD_ROLE"

// What shims are told by their environment (cmd/wasmplane-shim): where containerd keeps the blobs
// of images, and where they keep the native code of modules.
const (
	contentVariable = "WASMPLANE_CONTENT"
	cacheVariable   = "WASMPLANE_WASM_CACHE"
)

// role is what the parent tells the child, as JSON in roleVariable.
type role struct {
	Config   string // path of config.toml
	Cgroup   string // the cgroup to move into before anything else
	Lock     string // held for as long as the process lives
	PIDFile  string
	Hash     string // of everything that makes this process what it is
	Log      string
	LogLimit int64
}

// MaybeRun takes the process over when it was started as containerd: it runs until
// it is told to end and answers true, or exits with a failure. Otherwise it answers
// false at once. It comes first in main, before flags are read: the child has a
// command line of its own.
func MaybeRun() bool {
	encoded := os.Getenv(roleVariable)
	if encoded == "" {
		return false
	}
	// What containerd executes must not believe that it is containerd.
	os.Unsetenv(roleVariable)
	if err := runRole(context.Background(), encoded); err != nil { //nolint:forbidigo // this is the child's main
		fmt.Fprintln(os.Stderr, "containerd:", err)
		os.Exit(1)
	}
	return true
}

// runRole is the life of the child. It makes itself known before it serves, so
// that a parent which dies early leaves no stranger behind.
func runRole(ctx context.Context, encoded string) error {
	var r role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return fmt.Errorf("read the role from %s: %w", roleVariable, err)
	}
	lock, err := lockFile(r.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if r.Cgroup != "" {
		if err := linuxhost.JoinCgroup(r.Cgroup); err != nil {
			return fmt.Errorf("leave the parent's cgroup: %w", err)
		}
	}
	// Masks of the parent's shell would reach what containerd creates.
	unix.Umask(0o022)
	drained, err := logTo(r.Log, r.LogLimit)
	if err != nil {
		return err
	}
	defer drained()
	self, err := identify(os.Getpid())
	if err != nil {
		return err
	}
	if err := writePIDFile(r.PIDFile, pidFile{process: self, Hash: r.Hash}); err != nil {
		return err
	}
	return command.App().Run(ctx, []string{"containerd", "--config", r.Config})
}

// lockFile takes the lock that says "a containerd serves this directory".
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another containerd holds %s: %w", path, err)
	}
	return f, nil
}
