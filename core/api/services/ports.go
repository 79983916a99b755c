// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"

	"github.com/wasmplane/wasmplane/core/object"
)

// NodePortsKey is where upstream keeps the claims of node ports, below /registry/.
const NodePortsKey = "ranges/servicenodeports"

// Ranges keeps a RangeAllocation: one bit for each port.
type Ranges interface {
	// Read answers the stored value, empty where there is none yet.
	Read(ctx context.Context) (*corev1.RangeAllocation, error)
	// Update hands the stored value to change and writes what that made of it in
	// its place; it begins again where somebody else was faster.
	Update(ctx context.Context, change func(*corev1.RangeAllocation) error) error
}

// PortRange is the node ports of a cluster.
type PortRange struct {
	ports  utilnet.PortRange
	ranges Ranges
}

// NewPortRange makes the range first..last, upstream's default being 30000..32767.
func NewPortRange(first, last int, ranges Ranges) (*PortRange, error) {
	if first < 1 || last > 65535 || last < first {
		return nil, fmt.Errorf("node ports %d-%d: expected two ports from 1 to 65535, the lower first", first, last)
	}
	return &PortRange{ports: utilnet.PortRange{Base: first, Size: last - first + 1}, ranges: ranges}, nil
}

func (p *PortRange) claim(ctx context.Context, port int32) error {
	return p.ranges.Update(ctx, func(r *corev1.RangeAllocation) error {
		return p.change(r, func(a *portallocator.PortAllocator) error { return a.Allocate(int(port)) })
	})
}

func (p *PortRange) next(ctx context.Context) (port int32, err error) {
	err = p.ranges.Update(ctx, func(r *corev1.RangeAllocation) error {
		return p.change(r, func(a *portallocator.PortAllocator) error {
			n, err := a.AllocateNext()
			port = int32(n)
			return err
		})
	})
	return port, err
}

func (p *PortRange) release(ctx context.Context, port int32) error {
	err := p.ranges.Update(ctx, func(r *corev1.RangeAllocation) error {
		return p.change(r, func(a *portallocator.PortAllocator) error { return a.Release(int(port)) })
	})
	if err != nil {
		return fmt.Errorf("release node port %d: %w", port, err)
	}
	return nil
}

// free is what claim would say, for a dry run that already "has" some ports.
func (p *PortRange) free(ctx context.Context, port int32, has []int32) error {
	r, err := p.ranges.Read(ctx)
	if err != nil {
		return err
	}
	a, err := p.allocator(r)
	if err != nil {
		return err
	}
	defer a.Destroy()
	if a.Has(int(port)) || slices.Contains(has, port) {
		return portallocator.ErrAllocated
	}
	return nil
}

// guess is a port that a dry run may show.
func (p *PortRange) guess(has []int32) int32 {
	if len(has) == 0 {
		return 32769
	}
	return slices.Max(has) + 1
}

// change restores the allocator, lets do use it, and writes its state into r.
func (p *PortRange) change(r *corev1.RangeAllocation, do func(*portallocator.PortAllocator) error) error {
	a, err := p.allocator(r)
	if err != nil {
		return err
	}
	defer a.Destroy()
	if err := do(a); err != nil {
		return err
	}
	after := core.RangeAllocation{}
	if err := a.Snapshot(&after); err != nil {
		return err
	}
	r.Range, r.Data = after.Range, after.Data
	return nil
}

func (p *PortRange) allocator(r *corev1.RangeAllocation) (*portallocator.PortAllocator, error) {
	a, err := portallocator.NewInMemory(p.ports)
	if err != nil || len(r.Data) == 0 && r.Range == "" {
		return a, err
	}
	if r.Range != p.ports.String() {
		a.Destroy()
		return nil, fmt.Errorf("the store has claims of node ports %s, this server has %s: %w", r.Range, p.ports.String(),
			portallocator.ErrMismatchedNetwork)
	}
	if err := a.Restore(p.ports, r.Data); err != nil {
		a.Destroy()
		return nil, err
	}
	return a, nil
}

// EncodeRange writes a RangeAllocation as upstream stores it.
func EncodeRange(r *corev1.RangeAllocation) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), object.Protobuf)
	if !ok {
		return nil, errors.New("encode a RangeAllocation: there is no protobuf serializer")
	}
	named := r.DeepCopy()
	named.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("RangeAllocation"))
	return runtime.Encode(info.Serializer, named)
}

// DecodeRange reads a stored RangeAllocation.
func DecodeRange(data []byte) (*corev1.RangeAllocation, error) {
	r := &corev1.RangeAllocation{}
	o, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(data, nil, r)
	if err != nil {
		return nil, fmt.Errorf("decode a RangeAllocation: %w", err)
	}
	if o != r {
		return nil, fmt.Errorf("decode a RangeAllocation: found a %T", o)
	}
	return r, nil
}
