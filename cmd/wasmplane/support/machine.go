// SPDX-License-Identifier: Apache-2.0

package support

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
)

// machineFiles are what this machine has: of the data directory, the process, the kernel.
func machineFiles(o Options, r *redactor) []File {
	dir := o.Dir
	return []File{
		{
			Name: "configuration.yaml", About: "the configuration file, without comments and settings of plugins", Redacted: true,
			Write: func(_ context.Context, w io.Writer) error {
				return configuration(w, o.ConfigFile, r)
			},
		},
		{Name: "state.json", About: "what the last start left for other commands", Write: func(_ context.Context, w io.Writer) error {
			return begin(w, filepath.Join(string(dir), "state.json"))
		}},
		{Name: "logs/wasmplane.log.1", About: "the end of the log before", Write: last(dir.Log() + ".1")},
		{Name: "logs/wasmplane.log", About: "the end of the process's log", Write: last(dir.Log())},
		{Name: "logs/restart.log", About: "what a process printed that an upgrade has started", Write: last(dir.Restart())},
		{
			Name: "logs/containerd.log", About: "the end of the container runtime's log",
			Write: last(filepath.Join(dir.Node(), "log", "containerd.log")),
		},
		{
			Name: "files.txt", About: "files of the data directory: mode, size, path", Most: 1 << 20,
			Write: func(ctx context.Context, w io.Writer) error {
				return files(ctx, w, dir)
			},
		},
		{
			Name: "process.txt", About: "the process that has the data directory: arguments, limits, cgroup",
			Write: func(_ context.Context, w io.Writer) error {
				return process(w, dir) //nolint:contextcheck // it reads a few files
			},
		},
		{Name: "machine/kernel.txt", About: "kernel, distribution, processors, memory, load, limits", Write: readAll(
			"/proc/version", "/etc/os-release", "/proc/cmdline", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/stat",
			"/proc/pressure/cpu",
			"/proc/pressure/memory", "/proc/pressure/io", "/proc/sys/fs/file-nr", "/proc/sys/kernel/pid_max",
			"/proc/sys/fs/inotify/max_user_instances",
			"/proc/sys/fs/inotify/max_user_watches", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/netfilter/nf_conntrack_count",
			"/proc/sys/net/netfilter/nf_conntrack_max", "/proc/modules")},
		{Name: "machine/cgroup.txt", About: "cgroups: which controllers there are", Write: readAll(
			"/proc/cgroups", "/proc/self/cgroup", "/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cgroup.subtree_control")},
		{Name: "machine/disk.txt", About: "how full the disk of the data directory is", Write: func(_ context.Context, w io.Writer) error {
			return disk(w, dir)
		}},
		command("machine/nft.txt", "rules of nftables", "nft", "list", "ruleset"),
		command("machine/links.txt", "network links", "ip", "-details", "-statistics", "link", "show"),
		command("machine/addresses.txt", "addresses of this machine", "ip", "address", "show"),
		command("machine/routes.txt", "routes", "ip", "route", "show", "table", "all"),
		command("machine/neighbors.txt", "forwarding entries of bridges and tunnels", "bridge", "fdb", "show"),
		command("machine/runc.txt", "the version of runc", "runc", "--version"),
	}
}

// configuration writes a file of YAML without its comments, redacted like an object.
func configuration(w io.Writer, file string, r *redactor) error {
	if file == "" {
		return errors.New("the cluster runs without one, or it is not known which: name it with --config")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return fmt.Errorf("%s is no YAML, and left out: %w", file, err)
	}
	out, err := yaml.Marshal(r.object(tree))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "# %s\n%s", file, out)
	return nil
}

// begin writes the beginning of a file; the writer is bounded.
func begin(w io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, io.LimitReader(f, mostInFile))
	return err
}

// last writes the end of a log, from the beginning of a line on.
func last(file string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		from := max(0, info.Size()-mostInFile)
		data := make([]byte, info.Size()-from)
		n, err := f.ReadAt(data, from)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		data = data[:n]
		if from > 0 {
			data = data[bytes.IndexByte(data, '\n')+1:]
		}
		_, err = w.Write(data)
		return err
	}
}

// files lists the data directory; names below a pod's are left out, which are the pod's.
func files(ctx context.Context, w io.Writer, dir datadir.Dir) error {
	const (
		most = 5000
		deep = 4
	)
	count := 0
	return filepath.WalkDir(string(dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintln(w, path, err)
			return nil
		}
		if e := ctx.Err(); e != nil {
			return e
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it has gone meanwhile
		}
		if count++; count > most {
			return fmt.Errorf("there are more than %d files", most)
		}
		below, err := filepath.Rel(string(dir), path)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s %10d %s\n", info.Mode(), info.Size(), below)
		if d.IsDir() && strings.Count(below, "/") >= deep {
			return fs.SkipDir
		}
		return nil
	})
}

// process writes what /proc has of the directory's process. Of its environment only our
// own variables are written: the others are none of a helper's business.
func process(w io.Writer, dir datadir.Dir) error {
	pid, err := dir.Owner()
	if err != nil {
		return err
	}
	if pid == 0 {
		return errors.New("nothing runs in the data directory")
	}
	of := func(name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }
	for _, name := range []string{"cmdline", "environ"} {
		data, err := os.ReadFile(of(name))
		if err != nil {
			fmt.Fprintln(w, err)
			continue
		}
		fmt.Fprintf(w, "== %s\n", of(name))
		for _, word := range strings.Split(strings.Trim(string(data), "\x00"), "\x00") {
			if name == "cmdline" || strings.HasPrefix(word, "WASMPLANE_") {
				fmt.Fprintln(w, word)
			}
		}
	}
	if open, err := os.ReadDir(of("fd")); err == nil {
		fmt.Fprintf(w, "== open files: %d\n", len(open))
	}
	return readAll(of("status"), of("limits"), of("cgroup"), of("io"))(nil, w)
}

// readAll writes short files of the kernel, and why one of them cannot be read.
func readAll(names ...string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		for _, name := range names {
			fmt.Fprintln(w, "==", name)
			if err := begin(w, name); err != nil {
				fmt.Fprintln(w, err)
			}
		}
		return nil
	}
}

func disk(w io.Writer, dir datadir.Dir) error {
	var s unix.Statfs_t
	if err := unix.Statfs(string(dir), &s); err != nil {
		return fmt.Errorf("ask how full the disk of %s is: %w", dir, err)
	}
	fmt.Fprintf(w, "%s: file system %#x, %d of %d bytes free, %d of %d inodes free\n",
		dir, s.Type, s.Bavail*uint64(s.Bsize), s.Blocks*uint64(s.Bsize), s.Ffree, s.Files)
	return nil
}

// command is what a program of the machine prints.
func command(file, about, name string, args ...string) File {
	return File{Name: file, About: about, Write: func(ctx context.Context, w io.Writer) error {
		cmd := exec.CommandContext(ctx, name, args...)
		var failed bytes.Buffer
		cmd.Stdout, cmd.Stderr = w, &failed
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w %s", err, bytes.TrimSpace(failed.Bytes()))
		}
		return nil
	}}
}
