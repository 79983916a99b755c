// SPDX-License-Identifier: Apache-2.0

package linuxhost

import "github.com/wasmplane/wasmplane/core/kubelet/counters"

// Counters reads what the kernel counts for the cgroups of the node's pods; nil where pods have none of their own.
func (h *Host) Counters() *counters.Reader { return h.counters() }

func (h *Host) reader() *counters.Reader {
	if h.cfg.CgroupRoot == "" {
		return nil
	}
	mounts := map[string]string{"": cgroupMount}
	if !h.v2 {
		var err error
		if mounts, err = v1Mounts(); err != nil {
			return nil
		}
	}
	i := h.info()
	return counters.New(counters.Config{
		Mounts: mounts, Pods: h.cfg.CgroupRoot, Dir: h.cfg.RootDir,
		Machine: counters.Machine{ID: i.MachineID, Boot: i.BootID, UUID: i.SystemUUID},
	})
}
