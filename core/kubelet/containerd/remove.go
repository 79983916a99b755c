// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// Remove ends containerd and every process that it started, without asking them,
// and takes away their mounts, network namespaces and cgroups. It works whether or
// not containerd runs, and needs nothing of the configuration but Dir and Names.
// Images stay; the caller removes Dir to be rid of them.
func Remove(ctx context.Context, cfg Config) error {
	if err := Stop(ctx, cfg); err != nil {
		return err
	}
	dirs := cfg.ownDirs()
	if err := linuxhost.KillBelow(ctx, cfg.Names, []string{filepath.Join(cfg.Dir, "bin")}, cfg.containers()...); err != nil {
		return err
	}
	var errs []error
	for _, d := range dirs {
		errs = append(errs, linuxhost.UnmountBelow(d))
	}
	if err := errors.Join(errs...); err != nil {
		return err // removing files below a mount would remove a volume's content
	}
	errs = append(errs, linuxhost.RemoveCgroup(cfg.Names.Cgroup()))
	for _, d := range dirs[1:] {
		if err := os.RemoveAll(d); err != nil {
			errs = append(errs, fmt.Errorf("remove containerd's state: %w", err))
		}
	}
	return errors.Join(errs...)
}

// ownDirs are the directories that may contain mounts: Dir itself, then the state
// directories, which are void without processes.
func (c Config) ownDirs() []string {
	dirs := []string{c.Dir, c.privateStateDir()}
	if s := c.stateDir(); s != dirs[1] {
		dirs = append(dirs, s)
	}
	return dirs
}

// containers lists the processes of containers as runc has them on record: those
// outside the cluster's cgroups, if somebody put them elsewhere, are found too.
func (c Config) containers() []int {
	states, _ := filepath.Glob(filepath.Join(c.stateDir(), "runc/*/*/state.json"))
	var pids []int
	for _, path := range states {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var state struct {
			PID   int    `json:"init_process_pid"`
			Start uint64 `json:"init_process_start"`
		}
		if json.Unmarshal(data, &state) != nil || state.PID <= 1 {
			continue
		}
		// The pid may be another's by now.
		if p, err := identify(state.PID); err == nil && p.Start == fmt.Sprint(state.Start) {
			pids = append(pids, state.PID)
		}
	}
	return pids
}
