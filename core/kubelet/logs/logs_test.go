// SPDX-License-Identifier: Apache-2.0

package logs_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/wasmplane/wasmplane/core/kubelet/logs"
)

func line(i int, stream, tag, text string) string {
	return fmt.Sprintf("2026-01-02T03:04:%02d.5Z %s %s %s\n", i, stream, tag, text)
}

func write(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func num(n int64) *int64 { return &n }

func TestCopy(t *testing.T) {
	path := write(t, line(1, "stdout", "F", "one"), line(2, "stderr", "F", "two"), "garbage\n", line(3, "stdout", "P", "thr"),
		line(4, "stdout", "F", "ee"), line(5, "stdout", "F:x", ""))
	for _, c := range []struct {
		name string
		o    logs.Options
		want string
	}{
		{"all", logs.Options{Stdout: true, Stderr: true}, "one\ntwo\nthree\n\n"},
		{"one stream", logs.Options{Stderr: true}, "two\n"},
		{"the end", logs.Options{Stdout: true, Stderr: true, Tail: num(3)}, "three\n\n"},
		{"nothing of the end", logs.Options{Stdout: true, Stderr: true, Tail: num(0)}, ""},
		{"more than there is", logs.Options{Stdout: true, Tail: num(100)}, "one\nthree\n\n"},
		{"since", logs.Options{Stdout: true, Stderr: true, Since: time.Date(2026, 1, 2, 3, 4, 4, 0, time.UTC)}, "ee\n\n"},
		{"so many bytes", logs.Options{Stdout: true, Stderr: true, Limit: num(6)}, "one\ntw"},
		{"no byte", logs.Options{Stdout: true, Limit: num(0)}, ""},
		{"with times", logs.Options{Stdout: true, Timestamps: true, Tail: num(3)}, "2026-01-02T03:04:03.500000000Z three\n2026-01-02T03:04:05.500000000Z \n"},
	} {
		var b bytes.Buffer
		if err := logs.Copy(t.Context(), path, c.o, &b, &b); err != nil || b.String() != c.want {
			t.Errorf("%s: %q %v, want %q", c.name, b.String(), err, c.want)
		}
		text, _ := os.ReadFile(path)
		b.Reset()
		if c.o.Tail == nil {
			if err := logs.CopyFrom(t.Context(), bytes.NewReader(text), c.o, &b, &b); err != nil || b.String() != c.want {
				t.Errorf("%s, from a reader: %q %v, want %q", c.name, b.String(), err, c.want)
			}
		}
	}
}

func TestTailOfALongLog(t *testing.T) {
	var lines []string
	for i := range 5000 {
		lines = append(lines, line(i%60, "stdout", "F", fmt.Sprintf("line %d %s", i, strings.Repeat("x", i%100))))
	}
	path := write(t, lines...)
	for _, n := range []int64{1, 2, 100, 4999, 5000, 6000} {
		var b bytes.Buffer
		if err := logs.Copy(t.Context(), path, logs.Options{Stdout: true, Tail: num(n)}, &b, &b); err != nil {
			t.Fatal(err)
		}
		if got := int64(strings.Count(b.String(), "\n")); got != min(n, 5000) {
			t.Errorf("%d lines of %d", got, n)
		}
	}
}

// safe is a buffer that may be read while it is written.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func until(t *testing.T, s *safe, want string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return s.String() == want, nil
	})
	if err != nil {
		t.Fatalf("read %q, want %q", s.String(), want)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// A follower reads what is written, across a rotation, until the container ends.
func TestFollow(t *testing.T) {
	path := write(t, line(1, "stdout", "F", "one"))
	out, ended, done := &safe{}, make(chan struct{}), make(chan error, 1)
	go func() {
		done <- logs.Copy(t.Context(), path, logs.Options{Stdout: true, Follow: true, Done: ended}, out, out)
	}()
	until(t, out, "one\n")
	appendTo(t, path, line(2, "stdout", "F", "two")[:20])
	appendTo(t, path, line(2, "stdout", "F", "two")[20:])
	until(t, out, "one\ntwo\n")
	r := logs.Rotation{Size: 1, Files: 3}
	err := r.Rotate(t.Context(), path, time.Now(), func(context.Context) error {
		appendTo(t, path, "")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, line(3, "stdout", "F", "three"))
	until(t, out, "one\ntwo\nthree\n")
	appendTo(t, path, line(4, "stdout", "F", "four"))
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	until(t, out, "one\ntwo\nthree\nfour\n")
}

func TestFollowersCanBeSentAway(t *testing.T) {
	path := write(t, line(1, "stdout", "F", "one"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- logs.Copy(ctx, path, logs.Options{Stdout: true, Follow: true, Done: make(chan struct{})}, io.Discard, io.Discard)
	}()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRotation(t *testing.T) {
	path := write(t, strings.Repeat("x", 100))
	r := logs.Rotation{Size: 50, Files: 3}
	now := time.Now()
	reopen := func(context.Context) error { appendTo(t, path, strings.Repeat("y", 100)); return nil }
	for i := range 5 {
		if err := r.Rotate(t.Context(), path, now.Add(time.Duration(i)*time.Minute), reopen); err != nil {
			t.Fatal(err)
		}
	}
	all, _ := filepath.Glob(path + "*")
	if len(all) != 3 {
		t.Errorf("kept %v", all)
	}
	zipped := 0
	for _, f := range all {
		if strings.HasSuffix(f, ".gz") {
			zipped++
			in, _ := os.Open(f)
			z, err := gzip.NewReader(in)
			if err != nil {
				t.Fatal(err)
			}
			if data, err := io.ReadAll(z); err != nil || len(data) != 100 {
				t.Errorf("%d bytes, %v", len(data), err)
			}
			in.Close()
		}
	}
	if zipped != 1 {
		t.Errorf("%d of %v are compressed", zipped, all)
	}
	if err := r.Rotate(t.Context(), path, now.Add(time.Hour), func(context.Context) error { return io.ErrClosedPipe }); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("after a rotation that failed: %v", err)
	}
}

func TestTailAsLastWords(t *testing.T) {
	path := write(t, line(1, "stdout", "F", "early"), line(2, "stderr", "F", strings.Repeat("é", 100)+"end"))
	if got := logs.Tail(t.Context(), path, 1, 11); !strings.HasSuffix(got, "end\n") || len(got) > 11 {
		t.Errorf("%q", got)
	}
	if got := logs.Tail(t.Context(), path+"x", 1, 10); got != "" {
		t.Errorf("%q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(line(1, "stdout", "F", "one")))
	f.Add([]byte("2026-01-02T03:04:05Z stderr P:a:b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := logs.Parse(b)
		if err == nil && !bytes.HasSuffix(b, l.Text) {
			t.Errorf("%q is no end of %q", l.Text, b)
		}
		var out bytes.Buffer
		n := int64(3)
		_ = logs.CopyFrom(t.Context(), bytes.NewReader(b), logs.Options{Stdout: true, Stderr: true, Tail: &n, Limit: &n}, &out, &out)
		if out.Len() > 3 {
			t.Errorf("%d bytes of a limit of 3", out.Len())
		}
	})
}
