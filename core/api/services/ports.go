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

// claim claims all of the wanted ports, 0 for any, by one write, or none of them. The ports are
// in the order of the wishes. Where err is not nil, at is the wish that was not granted.
// Wishes for a certain port go first, so that none of them is given away as any.
func (p *PortRange) claim(ctx context.Context, wanted []int32) (ports []int32, at int, err error) {
	err = p.ranges.Update(ctx, func(r *corev1.RangeAllocation) error {
		return p.change(r, func(a *portallocator.PortAllocator) (err error) {
			ports = make([]int32, len(wanted))
			for i, port := range wanted {
				if at = i; port == 0 {
					continue
				}
				if err := a.Allocate(int(port)); err != nil {
					return err
				}
				ports[i] = port
			}
			for i, port := range wanted {
				if at = i; port != 0 {
					continue
				}
				n, err := a.AllocateNext()
				if err != nil {
					return err
				}
				ports[i] = int32(n) //nolint:gosec // a port
			}
			return nil
		})
	})
	return ports, at, err
}

// release frees ports by one write.
func (p *PortRange) release(ctx context.Context, ports []int32) error {
	err := p.ranges.Update(ctx, func(r *corev1.RangeAllocation) error {
		return p.change(r, func(a *portallocator.PortAllocator) error {
			for _, port := range ports {
				if err := a.Release(int(port)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("release node ports %d: %w", ports, err)
	}
	return nil
}

// guess is what claim would say and ports that it might give, for a dry run.
func (p *PortRange) guess(ctx context.Context, wanted []int32) (ports []int32, at int, err error) {
	r, err := p.ranges.Read(ctx)
	if err != nil {
		return nil, 0, err
	}
	a, err := p.allocator(r)
	if err != nil {
		return nil, 0, err
	}
	defer a.Destroy()
	var highest int32
	ports = slices.Clone(wanted)
	mine := map[int32]bool{}
	for i, port := range wanted {
		if port == 0 {
			continue
		}
		if a.Has(int(port)) || mine[port] {
			return nil, i, portallocator.ErrAllocated
		}
		mine[port], highest = true, max(highest, port)
	}
	if highest == 0 {
		highest = 32768
	}
	for i, port := range wanted {
		if port == 0 {
			highest++
			ports[i] = highest
		}
	}
	return ports, 0, nil
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
