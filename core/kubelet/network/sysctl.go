// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	sysctlRoot = "/proc/sys/"
	// sysctlRecord is one for the machine, because the values are: the last cluster
	// to leave sets them back. It lies where a reboot forgets it, as it does them.
	sysctlRecord = "/run/wasmplane-sysctls.json"
)

// record says who needs the machine's settings changed, and what they were before
// the first did.
type record struct {
	Clusters []string
	Before   map[string]string
}

// wantedSysctls make the kernel forward between pods and the world, and show
// packets that a bridge passes on to nftables: two pods of one node talk through
// the bridge, and the answer of a Service's pod must still be translated back.
func (c Config) wantedSysctls() map[string]string {
	wanted := map[string]string{}
	for _, p := range c.PodCIDRs {
		if p.Addr().Is4() {
			wanted["net/ipv4/ip_forward"] = "1"
			wanted["net/bridge/bridge-nf-call-iptables"] = "1"
		} else {
			wanted["net/ipv6/conf/all/forwarding"] = "1"
			wanted["net/bridge/bridge-nf-call-ip6tables"] = "1"
			keepRouters(wanted)
		}
	}
	return wanted
}

// halfClosed is where the kernel has how many seconds it remembers a connection that one side has
// closed, and leastHalfClosed how many they are to be, as with upstream's proxy. The kernel's own minute is
// less than a client may take until it closes its side too: the translation of addresses is then
// forgotten, and the server never hears of it.
const (
	halfClosed      = "net/netfilter/nf_conntrack_tcp_timeout_close_wait"
	leastHalfClosed = 3600
)

// wantedOfConnections are the settings that are there only once the kernel follows connections, which
// the first rule that translates addresses makes it do.
func wantedOfConnections() map[string]string {
	if now, err := strconv.Atoi(value(sysctlRoot + halfClosed)); err != nil || now >= leastHalfClosed {
		return nil
	}
	return map[string]string{halfClosed: strconv.Itoa(leastHalfClosed)}
}

// keepRouters has links that follow router advertisements go on with it: the kernel ends that
// where it forwards, and this machine would lose its default route.
func keepRouters(wanted map[string]string) {
	follow, err := filepath.Glob(sysctlRoot + "net/ipv6/conf/*/accept_ra")
	if err != nil {
		return // the pattern is right
	}
	for _, path := range follow {
		link := filepath.Base(filepath.Dir(path))
		if link == "all" || link == "default" || link == "lo" || value(path) != "1" || value(filepath.Dir(path)+"/forwarding") != "0" {
			continue
		}
		if slices.ContainsFunc(containerLinks, func(prefix string) bool { return strings.HasPrefix(link, prefix) }) {
			continue // there are pods at the other end, not routers
		}
		wanted[strings.TrimPrefix(path, sysctlRoot)] = "2"
	}
}

// containerLinks are how links to containers are called.
var containerLinks = []string{"wp", "veth", "docker", "br-", "cni", "virbr", "podman", "lxc", "flannel", "cali"}

func value(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// setSysctls records what is changed and then changes it: a crash in between must
// not lose an old value.
func setSysctls(path, cluster string, wanted map[string]string) error {
	return withRecord(path, func(r *record) (func() error, error) {
		if !slices.Contains(r.Clusters, cluster) {
			r.Clusters = append(r.Clusters, cluster)
		}
		if r.Before == nil {
			r.Before = map[string]string{}
		}
		for name, want := range wanted {
			now, err := os.ReadFile(sysctlRoot + name)
			if errors.Is(err, fs.ErrNotExist) {
				// br_netfilter is not loaded, which machine.Check reports, or there is
				// no IPv6, upon which the bridge plugin fails with a reason.
				delete(wanted, name)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read the sysctl %s: %w", name, err)
			}
			value := strings.TrimSpace(string(now))
			if _, known := r.Before[name]; !known && value != want {
				r.Before[name] = value
			}
		}
		return func() error { return write(wanted) }, nil
	})
}

// restoreSysctls takes a cluster off the record; the last one sets the values back.
func restoreSysctls(path, cluster string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return withRecord(path, func(r *record) (func() error, error) {
		i := slices.Index(r.Clusters, cluster)
		if i < 0 {
			return nil, nil
		}
		r.Clusters = slices.Delete(r.Clusters, i, i+1)
		if len(r.Clusters) > 0 {
			return nil, nil
		}
		before := r.Before
		r.Before = nil
		return func() error { return write(before) }, nil
	})
}

// write writes forwarding last: with it the kernel forgets routers, but for those of links that
// were told to go on with theirs.
func write(values map[string]string) error {
	var errs []error
	last := func(name string) int { return strings.Count(name, "/forwarding") }
	names := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(last(a)-last(b), strings.Compare(a, b))
	})
	for _, name := range names {
		value := values[name]
		if err := os.WriteFile(sysctlRoot+name, []byte(value), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("set the sysctl %s to %s: %w", name, value, err))
		}
	}
	return errors.Join(errs...)
}

// withRecord changes the record under its lock, and then does what the change asks
// for under the lock too.
func withRecord(path string, change func(*record) (then func() error, err error)) error {
	f, err := lockRecord(path)
	if err != nil {
		return fmt.Errorf("record which sysctls are changed: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("read which sysctls were changed: %w", err)
	}
	var r record
	if len(data) > 0 {
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("read which sysctls were changed, from %s (remove it if it is damaged): %w", path, err)
		}
	}
	then, err := change(&r)
	if err != nil {
		return err
	}
	if then == nil {
		then = func() error { return nil }
	}
	if len(r.Clusters) == 0 {
		// The values first: while they are not set back, the record is needed.
		return errors.Join(then(), os.Remove(path))
	}
	if data, err = json.Marshal(r); err != nil {
		return fmt.Errorf("record which sysctls are changed: %w", err)
	}
	// In place, and not by a rename: the lock is on this very file.
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err != nil {
		return fmt.Errorf("record which sysctls are changed: %w", err)
	}
	return then()
}

// lockRecord opens and locks the record. The one who had the lock before may have
// removed it; then the lock is on a file that nobody else will find, and a new one
// is wanted.
func lockRecord(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
		f.Close()
	}
}
