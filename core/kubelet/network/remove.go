// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// Remove takes the network of a cluster off this machine: bridge, links, nftables
// tables, CNI configuration and records of addresses; and sets the sysctls back
// that Setup changed, unless another cluster of ours still needs them. The pods
// must be gone.
func Remove(ctx context.Context, cfg Config) error {
	errs := []error{
		linuxhost.RemoveLinks(cfg.Names),
		linuxhost.RemoveTables(ctx, cfg.Names),
		linuxhost.ForgetNetwork(cfg.Names),
	}
	for _, path := range []string{filepath.Dir(cfg.addresses()), filepath.Join(cfg.ConfDir, confName)} {
		if err := os.RemoveAll(path); err != nil {
			errs = append(errs, fmt.Errorf("remove the node's network: %w", err))
		}
	}
	return errors.Join(append(errs, restoreSysctls(sysctlRecord, cfg.Names.ID))...)
}
