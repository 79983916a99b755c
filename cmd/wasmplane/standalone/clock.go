// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/peers"
)

// workerClock reports where a worker's clock and those of the servers differ.
func workerClock(o process.Options, m join.Member, cfg *rest.Config, kube kubernetes.Interface) func(context.Context) error {
	return peers.Watch{
		Log:     o.Logger,
		Compare: func(ctx context.Context) (string, error) { return WorkerClock(ctx, o.Dir, m, cfg, kube) },
		Report: func(ctx context.Context, text string) {
			at := metav1.Now()
			_, err := kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: m.Node + "."},
				InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: m.Node, UID: types.UID(m.Node)},
				Type:           corev1.EventTypeWarning, Reason: peers.WrongClock, Message: text,
				Source:         corev1.EventSource{Component: "wasmplane", Host: m.Node},
				FirstTimestamp: at, LastTimestamp: at, Count: 1,
			}, metav1.CreateOptions{})
			if err != nil && ctx.Err() == nil {
				o.Logger.WarnContext(ctx, "the event about the clock was not written", "error", err)
			}
		},
	}.Run
}

// WorkerClock says what is wrong with the clock of a machine that has joined, by those of the
// servers; "" = nothing.
func WorkerClock(ctx context.Context, dir datadir.Dir, m join.Member, cfg *rest.Config, kube kubernetes.Interface) (string, error) {
	addresses, err := peers.Addresses(ctx, kube)
	if err == nil {
		if text := peers.Apart(peers.Ask(ctx, cfg, addresses...)); text != "" {
			return text, nil
		}
		return "", nil
	}
	// Certificates may not hold by a clock that is far off: the server is asked without.
	if wrong := join.Clock(ctx, dir.Member(), m, time.Now); wrong != nil {
		return wrong.Error(), nil //nolint:nilerr // it is the answer
	}
	return "", err
}
