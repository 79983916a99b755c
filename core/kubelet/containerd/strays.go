// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/run"
)

// strays are containers that their shim made after containerd had given them up. That
// happens when whoever asked for a container's start goes away in the middle of it, as a kubelet
// that is killed: containerd asks the shim to delete what the shim has not finished yet, is
// told that there is no such container, and forgets it. What the shim makes then is never
// started and never ended, and keeps the shim from ending with its pod.
//
// Such a container's only process is the runtime's own, which waits to be told to start. A
// container that containerd knows is in that state for milliseconds.
type strays struct {
	bin  string
	seen map[process]bool // at the look before
}

const (
	straysEvery = 10 * time.Second
	straysTime  = 5 * time.Second // for one of them to end
)

// look ends those that are as they were at the look before.
func (s *strays) look(ctx context.Context, report func(container string, err error)) {
	now := map[process]bool{}
	for _, shim := range linuxhost.ProgramsBelow(s.bin) {
		for _, pid := range children(shim) {
			if args := arguments(pid); len(args) != 2 || args[1] != "init" || path.Base(args[0]) != "runc" {
				continue
			}
			p, err := identify(pid)
			if err != nil {
				continue // it has ended
			}
			if !s.seen[p] {
				now[p] = true
				continue
			}
			id := containerOf(pid)
			report(id, end(ctx, shim, pid, id))
		}
	}
	s.seen = now
}

// containerOf is the container of a process, by its cgroup.
func containerOf(pid int) string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(data), "\n")
	return path.Base(first)
}

// end kills a container's process, and has the shim forget the container.
func end(ctx context.Context, shim, pid int, id string) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	bundle, err := os.Readlink("/proc/" + strconv.Itoa(shim) + "/cwd")
	if err != nil {
		return fmt.Errorf("look at the shim: %w", err)
	}
	var at struct {
		Address string `json:"address"`
	}
	data, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	if err != nil {
		return fmt.Errorf("find the shim's socket: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, straysTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(at.Address, "unix://"))
	if err != nil {
		return fmt.Errorf("connect to the shim: %w", err)
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }()
	for {
		// It refuses until it has seen the process end.
		_, err := task.NewTTRPCTaskClient(client).Delete(ctx, &task.DeleteRequest{ID: id})
		if err == nil || strings.Contains(err.Error(), "not created") {
			return nil // forgotten, or it was never recorded
		}
		if !run.Sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("have the shim delete the container: %w", err)
		}
	}
}
