// SPDX-License-Identifier: Apache-2.0

// Package arrivals records the pods that come to a cluster as a workload: manifests with the annotations that a
// simulation replays. A pod is written once it has ended, so that memory follows the
// pods that exist, in a short form, and not the length of the recording.
package arrivals

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/run"
)

// Annotations of the pods that are written.
const (
	ArrivesKey = "simulate.wasmplane.dev/arrives" // since the beginning
	LastsKey   = "simulate.wasmplane.dev/lasts"   // once it has its node
)

// MostPods of one recording: a simulation takes no more.
const MostPods = 1_000_000

// ErrFull means that a recording has as many pods as a simulation takes.
var ErrFull = fmt.Errorf("the recording has %d pods, and a simulation takes no more", MostPods)

// Recorder writes what comes. It is told of pods by an informer, whose transform is Shorten.
type Recorder struct {
	out   io.Writer
	names *Names // nil = names stay as they are
	now   func() time.Time
	began time.Time

	mu    sync.Mutex
	alive map[types.UID]*life
	sum   Summary
	err   error
	seen  int
	full  chan struct{} // closed when nothing more is recorded: enough has come, or it cannot be written
}

// life is a pod that is there.
type life struct {
	pod     *corev1.Pod
	arrives time.Duration
	bound   time.Time // zero = it has no node yet
	number  int
	ended   bool // it is written; its object is still there
}

// Summary counts what was recorded, and what was left out.
type Summary struct {
	Pods      int // written
	NeverRan  int // deleted before they had a node
	OfNodes   int // of DaemonSets, and static: they come with nodes
	Truncated bool
}

// New begins a recording. names may be nil.
func New(out io.Writer, names *Names, now func() time.Time) *Recorder {
	return &Recorder{out: out, names: names, now: now, began: now(), alive: map[types.UID]*life{}, full: make(chan struct{})}
}

// Handler is told of the pods.
func (r *Recorder) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { r.see(o) },
		UpdateFunc: func(_, o any) { r.see(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if p, ok := o.(*corev1.Pod); ok {
				r.gone(p)
			}
		},
	}
}

func (r *Recorder) see(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.alive[p.UID]
	if l == nil {
		if r.err != nil || finished(p) && p.CreationTimestamp.Time.Before(r.began) {
			return // it ran before the recording
		}
		if ofNode(p) {
			r.alive[p.UID] = &life{ended: true}
			r.sum.OfNodes++
			return
		}
		r.seen++
		l = &life{pod: p, arrives: max(0, p.CreationTimestamp.Time.Sub(r.began)), number: r.seen}
		r.alive[p.UID] = l
	}
	if l.ended {
		return
	}
	if l.bound.IsZero() && p.Spec.NodeName != "" {
		l.bound = placed(p, r.now())
	}
	if finished(p) {
		r.end(l, ended(p, r.now()))
	}
}

func (r *Recorder) gone(p *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.alive[p.UID]
	delete(r.alive, p.UID)
	switch {
	case l == nil || l.ended:
	case l.bound.IsZero():
		r.sum.NeverRan++
	default:
		r.end(l, r.now())
	}
}

// end writes a pod that has run.
func (r *Recorder) end(l *life, at time.Time) {
	began := l.bound
	if began.Before(r.began) {
		began = r.began // it ran already: what is replayed is the rest
	}
	r.write(l, max(at.Sub(began), time.Second))
}

// write the manifest of a pod; a lasting of 0 is one to the end.
func (r *Recorder) write(l *life, lasts time.Duration) {
	l.ended = true
	if r.err != nil {
		return
	}
	data, err := json.Marshal(r.manifest(l, lasts))
	if err == nil {
		_, err = fmt.Fprintf(r.out, "---\n%s\n", data)
	}
	l.pod = nil
	if r.sum.Pods++; err == nil && r.sum.Pods >= MostPods {
		r.sum.Truncated, err = true, ErrFull
	}
	if err != nil {
		r.err = err
		close(r.full)
	}
}

// Finish writes the pods that are there, which run to the end, and says what was recorded.
func (r *Recorder) Finish() (Summary, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range slices.SortedFunc(maps.Values(r.alive), func(a, b *life) int { return a.number - b.number }) {
		if !l.ended {
			r.write(l, 0)
		}
	}
	if errors.Is(r.err, ErrFull) {
		return r.sum, nil
	}
	return r.sum, r.err
}

// Run records what an informer of pods sees until ctx ends or nothing more is recorded. It calls began
// once it sees all pods.
func (r *Recorder) Run(ctx context.Context, inf cache.SharedIndexInformer, began func()) error {
	if err := inf.SetTransform(Shorten); err != nil {
		return err
	}
	told, err := inf.AddEventHandler(r.Handler())
	if err != nil {
		return err
	}
	return run.Together(ctx, func(ctx context.Context) error {
		inf.RunWithContext(ctx)
		return nil
	}, func(ctx context.Context) error {
		if cache.WaitForCacheSync(ctx.Done(), told.HasSynced) {
			began()
		}
		run.Await(ctx, r.full)
		return nil
	})
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ofNode says whether a pod comes with a node: it is a DaemonSet's, or static.
func ofNode(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}

// placed is when a pod got its node.
func placed(p *corev1.Pod, now time.Time) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return now
}

// ended is when the last container of a finished pod had ended.
func ended(p *corev1.Pod, now time.Time) (last time.Time) {
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	if last.IsZero() {
		return now
	}
	return last
}
