// SPDX-License-Identifier: Apache-2.0

// Package recorder records the events of one kubelet. It takes queues of 64 KB and four goroutines: kubelets that share a
// process share another.
package recorder

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/run"
)

// New records as the kubelet of a node, by its client, until ctx ends. The tasks have what waits for that.
func New(ctx context.Context, client typedcorev1.EventsGetter, node string, tasks *run.Tasks) record.EventRecorder {
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	tasks.Go("kubelet: recorder of events", func() {
		<-ctx.Done()
		events.Shutdown()
	})
	return events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: node})
}
