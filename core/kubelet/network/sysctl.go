package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	sysctlRoot  = "/proc/sys/"
	changesFile = "sysctls.json"
)

// sysctls makes the kernel forward between pods and the world, and show packets
// that a bridge passes on to nftables: two pods of one node talk through the
// bridge, and the answer of a Service's pod must still be translated back. What
// was there before is recorded, for Restore.
func (c Config) sysctls() error {
	wanted := map[string]string{}
	for _, p := range c.PodCIDRs {
		if p.Addr().Is4() {
			wanted["net/ipv4/ip_forward"] = "1"
			wanted["net/bridge/bridge-nf-call-iptables"] = "1"
		} else {
			wanted["net/ipv6/conf/all/forwarding"] = "1"
			wanted["net/bridge/bridge-nf-call-ip6tables"] = "1"
		}
	}
	before, err := readChanges(c.StateDir)
	if err != nil {
		return err
	}
	changed := false
	for name, want := range wanted {
		now, err := os.ReadFile(sysctlRoot + name)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, "net/bridge/") {
			continue // br_netfilter is not loaded; host.Check says so
		}
		if err != nil {
			return fmt.Errorf("read the sysctl %s: %w", name, err)
		}
		if strings.TrimSpace(string(now)) == want {
			continue
		}
		if _, known := before[name]; !known {
			before[name], changed = strings.TrimSpace(string(now)), true
		}
	}
	// On record before it is done: a crash in between must not lose the old value.
	if changed {
		if err := writeChanges(c.StateDir, before); err != nil {
			return err
		}
	}
	for name, want := range wanted {
		err := os.WriteFile(sysctlRoot+name, []byte(want), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set the sysctl %s to %s: %w", name, want, err)
		}
	}
	return nil
}

// Restore sets the sysctls that Setup changed back to what they were. The caller
// sees to it that no other cluster of ours is left on the machine.
func Restore(stateDir string) error {
	before, err := readChanges(stateDir)
	if err != nil {
		return err
	}
	var errs []error
	for name, value := range before {
		if err := os.WriteFile(sysctlRoot+name, []byte(value), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("set the sysctl %s back to %s: %w", name, value, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err = os.Remove(filepath.Join(stateDir, changesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readChanges(dir string) (map[string]string, error) {
	before := map[string]string{}
	data, err := os.ReadFile(filepath.Join(dir, changesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return before, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which sysctls were changed: %w", err)
	}
	if err := json.Unmarshal(data, &before); err != nil {
		return nil, fmt.Errorf("read which sysctls were changed, from %s: %w", filepath.Join(dir, changesFile), err)
	}
	return before, nil
}

func writeChanges(dir string, before map[string]string) error {
	data, err := json.Marshal(before)
	if err != nil {
		return fmt.Errorf("record which sysctls are changed: %w", err)
	}
	tmp := filepath.Join(dir, changesFile+".new")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("record which sysctls are changed: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, changesFile)); err != nil {
		return fmt.Errorf("record which sysctls are changed: %w", err)
	}
	return nil
}
