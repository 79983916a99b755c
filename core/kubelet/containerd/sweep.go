// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/containerd/wasmpods"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// leftovers are what a containerd that was killed while it made a pod may have left
// behind: shims and network namespaces that it had not written down yet, and that
// no later one knows of. They are noted while no containerd runs, so that nothing
// that is being made now is among them.
type leftovers struct {
	shims map[int]string // pid to the id of the sandbox
	netns []string
	// rest is of whoever else keeps records by sandbox; see Config.Launching.
	rest func(ctx context.Context, known func(id string) bool) error
}

// findLeftovers looks before a launch.
func (c Config) findLeftovers() leftovers {
	l := leftovers{shims: map[int]string{}}
	// A shim is made by a helper that containerd runs. One that outlived its
	// containerd would make its shim behind our back, after this look.
	for _, pid := range linuxhost.ProgramsBelow(filepath.Join(c.Dir, "bin")) {
		if slices.Contains(arguments(pid), "start") {
			killTree(pid)
		}
	}
	for _, pid := range linuxhost.ProgramsBelow(filepath.Join(c.Dir, "bin")) {
		if id := shimID(pid); id != "" {
			l.shims[pid] = id
		}
	}
	l.netns, _ = filepath.Glob(filepath.Join(c.stateDir(), "io.containerd.grpc.v1.cri/netns/*"))
	if c.Launching != nil {
		l.rest = c.Launching()
	}
	return l
}

// shimID is the sandbox that a shim serves, by its command line; empty when the
// process is no shim, or is gone.
func shimID(pid int) string {
	args := arguments(pid)
	if i := slices.Index(args, "-id"); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// arguments of a process, none when it is gone.
func arguments(pid int) []string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

// sweep removes the leftovers that the containerd which answers now does not know.
func (l leftovers) sweep(ctx context.Context, conn grpc.ClientConnInterface) error {
	if len(l.shims) == 0 && len(l.netns) == 0 && l.rest == nil {
		return nil
	}
	known, ready, infos, err := inventory(ctx, cri.NewRuntimeServiceClient(conn))
	if err != nil {
		return fmt.Errorf("look for what the last containerd left behind: %w", err)
	}
	for pid, id := range l.shims {
		if id == wasmpods.ShimID {
			continue // many sandboxes' shim: the containerd that answers now has found it by its bundle, or ended it
		}
		// A containerd that was killed between its record of a sandbox and the one of
		// its shim leaves a sandbox that is known and not ready, and a shim that nobody
		// will ever ask to end.
		idle := known[id] && !ready[id] && len(children(pid)) == 0
		if (!known[id] || idle) && shimID(pid) == id {
			killTree(pid)
		}
	}
	var errs []error
	for _, path := range l.netns {
		// The information on a sandbox names its namespace.
		if !strings.Contains(infos, `"`+path+`"`) {
			errs = append(errs, removeNetns(path))
		}
	}
	if l.rest != nil {
		errs = append(errs, l.rest(ctx, func(id string) bool { return known[id] }))
	}
	return errors.Join(errs...)
}

// inventory lists the sandboxes and containers that CRI knows, those of the sandboxes
// that are ready, and all that it says of the sandboxes.
func inventory(ctx context.Context, client cri.RuntimeServiceClient) (known, ready map[string]bool, infos string, err error) {
	known, ready = map[string]bool{}, map[string]bool{}
	containers, err := client.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, nil, "", err
	}
	for _, c := range containers.Containers {
		known[c.Id] = true
	}
	sandboxes, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, "", err
	}
	var b strings.Builder
	for _, s := range sandboxes.Items {
		known[s.Id] = true
		ready[s.Id] = s.State == cri.PodSandboxState_SANDBOX_READY
		st, err := client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.Id, Verbose: true})
		if err != nil {
			return nil, nil, "", err // without it a namespace in use would look abandoned
		}
		for _, info := range st.Info {
			b.WriteString(info)
		}
	}
	return known, ready, b.String(), nil
}

// killTree kills a process and what it started. The process is stopped first, so that
// it starts nothing after the look at its children.
func killTree(pid int) {
	_ = unix.Kill(pid, unix.SIGSTOP)
	started := children(pid)
	_ = unix.Kill(pid, unix.SIGKILL)
	for _, child := range started {
		killTree(child)
	}
}

// children of a process. The kernel lists them by the thread that started them.
func children(pid int) []int {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var out []int
	for _, t := range threads {
		data, _ := os.ReadFile(t)
		for _, f := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

func removeNetns(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}
