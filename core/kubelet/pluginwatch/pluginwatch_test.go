// SPDX-License-Identifier: Apache-2.0

package pluginwatch_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is generous: the machine may be busy.
const patience = time.Minute

// plugin is one that registers, on a socket of its own.
type plugin struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
	// hang keeps it from saying who it is.
	hang <-chan struct{}
	told chan *registration.RegistrationStatus
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	if p.hang != nil {
		<-p.hang
	}
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error,
) {
	p.told <- s
	return &registration.RegistrationStatusResponse{}, nil
}

// serve serves a plugin at a path until the function returned is called.
func serve(t *testing.T, path string, p *plugin) (stop func()) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, p)
	done := run.Go("plugin", func() error { return s.Serve(l) })
	stop = func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return stop
}

func newPlugin(kind, name string) *plugin {
	return &plugin{
		info: &registration.PluginInfo{Type: kind, Name: name, SupportedVersions: []string{"v1"}},
		told: make(chan *registration.RegistrationStatus, 100),
	}
}

// handler sends what it is called with.
type handler struct {
	come, gone chan pluginwatch.Plugin
	refuse     error
}

func newHandler() *handler {
	return &handler{come: make(chan pluginwatch.Plugin, 100), gone: make(chan pluginwatch.Plugin, 100)}
}

func (h *handler) Register(_ context.Context, p pluginwatch.Plugin) error {
	h.come <- p
	return h.refuse
}

func (h *handler) Withdraw(_ context.Context, p pluginwatch.Plugin) { h.gone <- p }

func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came:", what)
		panic("unreachable")
	}
}

// watch runs a Watcher, and answers the directory for sockets.
func watch(t *testing.T, handlers map[string]pluginwatch.Handler) string {
	t.Helper()
	root, err := os.MkdirTemp("", "plugins") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, pluginwatch.Directory)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	w, err := pluginwatch.New(pluginwatch.Config{RootDir: root, Handlers: handlers, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("watcher", func() error { return w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestPluginsComeAndGo: one that hangs keeps up no other, and who is not wanted is told why.
func TestPluginsComeAndGo(t *testing.T) {
	fine, strict := newHandler(), newHandler()
	strict.refuse = errors.New("no room for it")
	dir := watch(t, map[string]pluginwatch.Handler{"Fine": fine, "Strict": strict})
	release := make(chan struct{})
	hanging := newPlugin("Fine", "hanging")
	hanging.hang = release
	defer serve(t, filepath.Join(dir, "0-hanging.sock"), hanging)()
	defer close(release)

	good := newPlugin("Fine", "good")
	good.info.Endpoint = "unix:///run/good.sock"
	stop := serve(t, filepath.Join(dir, "good.sock"), good)
	got := receive(t, "the plugin", fine.come)
	if got.Name != "good" || got.Endpoint != "/run/good.sock" || got.Socket != filepath.Join(dir, "good.sock") || len(got.Versions) != 1 {
		t.Errorf("registered is %+v", got)
	}
	if s := receive(t, "what the plugin is told", good.told); !s.PluginRegistered || s.Error != "" {
		t.Errorf("told %v", s)
	}
	stop()
	if p := receive(t, "the withdrawal", fine.gone); p.Name != "good" || p.Socket != got.Socket {
		t.Errorf("withdrawn is %+v", p)
	}
	for _, c := range []struct {
		plugin   *plugin
		endpoint string
		want     string
	}{
		{newPlugin("Other", "x"), "", `takes no plugins of the type "Other"`},
		{newPlugin("Strict", "x"), "", "no room for it"},
		{newPlugin("Fine", ""), "", "has no name"},
		{newPlugin("Fine", "x"), "x.sock", "no absolute path"},
	} {
		c.plugin.info.Endpoint = c.endpoint
		stop := serve(t, filepath.Join(dir, "refused.sock"), c.plugin)
		for range 2 { // it is asked again
			if s := receive(t, "the refusal", c.plugin.told); s.PluginRegistered || !strings.Contains(s.Error, c.want) {
				t.Errorf("told %v, want %q", s, c.want)
			}
		}
		stop()
	}
	select {
	case p := <-fine.gone:
		t.Errorf("%+v was withdrawn, which was never registered", p)
	default:
	}
}

// TestASocketMadeAnewIsAnotherPlugin: it registers, and its predecessor is not withdrawn after it.
func TestASocketMadeAnewIsAnotherPlugin(t *testing.T) {
	h := newHandler()
	dir := watch(t, map[string]pluginwatch.Handler{"Fine": h})
	path := filepath.Join(dir, "p.sock")
	first, second := newPlugin("Fine", "p"), newPlugin("Fine", "p")
	stopFirst := serve(t, path, first)
	receive(t, "the first", h.come)
	// Made beside, and moved over it: the path is never without a socket.
	stopSecond := serve(t, filepath.Join(dir, ".next"), second)
	if err := os.Rename(filepath.Join(dir, ".next"), path); err != nil {
		t.Fatal(err)
	}
	receive(t, "the second", h.come)
	select {
	case p := <-h.gone:
		t.Errorf("%+v was withdrawn", p)
	default:
	}
	stopSecond()
	stopFirst()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	receive(t, "the withdrawal", h.gone)
}

// TestOnlyRootRegisters: a directory that was open is closed.
func TestOnlyRootRegisters(t *testing.T) {
	h := newHandler()
	dir := watch(t, map[string]pluginwatch.Handler{"Fine": h})
	p := newPlugin("Fine", "p")
	defer serve(t, filepath.Join(dir, "p.sock"), p)()
	receive(t, "the plugin", h.come)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the directory is %v %v", info.Mode(), err)
	}
}
