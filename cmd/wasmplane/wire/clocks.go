// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/run"
)

// compareClocks reports where this server's clock and those of the others differ.
func (s *server) compareClocks(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	return peers.Watch{Compare: s.clocks, Log: s.Options.Logger, Report: func(ctx context.Context, text string) {
		name := s.Options.Config.Node.Name
		// As kubelets name their Node, by which `kubectl describe node` finds it.
		node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
		s.warnAbout(ctx, metav1.NamespaceDefault, node, peers.WrongClock, text)
	}}.Run(ctx)
}

func (s *server) clocks(ctx context.Context) (string, error) {
	addresses, err := s.others(ctx)
	if err != nil || len(addresses) == 0 {
		return "", err
	}
	cfg, err := s.Options.Dir.Own("clocks")
	if err != nil {
		return "", err
	}
	return peers.Apart(peers.Ask(ctx, cfg, addresses...)), nil
}
