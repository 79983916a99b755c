// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
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
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/netdump"
)

const (
	killTimeout = 20 * time.Second
	killEvery   = 10 * time.Millisecond
	// cniResults is where libcni keeps results of ADD; containerd cannot move it.
	cniResults = "/var/lib/cni/results"
)

// KillBelow kills every process in the cluster's cgroups, every one whose program
// lies below one of the directories (shims), and those named, and waits until they
// are gone.
func KillBelow(ctx context.Context, n Names, dirs []string, pids ...int) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	tick := time.NewTicker(killEvery)
	defer tick.Stop()
	for {
		left, err := CgroupProcesses(n.Cgroup())
		if err != nil {
			return err
		}
		left = append(left, ProgramsBelow(dirs...)...)
		for _, pid := range pids {
			if alive(pid) {
				left = append(left, pid)
			}
		}
		slices.Sort(left)
		left = slices.DeleteFunc(slices.Compact(left), func(pid int) bool { return pid == os.Getpid() || !alive(pid) })
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("processes %v of cluster %s do not end: %w", left, n.ID, ctx.Err())
		}
	}
}

// alive tells whether a process is more than a zombie.
func alive(pid int) bool {
	p, err := StatProcess(pid)
	return err == nil && !p.Ended
}

// ProgramsBelow lists the processes that execute a file below one of the directories.
func ProgramsBelow(dirs ...string) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	var pids []int
	for _, l := range links {
		exe, err := os.Readlink(l)
		if err != nil {
			continue
		}
		for _, d := range dirs {
			if strings.HasPrefix(exe, filepath.Clean(d)+"/") {
				if pid, err := strconv.Atoi(strings.Split(l, "/")[2]); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

// RemoveTunnel removes the cluster's tunnel to other nodes.
func RemoveTunnel(n Names) error {
	l, err := netlink.LinkByName(n.Tunnel())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at link %s: %w", n.Tunnel(), err)
	}
	if l.Type() != "vxlan" {
		return fmt.Errorf("%s is a %s, not a tunnel of ours; it is left alone", n.Tunnel(), l.Type())
	}
	return removeLink(l)
}

// RemoveLinks removes the cluster's tunnel, its bridge and what hangs on that.
func RemoveLinks(n Names) error {
	return errors.Join(RemoveTunnel(n), removeBridge(n))
}

func removeBridge(n Names) error {
	br, err := netlink.LinkByName(n.Bridge())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at bridge %s: %w", n.Bridge(), err)
	}
	if br.Type() != "bridge" {
		return fmt.Errorf("%s is a %s, not a bridge of ours; it is left alone", n.Bridge(), br.Type())
	}
	links, err := netdump.Links()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		if l.Attrs().MasterIndex == br.Attrs().Index {
			errs = append(errs, removeLink(l))
		}
	}
	return errors.Join(append(errs, removeLink(br))...)
}

func removeLink(l netlink.Link) error {
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// LinkOf is the link that a sandbox hangs on the bridge by, as libcni remembers it.
func LinkOf(n Names, sandbox string) (string, error) {
	data, err := os.ReadFile(filepath.Join(cniResults, n.Network()+"-"+sandbox+"-eth0"))
	if err != nil {
		return "", fmt.Errorf("find the link of a sandbox: %w", err)
	}
	return linkIn(data)
}

// linkIn is the interface of a result that is neither the sandbox's nor the bridge.
func linkIn(result []byte) (string, error) {
	var r struct {
		Result struct {
			Interfaces []struct{ Name, Sandbox string }
		}
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return "", fmt.Errorf("find the link of a sandbox: %w", err)
	}
	for _, i := range r.Result.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
			return i.Name, nil
		}
	}
	return "", errors.New("find the link of a sandbox: the result of CNI has none on the node's side")
}

// ForgetResult removes what libcni remembers of one sandbox.
func ForgetResult(n Names, sandbox string) error {
	return removeAll(filepath.Join(cniResults, n.Network()+"-"+sandbox+"-*"))
}

// ForgetNetwork removes what libcni remembers of the cluster's network.
func ForgetNetwork(n Names) error {
	// NETWORK-CONTAINER-INTERFACE; a container's id is all hexadecimal, so that
	// another cluster's network, of which ours is a prefix, does not match.
	return removeAll(filepath.Join(cniResults, n.Network()+"-*"))
}

func removeAll(pattern string) error {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return fmt.Errorf("list results of CNI: %w", err)
	}
	var errs []error
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove a result of CNI: %w", err))
		}
	}
	return errors.Join(errs...)
}
