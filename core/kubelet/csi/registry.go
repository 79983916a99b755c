// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/fsnotify/fsnotify"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// registry knows the drivers that have registered. A socket in its directory is a plugin
// that wants to: whoever can make one there is root on this machine already.
type registry struct {
	cfg     Config
	changed func() // called when a driver has come

	mu      sync.Mutex
	drivers map[string]*driver // by name
	holder  map[string]string  // name: the socket by which it registered
}

const (
	// registerWithin is how long a plugin may take to answer about its registration.
	registerWithin = 10 * time.Second
	// rescan is the net under the events of the file system.
	rescan = 10 * time.Second
	// mostSockets bounds what is looked after in the directory.
	mostSockets = 256
)

func newRegistry(cfg Config, changed func()) *registry {
	return &registry{cfg: cfg, changed: changed, drivers: map[string]*driver{}, holder: map[string]string{}}
}

func (r *registry) dir() string { return filepath.Join(r.cfg.RootDir, "plugins_registry") }

// driver by its name.
func (r *registry) driver(name string) (*driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.drivers[name]; d != nil {
		return d, nil
	}
	return nil, &missing{name}
}

// missing is a driver that has not registered; in upstream's words, by which people look.
type missing struct{ name string }

func (m *missing) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers of this node: see whether the driver's pod runs here", m.name)
}

func isMissing(err error) bool {
	_, ok := errors.AsType[*missing](err)
	return ok
}

// socket as it was found: one that was made anew under its name is another.
type socket struct {
	device, inode uint64
	changed       int64
}

// attended is a socket with what is done about it.
type attended struct {
	socket
	cancel context.CancelFunc
	done   <-chan error
}

// run looks after the directory until ctx ends.
func (r *registry) run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for CSI drivers: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(r.dir()); err != nil {
		return fmt.Errorf("watch for CSI drivers: %w", err)
	}
	if err := r.announce(ctx); err != nil {
		return nil // ctx ended
	}
	known := map[string]*attended{}
	defer func() {
		for _, a := range known {
			a.cancel()
			<-a.done
		}
	}()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	for {
		r.look(ctx, known)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-watcher.Events:
		case err := <-watcher.Errors:
			r.cfg.Logger.WarnContext(ctx, "the directory in which CSI drivers register cannot be watched; it is looked at every now and then", "directory", r.dir(), "error", err)
		}
	}
}

// look finds sockets that have come, gone, or been replaced.
func (r *registry) look(ctx context.Context, known map[string]*attended) {
	found, err := r.sockets()
	if err != nil { // nobody has gone because we cannot see
		r.cfg.Logger.WarnContext(ctx, "CSI drivers cannot register", "directory", r.dir(), "error", err)
		return
	}
	for path, a := range known {
		if s, ok := found[path]; ok && s == a.socket {
			continue
		}
		a.cancel()
		<-a.done
		delete(known, path)
		if _, replaced := found[path]; !replaced {
			r.withdraw(ctx, path)
		}
	}
	for path, s := range found {
		if known[path] != nil {
			continue
		}
		actx, cancel := context.WithCancel(ctx)
		known[path] = &attended{socket: s, cancel: cancel, done: run.Go("csi: registration", func() error {
			r.attend(actx, path)
			return nil
		})}
	}
}

func (r *registry) sockets() (map[string]socket, error) {
	entries, err := os.ReadDir(r.dir())
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	out := map[string]socket{}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 || strings.HasPrefix(e.Name(), ".") || len(out) == mostSockets {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // gone meanwhile
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			out[filepath.Join(r.dir(), e.Name())] = socket{st.Dev, st.Ino, st.Ctim.Nano()}
		}
	}
	return out, nil
}

