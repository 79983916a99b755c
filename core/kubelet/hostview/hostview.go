// SPDX-License-Identifier: Apache-2.0

// Package hostview is what a kubelet can say of the machine under its node: what it
// uses, how full its disk is, its logs, what its kernel counts, how it is configured.
//
// Each is an optional power of the host. It guarantees an answer for hosts that have
// none of them, such as simulated ones: that nothing is known.
package hostview

import (
	"context"
	"log/slog"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/counters"
	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
)

// View of a host.
type View struct {
	Host any
	Log  *slog.Logger
}

// machine is an optional power of a host: what all of the machine uses.
type machine interface {
	Usage(ctx context.Context) (cpu uint64, memory *cri.MemoryUsage, err error)
}

// Usage of the node's machine; ok is false where only what its pods use is known.
func (v View) Usage(ctx context.Context) (cpu uint64, memory *cri.MemoryUsage, ok bool) {
	m, ok := v.Host.(machine)
	if !ok {
		return 0, nil, false
	}
	cpu, memory, err := m.Usage(ctx)
	if err != nil {
		v.Log.WarnContext(ctx, "what the machine uses cannot be seen; the sum of its pods stands for it", "error", err)
	}
	return cpu, memory, err == nil
}

// logKeeper is an optional power of a host: a machine that keeps logs.
type logKeeper interface {
	// MachineLogs is the folder of its logs, empty where they are not served.
	MachineLogs() string
	// LogQueries says whether services' logs may be asked for by queries.
	LogQueries() bool
}

// MachineLogs is the folder of the logs of the node's machine, empty where it has none.
func (v View) MachineLogs() string {
	if h, ok := v.Host.(logKeeper); ok {
		return h.MachineLogs()
	}
	return ""
}

// LogQueries says whether services' logs of the node's machine may be asked for by queries.
func (v View) LogQueries() bool {
	h, ok := v.Host.(logKeeper)
	return ok && h.LogQueries()
}

// checkpointer is an optional power of a host: a machine that keeps checkpoints of containers.
type checkpointer interface {
	// Checkpoints is their folder, empty where there are none.
	Checkpoints() (string, error)
}

// Checkpoints is the folder of checkpoints of containers, empty where the node makes none.
func (v View) Checkpoints() (string, error) {
	if h, ok := v.Host.(checkpointer); ok {
		return h.Checkpoints()
	}
	return "", nil
}

// Real tells whether the node is this machine, by what its host can say of it.
func (v View) Real() bool {
	_, ok := v.Host.(machine)
	return ok
}

// disk is an optional power of a host: the file system that pods and images are on.
type disk interface {
	FileSystem(ctx context.Context) (diskusage.FileSystem, error)
}

// FileSystem is how full the node's disk is; ok is false on nodes without one.
func (v View) FileSystem(ctx context.Context) (fs diskusage.FileSystem, ok bool) {
	d, ok := v.Host.(disk)
	if !ok {
		return fs, false
	}
	fs, err := d.FileSystem(ctx)
	if err != nil {
		v.Log.WarnContext(ctx, "how full the disk is cannot be seen", "error", err)
	}
	return fs, err == nil
}

// counted is an optional power of a host: a machine whose kernel counts what pods use.
type counted interface{ Counters() *counters.Reader }

// Counters of the node's machine; nil where the kernel counts nothing for its pods.
func (v View) Counters() *counters.Reader {
	if h, ok := v.Host.(counted); ok {
		return h.Counters()
	}
	return nil
}

// configured is an optional power of a host: to say how it is configured, in the words
// of a KubeletConfiguration.
type configured interface{ Configuration() map[string]any }

// Configuration of the host in the words of a KubeletConfiguration; nil where it says nothing.
func (v View) Configuration() map[string]any {
	if h, ok := v.Host.(configured); ok {
		return h.Configuration()
	}
	return nil
}
