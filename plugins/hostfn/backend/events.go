// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Events writes events in the names of plugins, in the background.
type Events struct {
	kube        kubernetes.Interface
	broadcaster record.EventBroadcaster

	mu        sync.Mutex
	recorders map[string]record.EventRecorder
}

// NewEvents makes Events that are written with the rights of kube's identity.
func NewEvents(kube kubernetes.Interface) *Events {
	return &Events{kube: kube, broadcaster: record.NewBroadcaster(), recorders: map[string]record.EventRecorder{}}
}

// Run writes until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	w := e.broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: e.kube.CoreV1().Events("")})
	<-ctx.Done()
	w.Stop()
	e.broadcaster.Shutdown()
	return nil
}

// Record implements hostfn.Events.
func (e *Events) Record(plugin string, about corev1.ObjectReference, kind, reason, message string) {
	e.RecordAs("plugin/"+plugin, about, kind, reason, message)
}

// RecordAs records in the name of another source than a plugin.
func (e *Events) RecordAs(source string, about corev1.ObjectReference, kind, reason, message string) {
	e.mu.Lock()
	r := e.recorders[source]
	if r == nil {
		r = e.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: source})
		e.recorders[source] = r
	}
	e.mu.Unlock()
	r.Event(&about, kind, reason, message)
}
