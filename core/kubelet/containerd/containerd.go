// SPDX-License-Identifier: Apache-2.0

// Package containerd runs containerd as a child that outlives its parent.
//
// The child is this very binary in another role (see MaybeRun). It has a session,
// a cgroup and a log of its own, so that neither our death nor Ctrl-C reaches it,
// nor the pods whose shims it started. Start therefore first looks for one that
// runs already: it is adopted when it is of the same version and configuration and
// serves the same directory, and replaced when not. Replacing it keeps the
// containers too: they belong to their shims.
//
// The package promises that at most one containerd serves a directory, that
// nothing is written outside of that directory (but for sockets, when its path is
// too long for them), and that Stop ends containerd and not the pods.
package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

const (
	readyTimeout = 30 * time.Second
	// adoptTimeout is how long a running containerd may take to answer before it is
	// taken for hung and replaced.
	adoptTimeout = 5 * time.Second
	stopTimeout  = 10 * time.Second
	askAgain     = 10 * time.Millisecond
	minRestart   = 100 * time.Millisecond
	maxRestart   = 10 * time.Second
)

// Child is a running containerd.
type Child struct {
	cfg     Config
	bin     string // the directory of the helpers
	adopted bool

	mu      sync.Mutex
	process *watched
}

// Start adopts the containerd that serves cfg.Dir, or starts one, and returns when
// it answers. The caller runs Run to have it restarted should it die, and Close,
// or Stop to end it.
func Start(ctx context.Context, cfg Config) (*Child, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	bin, rendered, sum, err := cfg.prepare(ctx)
	if err != nil {
		return nil, err
	}
	c := &Child{cfg: cfg, bin: bin}
	if c.process, err = adopt(ctx, cfg, sum); err != nil {
		return nil, err
	}
	if c.process != nil {
		c.adopted = true
		cfg.Log.InfoContext(ctx, "containerd runs already and was adopted", "pid", c.process.PID)
		return c, nil
	}
	if err := cfg.freshBoot(); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(cfg.configFile(), rendered, 0o600); err != nil {
		return nil, err
	}
	if c.process, err = launch(ctx, cfg, bin, sum); err != nil {
		return nil, err
	}
	cfg.Log.InfoContext(ctx, "containerd was started", "pid", c.process.PID, "socket", cfg.Socket())
	return c, nil
}

// Socket is the path of the gRPC socket.
func (c *Child) Socket() string { return c.cfg.Socket() }

// Adopted tells whether Start found containerd running.
func (c *Child) Adopted() bool { return c.adopted }

// PluginDir has our CNI plugins.
func (c *Child) PluginDir() string { return c.bin }

// PID is the process that serves now.
func (c *Child) PID() int { return c.current().PID }

func (c *Child) current() *watched {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

// Run keeps containerd running until ctx ends, which leaves it running. One that
// dies is started again, sooner at first than later.
func (c *Child) Run(ctx context.Context) error {
	retry := run.Backoff{First: minRestart, Longest: maxRestart}
	left := &strays{bin: filepath.Join(c.cfg.Dir, "bin")}
	look := time.NewTicker(straysEvery)
	defer look.Stop()
	for since := time.Now(); ; {
		process := c.current()
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			left.look(ctx, func(container string, err error) {
				c.cfg.Log.WarnContext(ctx, "a container that was never started was ended", "container", container, "error", err)
			})
			continue
		case <-process.ended:
		}
		c.cfg.Log.WarnContext(ctx, "containerd ended and will be started again; containers keep running",
			"pid", process.PID, "log", c.cfg.LogFile(), "lastWords", c.cfg.lastWords())
		if time.Since(since) > maxRestart {
			retry.Reset()
		}
		for wait := retry.Next(); ; {
			if !run.Sleep(ctx, wait) {
				return nil
			}
			wait = retry.Next()
			err := c.restart(ctx)
			if err == nil {
				since = time.Now()
				break
			}
			if ctx.Err() != nil {
				return nil // it was stopped while it waited
			}
			c.cfg.Log.ErrorContext(ctx, "containerd cannot be started; trying again", "error", err, "retryIn", wait)
		}
	}
}

func (c *Child) restart(ctx context.Context) error {
	next, err := launch(ctx, c.cfg, c.bin, c.current().Hash)
	if err != nil {
		return err
	}
	c.mu.Lock()
	last := c.process
	c.process = next
	c.mu.Unlock()
	last.close()
	return nil
}

// Stop ends containerd; the containers run on. Run must have returned.
func (c *Child) Stop(ctx context.Context) error {
	defer c.Close()
	return stop(ctx, c.cfg, c.current())
}

// Close lets go of containerd, which runs on.
func (c *Child) Close() { c.current().close() }