// attend registers the plugin behind a socket, trying until it succeeds or ctx ends.
func (r *registry) attend(ctx context.Context, path string) {
	retry := run.Backoff{First: 100 * time.Millisecond, Longest: 30 * time.Second}
	for failed := ""; ; {
		name, err := r.register(ctx, path)
		switch {
		case err == nil && name == "":
			return // a plugin of another kind
		case err == nil:
			r.cfg.Logger.InfoContext(ctx, "CSI driver registered", "driver", name, "socket", path)
			r.changed()
			return
		case ctx.Err() != nil:
			return
		}
		level := slog.LevelDebug
		if err.Error() != failed { // the same thing is not logged over and over
			level, failed = slog.LevelWarn, err.Error()
		}
		wait := retry.Next()
		r.cfg.Logger.Log(ctx, level, "a CSI driver cannot register; trying again", "driver", name, "socket", path, "error", err, "retryIn", wait)
		if !run.Sleep(ctx, wait) {
			return
		}
	}
}

// register asks a plugin who it is and a driver what it is on this node, writes that
// into the API, and says to the plugin how it went.
func (r *registry) register(ctx context.Context, path string) (string, error) {
	conn, err := connect(path)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	asked, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	info, err := client.GetInfo(asked, &registration.InfoRequest{})
	if err != nil {
		return "", fmt.Errorf("ask who it is: %w", err)
	}
	if info.GetType() != registration.CSIPlugin {
		return "", nil
	}
	d, err := r.examine(info, path)
	if err == nil {
		err = r.accept(ctx, d, path)
	}
	answer := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		answer.Error = err.Error()
	}
	told, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	if _, tellErr := client.NotifyRegistrationStatus(told, answer); tellErr != nil && err == nil {
		// It may register again; what it is has been written.
		r.cfg.Logger.DebugContext(ctx, "a CSI driver was not told that it is registered", "driver", d.name, "error", tellErr)
	}
	return info.GetName(), err
}

// driverName is what may be a driver's name: it becomes the name of a directory.
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// examine looks at what a plugin says of itself.
func (r *registry) examine(info *registration.PluginInfo, path string) (*driver, error) {
	if !driverName.MatchString(info.GetName()) {
		return nil, fmt.Errorf("%q is no name of a CSI driver: letters, digits, dots, dashes, at most 63", info.GetName())
	}
	one := func(v string) bool { v = strings.TrimPrefix(v, "v"); return v == "1" || strings.HasPrefix(v, "1.") }
	if !slices.ContainsFunc(info.GetSupportedVersions(), one) {
		return nil, fmt.Errorf("CSI driver %s supports the versions %v, and this node versions 1.x", info.GetName(), info.GetSupportedVersions())
	}
	endpoint := info.GetEndpoint()
	if endpoint == "" {
		endpoint = path
	}
	endpoint = strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(endpoint) {
		return nil, fmt.Errorf("CSI driver %s has the endpoint %q, which is no absolute path of a socket", info.GetName(), endpoint)
	}
	return &driver{name: info.GetName(), endpoint: endpoint, timeout: r.cfg.Timeout}, nil
}

// accept learns what the driver is on this node and makes it known.
func (r *registry) accept(ctx context.Context, d *driver, path string) error {
	got, err := ask(ctx, d, "NodeGetInfo", func(ctx context.Context, c spec.NodeClient) (*spec.NodeGetInfoResponse, error) {
		return c.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	})
	if err != nil {
		return err
	}
	if got.GetNodeId() == "" {
		return fmt.Errorf("driver %s: NodeGetInfo: node_id is empty", d.name)
	}
	if err := r.publish(ctx, d.name, got); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The one that registered last counts, as upstream: a driver that is rolled over has two for a while.
	r.drivers[d.name], r.holder[d.name] = d, path
	return nil
}

// withdraw forgets the driver whose socket is gone.
func (r *registry) withdraw(ctx context.Context, path string) {
	r.mu.Lock()
	name := ""
	for n, p := range r.holder {
		if p == path {
			name = n
		}
	}
	delete(r.drivers, name)
	delete(r.holder, name)
	r.mu.Unlock()
	if name == "" {
		return
	}
	r.cfg.Logger.InfoContext(ctx, "CSI driver unregistered", "driver", name, "socket", path)
	if err := r.retract(ctx, name); err != nil && ctx.Err() == nil {
		r.cfg.Logger.WarnContext(ctx, "a CSI driver that is gone cannot be taken off the CSINode", "driver", name, "error", err)
	}
}
