// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// recordEvents records those events that the last plan for this key didn't have: a plan is
// made again whenever something changes, and says the same again.
func (l *loop) recordEvents(s controllers.Snapshot, news []controllers.Event, m *recall) {
	former := m.events
	m.events = slices.Clone(news)
	if s.Primary == nil {
		return
	}
	for _, e := range news {
		if slices.Contains(former, e) {
			continue
		}
		kind := e.Type
		if kind != corev1.EventTypeWarning {
			kind = corev1.EventTypeNormal
		}
		l.events.record(s.Primary, kind, e.Reason, e.Message)
	}
}

// recorderIdle is after how long without an event a recorder is given up: what it knows of
// former events, to count them together, is about the last ten minutes.
const recorderIdle = 10 * time.Minute

// events is a reconciler's recorder, made when an event is: it costs two
// goroutines and a queue, and most reconcilers never say anything.
type events struct {
	client    dynamic.Interface
	component string

	mu          sync.Mutex
	broadcaster record.EventBroadcaster
	made        record.EventRecorder
	used        time.Time
	idle        *time.Timer
}

// record records one event.
func (e *events) record(about runtime.Object, kind, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.made == nil {
		e.broadcaster = record.NewBroadcaster()
		e.broadcaster.StartRecordingToSink(sink{e.client})
		e.made = e.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: e.component})
		e.idle = time.AfterFunc(recorderIdle, e.rest)
	}
	e.used = time.Now()
	e.idle.Reset(recorderIdle)
	e.made.Event(about, kind, reason, message)
}

// rest gives the recorder up, unless an event came in between.
func (e *events) rest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.used) >= recorderIdle {
		e.giveUp()
	}
}

func (e *events) shutdown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveUp()
}

func (e *events) giveUp() {
	if e.broadcaster != nil {
		e.idle.Stop()
		e.broadcaster.Shutdown()
		e.broadcaster, e.made, e.idle = nil, nil, nil
	}
}

// sink writes events with the reconciler's own client.
type sink struct{ client dynamic.Interface }

func (s sink) events(namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where events on cluster-scoped objects go
	}
	return s.client.Resource(corev1.SchemeGroupVersion.WithResource("events")).Namespace(namespace)
}

// CreateWithEventNamespaceWithContext implements record's sink.
func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.write(event, func(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return s.events(event.Namespace).Create(ctx, u, metav1.CreateOptions{})
	})
}

// Update implements record.EventSink.
func (s sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.write(event, func(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return s.events(event.Namespace).Update(ctx, u, metav1.UpdateOptions{})
	})
}

// Patch implements record.EventSink.
func (s sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.write(event, func(ctx context.Context, _ *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return s.events(event.Namespace).Patch(ctx, event.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	})
}

func (s sink) write(event *corev1.Event,
	send func(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error),
) (*corev1.Event, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(event)
	if err != nil {
		return nil, fmt.Errorf("encoding an event: %w", err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetAPIVersion("v1")
	u.SetKind("Event")
	// record's interface has no context; the client's own timeouts bound the call.
	result, err := send(context.TODO(), u)
	if err != nil {
		return nil, err
	}
	var written corev1.Event
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(result.Object, &written); err != nil {
		return nil, fmt.Errorf("decoding an event: %w", err)
	}
	return &written, nil
}
