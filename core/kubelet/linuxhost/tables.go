// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
)

// RemoveTables removes the cluster's nftables tables, of every purpose: the
// node's, the host ports', the service proxy's.
func RemoveTables(ctx context.Context, n Names) error {
	nft := hostcheck.LookPath("nft")
	if nft == "" {
		return nil // without it we have not made any
	}
	out, err := exec.CommandContext(ctx, nft, "list", "tables").Output()
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", hostcheck.ExplainExit(err))
	}
	var errs []error
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		// table inet wp-default-node
		f := strings.Fields(s.Text())
		if len(f) != 3 || f[0] != "table" || !strings.HasPrefix(f[2], n.ID+"-") {
			continue
		}
		if err := exec.CommandContext(ctx, nft, "delete", "table", f[1], f[2]).Run(); err != nil {
			errs = append(errs, fmt.Errorf("delete nftables table %s %s: %w", f[1], f[2], err))
		}
	}
	return errors.Join(errs...)
}
