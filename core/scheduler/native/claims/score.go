// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"math"

	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
)

// emptiest prefers nodes of whose storage the least is used: upstream's default.
var emptiest = shape.Shape{{Utilization: 0, Score: framework.MaxScore}, {Utilization: 100, Score: 0}}

// PreScore implements framework.PreScore: nodes are rated for pods whose volumes are still to be bound or made.
func (*Binding) PreScore(_ context.Context, s *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	if w, ok := s.Get(bindingKey{}).(*wanted); !ok || len(w.consumer) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	return nil
}

// use is how much of the storage of a class a pod asks for.
type use struct{ asked, of int64 }

// Score implements framework.Score: how full the storage would be, by the shape, on average over the classes. A pod that
// gets volumes which there are fills those; otherwise what counts is the room that drivers publish (KEP-4049).
func (b *Binding) Score(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	w, ok := s.Get(bindingKey{}).(*wanted)
	if !ok {
		return 0, nil
	}
	c, st := b.choose(w, n.Node)
	if !st.IsSuccess() {
		return 0, nil // it was chosen a moment ago: what has changed since, Reserve will say
	}
	classes := map[string]*use{}
	of := func(class string) *use {
		if classes[class] == nil {
			classes[class] = &use{}
		}
		return classes[class]
	}
	for _, m := range c.bind {
		u := of(m.volume.Spec.StorageClassName)
		u.asked += size(m.claim).Value()
		u.of += m.volume.Spec.Capacity.Storage().Value()
	}
	if len(c.bind) == 0 {
		for i, claim := range c.provision {
			if room := c.room[i]; room != nil {
				u := of(volume.GetPersistentVolumeClaimClass(claim))
				u.asked += size(claim).Value()
				u.of = room.Value() // the same room for all claims of the class
			}
		}
	}
	return b.rate(classes), nil
}

func (b *Binding) rate(classes map[string]*use) int64 {
	if len(classes) == 0 {
		return 0
	}
	sum := int64(0)
	for _, u := range classes {
		switch {
		case u.of == 0 || u.asked > u.of:
			sum += b.shape.At(100)
		default:
			sum += b.shape.At(u.asked * 100 / u.of)
		}
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}
