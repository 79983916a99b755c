// SPDX-License-Identifier: Apache-2.0

package wasip1

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// server is an instance that listens.
type server struct {
	host    *Host
	address string
	stop    func()
	done    <-chan error
}

func buildServer(t *testing.T) []byte {
	t.Helper()
	env := []string{"GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0"}
	return compile(t, env, "go", "build", "-trimpath", "-ldflags=-s -w", "./testdata/server")
}

// compile runs a compiler, which is told where to write.
func compile(t *testing.T, env []string, command ...string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "server.wasm")
	args := append(slices.Clone(command[1:len(command)-1]), "-o", file, command[len(command)-1])
	build := exec.CommandContext(t.Context(), command[0], args...)
	build.Env = append(os.Environ(), env...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, out)
	}
	module, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// startServer runs a server whose argument is the descriptor of its socket.
func startServer(t *testing.T, module []byte) *server {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := wazero.NewRuntime(ctx)
	h, err := New(ctx, [3]*os.File{})
	if err == nil {
		err = h.Instantiate(ctx, r)
	}
	if err != nil {
		t.Fatal(err)
	}
	// The first descriptor after standard input and output, as there are no directories.
	m, err := r.InstantiateWithConfig(ctx, module, wazero.NewModuleConfig().WithStartFunctions().WithArgs("server", "3").
		WithStderr(os.Stderr).WithSysWalltime().WithNanotime(h.Nanotime, 1).WithRandSource(rand.Reader))
	if err == nil {
		err = h.Listen(ctx, m, "127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(h.lookup(3).raw)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{host: h, address: fmt.Sprint("127.0.0.1:", name.(*unix.SockaddrInet4).Port), stop: stop} //nolint:forcetypeassert // of IPv4
	done := run.Go("the server", func() error {
		_, err := m.ExportedFunction("_start").Call(ctx)
		return err
	})
	s.done = done
	t.Cleanup(func() {
		stop()
		<-done
		if err := errors.Join(r.Close(context.WithoutCancel(ctx)), h.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// get asks for a path.
func (s *server) get(ctx context.Context, client *http.Client, path string) (string, error) {
	return s.ask(ctx, client, http.MethodGet, path, http.NoBody)
}

func (s *server) ask(ctx context.Context, client *http.Client, method, path string, body io.Reader) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+s.address+path, body)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return string(text), err
}

func (s *server) mustGet(t *testing.T, client *http.Client, path string) string {
	t.Helper()
	text, err := s.get(t.Context(), client, path)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return text
}

// TestAServerOfGoServes as it does elsewhere: net/http in a module of WASI 0.1, whose runtime waits for all its sockets and timers at once.
func TestAServerOfGoServes(t *testing.T) {
	s := startServer(t, buildServer(t))
	const clients, each = 100, 3
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	client := &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	t.Run("many connections at once", func(t *testing.T) {
		var reused atomic.Int64
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if i.Reused {
				reused.Add(1)
			}
		}})
		var all errgroup.Group
		for i := range clients {
			all.Go(func() error {
				for range each {
					body := strings.Repeat(fmt.Sprint(i, " "), 10_000)
					if text, err := s.ask(ctx, client, http.MethodPost, "/echo", strings.NewReader(body)); err != nil || text != body {
						return fmt.Errorf("client %d had %d bytes of %d back: %w", i, len(text), len(body), err)
					}
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		if reused.Load() == 0 {
			t.Error("no connection was used twice")
		}
	})
	t.Run("a client that is slow to ask", func(t *testing.T) {
		slow := s.dial(t)
		say(t, slow, "GET /hel")
		for range 10 {
			s.mustGet(t, client, "/hello")
		}
		say(t, slow, "lo HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")
		if answer, err := io.ReadAll(slow); err != nil || !strings.HasSuffix(string(answer), "\r\n\r\nhello\n") {
			t.Errorf("%q, %v", answer, err)
		}
	})
	t.Run("a client that is slow to read", func(t *testing.T) {
		const much = 16 << 20 // more than the system keeps for a connection
		slow := s.dial(t)
		say(t, slow, fmt.Sprintf("GET /much/%d HTTP/1.0\r\n\r\n", much))
		for range 10 {
			s.mustGet(t, client, "/hello")
		}
		answer, err := io.ReadAll(slow)
		_, body, _ := bytes.Cut(answer, []byte("\r\n\r\n"))
		if want := bytes.Repeat([]byte("0123456789abcdef"), much/16); err != nil || !bytes.Equal(body, want) {
			t.Errorf("it had %d bytes of %d: %v", len(body), much, err)
		}
	})
	t.Run("a client that goes away", func(t *testing.T) {
		gone := s.dial(t)
		say(t, gone, fmt.Sprintf("GET /much/%d HTTP/1.0\r\n\r\n", 16<<20))
		if err := gone.(*net.TCPConn).SetLinger(0); err != nil { //nolint:forcetypeassert // of TCP
			t.Fatal(err)
		}
		_ = gone.Close()
		s.mustGet(t, client, "/hello")
	})
	t.Run("timers while it waits", func(t *testing.T) {
		var all errgroup.Group
		all.Go(func() error { return s.after(t.Context(), client, 300*time.Millisecond) })
		all.Go(func() error { return s.after(t.Context(), client, 20*time.Millisecond) })
		if err := all.Wait(); err != nil {
			t.Error(err)
		}
	})
	// A request that waits for a timer is the clock: a loop of polls would turn thousands of times meanwhile, on any machine.
	t.Run("it rests where nothing happens", func(t *testing.T) {
		s.mustGet(t, client, "/hello")
		before := s.host.polls.Load()
		if err := s.after(t.Context(), client, 500*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if polls := s.host.polls.Load() - before; polls > 100 {
			t.Errorf("it asked %d times whether something had happened", polls)
		}
	})
	t.Run("it ends when it is told to", func(t *testing.T) {
		s.stop()
		var exit *sys.ExitError
		if err := <-s.done; !errors.As(err, &exit) || exit.ExitCode() != sys.ExitCodeContextCanceled {
			t.Errorf("it ended with %v", err)
		}
	})
}

// TestAServerOfCServes, which calls poll, accept, recv, send and ioctl of wasi-libc.
func TestAServerOfCServes(t *testing.T) {
	cache, err := toolchain.Cache()
	if err != nil {
		t.Fatal(err)
	}
	zig, err := exec.LookPath("zig")
	if err != nil {
		zig, err = exec.LookPath(filepath.Join(cache, "zig-"+toolchain.ZigVersion, "node_modules", ".bin", "zig"))
	}
	if err != nil {
		t.Skip("no zig to compile C with: wasmplane plugin build gets one for a plugin in Zig or C")
	}
	s := startServer(t, compile(t, []string{"ZIG_GLOBAL_CACHE_DIR=" + filepath.Join(cache, "zig-cache"), "ZIG_LOCAL_CACHE_DIR=" + t.TempDir()},
		zig, "cc", "-target", "wasm32-wasi", "-Os", "testdata/echo.c"))
	var clients []net.Conn
	for range 20 {
		clients = append(clients, s.dial(t))
	}
	for round := range 3 {
		for i := range clients { // all that were sent are answered, whoever is asked first
			say(t, clients[i], fmt.Sprintf("%d of client %2d", round, i))
		}
		for i := len(clients) - 1; i >= 0; i-- {
			want := fmt.Sprintf("%d of client %2d", round, i)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(clients[i], got); err != nil || string(got) != want {
				t.Fatalf("it answered %q, %v; want %q", got, err, want)
			}
		}
	}
	_ = clients[0].Close()
	say(t, clients[1], "end")
	var exit *sys.ExitError
	if err := <-s.done; err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 0) {
		t.Errorf("it ended with %v", err)
	}
}

// after has the server wait for a time of its own.
func (s *server) after(ctx context.Context, client *http.Client, d time.Duration) error {
	text, err := s.get(ctx, client, "/after/"+d.String())
	if err != nil {
		return err
	}
	if took, err := time.ParseDuration(strings.TrimSpace(text)); err != nil || took < d {
		return fmt.Errorf("it waited for %s (%w), want %s at least", text, err, d)
	}
	return nil
}

func (s *server) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
}
