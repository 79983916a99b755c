// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/diskimage"
	"github.com/wasmplane/wasmplane/core/run"
)

// TestWhoGivesUpLeavesItAtWork: asked again, it is the same that is waited for; ended, it
// is over; and one that failed is begun anew.
func TestWhoGivesUpLeavesItAtWork(t *testing.T) {
	j := &jobs{queue: make(chan *job)}
	ctx, cancel := context.WithCancel(t.Context())
	over := run.Go("jobs", func() error { return j.run(ctx) })
	finish := make(chan struct{})
	slow := func(began chan<- struct{}) func(context.Context) error {
		return func(ctx context.Context) error {
			close(began)
			select {
			case <-finish:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	running := func(key string) *job {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.running[key]
	}
	impatient, give := context.WithCancel(t.Context())
	began := make(chan struct{})
	answer := run.Go("a", func() error { return j.make(impatient, "a", true, slow(began)) })
	<-began
	first := running("a")
	give()
	if err := <-answer; status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("who gave up was told %v", err)
	}
	if err := j.make(impatient, "a", true, nil); status.Code(err) != codes.DeadlineExceeded || running("a") != first {
		t.Errorf("asked for again: %v", err)
	}
	began = make(chan struct{})
	answer = run.Go("b", func() error { return j.make(t.Context(), "b", true, slow(began)) })
	<-began
	if err := j.end(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	if err := <-answer; err == nil {
		t.Error("what was ended was made")
	}
	close(finish)
	<-first.done
	if first.err != nil || running("a") != nil {
		t.Errorf("what was at work: %v", first.err)
	}
	again := make(chan struct{})
	if err := j.make(t.Context(), "a", true, slow(again)); err != nil {
		t.Error(err)
	}
	<-again
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// TestCopiesKeepNoNewVolumeUp: however many are made, and however long they take.
func TestCopiesKeepNoNewVolumeUp(t *testing.T) {
	j := &jobs{queue: make(chan *job)}
	ctx, cancel := context.WithCancel(t.Context())
	over := run.Go("jobs", func() error { return j.run(ctx) })
	began := make(chan struct{}, atOnce+1)
	endless := func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	var copies []<-chan error
	for i := range atOnce + 1 {
		copies = append(copies, run.Go("copy", func() error { return j.make(ctx, fmt.Sprint("copy", i), true, endless) }))
	}
	for range atOnce {
		<-began
	}
	if err := j.make(t.Context(), "new", false, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if len(began) > 0 {
		t.Errorf("more than %d copies are made at a time", atOnce)
	}
	cancel()
	for _, c := range append(copies, over) {
		<-c
	}
}

// TestReleaseLetsDevicesGo: those of a driver that does not run any more.
func TestReleaseLetsDevicesGo(t *testing.T) {
	root := t.TempDir()
	if err := Release(filepath.Join(root, "none")); err != nil {
		t.Errorf("of no driver: %v", err)
	}
	d := disk{root}
	if err := d.open(); err != nil {
		t.Fatal(err)
	}
	r := &record{Name: "raw", Block: true, Bytes: 1 << 20}
	if err := d.create(volumes, "raw", r, func(data string) error { return fillFile(t.Context(), nil, r.Bytes, data) }); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, volumes, "raw", dataName)
	first, err := diskimage.Attach(file)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := diskimage.Attach(file); err != nil || again != first {
		t.Errorf("attached again, it is %q and was %q (%v)", again, first, err)
	}
	if err := Release(root); err != nil {
		t.Fatal(err)
	}
	if left, err := diskimage.Attached(file); err != nil || left != "" {
		t.Errorf("attached still: %q (%v)", left, err)
	}
}
