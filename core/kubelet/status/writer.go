// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
)

// Writer writes statuses of pods. Of several for one pod that wait, only the
// last is written; different pods' are written in parallel, up to a bound.
type Writer struct {
	client   Client
	log      *slog.Logger
	parallel int

	mu      sync.Mutex
	pods    map[types.UID]*entry
	ready   []*entry
	writing int
	turn    *rounds.Turn // nil: nobody writes yet
}

// Client of the API, as far as pods need it.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
}

type entry struct {
	pod *corev1.Pod // as last seen
	// got is the API's answer to the last patch; it may be newer than pod.
	got  *corev1.Pod
	want *corev1.PodStatus
	// have is the last that the API confirmed; nil before the first.
	have *corev1.PodStatus
	// busy while it waits to be written, or is.
	busy bool
	// remove is called for once the last status is written.
	remove chan error
	gone   bool
	delay  time.Duration
}

// NewWriter writes through client, at most parallel at a time (8 if zero).
func NewWriter(client Client, log *slog.Logger, parallel int) *Writer {
	if parallel <= 0 {
		parallel = 8
	}
	return &Writer{client: client, log: log, parallel: parallel, pods: map[types.UID]*entry{}}
}

// Run writes until ctx ends. What is not written then is made again from the
// node's state by the next to run there.
func (w *Writer) Run(ctx context.Context) error {
	r := rounds.New(1)
	w.Join(ctx, r)
	return r.Run(ctx)
}

// Join is Run by rounds: statuses are written until ctx ends.
func (w *Writer) Join(ctx context.Context, r *rounds.Rounds) {
	turn := r.Add("kubelet: status writer", 0, func(context.Context) time.Duration {
		for first := w.next(); first != nil; first = w.next() {
			e := first
			r.Go("kubelet: status writer", func() {
				for ; e != nil && ctx.Err() == nil; e = w.another() {
					w.write(ctx, e)
				}
			})
		}
		return rounds.Never
	})
	w.mu.Lock()
	w.turn = turn
	w.mu.Unlock()
	context.AfterFunc(ctx, turn.Stop)
}

// next is what may be written now, beside what is being written; nil: nothing.
func (w *Writer) next() *entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ready) == 0 || w.writing >= w.parallel {
		return nil
	}
	w.writing++
	return w.first()
}

// another is what is written after a write that has ended; nil: nothing is.
func (w *Writer) another() *entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ready) == 0 {
		w.writing--
		return nil
	}
	return w.first()
}

// first of those that are ready. Lock held.
func (w *Writer) first() *entry {
	e := w.ready[0]
	w.ready = w.ready[1:]
	return e
}

// Set asks for a pod's status to be written, if it differs from what the API has.
// It never waits: a pod's life goes on while the API is away.
func (w *Writer) Set(p *corev1.Pod, st *corev1.PodStatus) {
	w.mu.Lock()
	e := w.entry(p)
	if e.want != nil && apiequality.Semantic.DeepEqual(e.want, st) {
		w.mu.Unlock()
		return
	}
	e.want = st
	waits := p.DeletionTimestamp != nil && st.Phase != corev1.PodSucceeded && st.Phase != corev1.PodFailed
	w.mu.Unlock()
	if waits {
		time.AfterFunc(linger, func() { w.queue(p.UID) })
		return
	}
	w.queue(p.UID)
}

// linger is how long it waits to be written that containers of a pod which is being deleted have ended. As a rule the pod
// has a moment later, which is written instead: a write less of the five that a deletion takes.
const linger = 20 * time.Millisecond

func (w *Writer) entry(p *corev1.Pod) *entry {
	e := w.pods[p.UID]
	if e == nil {
		e = &entry{}
		w.pods[p.UID] = e
	}
	e.pod = p
	return e
}

// Seen takes what the API has now, so that a status that somebody else changed is put
// right. That somebody is, for one, the node lifecycle controller, which writes
// Ready=False into the pods of a node that was silent: nothing but the kubelet undoes it.
func (w *Writer) Seen(p *corev1.Pod) {
	w.mu.Lock()
	e := w.pods[p.UID]
	stale := false
	if e != nil {
		e.pod = p
		// While a write is under way this makes it go on with another (see write).
		if stale = e.want != nil && e.have == e.want && !covers(&p.Status, e.want); stale {
			e.have = nil
		}
	}
	w.mu.Unlock()
	if stale {
		w.queue(p.UID)
	}
}

// covers tells whether the API's status says all that the kubelet owns in ours.
// The encoded forms are compared, because encoding rounds times to seconds.
func covers(api, ours *corev1.PodStatus) bool {
	a, errA := json.Marshal(kubeletsPart(api))
	o, errO := json.Marshal(kubeletsPart(ours))
	return errA == nil && errO == nil && bytes.Equal(a, o)
}

// kubeletsPart is what the kubelet alone writes of a status. Conditions are ordered by
// their type and have no times: what they say counts, not since when.
func kubeletsPart(st *corev1.PodStatus) *corev1.PodStatus {
	part := *st
	part.NominatedNodeName, part.Resize = "", ""
	part.ResourceClaimStatuses, part.ExtendedResourceClaimStatus = nil, nil
	part.NodeAllocatableResourceClaimStatuses, part.VolumeHealth = nil, nil
	part.Conditions = nil
	for _, c := range st.Conditions {
		if owned(c.Type) {
			c.LastTransitionTime, c.LastProbeTime = metav1.Time{}, metav1.Time{}
			part.Conditions = append(part.Conditions, c)
		}
	}
	slices.SortFunc(part.Conditions, func(a, b corev1.PodCondition) int { return cmp.Compare(a.Type, b.Type) })
	return &part
}

