// SPDX-License-Identifier: Apache-2.0

// Package datadir is the layout of a cluster's data directory, and the lock that
// keeps two instances out of one. Everything that a cluster writes, apart from
// the network itself and container logs, lies below it.
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// Dir is a data directory.
type Dir string

// Default is /var/lib/wasmplane for root; for others a folder of their own data
// directory ($XDG_DATA_HOME or ~/.local/share).
func Default() Dir {
	if os.Geteuid() == 0 {
		return "/var/lib/wasmplane"
	}
	if data := os.Getenv("XDG_DATA_HOME"); data != "" {
		return Dir(filepath.Join(data, "wasmplane"))
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "."
	}
	return Dir(filepath.Join(home, ".local", "share", "wasmplane"))
}

// Open makes the directory, closed to other users, and returns its absolute path.
// A directory that was open to them is closed, and whoever opens it is told in a sentence.
func Open(path string, report func(notice string)) (Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("data directory %s: %w", path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", fmt.Errorf("make the data directory: %w; choose another one with --data-dir", err)
	}
	notice, err := Dir(abs).closeToOthers()
	if err != nil {
		return "", fmt.Errorf("close the data directory to other users: %w; do it by hand (chmod 0700 %s), or choose another one with --data-dir", err, abs)
	}
	if notice != "" {
		report(notice)
	}
	return Dir(abs), nil
}

// closeToOthers takes from other users what they may do in the directory. One that
// is shared with others, such as /tmp or /srv, would be taken from them: it is left
// alone, and what is below keeps its own modes.
func (d Dir) closeToOthers() (notice string, err error) {
	info, err := os.Stat(string(d))
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return "", err
	}
	shared := info.Mode()&fs.ModeSticky != 0
	if !shared {
		if shared, err = d.holdsOthers(); err != nil {
			return "", err
		}
	}
	if shared {
		return fmt.Sprintf("The data directory %s is open to other users (%04o), and holds what is not a cluster's: it stays so. A directory of the cluster's own is safer.", d, info.Mode().Perm()), nil
	}
	const closed = 0o700
	if err := os.Chmod(string(d), closed); err != nil {
		return "", err
	}
	return fmt.Sprintf("The data directory %s was open to other users of this machine (%04o): it is closed now (%04o).", d, info.Mode().Perm(), closed), nil
}

// holdsOthers tells whether there are directories, but none that a cluster makes.
func (d Dir) holdsOthers() (bool, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return false, err
	}
	others := false
	for _, e := range entries {
		switch path := d.join(e.Name()); path {
		case d.stateFile(), d.lockFile(), d.nodeLock(), d.PKI(), d.Etcd(), d.Node(), d.Member():
			return false, nil
		default:
			others = others || e.IsDir() && e.Name() != "lost+found" // of a fresh file system
		}
	}
	return others, nil
}

