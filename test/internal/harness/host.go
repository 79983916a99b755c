// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// Leftovers names what a cluster has left on the host: links, nftables tables,
// cgroups, mounts, processes, logs. Processes and mounts are told by dir.
func Leftovers(cluster, dir string) error {
	id := linuxhost.NamesOf(cluster).ID
	var errs []error
	for what, found := range map[string][]string{
		"links":     matching("/sys/class/net/" + id + "*"),
		"cgroups":   cgroups(id),
		"sockets":   matching("/run/" + id + "*"),
		"tables":    tables(id),
		"mounts":    mounts(dir),
		"processes": processes(dir),
		// Tests with a real node have their pods in a namespace of the cluster's name.
		"logs": append(matching("/var/log/pods/"+cluster+"_*"), matching("/var/log/containers/*_"+cluster+"_*")...),
	} {
		if len(found) > 0 {
			errs = append(errs, fmt.Errorf("%s: %s", what, strings.Join(found, ", ")))
		}
	}
	return errors.Join(errs...)
}

func matching(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found
}

func cgroups(id string) []string {
	return append(matching("/sys/fs/cgroup/"+id), matching("/sys/fs/cgroup/*/"+id)...)
}

// tables are those of nftables, which only root may look at, and only root makes.
func tables(id string) []string {
	if os.Geteuid() != 0 {
		return nil
	}
	out, err := exec.Command("nft", "list", "tables").Output()
	if err != nil {
		return []string{fmt.Sprintf("nft list tables: %v", err)}
	}
	var found []string
	for l := range strings.Lines(string(out)) {
		if strings.Contains(l, id+"-") {
			found = append(found, strings.TrimSpace(l))
		}
	}
	return found
}

func mounts(dir string) []string {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for l := range strings.Lines(string(data)) {
		if f := strings.Fields(l); len(f) > 1 && strings.HasPrefix(f[1], dir) {
			found = append(found, f[1])
		}
	}
	return found
}

// processes are those that name dir on their command line or run a program below it.
func processes(dir string) []string {
	var found []string
	for _, p := range matching("/proc/[0-9]*") {
		pid, _ := strconv.Atoi(filepath.Base(p))
		line, err := os.ReadFile(p + "/cmdline")
		if err != nil || pid == os.Getpid() || len(line) == 0 { // a zombie has no command line
			continue
		}
		exe, err := os.Readlink(p + "/exe")
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			continue
		}
		if bytes.Contains(line, []byte(dir)) || strings.HasPrefix(exe, dir+"/") {
			found = append(found, fmt.Sprintf("%d %s", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// sweep removes by hand what a failed test has left, so that the next one runs on a
// clean host. It ends only processes of the test.
func sweep(cluster, dir string) {
	for _, p := range processes(dir) {
		word, _, _ := strings.Cut(p, " ")
		if pid, err := strconv.Atoi(word); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	names := linuxhost.NamesOf(cluster)
	_ = linuxhost.UnmountBelow(dir)
	_ = linuxhost.RemoveLinks(names)
	for _, t := range tables(names.ID) {
		if f := strings.Fields(t); len(f) == 3 {
			_ = exec.Command("nft", "delete", "table", f[1], f[2]).Run()
		}
	}
	_ = linuxhost.RemoveCgroup(names.Cgroup())
	for _, pattern := range []string{"/var/log/pods/" + cluster + "_*", "/var/log/containers/*_" + cluster + "_*"} {
		for _, path := range matching(pattern) {
			_ = os.RemoveAll(path)
		}
	}
}

// Containers lists the pods whose containers run on a node, by the processes of
// its shims' children: the kernel's view, not containerd's.
func Containers(data string) []string {
	shims := map[string]bool{}
	for _, pid := range linuxhost.ProgramsBelow(data) {
		shims[strconv.Itoa(pid)] = true
	}
	var found []string
	for _, p := range matching("/proc/[0-9]*") {
		stat, err := os.ReadFile(p + "/stat")
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(after) // state, parent, ...
		line, _ := os.ReadFile(p + "/cmdline")
		program, _ := os.Readlink(p + "/exe")
		if len(fields) < 2 || !shims[fields[1]] || len(line) == 0 || strings.HasSuffix(program, "/pause") || strings.Contains(program, "shim") {
			continue
		}
		found = append(found, filepath.Base(p)+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	}
	return found
}
