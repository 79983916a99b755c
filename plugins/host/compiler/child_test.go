// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run/confine"
	"github.com/wasmplane/wasmplane/plugins/rego"
)

func TestMain(m *testing.M) {
	misbehave = tryIt
	MaybeRun()
	goleak.VerifyTestMain(m)
}

// tryIt is what the child does instead of compiling.
func tryIt(how string) error {
	switch how {
	case "spin":
		for n := 0; ; n++ {
			runtime.KeepAlive(n)
		}
	case "sleep":
		<-time.After(time.Hour)
		return nil
	case "memory":
		var all [][]byte
		for {
			b := make([]byte, 16<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
			runtime.KeepAlive(all)
		}
	case "lie":
		return writeHeader(os.Stdout, reply{Name: "../../etc/passwd", Metered: 1, Code: 1})
	case "flood":
		return writeHeader(os.Stdout, reply{Metered: 1 << 40})
	case "rights":
		return writeHeader(os.Stdout, reply{Error: rights()})
	}
	return fmt.Errorf("unknown test %q", how)
}

// rights lists what a child is allowed that it should not be.
func rights() string {
	var had []string
	try := func(what string, err error) {
		if err == nil {
			had = append(had, what)
		}
	}
	_, err := net.Dial("tcp", "127.0.0.1:1") // it is refused at once
	if err != nil && !strings.Contains(err.Error(), "not permitted") {
		had = append(had, "sockets: "+err.Error())
	}
	_, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("a Unix socket", err)
	try("another program", exec.Command("/proc/self/exe").Start()) // it is refused at once
	_, err = os.ReadFile("/etc/passwd")
	try("the host's files", err)
	try("signals to its parent", unix.Kill(os.Getppid(), 0))
	try("to be root again", unix.Setresuid(0, 0, 0))
	try("mounts", unix.Mount("tmpfs", "/", "tmpfs", 0, ""))
	_, err = unix.PtraceGetEventMsg(os.Getppid())
	try("to trace its parent", err)
	if env := os.Environ(); len(env) > 0 {
		had = append(had, fmt.Sprintf("an environment: %v", env))
	}
	if uid := os.Getuid(); uid == 0 && os.Getenv("HOME") != "" {
		had = append(had, "to be root")
	}
	return "allowed: " + strings.Join(had, ", ")
}

// empty is a module with one function, f, which does nothing.
var empty = []byte("\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x07\x05\x01\x01f\x00\x00\x0a\x04\x01\x02\x00\x0b")

func newChild(t *testing.T, l Limits, test string) *Child {
	t.Helper()
	c, err := NewChild(l)
	if err != nil {
		t.Fatal(err)
	}
	c.test = test
	return c
}

func TestAChildCompilesRego(t *testing.T) {
	p := rego.Policy{Files: []rego.File{{Name: "a.rego", Text: "package a\nviolation contains m if {\n  m := input.x\n}\n"}}}
	c := newChild(t, Limits{}, "")
	got, err := c.Rego(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	want, err := rego.Compile(t.Context(), p)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("another module than in this process: %v", err)
	}
	p.Files[0].Text = "package a\nviolation contains foo(1)\n"
	if _, err := c.Rego(t.Context(), p); err == nil || err.Error() != "a.rego:2: undefined function foo" {
		t.Errorf("a wrong policy: %v", err)
	}
}

// TestRegoThatCostsTooMuchEndsInItsChild: the text is as long as it may be, and every number in
// it becomes a term.
func TestRegoThatCostsTooMuchEndsInItsChild(t *testing.T) {
	text := "package a\nviolation contains x if {\n  x := [" + strings.Repeat("1,", 450_000) + "1]\n}\n"
	c := newChild(t, Limits{Memory: 64 << 20, CPU: 5 * time.Second}, "")
	_, err := c.Rego(t.Context(), rego.Policy{Files: []rego.File{{Name: "a.rego", Text: text}}})
	var too *Exceeded
	if !errors.As(err, &too) {
		t.Errorf("not ended: %v", err)
	}
}

// TestAChildNamesTheLimit that a module is beyond.
func TestAChildNamesTheLimit(t *testing.T) {
	many := append(bytes.Clone(empty), bytes.Repeat([]byte{0, 2, 1, 'x'}, 1100)...)
	_, err := newChild(t, Limits{}, "").Compile(t.Context(), many, Spec{})
	var limit interface{ LimitName() string }
	if !errors.As(err, &limit) || limit.LimitName() != "custom sections" || !strings.Contains(err.Error(), "1024 are allowed") {
		t.Errorf("%v", err)
	}
}

func TestAChildCompiles(t *testing.T) {
	for _, plain := range []bool{false, true} {
		c := newChild(t, Limits{}, "")
		c.plain.Store(plain)
		a, used, err := c.Measure(t.Context(), empty, Spec{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := InProcess{}.Compile(t.Context(), empty, Spec{})
		if err != nil {
			t.Fatal(err)
		}
		if string(a.Metered) != string(want.Metered) || a.Name != want.Name || len(a.Code) != len(want.Code) {
			t.Errorf("a child's artifact %s of %d and %d bytes, in process %s of %d and %d", a.Name, len(a.Metered), len(a.Code), want.Name,
				len(want.Metered), len(want.Code))
		}
		t.Logf("plain %v: %s of processor time, %d MiB", plain, used.CPU, used.Memory>>20)
	}
}

func TestAChildHasNoRights(t *testing.T) {
	_, err := newChild(t, Limits{}, "rights").Compile(t.Context(), empty, Spec{})
	if err == nil || err.Error() != "allowed: " {
		t.Errorf("the child: %v", err)
	}
}

// TestAChildIsBounded: whatever it does, it ends, with an error that names the limit.
func TestAChildIsBounded(t *testing.T) {
	for _, c := range []struct {
		how    string
		limits Limits
		want   string
	}{
		{"memory", Limits{Memory: 192 << 20}, "it needs more than 192 MiB of memory"},
		{"spin", Limits{CPU: time.Second}, "it needs more than 1s of processor time"},
		{"sleep", Limits{Deadline: 300 * time.Millisecond}, "it took longer than 300ms"},
		{"lie", Limits{}, "an answer that makes no sense"},
		{"flood", Limits{}, "an answer that makes no sense"},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			a, err := newChild(t, c.limits, c.how).Compile(t.Context(), empty, Spec{})
			if a != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestAChildDiesWithItsContext, which is how the server stops.
func TestAChildDiesWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := newChild(t, Limits{}, "sleep").Compile(ctx, empty, Spec{})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestWhoseMainIsNotPreparedHasNoChildren(t *testing.T) {
	before := inChild
	inChild = &confine.Role{}
	defer func() { inChild = before }()
	if _, err := NewChild(Limits{}); !errors.Is(err, ErrUnprepared) {
		t.Error(err)
	}
}

// A large module has more of everything, where that is allowed, up to a bound.
func TestLargeModulesMayHaveMore(t *testing.T) {
	once := Limits{Memory: 512 << 20, CPU: 20 * time.Second, Deadline: time.Minute}
	for _, c := range []struct {
		bytes, most int
		times       int64
	}{
		{0, 3, 1},
		{Unit, 3, 1},
		{Unit + 1, 3, 2},
		{6 << 20, 3, 3},
		{32 << 20, 3, 3},
		{32 << 20, 0, 1}, // tenants'
		{32 << 20, 1, 1},
	} {
		l := once
		l.Most = c.most
		if got := l.of(c.bytes); got.Memory != c.times*once.Memory || got.CPU != time.Duration(c.times)*once.CPU ||
			got.Deadline != time.Duration(c.times)*once.Deadline {
			t.Errorf("%d bytes, at most %d times: %+v, expected %d times", c.bytes, c.most, got, c.times)
		}
	}
}
