// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// clocksEvery is how often the clocks of the servers are compared; clocksAgain how often one that stays wrong is
	// reported: events are kept for an hour by default.
	clocksEvery = time.Minute
	clocksAgain = time.Hour
)

// compareClocks reports where this server's clock and those of the others differ.
func (s *server) compareClocks(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	var reported time.Time
	for {
		text, err := s.clocks(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			s.Options.Logger.DebugContext(ctx, "the clocks of the other servers could not be asked", "error", err)
		case err == nil && text == "" && !reported.IsZero():
			s.Options.Logger.InfoContext(ctx, "the clocks of the servers agree again")
			reported = time.Time{}
		case text != "" && time.Since(reported) >= clocksAgain:
			s.Options.Logger.ErrorContext(ctx, "the clocks of the servers differ", "detail", text)
			name := s.Options.Config.Node.Name
			// As kubelets name their Node, by which `kubectl describe node` finds it.
			node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
			s.warnAbout(ctx, metav1.NamespaceDefault, node, "ClockWrong", text)
			reported = time.Now()
		}
		if !run.Sleep(ctx, clocksEvery) {
			return nil
		}
	}
}

func (s *server) clocks(ctx context.Context) (string, error) {
	addresses, err := peers.Addresses(ctx, s.internal.Kube)
	if err != nil {
		return "", err
	}
	addresses = slices.DeleteFunc(addresses, func(a string) bool { return a == s.apiAddress() })
	if len(addresses) == 0 {
		return "", nil
	}
	cfg, err := client.FromKubeconfig(s.Options.Dir.Kubeconfig(), "clocks")
	if err != nil {
		return "", err
	}
	return peers.Apart(peers.Ask(ctx, cfg, addresses...)), nil
}
