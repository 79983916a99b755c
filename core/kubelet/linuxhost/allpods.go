// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// bound gives the pods' parent cgroup its limits, once. Pods that take more than a new limit can keep it from being
// set until they are evicted: it is tried again with the next look at the machine.
func (h *Host) bound(ctx context.Context, capacity corev1.ResourceList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cfg.CgroupRoot == "" || h.bounded {
		return
	}
	err := h.boundAll(h.reserved.Bound(withPIDs(capacity)))
	h.bounded = err == nil
	switch {
	case err != nil && !h.unbound:
		h.unbound = true
		h.cfg.Logger.WarnContext(ctx, "all pods together cannot be bounded yet; trying again", "cgroup", h.cfg.CgroupRoot, "error", err)
	case err == nil && h.unbound:
		h.cfg.Logger.InfoContext(ctx, "all pods together are bounded", "cgroup", h.cfg.CgroupRoot)
	}
}

// boundAll writes the limits of all pods together. What was written with other settings is replaced.
func (h *Host) boundAll(limits corev1.ResourceList) error {
	if h.v2 {
		if err := makeBelow(h.cfg.CgroupRoot); err != nil {
			return err
		}
		return limit(filepath.Join(cgroupMount, h.cfg.CgroupRoot), boundsV2(limits))
	}
	mounts, err := v1Mounts()
	if err != nil {
		return err
	}
	for controller, values := range boundsV1(limits) {
		mount, ok := mounts[controller]
		if !ok {
			continue
		}
		if err := limit(filepath.Join(mount, h.cfg.CgroupRoot), values); err != nil {
			return err
		}
	}
	return nil
}

// limit is fill of a cgroup that is made, and says which of its limits is refused.
func limit(dir string, values map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	for file, v := range values {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(v), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set %s to %s: %w", file, v, err)
		}
	}
	return nil
}

func boundsV2(limits corev1.ResourceList) map[string]string {
	out := map[string]string{
		"memory.max": strconv.FormatInt(limits.Memory().Value(), 10),
		"cpu.weight": strconv.FormatInt(Weight(spec.Shares(limits.Cpu().MilliValue())), 10),
	}
	if q, ok := limits[reservation.PID]; ok {
		out["pids.max"] = strconv.FormatInt(q.Value(), 10)
	}
	return out
}

// boundsV1 by controller.
func boundsV1(limits corev1.ResourceList) map[string]map[string]string {
	out := map[string]map[string]string{
		"memory": {"memory.limit_in_bytes": strconv.FormatInt(limits.Memory().Value(), 10)},
		"cpu":    {"cpu.shares": strconv.FormatInt(spec.Shares(limits.Cpu().MilliValue()), 10)},
	}
	if q, ok := limits[reservation.PID]; ok {
		out["pids"] = map[string]string{"pids.max": strconv.FormatInt(q.Value(), 10)}
	}
	return out
}