// Last status that was asked for; nil if none.
func (w *Writer) Last(uid types.UID) *corev1.PodStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.pods[uid]; e != nil {
		return e.want
	}
	return nil
}

// Delete removes the pod from the API, after its last status was written.
func (w *Writer) Delete(ctx context.Context, p *corev1.Pod) error {
	done := make(chan error, 1)
	w.mu.Lock()
	e := w.entry(p)
	e.remove = done
	w.mu.Unlock()
	w.queue(p.UID)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-done:
		return err
	}
}

// Forget drops what is known of a pod that is gone.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

func (w *Writer) queue(uid types.UID) {
	w.mu.Lock()
	if e := w.pods[uid]; e != nil && !e.busy {
		e.busy = true
		w.ready = append(w.ready, e)
	}
	w.mu.Unlock()
	w.nudge()
}

func (w *Writer) nudge() {
	w.mu.Lock()
	turn := w.turn
	w.mu.Unlock()
	if turn != nil {
		turn.Soon()
	}
}

// write brings one pod up to date; what changed meanwhile goes along. One write at a time
// has an entry. A pod that was forgotten and is known again has another entry, and this one
// is nothing any more: its write ends, and whoever waits for the deletion is let go.
func (w *Writer) write(ctx context.Context, e *entry) {
	for {
		w.mu.Lock()
		if w.pods[e.pod.UID] != e {
			done := e.remove
			e.remove = nil
			w.mu.Unlock()
			if done != nil {
				done <- nil
			}
			return
		}
		p, want, have, remove := e.base(), e.want, e.have, e.remove
		if (want == nil || have == want || e.gone) && remove == nil {
			e.busy = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		var err error
		if want != nil && have != want && !e.gone {
			err = w.patch(ctx, e, p, want)
		} else {
			err = w.remove(ctx, e, p)
		}
		if err != nil {
			w.later(ctx, e, p, err)
			return
		}
	}
}

// later has a pod written again after a while, in which others take its place.
func (w *Writer) later(ctx context.Context, e *entry, p *corev1.Pod, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	e.delay = min(max(2*e.delay, 100*time.Millisecond), 10*time.Second)
	delay := e.delay
	w.mu.Unlock()
	w.log.WarnContext(ctx, "the status of a pod cannot be written; trying again", "kind", "Pod", "namespace", p.Namespace, "name", p.Name,
		"retryIn", delay, "error", err)
	time.AfterFunc(delay, func() {
		w.mu.Lock()
		w.ready = append(w.ready, e)
		w.mu.Unlock()
		w.nudge()
	})
}

func (w *Writer) patch(ctx context.Context, e *entry, p *corev1.Pod, want *corev1.PodStatus) error {
	body, err := Patch(p, want)
	if err != nil {
		return err
	}
	var got *corev1.Pod
	if body != nil {
		got, err = w.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && replaced(err):
		w.mu.Lock()
		e.gone = true
		w.mu.Unlock()
		return nil
	case err != nil:
		return fmt.Errorf("patch status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e.have, e.delay = want, 0
	if got != nil {
		e.got = got
	}
	// What was seen while the patch was under way may be newer than its answer.
	if newest := e.base(); newest != got && newest != p && !covers(&newest.Status, want) {
		e.have = nil
	}
	return nil
}

// base is the newest state of the pod that is known: a difference to an older
// one would leave fields standing that we wrote since.
func (e *entry) base() *corev1.Pod {
	if e.got == nil || e.got.UID != e.pod.UID {
		return e.pod
	}
	if n, err := resourceversion.CompareResourceVersion(e.got.ResourceVersion, e.pod.ResourceVersion); err == nil && n <= 0 {
		e.got = nil
		return e.pod
	}
	return e.got
}

// replaced tells that a pod of that name has another UID now.
func replaced(err error) bool {
	var st apierrors.APIStatus
	return errors.As(err, &st) && st.Status().Details != nil
}

// Patch is the strategic merge patch that turns the pod's status into want; nil if there is no difference.
func Patch(p *corev1.Pod, want *corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(&corev1.Pod{Status: p.Status})
	if err != nil {
		return nil, fmt.Errorf("encode the status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	after, err := json.Marshal(&corev1.Pod{Status: *want})
	if err != nil {
		return nil, fmt.Errorf("encode the status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	diff, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare statuses of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	var body map[string]any
	if err := json.Unmarshal(diff, &body); err != nil {
		return nil, fmt.Errorf("decode a patch of our own: %w", err)
	}
	if len(body) == 0 {
		return nil, nil
	}
	// The UID guards a namesake that was created meanwhile.
	body["metadata"] = map[string]any{"uid": string(p.UID)}
	return json.Marshal(body)
}

func (w *Writer) remove(ctx context.Context, e *entry, p *corev1.Pod) error {
	var zero int64
	err := w.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &p.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	w.mu.Lock()
	done := e.remove
	e.remove = nil
	w.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("delete pod %s/%s, which has ended: %w", p.Namespace, p.Name, err)
	}
	done <- err
	return nil
}