func (d Dir) join(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Kubeconfig of the cluster's administrator; it exists once the cluster is ready.
func (d Dir) Kubeconfig() string { return d.join("kubeconfig") }

// BreakGlassKubeconfig is the way in that stands above every authorizer.
func (d Dir) BreakGlassKubeconfig() string { return d.join("break-glass.kubeconfig") }

// Socket is where the API is reached on this machine, whatever becomes of its port.
func (d Dir) Socket() string { return d.join("api.sock") }

// ComponentKubeconfig is where a component that runs as a process of its own finds its credentials.
func (d Dir) ComponentKubeconfig(component string) string {
	return d.join("components", component+".kubeconfig")
}

// PKI holds certificates and keys.
func (d Dir) PKI() string { return d.join("pki") }

// Etcd holds the embedded store.
func (d Dir) Etcd() string { return d.join("etcd") }

// Node holds the real node: containerd, kubelet, volumes.
func (d Dir) Node() string { return d.join("node") }

// Member holds what a machine that joined knows of its cluster, and its certificates.
func (d Dir) Member() string { return d.join("member") }

// Server is what a server of several keeps about the others; it exists from the second one on.
func (d Dir) Server() string { return d.join("server.json") }

// Servers lists the addresses of all servers' APIs, for a server that leaves.
func (d Dir) Servers() string { return d.join("servers.json") }

// Simulated holds what simulated nodes write.
func (d Dir) Simulated() string { return d.join("simulated") }

// PolicyScan is what is remembered of what policies have against stored objects.
func (d Dir) PolicyScan() string { return d.join("policy-scan") }

// PluginCache holds compiled plugins.
func (d Dir) PluginCache() string { return d.join("plugin-cache") }

// PluginModules holds modules that were fetched from elsewhere.
func (d Dir) PluginModules() string { return d.join("plugin-modules") }

// PluginState holds what plugins of a node keep, which has no rights to keep it elsewhere.
func (d Dir) PluginState() string { return d.join("plugin-state") }

// DisabledPlugins holds a file for each plugin that is switched off, by its name.
func (d Dir) DisabledPlugins() string { return d.join("disabled-plugins") }

// Webhook holds the certificates of webhooks that are served to another cluster.
func (d Dir) Webhook() string { return d.join("webhook") }

// Log is the log of a cluster that runs in the foreground.
func (d Dir) Log() string { return d.join("wasmplane.log") }

// Upgrade is there while an upgrade is on trial.
func (d Dir) Upgrade() string { return d.join("upgrade") }

// Backups holds what upgrades save before they begin.
func (d Dir) Backups() string { return d.join("backups") }

// Manifests is the folder whose manifests are applied, where the configuration names no other.
func (d Dir) Manifests() string { return d.join("manifests") }

// Images is the folder whose archives of images the real node imports when it starts.
func (d Dir) Images() string { return d.join("images") }

// ImagesImported remembers what of Images has been imported.
func (d Dir) ImagesImported() string { return d.join("images.json") }

// Airgap is the folder of archives that were taken over, for the node and for other machines.
func (d Dir) Airgap() string { return d.join("airgap") }

// Restart is what the process printed that an upgrade has started.
func (d Dir) Restart() string { return d.join("restart.log") }

func (d Dir) lockFile() string  { return d.join("lock") }
func (d Dir) nodeLock() string  { return d.join("node.lock") }
func (d Dir) stateFile() string { return d.join("state.json") }

// Exists says whether a cluster has been here.
func (d Dir) Exists() bool {
	_, err := os.Stat(d.stateFile())
	return err == nil
}

// State is what one command leaves for the next.
type State struct {
	Cluster     string `json:"cluster"`
	PodCIDR     string `json:"podCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	// Nodes says in words which nodes the process has; for a real one see RealNode.
	Nodes string `json:"nodes"`
	// NodeName is node.name, also where there is no node.
	NodeName string `json:"nodeName"`
	Server   string `json:"server"`
	// Public is how clients elsewhere reach the API, where that is another URL than Server.
	Public     string    `json:"public,omitempty"`
	Started    time.Time `json:"started"`
	Version    string    `json:"version"`
	LogDir     string    `json:"logDir"`
	LogLinkDir string    `json:"logLinkDir"`
	// KubeletLink is node.kubeletLink: what down removes.
	KubeletLink string `json:"kubeletLink,omitempty"`
	// MergedInto is the user's kubeconfig that has a context for the cluster; empty = none has.
	MergedInto string `json:"mergedInto,omitempty"`
	// CRIEndpoint, where the node uses a runtime that isn't ours.
	CRIEndpoint string `json:"criEndpoint,omitempty"`
}

// RealNode says in words that the process has a real node.
func RealNode(name string) string { return "node " + name }

// RealNode is the name of the real node of this directory's process; "" = it has none.
func (s State) RealNode() string {
	if s.NodeName == "" || s.Nodes != RealNode(s.NodeName) {
		return ""
	}
	return s.NodeName
}

// ReadState reads what the last start left.
func (d Dir) ReadState() (State, error) {
	var s State
	data, err := os.ReadFile(d.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%s holds no cluster; start one with: wasmplane up --data-dir %s", d, d)
	}
	if err != nil {
		return s, fmt.Errorf("read the cluster's state: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", d.stateFile(), err)
	}
	return s, nil
}

// Cluster is the name of the cluster that is here, from which the names of all that it has put on
// this machine derive; "" = none is.
func (d Dir) Cluster() (string, error) {
	if _, err := os.Stat(d.stateFile()); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	s, err := d.ReadState()
	return s.Cluster, err
}

// WriteState replaces the state.
func (d Dir) WriteState(s State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	if err := atomicfile.Write(d.stateFile(), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	return nil
}

// RemoveState forgets that a cluster was here.
func (d Dir) RemoveState() error {
	if err := os.Remove(d.stateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the cluster's state: %w", err)
	}
	return nil
}

// Lock is held by the instance that uses the directory.
type Lock struct{ file *os.File }

// InUseError means that another instance has the directory.
type InUseError struct {
	Dir Dir
	PID int // 0 = unknown
}

// Error implements error.
func (e *InUseError) Error() string {
	return fmt.Sprintf("data directory %s is in use by process %d; stop it with `wasmplane stop --data-dir %s`, or choose another directory and --cluster-name", e.Dir, e.PID, e.Dir)
}

// Lock takes the directory for what serves the API or is a whole member of a cluster.
// The lock goes with the process, however it ends.
func (d Dir) Lock() (*Lock, error) { return d.lock(d.lockFile()) }

// LockNode takes the directory's node: a kubelet may be a process of its own beside an
// API server in one directory, but there is one only.
func (d Dir) LockNode() (*Lock, error) { return d.lock(d.nodeLock()) }

// glances bounds how long others look whether a directory is used, which keeps who wants to use it from doing so.
const glances = 2 * time.Second

func (d Dir) lock(file string) (*Lock, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	done := make(chan struct{})
	over := time.AfterFunc(glances, func() { close(done) })
	defer over.Stop()
	switch free, err := awaitLock(f, syscall.LOCK_EX, done); {
	case err != nil:
		_ = f.Close()
		return nil, fmt.Errorf("lock the data directory: %w", err)
	case !free:
		pid := readPID(f)
		_ = f.Close()
		return nil, &InUseError{Dir: d, PID: pid}
	}
	if err := writePID(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	return &Lock{file: f}, nil
}

// Release gives the directory back. A lock that is nil was not taken.
func (l *Lock) Release() {
	if l != nil {
		_ = l.file.Close()
	}
}

// Owner is the process that has the directory; 0 = none.
func (d Dir) Owner() (int, error) { return d.owner(d.lockFile()) }

// NodeOwner is the process that runs the directory's node; 0 = none.
func (d Dir) NodeOwner() (int, error) { return d.owner(d.nodeLock()) }

// owner looks whether a lock is held, and keeps nobody from taking it for longer than that takes.
func (Dir) owner(file string) (int, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("see who has the data directory: %w", err)
	}
	defer func() { _ = f.Close() }()
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return readPID(f), nil
	case err != nil:
		return 0, fmt.Errorf("see who has the data directory: %w", err)
	}
	return 0, nil
}

// Ready is what a process says of itself once it is ready.
type Ready struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
}

func (d Dir) readyFile() string { return d.join("ready.json") }

// WriteReady says that this process, of that version, is ready.
func (d Dir) WriteReady(version string) error {
	data, err := json.Marshal(Ready{PID: os.Getpid(), Version: version, Since: time.Now()})
	if err != nil {
		return err
	}
	return atomicfile.WriteVolatile(d.readyFile(), data, 0o600)
}

// ReadReady reads which process was ready last.
func (d Dir) ReadReady() (Ready, error) {
	var r Ready
	data, err := os.ReadFile(d.readyFile())
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read which process was ready last: %w", err)
	}
	return r, nil
}

// trial bounds how long an upgrade that nobody finished counts as being on trial.
const trial = time.Hour

// UpgradeOnTrial tells whether an upgrade of this machine has begun, and has not been found good yet.
func (d Dir) UpgradeOnTrial(now time.Time) bool {
	info, err := os.Stat(d.Upgrade())
	return err == nil && now.Sub(info.ModTime()) < trial
}

// AwaitRelease waits until nobody has the directory or its node; the caller bounds it with done.
func (d Dir) AwaitRelease(done <-chan struct{}) error {
	return errors.Join(d.awaitRelease(d.nodeLock(), done), d.awaitRelease(d.lockFile(), done))
}

func (d Dir) awaitRelease(file string, done <-chan struct{}) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for the data directory: %w", err)
	}
	defer func() { _ = f.Close() }()
	free, err := awaitLock(f, syscall.LOCK_SH, done)
	if err == nil && !free {
		err = fmt.Errorf("process %d still has %s", readPID(f), d)
	}
	return err
}

// awaitLock locks a file, or says that it is not free when done is closed.
func awaitLock(f *os.File, how int, done <-chan struct{}) (free bool, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
			return err == nil, err
		}
		select {
		case <-done:
			return false, nil
		case <-tick.C:
		}
	}
}

func readPID(f *os.File) int {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	return pid
}

// writePID has no moment in which the file says nothing.
func writePID(f *os.File) error {
	text := []byte(strconv.Itoa(os.Getpid()) + "\n")
	_, err := f.WriteAt(text, 0)
	return errors.Join(err, f.Truncate(int64(len(text))))
}