// Stop ends the containerd that serves cfg.Dir, if there is one. It needs no
// helpers, no runc, and nothing of the configuration but Dir and Names.
func Stop(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	process, err := running(cfg)
	if err != nil || process == nil {
		return err
	}
	defer process.close()
	return stop(ctx, cfg, process)
}

// Running answers the pid of the containerd that serves cfg.Dir, and 0 if none does.
func Running(cfg Config) int {
	p, err := readPIDFile(cfg.pidFile())
	if err != nil {
		return 0
	}
	return p.PID
}

// running takes hold of the containerd that serves cfg.Dir; nil when none does.
func running(cfg Config) (*watched, error) {
	p, err := readPIDFile(cfg.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w, err := watch(p)
	if err != nil {
		return nil, nil //nolint:nilerr // it ended just now
	}
	return w, nil
}

// stop asks containerd to end and kills it when it does not.
func stop(ctx context.Context, cfg Config, w *watched) error {
	if err := w.signal(syscall.SIGTERM); err != nil {
		return err
	}
	patience := time.NewTimer(stopTimeout)
	defer patience.Stop()
	select {
	case <-w.ended:
	case <-ctx.Done():
		return fmt.Errorf("stop containerd (pid %d): %w", w.PID, ctx.Err())
	case <-patience.C:
		cfg.Log.WarnContext(ctx, "containerd does not end and is killed", "pid", w.PID)
		if err := w.signal(syscall.SIGKILL); err != nil {
			return err
		}
		<-w.ended
	}
	_ = os.Remove(cfg.pidFile())
	return nil
}

// prepare makes the directories, unpacks the helpers and renders the
// configuration that the child is to have.
func (c Config) prepare(ctx context.Context) (bin string, rendered []byte, sum string, err error) {
	if err := c.chooseStateDir(ctx); err != nil {
		return "", nil, "", err
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{c.Dir, 0o711},
		{c.root(), 0o711},
		{c.stateDir(), 0o711},
		{filepath.Join(c.stateDir(), "s"), 0o700},
		{filepath.Join(c.Dir, "tmp"), 0o700},
		{filepath.Join(c.Dir, "etc"), 0o755},
		{filepath.Join(c.Dir, "log"), 0o700},
		{c.RegistryDir(), 0o755},
		{c.CNIConfDir, 0o755},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return "", nil, "", fmt.Errorf("make containerd's directories: %w", err)
		}
	}
	if bin, err = unpack(c.Helpers, filepath.Join(c.Dir, "bin")); err != nil {
		return "", nil, "", err
	}
	if err := c.writeBaseSpec(ctx); err != nil {
		return "", nil, "", err
	}
	if rendered, err = c.render(bin); err != nil {
		return "", nil, "", err
	}
	return bin, rendered, hash(rendered), nil
}

// bootFile in the state directory says of which boot that is.
const bootFile = "boot"

