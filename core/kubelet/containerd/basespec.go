// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// baseSpecFile is where the specification lies that containers of the handler wasm-only begin with; none where it is CRI's own.
//
// On a machine with cgroups of version 1 CRI gives no container a namespace of cgroups, and looks for each how its cgroups are
// mounted, in the list of all mounts of the node, of which each pod has some: a twentieth of containerd's work with 200 pods, and more
// with more. It does not where there is such a namespace. What starts containers of this handler reads no namespaces from here: they
// have their own (cmd/wasmplane-shim).
func (c Config) baseSpecFile() string {
	if c.Facts.CgroupV2 {
		return ""
	}
	return filepath.Join(c.Dir, "etc/wasm-only.json")
}

// writeBaseSpec is called before containerd starts, which reads the file once.
func (c Config) writeBaseSpec(ctx context.Context) error {
	file := c.baseSpecFile()
	if file == "" {
		return nil
	}
	s, err := oci.GenerateSpec(namespaces.WithNamespace(ctx, "k8s.io"), nil, &containers.Container{})
	if err != nil {
		return fmt.Errorf("make the specification of containers: %w", err)
	}
	// As CRI leaves its own: what these are is said for each container.
	s.Process.ApparmorProfile, s.Process.Rlimits, s.Linux.Seccomp = "", nil, nil
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("make the specification of containers: %w", err)
	}
	if err := atomicfile.Write(file, text, 0o644); err != nil {
		return fmt.Errorf("write the specification of containers: %w", err)
	}
	return nil
}
