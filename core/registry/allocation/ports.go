// SPDX-License-Identifier: Apache-2.0

package allocation

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/api/services"
	"github.com/wasmplane/wasmplane/core/store"
)

// nodePortsKey is where upstream keeps which node ports are in use.
const nodePortsKey = "/registry/" + services.NodePortsKey

// nodePorts implements services.Ranges on the key that upstream uses.
type nodePorts struct{ store store.Store }

// Read implements services.Ranges.
func (n nodePorts) Read(ctx context.Context) (*corev1.RangeAllocation, error) {
	current, _, err := n.read(ctx)
	return current, err
}

func (n nodePorts) read(ctx context.Context) (*corev1.RangeAllocation, int64, error) {
	kv, err := n.store.Get(ctx, nodePortsKey)
	if errors.Is(err, store.ErrNotFound) {
		return &corev1.RangeAllocation{}, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the claims of node ports: %w", err)
	}
	current, err := services.DecodeRange(kv.Value)
	return current, kv.ModRevision, err
}

// Update implements services.Ranges.
func (n nodePorts) Update(ctx context.Context, change func(*corev1.RangeAllocation) error) error {
	for {
		current, revision, err := n.read(ctx)
		if err != nil {
			return err
		}
		if err := change(current); err != nil {
			return err
		}
		value, err := services.EncodeRange(current)
		if err != nil {
			return err
		}
		_, err = n.store.Put(ctx, nodePortsKey, value, revision, 0)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
}
