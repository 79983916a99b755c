// SPDX-License-Identifier: Apache-2.0

// Package probe asks containers how they are. Manager knows when each probe is
// due (one heap and one timer for all of a node), counts successes and failures
// against the thresholds, and reports only changes of verdict; Handler runs one
// probe or hook.
package probe

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
)

// Check is one probe of one container.
type Check struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	ID        string // of the container
	PodIP     string
	Kind      pod.Probe
	Probe     *corev1.Probe
}

// Result of a probe. Warning marks a success whose output is an event, too.
type Result struct {
	OK      bool
	Warning bool
	Output  string
}

// Hook is one lifecycle hook of one container.
type Hook struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	ID        string
	PodIP     string
	Handler   *corev1.LifecycleHandler
}

// Handler runs probes and hooks. Both are given their time by ctx.
type Handler interface {
	// Probe answers an error if the container could not be asked at all.
	Probe(ctx context.Context, c Check) (Result, error)
	// Hook answers an error, which may carry the hook's output, if it failed.
	Hook(ctx context.Context, h Hook) error
}

// Report is called with each new verdict.
type Report func(pod types.UID, v pod.Probed)

// RecordEvent is called with what readers of the pod should know.
type RecordEvent func(p *corev1.Pod, container *corev1.Container, kind, reason, message string)

// Manager runs the probes of all containers of a node.
type Manager struct {
	handler Handler
	report  Report
	event   RecordEvent
	log     *slog.Logger
	start   time.Time
	metrics *metrics

	mu   sync.Mutex
	jobs map[jobKey]*job
	due  schedule
	turn atomic.Pointer[rounds.Turn] // nil: nobody probes yet
}

type jobKey struct {
	container string
	kind      pod.Probe
}

type job struct {
	Check
	uid     types.UID
	next    time.Time
	index   int // in the heap; -1 while it runs
	gone    bool
	streak  int
	last    bool
	verdict *bool
}

// NewManager makes a Manager; Run runs it.
func NewManager(h Handler, report Report, event RecordEvent, log *slog.Logger) *Manager {
	return &Manager{
		handler: h, report: report, event: event, log: log, start: time.Now(), metrics: newMetrics(), jobs: map[jobKey]*job{},
	}
}

// Set says which containers of a pod are up, and so are to be probed: no others of that pod's are.
func (m *Manager) Set(p *corev1.Pod, ip string, targets []pod.Target) {
	m.mu.Lock()
	defer m.mu.Unlock()
	want := map[jobKey]bool{}
	for _, t := range targets {
		for kind, spec := range map[pod.Probe]*corev1.Probe{
			pod.Liveness: t.Spec.LivenessProbe, pod.Readiness: t.Spec.ReadinessProbe, pod.Startup: t.Spec.StartupProbe,
		} {
			// The startup probe holds the others back until it has succeeded once.
			if spec == nil || t.StartupDone == (kind == pod.Startup) {
				continue
			}
			key := jobKey{t.ID, kind}
			want[key] = true
			if j := m.jobs[key]; j != nil {
				j.Pod, j.Container, j.PodIP, j.Probe = p, t.Spec, ip, spec
				continue
			}
			m.add(key, &job{uid: p.UID, Check: Check{Pod: p, Container: t.Spec, ID: t.ID, PodIP: ip, Kind: kind, Probe: spec}}, t)
		}
	}
	for key, j := range m.jobs {
		if j.uid == p.UID && !want[key] {
			m.drop(key, j)
		}
	}
}

// add schedules a probe for the first time. Lock held.
func (m *Manager) add(key jobKey, j *job, t pod.Target) {
	now := time.Now()
	j.next = t.Started.Add(seconds(j.Probe.InitialDelaySeconds))
	if j.next.Before(now) {
		j.next = now
		if t.Started.Before(m.start) {
			// What ran before us is not all to be asked at once.
			j.next = now.Add(spread(key.container, seconds(max(j.Probe.PeriodSeconds, 1))))
		}
	}
	m.jobs[key] = j
	heap.Push(&m.due, j)
	m.nudge()
}

// spread is a part of d that depends on s alone.
func spread(s string, d time.Duration) time.Duration {
	var h uint32 = 2166136261
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return time.Duration(uint64(d) * uint64(h) >> 32)
}

