// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typednodev1 "k8s.io/client-go/kubernetes/typed/node/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/client"
)

// nodeClient is a node's client of the API groups that a kubelet uses. A client of all groups takes ten times as much, and
// there may be thousands of nodes.
type nodeClient struct {
	core         typedcorev1.CoreV1Interface
	coordination typedcoordinationv1.CoordinationV1Interface
	node         typednodev1.NodeV1Interface
}

func newNodeClient(cfg *rest.Config) (*nodeClient, error) {
	cfg = client.Newest(cfg)
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	core, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a node's client: %w", err)
	}
	coordination, err := typedcoordinationv1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a node's client: %w", err)
	}
	node, err := typednodev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a node's client: %w", err)
	}
	return &nodeClient{core, coordination, node}, nil
}

// CoreV1 implements kubelet.Client.
func (c *nodeClient) CoreV1() typedcorev1.CoreV1Interface { return c.core }

// CoordinationV1 implements kubelet.Client.
func (c *nodeClient) CoordinationV1() typedcoordinationv1.CoordinationV1Interface {
	return c.coordination
}

// NodeV1 implements kubelet.Client.
func (c *nodeClient) NodeV1() typednodev1.NodeV1Interface { return c.node }

// recorded has the events of many nodes recorded, each with its own node's identity.
type recorded struct {
	from record.EventBroadcaster

	mu sync.Mutex
	by map[string]typedcorev1.EventsGetter // by node
}

func newRecorded(ctx context.Context) *recorded {
	return &recorded{from: record.NewBroadcaster(record.WithContext(ctx)), by: map[string]typedcorev1.EventsGetter{}}
}

func (r *recorded) add(node string, client *nodeClient) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by[node] = client.core
}

// of records as the kubelet of a node.
func (r *recorded) of(node string) record.EventRecorder {
	return r.from.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: node})
}

// Run writes events until ctx ends.
func (r *recorded) Run(ctx context.Context) error {
	defer r.from.StartRecordingToSink(r).Stop()
	<-ctx.Done()
	r.from.Shutdown()
	return nil
}

// sink of an event is its node's.
func (r *recorded) sink(e *corev1.Event) (record.EventSink, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	by := r.by[e.Source.Host]
	if by == nil {
		return nil, fmt.Errorf("an event of node %q, which is none of this process", e.Source.Host)
	}
	return &typedcorev1.EventSinkImpl{Interface: by.Events("")}, nil
}

// Create implements record.EventSink.
func (r *recorded) Create(e *corev1.Event) (*corev1.Event, error) {
	sink, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return sink.Create(e)
}

// Update implements record.EventSink.
func (r *recorded) Update(e *corev1.Event) (*corev1.Event, error) {
	sink, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return sink.Update(e)
}

// Patch implements record.EventSink.
func (r *recorded) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	sink, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return sink.Patch(e, patch)
}
