// SPDX-License-Identifier: Apache-2.0

package logind_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/logind"
	"github.com/wasmplane/wasmplane/core/kubelet/shutdown"
)

var _ shutdown.Power = (*logind.Manager)(nil)

// bus is a D-Bus daemon of the test's own; "" on machines that have none, where the node has no logind either.
func bus(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		return ""
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, `<busconfig><type>session</type><listen>unix:path=%s/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>`, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), program, "--config-file="+conf, "--nofork", "--print-address")
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}

// login is a login manager and the part of systemd that has it read its files.
type login struct {
	conn *dbus.Conn
	drop string

	mu    sync.Mutex
	delay uint64
	going bool
	held  *os.File // readable to its end when it is let go
	asked []string
}

func (l *login) Get(_, name string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name == "PreparingForShutdown" {
		return dbus.MakeVariant(l.going), nil
	}
	return dbus.MakeVariant(l.delay), nil
}

func (l *login) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	fd, err := unix.Dup(int(write.Fd())) // the bus sends it after this has returned
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	_ = write.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = read
	l.asked = append(l.asked, what+" "+who+" "+mode)
	time.AfterFunc(500*time.Millisecond, func() { _ = unix.Close(fd) }) // the other side has its own by then
	return dbus.UnixFD(fd), nil
}

func (l *login) KillUnit(unit, _ string, sig int32) *dbus.Error {
	text, err := os.ReadFile(l.drop)
	if err != nil {
		return dbus.MakeFailedError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, fmt.Sprintf("%s %d", unit, sig))
	var seconds uint64
	_, value, _ := strings.Cut(string(text), "InhibitDelayMaxSec=")
	if _, err := fmt.Sscan(value, &seconds); err != nil {
		return dbus.MakeFailedError(err)
	}
	l.delay = seconds * 1e6
	return nil
}

func (l *login) say(t *testing.T, going bool) {
	t.Helper()
	l.mu.Lock()
	l.going = going
	l.mu.Unlock()
	if err := l.conn.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForShutdown", going); err != nil {
		t.Fatal(err)
	}
}

func newLogin(t *testing.T, address, drop string) *login {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l := &login{conn: conn, drop: drop, delay: 5e6}
	for _, e := range []struct {
		path  dbus.ObjectPath
		iface string
	}{
		{"/org/freedesktop/login1", "org.freedesktop.login1.Manager"},
		{"/org/freedesktop/login1", "org.freedesktop.DBus.Properties"},
		{"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"},
	} {
		if err := conn.Export(l, e.path, e.iface); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"org.freedesktop.login1", "org.freedesktop.systemd1"} {
		if _, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// The node's side of logind's protocol, over a real bus: how long it waits, what holds it up and what lets it go, and what is
// heard of shutdowns.
func TestLogindOverARealBus(t *testing.T) {
	address := bus(t)
	if address == "" {
		return
	}
	drop := filepath.Join(t.TempDir(), "logind.conf.d", "99.conf")
	l := newLogin(t, address, drop)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m, err := logind.Connect(ctx, logind.Config{Address: address, Drop: drop, Who: "wasmplane"})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := m.Delay(ctx); err != nil || d != 5*time.Second {
		t.Errorf("it waits %v, %v", d, err)
	}
	if err := m.Lengthen(ctx, 90*time.Second); err != nil {
		t.Error(err)
	}
	if d, err := m.Delay(ctx); err != nil || d != 90*time.Second {
		t.Errorf("it waits %v now, %v", d, err)
	}
	signs, err := m.Shutdowns(ctx)
	if err != nil {
		t.Fatal(err)
	}
	let, err := m.Hold(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if going := <-signs; going {
		t.Error("a shutdown has begun")
	}
	for _, going := range []bool{true, false} {
		l.say(t, going)
		if got := <-signs; got != going {
			t.Errorf("heard %v, want %v", got, going)
		}
	}
	l.mu.Lock()
	held, asked := l.held, l.asked
	l.mu.Unlock()
	if want := []string{"systemd-logind.service 1", "shutdown wasmplane delay"}; fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	ended := make(chan struct{})
	go func() { _, _ = held.Read(make([]byte, 1)); close(ended) }()
	select {
	case <-ended:
		t.Error("it is let go though nobody has")
	case <-time.After(time.Second):
	}
	if err := let(); err != nil {
		t.Error(err)
	}
	<-ended
	if err := l.conn.Close(); err != nil { // logind alone; the bus goes on
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := <-signs; ok {
		t.Error("heard something of a bus that is gone")
	}
}

func TestAMachineWithoutABusSaysSo(t *testing.T) {
	_, err := logind.Connect(t.Context(), logind.Config{Address: "unix:path=" + filepath.Join(t.TempDir(), "none")})
	if err == nil || !strings.HasPrefix(err.Error(), "connect to D-Bus: ") {
		t.Errorf("%v", err)
	}
}