func (m *Manager) drop(key jobKey, j *job) {
	j.gone = true
	delete(m.jobs, key)
	if j.index >= 0 {
		heap.Remove(&m.due, j.index)
	}
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func (m *Manager) nudge() {
	if turn := m.turn.Load(); turn != nil {
		turn.Soon()
	}
}

// Run probes until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	r := rounds.New(1)
	m.Join(ctx, r)
	return r.Run(ctx)
}

// Join is Run by rounds.
func (m *Manager) Join(ctx context.Context, r *rounds.Rounds) {
	turn := r.Add("kubelet: probes", 0, func(context.Context) time.Duration {
		ready, wait := m.take()
		for _, j := range ready {
			r.Go("kubelet: probe", func() { m.run(ctx, j) })
		}
		return wait
	})
	m.turn.Store(turn)
	turn.Soon() // for what was added while nobody could be woken
	context.AfterFunc(ctx, turn.Stop)
}

// take answers the probes that are due, and how long until the next.
func (m *Manager) take() (ready []*job, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for len(m.due) > 0 && !m.due[0].next.After(now) {
		j, _ := heap.Pop(&m.due).(*job)
		ready = append(ready, j)
	}
	if len(m.due) == 0 {
		return ready, rounds.Never
	}
	return ready, m.due[0].next.Sub(now)
}

func (m *Manager) run(ctx context.Context, j *job) {
	m.mu.Lock()
	c := j.Check
	m.mu.Unlock()
	limit, began := seconds(max(c.Probe.TimeoutSeconds, 1)), time.Now()
	pctx, cancel := context.WithTimeout(ctx, limit)
	res, err := m.handler.Probe(pctx, c)
	cancel()
	if ctx.Err() != nil {
		return
	}
	m.finish(j, c, res, err, time.Since(began))
}

// finish counts a result and schedules the next probe.
func (m *Manager) finish(j *job, c Check, res Result, err error, took time.Duration) {
	m.mu.Lock()
	if j.gone {
		m.mu.Unlock()
		return
	}
	ok := err == nil && res.OK
	if err == nil {
		m.metrics.observe(c, ok, took) // under the lock: what is forgotten stays so
	}
	if j.streak == 0 || j.last != ok {
		j.streak = 0
	}
	j.streak, j.last = j.streak+1, ok
	threshold := max(c.Probe.SuccessThreshold, 1)
	if !ok {
		threshold = max(c.Probe.FailureThreshold, 1)
	}
	var news *bool
	if j.streak >= int(threshold) && (j.verdict == nil || *j.verdict != ok) {
		j.verdict, news = &ok, &ok
	}
	if news != nil && (c.Kind == pod.Startup || c.Kind == pod.Liveness && !ok) {
		// Said once and for all: the container is now up, or will be killed.
		j.gone = true
	} else {
		// From when it was due, not from when it ended, so that the period holds.
		j.next = j.next.Add(seconds(max(c.Probe.PeriodSeconds, 1)))
		if now := time.Now(); j.next.Before(now) {
			j.next = now.Add(seconds(max(c.Probe.PeriodSeconds, 1)))
		}
		heap.Push(&m.due, j)
	}
	m.mu.Unlock()
	m.nudge()
	m.say(c, res, err)
	if news != nil {
		m.report(c.Pod.UID, pod.Probed{Container: c.ID, Probe: c.Kind, Success: ok, Message: res.Output})
	}
}

// say tells of failures, in upstream's words.
func (m *Manager) say(c Check, res Result, err error) {
	switch {
	case err != nil:
		m.event(c.Pod, c.Container, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe errored and resulted in failure state: %s",
			c.Kind, err))
	case !res.OK:
		m.event(c.Pod, c.Container, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %s", c.Kind, res.Output))
	case res.Warning:
		m.event(c.Pod, c.Container, corev1.EventTypeWarning, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", c.Kind, res.Output))
	}
}

// schedule is a heap by time.
type schedule []*job

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].next.Before(s[j].next) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push is for container/heap.
func (s *schedule) Push(x any) {
	if j, ok := x.(*job); ok {
		j.index = len(*s)
		*s = append(*s, j)
	}
}

// Pop is for container/heap.
func (s *schedule) Pop() any {
	old := *s
	j := old[len(old)-1]
	j.index = -1
	*s = old[:len(old)-1]
	return j
}
