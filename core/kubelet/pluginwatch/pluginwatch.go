// SPDX-License-Identifier: Apache-2.0

// Package pluginwatch finds the plugins of a node: storage drivers, device plugins,
// drivers of dynamic resources. A plugin makes a socket in one directory
// (plugins_registry) and answers there who it is, in upstream's pluginregistration/v1;
// the handler of its type takes it into use or says why not, and the plugin is told.
//
// Each socket is attended to on its own: a plugin that hangs or fails keeps up no
// other. A socket that is made anew under its name is another plugin: the former one is
// not withdrawn, since the handler replaces it when the new one registers.
//
// The directory belongs to root alone: a plugin is given secrets and devices.
package pluginwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// Directory below the kubelet's in which plugins make their sockets.
const Directory = "plugins_registry"

// Plugin is what a plugin said of itself.
type Plugin struct {
	// Type is upstream's: CSIPlugin, DevicePlugin, DRAPlugin.
	Type string
	// Name is as the plugin gave it: its handler checks it.
	Name string
	// Endpoint is the absolute path of the socket at which the plugin serves.
	Endpoint string
	// Versions of its protocol that it supports.
	Versions []string
	// Socket by which it registered.
	Socket string
}

// Handler takes plugins of one type into use. Its methods are called for several sockets
// at the same time, never at the same time for one.
type Handler interface {
	// Register takes a plugin into use. The plugin is told of an error, and asked again later.
	Register(ctx context.Context, p Plugin) error
	// Withdraw forgets the plugin that registered by this socket, which is gone. Another
	// of its name may have registered by another socket since.
	Withdraw(ctx context.Context, p Plugin)
}

// Config of a Watcher.
type Config struct {
	// RootDir is the kubelet's: absolute.
	RootDir string
	// Handlers by the type of plugin.
	Handlers map[string]Handler
	Logger   *slog.Logger
}

const (
	// registerWithin is how long a plugin may take to answer about its registration.
	registerWithin = 10 * time.Second
	// rescan is the net under the events of the file system.
	rescan = 10 * time.Second
	// mostSockets bounds what is looked after in the directory.
	mostSockets = 256
)

// Watcher looks after the directory.
type Watcher struct{ cfg Config }

// New makes a Watcher; Run runs it.
func New(cfg Config) (*Watcher, error) {
	if !filepath.IsAbs(cfg.RootDir) {
		return nil, fmt.Errorf("pluginwatch: the kubelet's directory %q is no absolute path", cfg.RootDir)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{cfg: cfg}, nil
}

func (w *Watcher) dir() string { return filepath.Join(w.cfg.RootDir, Directory) }

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
	// plugin that registered; read once done is closed.
	plugin *Plugin
}

// Run registers plugins until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if err := os.MkdirAll(w.dir(), 0o750); err != nil {
		return fmt.Errorf("make the directory in which plugins register: %w", err)
	}
	if err := os.Chmod(w.dir(), 0o750); err != nil { //nolint:gosec // a directory
		return fmt.Errorf("close the directory in which plugins register: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for plugins: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(w.dir()); err != nil {
		return fmt.Errorf("watch for plugins: %w", err)
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
		w.look(ctx, known)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-watcher.Events:
		case err := <-watcher.Errors:
			w.cfg.Logger.WarnContext(ctx, "the directory in which plugins register cannot be watched; it is looked at every now and then",
				"directory", w.dir(), "error", err)
		}
	}
}

// look finds sockets that have come, gone, or been replaced.
func (w *Watcher) look(ctx context.Context, known map[string]*attended) {
	found, err := w.sockets()
	if err != nil { // nobody has gone because we cannot see
		w.cfg.Logger.WarnContext(ctx, "plugins cannot register", "directory", w.dir(), "error", err)
		return
	}
	for path, a := range known {
		if s, ok := found[path]; ok && s == a.socket {
			continue
		}
		a.cancel()
		<-a.done
		delete(known, path)
		if _, replaced := found[path]; !replaced && a.plugin != nil {
			w.cfg.Handlers[a.plugin.Type].Withdraw(ctx, *a.plugin)
		}
	}
	for path, s := range found {
		if known[path] != nil {
			continue
		}
		actx, cancel := context.WithCancel(ctx)
		a := &attended{socket: s, cancel: cancel}
		a.done = run.Go("plugin registration", func() error {
			a.plugin = w.attend(actx, path)
			return nil
		})
		known[path] = a
	}
}

func (w *Watcher) sockets() (map[string]socket, error) {
	entries, err := os.ReadDir(w.dir())
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
			out[filepath.Join(w.dir(), e.Name())] = socket{st.Dev, st.Ino, st.Ctim.Nano()}
		}
	}
	return out, nil
}

// attend registers the plugin behind a socket, trying until it succeeds or ctx ends.
func (w *Watcher) attend(ctx context.Context, path string) *Plugin {
	retry := run.Backoff{First: 100 * time.Millisecond, Longest: 30 * time.Second}
	for failed := ""; ; {
		p, err := w.register(ctx, path)
		switch {
		case err == nil:
			w.cfg.Logger.InfoContext(ctx, "plugin registered", "type", p.Type, "plugin", p.Name, "socket", path)
			return &p
		case ctx.Err() != nil:
			return nil
		}
		level := slog.LevelDebug
		if err.Error() != failed { // the same thing is not logged over and over
			level, failed = slog.LevelWarn, err.Error()
		}
		wait := retry.Next()
		w.cfg.Logger.Log(ctx, level, "a plugin cannot register; trying again", "type", p.Type, "plugin", p.Name, "socket", path,
			"error", err, "retryIn", wait)
		if !run.Sleep(ctx, wait) {
			return nil
		}
	}
}

// register asks a plugin who it is, has its handler take it, and says to the plugin how it went.
func (w *Watcher) register(ctx context.Context, path string) (Plugin, error) {
	conn, err := Connect(path)
	if err != nil {
		return Plugin{}, err
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	asked, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	info, err := client.GetInfo(asked, &registration.InfoRequest{})
	if err != nil {
		return Plugin{}, fmt.Errorf("ask who it is: %w", err)
	}
	p := Plugin{Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions(), Socket: path}
	err = w.take(ctx, &p)
	answer := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		answer.Error = err.Error()
	}
	told, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	if _, tellErr := client.NotifyRegistrationStatus(told, answer); tellErr != nil && err == nil {
		// It may register again; its handler has taken it.
		w.cfg.Logger.DebugContext(ctx, "a plugin was not told that it is registered", "plugin", p.Name, "error", tellErr)
	}
	return p, err
}

// take has the handler of its type take a plugin into use.
func (w *Watcher) take(ctx context.Context, p *Plugin) error {
	h := w.cfg.Handlers[p.Type]
	switch {
	case h == nil:
		return fmt.Errorf("this node takes no plugins of the type %q", p.Type)
	case p.Name == "":
		return errors.New("the plugin has no name")
	}
	if p.Endpoint = strings.TrimPrefix(p.Endpoint, "unix://"); p.Endpoint == "" {
		p.Endpoint = p.Socket
	}
	if !filepath.IsAbs(p.Endpoint) {
		return fmt.Errorf("%s %s has the endpoint %q, which is no absolute path of a socket", p.Type, p.Name, p.Endpoint)
	}
	return h.Register(ctx, *p)
}
