// SPDX-License-Identifier: Apache-2.0

// Package supervisor is how wasmplane gets on with what starts it at boot and starts it
// anew when it fails, systemd or OpenRC: the texts of its service, installing and
// removing them, starting the service anew, and what a running process says to systemd.
//
// It removes and overwrites no file that it has not written itself.
package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// Kind is a supervisor that there can be on a machine.
type Kind string

// The supervisors that are known.
const (
	Systemd Kind = "systemd"
	OpenRC  Kind = "openrc"
)

// ErrNone means that this machine has no supervisor that is known.
var ErrNone = errors.New("this machine runs neither systemd nor OpenRC: there is nothing to install a service into; start `wasmplane up` (or `wasmplane agent`) by what starts other programs here, `--print --supervisor systemd` shows what it has to look after")

// Host is a machine with its supervisor.
type Host struct {
	Kind Kind
	// Root is the machine's root folder; "" = /.
	Root string
	// Exec runs a program of the supervisor; its output is part of the error. nil = as usual.
	Exec func(ctx context.Context, name string, args ...string) error
}

// Find is the machine below root ("" = /). kind names its supervisor; "" = the one that runs.
func Find(root string, kind Kind) (*Host, error) {
	switch kind {
	case Systemd, OpenRC:
		return &Host{Kind: kind, Root: root}, nil
	case "":
	default:
		return nil, fmt.Errorf("--supervisor: expected systemd or openrc, found %q", kind)
	}
	// What systemd itself asks (sd_booted(3)), and OpenRC's own folder of what runs.
	for path, kind := range map[string]Kind{"/run/systemd/system": Systemd, "/run/openrc": OpenRC} {
		if info, err := os.Stat(filepath.Join(root, path)); err == nil && info.IsDir() {
			return &Host{Kind: kind, Root: root}, nil
		}
	}
	return nil, ErrNone
}

var names = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)

// CheckName fails where a service cannot be called so.
func CheckName(name string) error {
	if !names.MatchString(name) {
		return fmt.Errorf("--name: expected lower-case letters, digits, - and _, found %q", name)
	}
	return nil
}

// File is where the service of that name is described.
func (h *Host) File(name string) string {
	if h.Kind == OpenRC {
		return filepath.Join(h.Root, "/etc/init.d", name)
	}
	return filepath.Join(h.Root, "/etc/systemd/system", name+".service")
}

// Text is the description of a service.
func (h *Host) Text(s Service) ([]byte, error) {
	if h.Kind == OpenRC {
		return s.openRC()
	}
	return s.systemd()
}

// Install writes the description of a service, has it started at boot, and starts it, unless
// start is false. It says whether anything was written.
func (h *Host) Install(ctx context.Context, s Service, start bool) (changed bool, err error) {
	text, err := h.Text(s)
	if err != nil {
		return false, err
	}
	file := h.File(s.Name)
	before, err := h.own(s.Name)
	if err != nil {
		return false, err
	}
	changed = !bytes.Equal(before, text)
	if changed {
		mode := fs.FileMode(0o644)
		if h.Kind == OpenRC {
			mode = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return false, fmt.Errorf("install the service: %w", err)
		}
		if err := atomicfile.Write(file, text, mode); err != nil {
			return false, fmt.Errorf("install the service: %w", err)
		}
	}
	return changed, h.enable(ctx, s.Name, start, before != nil && changed)
}

// own is the file of a service that Install has written; nil = there is none. One of somebody
// else's is an error.
func (h *Host) own(name string) ([]byte, error) {
	file := h.File(name)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		packaged := filepath.Join(h.Root, "/usr/lib/systemd/system", name+".service")
		if _, err := os.Stat(packaged); h.Kind == Systemd && err == nil {
			return nil, fmt.Errorf("a package has installed the service %s (%s): `systemctl enable --now %s` starts it at boot, its settings are in /etc/wasmplane/config.yaml; for a second cluster choose another --name", name, packaged, name)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the service: %w", err)
	}
	if !bytes.Contains(text, []byte(mark)) {
		return nil, fmt.Errorf("%s is there, and `wasmplane install` has not written it: move it away, or choose another --name", file)
	}
	return text, nil
}

func (h *Host) enable(ctx context.Context, name string, start, again bool) error {
	if h.Kind == OpenRC {
		err := h.exec(ctx, "rc-update", "add", name, "default")
		if err == nil && start {
			err = h.exec(ctx, "rc-service", name, verb(again))
		}
		return err
	}
	err := errors.Join(h.exec(ctx, "systemctl", "daemon-reload"), h.exec(ctx, "systemctl", "enable", name+".service"))
	if err == nil && start {
		err = h.exec(ctx, "systemctl", verb(again), name+".service")
	}
	return err
}

func verb(again bool) string {
	if again {
		return "restart"
	}
	return "start"
}

// ErrNotInstalled means that there is no service of the name.
var ErrNotInstalled = errors.New("there is no such service")

// Installed is the data directory of a service that Install has written.
func (h *Host) Installed(name string) (dir string, err error) {
	text, err := h.own(name)
	if err != nil {
		return "", err
	}
	_, rest, found := strings.Cut(string(text), mark)
	if !found {
		return "", fmt.Errorf("%w: %s is not there", ErrNotInstalled, h.File(name))
	}
	dir, _, _ = strings.Cut(rest, "\n")
	return dir, nil
}

// Stop ends the service and keeps it from starting at boot.
func (h *Host) Stop(ctx context.Context, name string) error {
	if h.Kind == OpenRC {
		return errors.Join(h.exec(ctx, "rc-service", "--ifstarted", name, "stop"), h.exec(ctx, "rc-update", "--all", "del", name))
	}
	return h.exec(ctx, "systemctl", "disable", "--now", name+".service")
}

// Remove takes away what Install has written.
func (h *Host) Remove(ctx context.Context, name string) error {
	if _, err := h.own(name); err != nil {
		return err
	}
	if err := os.Remove(h.File(name)); err != nil {
		return fmt.Errorf("remove the service: %w", err)
	}
	if h.Kind == OpenRC {
		return nil
	}
	return h.exec(ctx, "systemctl", "daemon-reload")
}

// Restart starts the service anew.
func (h *Host) Restart(ctx context.Context, name string) error {
	if h.Kind == OpenRC {
		return h.exec(ctx, "rc-service", name, "restart")
	}
	return h.exec(ctx, "systemctl", "restart", name+".service")
}

func (h *Host) exec(ctx context.Context, name string, args ...string) error {
	if h.Exec != nil {
		return h.Exec(ctx, name, args...)
	}
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

var unitOf = regexp.MustCompile(`(?m)/([^/\n]+)\.service$`)

// Of is the supervisor whose service a process is, and the service's name; nil where it is
// nobody's.
func Of(ctx context.Context, pid int) (*Host, string) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if m := unitOf.FindSubmatch(groups); err == nil && m != nil {
		name := string(m[1])
		out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=MainPID", "--value", name+".service").Output()
		if err == nil && strings.TrimSpace(string(out)) == strconv.Itoa(pid) {
			return &Host{Kind: Systemd}, name
		}
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil, ""
	}
	for _, e := range strings.Split(string(env), "\x00") {
		if name, ok := strings.CutPrefix(e, "RC_SVCNAME="); ok && CheckName(name) == nil {
			return &Host{Kind: OpenRC}, name
		}
	}
	return nil, ""
}