// freshBoot empties the state directory when the machine was booted since: it
// names mounts, sockets and processes that are no more. On a host of its own,
// containerd keeps it on a tmpfs for the same reason.
func (c Config) freshBoot() error {
	mark := filepath.Join(c.stateDir(), bootFile)
	now := bootID()
	if was, err := os.ReadFile(mark); err == nil && string(was) == now {
		return nil
	}
	entries, err := os.ReadDir(c.stateDir())
	if err != nil {
		return fmt.Errorf("look at containerd's state: %w", err)
	}
	if mounts, err := linuxhost.MountsBelow(c.stateDir()); err != nil || len(mounts) > 0 {
		return errors.Join(err, atomicfile.Write(mark, []byte(now), 0o600)) // in use after all
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(c.stateDir(), e.Name())); err != nil {
			return fmt.Errorf("clear containerd's state of the last boot: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(c.stateDir(), "s"), 0o700); err != nil {
		return fmt.Errorf("make containerd's directories: %w", err)
	}
	return atomicfile.Write(mark, []byte(now), 0o600)
}

// adopt finds a containerd that is what we would start. One that is not, or does
// not answer, is stopped.
func adopt(ctx context.Context, cfg Config, sum string) (*watched, error) {
	w, err := running(cfg)
	if err != nil || w == nil {
		return nil, err
	}
	reason := "its version or configuration is another"
	if w.Hash == sum {
		err := answers(ctx, cfg.Socket(), adoptTimeout, w.ended, nil)
		if err == nil {
			return w, nil
		}
		if ctx.Err() != nil {
			w.close()
			return nil, ctx.Err()
		}
		reason = err.Error()
	}
	cfg.Log.InfoContext(ctx, "the containerd that runs is replaced", "pid", w.PID, "reason", reason)
	defer w.close()
	return nil, stop(ctx, cfg, w)
}

// launch starts containerd and waits until it answers.
func launch(ctx context.Context, cfg Config, bin, sum string) (*watched, error) {
	left := cfg.findLeftovers()
	encoded, err := json.Marshal(role{
		Config: cfg.configFile(), Cgroup: cfg.Names.RuntimeCgroup(),
		Lock: cfg.lockFile(), PIDFile: cfg.pidFile(), Hash: sum,
		Log: cfg.LogFile(), LogLimit: cfg.LogLimit,
	})
	if err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	crash, err := os.OpenFile(cfg.crashFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	defer crash.Close()
	// The file behind /proc/self/exe is ours even after an upgrade replaced the path.
	// Not CommandContext: the child outlives ctx, and us.
	cmd := exec.Command("/proc/self/exe")                           //nolint:noctx
	cmd.Args = []string{"containerd", "--config", cfg.configFile()} // for ps; MaybeRun does not read it
	cmd.Env = append(childEnv(os.Environ(), string(encoded), bin), cfg.shimEnv()...)
	cmd.Dir = cfg.Dir
	cmd.Stdout, cmd.Stderr = crash, crash
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // watched reaps it
	self, err := identify(pid)
	if err != nil {
		return nil, fmt.Errorf("start containerd: it ended at once: %s", cfg.lastWords())
	}
	w, err := watch(pidFile{process: self, Hash: sum})
	if err != nil {
		return nil, fmt.Errorf("start containerd: %w: %s", err, cfg.lastWords())
	}
	swept := func(ctx context.Context, conn grpc.ClientConnInterface) {
		if err := left.sweep(ctx, conn); err != nil {
			cfg.Log.WarnContext(ctx, "what the last containerd left behind was not all removed", "error", err)
		}
	}
	if err := answers(ctx, cfg.Socket(), readyTimeout, w.ended, swept); err != nil {
		_ = w.signal(syscall.SIGKILL)
		w.close()
		return nil, fmt.Errorf("start containerd: %w: %s (log: %s)", err, cfg.lastWords(), cfg.LogFile())
	}
	return w, nil
}

// childEnv passes on what a container runtime needs of our environment: where
// programs are, and proxies for pulls. Anything else could change its behaviour,
// and would make an adopted child differ from a started one.
//
// The helpers come first on PATH: when containerd finds the shims of an earlier one
// it looks for their program there and not in its configuration, and calls every
// container dead whose shim's program it does not find.
func childEnv(env []string, encoded, bin string) []string {
	out := []string{roleVariable + "=" + encoded}
	path := bin
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch strings.ToUpper(name) {
		case "PATH":
			path += ":" + value
		case "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "LANG", "TZ":
			out = append(out, kv)
		}
	}
	return append(out, "PATH="+path)
}

// shimEnv is for the shims, which inherit containerd's environment.
func (c Config) shimEnv() []string {
	return []string{
		contentVariable + "=" + filepath.Join(c.root(), "io.containerd.content.v1.content"),
		cacheVariable + "=" + filepath.Join(c.Dir, "wasm"),
	}
}

// lastWords is the end of what the child wrote before its log was set up, or when
// it crashed; the log's last line otherwise.
func (c Config) lastWords() string {
	if tail := strings.TrimSpace(tailOf(c.crashFile(), 600)); tail != "" {
		return tail
	}
	tail := strings.TrimSpace(tailOf(c.LogFile(), 600))
	if tail = tail[strings.LastIndexByte(tail, '\n')+1:]; tail != "" {
		return tail
	}
	return "it said nothing"
}

func tailOf(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > n {
		_, _ = f.Seek(-n, 2)
	}
	buf := make([]byte, n)
	read, _ := f.Read(buf)
	return string(buf[:read])
}

// answers waits until the CRI service replies, or the process behind it ends. Then
// it does what is to be done first.
func answers(ctx context.Context, socket string, timeout time.Duration, ended <-chan struct{},
	first func(context.Context, grpc.ClientConnInterface),
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("it does not answer"))
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// gRPC's own first wait is a second, 10 times what containerd takes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond},
		}))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer conn.Close()
	answer := run.Go("containerd: first question", func() error { return askVersion(ctx, cri.NewRuntimeServiceClient(conn)) })
	select {
	case err := <-answer:
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("wait for containerd: %w", err)
		}
		if first != nil {
			first(ctx, conn)
		}
		return nil
	case <-ended:
		cancel()
		<-answer
		return errors.New("it ended")
	}
}

// askVersion asks until the answer is more than "not initialized yet", which the
// CRI service says while it loads what the last containerd left.
func askVersion(ctx context.Context, client cri.RuntimeServiceClient) error {
	for {
		_, err := client.Version(ctx, &cri.VersionRequest{}, grpc.WaitForReady(true))
		if status.Code(err) != codes.Unavailable || !run.Sleep(ctx, askAgain) {
			return err
		}
	}
}
