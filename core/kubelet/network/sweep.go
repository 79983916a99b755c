// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"sigs.k8s.io/knftables"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// FindRecords looks which sandboxes have addresses and host ports on record now,
// while nobody makes any, and answers how to remove those that turn out to be
// unknown: a runtime that was killed while it made a pod does not come back to them.
func FindRecords(cfg Config) func(ctx context.Context, known func(id string) bool) error {
	holders := map[string]string{} // file to the sandbox's id
	files, _ := filepath.Glob(filepath.Join(cfg.addresses(), "*"))
	for _, f := range files {
		if id := holder(f); id != "" {
			holders[f] = id
		}
	}
	return func(ctx context.Context, known func(string) bool) error {
		gone := map[string]bool{}
		for _, id := range holders {
			if !known(id) {
				gone[id] = true
			}
		}
		if len(gone) == 0 {
			return nil
		}
		errs := []error{cfg.releaseAddresses(holders, gone), cfg.releaseHostPorts(ctx, gone)}
		for id := range gone {
			errs = append(errs, linuxhost.ForgetResult(cfg.Names, id))
		}
		return errors.Join(errs...)
	}
}

// addresses is where host-local keeps its records.
func (c Config) addresses() string {
	return filepath.Join(c.StateDir, "addresses", c.Names.Network())
}

// holder is the sandbox that has an address: the first line of the record, which
// is named by the address. Other files there are host-local's own.
func holder(file string) string {
	name := filepath.Base(file)
	if name == "lock" || strings.HasPrefix(name, "last_reserved_ip") {
		return ""
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	id, _, _ := bytes.Cut(data, []byte("\n"))
	return string(bytes.TrimSpace(id))
}

// releaseAddresses removes records under host-local's lock.
func (c Config) releaseAddresses(holders map[string]string, gone map[string]bool) error {
	store, err := disk.New(c.Names.Network(), filepath.Dir(c.addresses()))
	if err != nil {
		return fmt.Errorf("open the records of addresses: %w", err)
	}
	defer store.Close()
	if err := store.Lock(); err != nil {
		return fmt.Errorf("lock the records of addresses: %w", err)
	}
	defer func() { _ = store.Unlock() }()
	var errs []error
	for file, id := range holders {
		// Somebody else may have the address by now.
		if !gone[id] || holder(file) != id {
			continue
		}
		if err := os.Remove(file); err != nil {
			errs = append(errs, fmt.Errorf("give an address back: %w", err))
		}
	}
	return errors.Join(errs...)
}

// releaseHostPorts removes the entries that the portmap plugin made for sandboxes;
// it marks each with the sandbox's id.
func (c Config) releaseHostPorts(ctx context.Context, gone map[string]bool) error {
	var errs []error
	for _, family := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
		nft, err := knftables.New(family, c.Names.Table(hostportTable))
		if err != nil {
			return fmt.Errorf("use nftables: %w", err)
		}
		errs = append(errs, releaseIn(ctx, nft, gone))
	}
	return errors.Join(errs...)
}

func releaseIn(ctx context.Context, nft knftables.Interface, gone map[string]bool) error {
	tx := nft.NewTransaction()
	for _, kind := range []string{"map", "set"} {
		list, err := nft.List(ctx, kind+"s")
		if knftables.IsNotFound(err) {
			return nil // no pod with host ports yet
		}
		if err != nil {
			return fmt.Errorf("list host ports: %w", err)
		}
		for _, name := range list {
			elements, err := nft.ListElements(ctx, kind, name)
			if err != nil {
				return fmt.Errorf("list host ports: %w", err)
			}
			for _, e := range elements {
				if e.Comment != nil && gone[*e.Comment] {
					tx.Delete(e)
				}
			}
		}
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("remove host ports of pods that are gone: %w", err)
	}
	return nil
}
