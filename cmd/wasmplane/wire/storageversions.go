// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/core/controllers/storagemigration"
	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/run"
)

// migrateStorage has objects rewritten that an earlier version has stored in another one.
func (s *server) migrateStorage(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	u := &storagemigration.Upgrade{Kube: s.internal.Kube, Waits: s.serversOfOtherVersions, Started: s.started, Log: s.Options.Logger}
	return u.Run(ctx)
}

// serversOfOtherVersions are those that may not be able to read what this one stores.
func (s *server) serversOfOtherVersions(ctx context.Context) (string, error) {
	addresses, err := peers.Addresses(ctx, s.internal.Kube)
	if err != nil {
		return "", err
	}
	cfg, err := s.Options.Dir.Own("storage-versions")
	if err != nil {
		return "", err
	}
	addresses = slices.DeleteFunc(addresses, func(a string) bool { return a == s.apiAddress() })
	for _, p := range peers.Ask(ctx, cfg, addresses...) {
		switch {
		case p.Err != nil:
			return fmt.Sprintf("server %s does not answer, or is not ready", p.Called()), nil //nolint:nilerr // it is the answer
		case p.Server.Version != s.Options.Version || p.Server.Kubernetes != version.Get().GitVersion:
			return fmt.Sprintf("server %s is of version %s", p.Called(), p.Server.Version), nil
		}
	}
	return "", nil
}
