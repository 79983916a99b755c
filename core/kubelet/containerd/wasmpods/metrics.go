// SPDX-License-Identifier: Apache-2.0

package wasmpods

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Metrics implements sandbox.Controller: what the pod's cgroup has used. CRI tells nothing of a pod's containers without it.
func (c *controller) Metrics(_ context.Context, id string) (*types.Metric, error) {
	b, err := c.box(id)
	if err != nil {
		return nil, err
	}
	if b.Cgroup == "" {
		return nil, fmt.Errorf("sandbox %s has no cgroup: %w", id, errdefs.ErrFailedPrecondition)
	}
	used, err := cgroupUse(b.Cgroup)
	if err != nil {
		return nil, fmt.Errorf("read the cgroup of sandbox %s: %w", id, err)
	}
	data, err := typeurl.MarshalAnyToProto(used)
	if err != nil {
		return nil, err
	}
	return &types.Metric{Timestamp: timestamppb.New(time.Now()), ID: id, Data: data}, nil
}

// measured are the controllers of which CRI makes statistics. They are looked for once: that reads all mounts of the node, of which
// each pod has some.
var measured = sync.OnceValues(func() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	return slices.DeleteFunc(all, func(s cgroup1.Subsystem) bool {
		return s.Name() != cgroup1.Cpu && s.Name() != cgroup1.Cpuacct && s.Name() != cgroup1.Memory && s.Name() != cgroup1.Pids
	}), err
})

// cgroupUse is in the form of the machine's version of cgroups.
func cgroupUse(path string) (any, error) {
	if cgroups.Mode() == cgroups.Unified {
		group, err := cgroup2.Load(path)
		if err != nil {
			return nil, err
		}
		return group.StatFiltered(cgroup2.StatCPU | cgroup2.StatMemory)
	}
	group, err := cgroup1.Load(cgroup1.StaticPath(path), cgroup1.WithHierarchy(measured))
	if err != nil {
		return nil, err
	}
	return group.Stat(cgroup1.IgnoreNotExist)
}
