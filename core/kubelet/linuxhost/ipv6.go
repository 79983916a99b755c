// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
)

// CheckIPv6 finds out what this machine lacks for pods with IPv6 addresses; nil if nothing.
// Forwarding needs not be on: the node turns it on.
func CheckIPv6() *hostcheck.Problem { return checkIPv6("/proc/sys/net/ipv6") }

func checkIPv6(conf string) *hostcheck.Problem {
	const without = "; or take IPv6 out of cluster.podCIDR and cluster.serviceCIDR"
	data, err := os.ReadFile(conf + "/conf/all/disable_ipv6")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &hostcheck.Problem{
			What: "the cluster has an IPv6 network, and this machine's kernel has no IPv6",
			Fix:  "boot without ipv6.disable=1, use a kernel with CONFIG_IPV6" + without,
		}
	case err != nil:
		return &hostcheck.Problem{What: "whether this machine has IPv6 cannot be read: " + err.Error(), Fix: "start wasmplane as root"}
	case strings.TrimSpace(string(data)) != "0":
		return &hostcheck.Problem{
			What: "the cluster has an IPv6 network, and IPv6 is disabled on this machine (net.ipv6.conf.all.disable_ipv6)",
			Fix:  "sysctl -w net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0, and the same in /etc/sysctl.d" + without,
		}
	}
	if data, err := os.ReadFile(conf + "/conf/default/disable_ipv6"); err == nil && strings.TrimSpace(string(data)) != "0" {
		return &hostcheck.Problem{
			What: "the cluster has an IPv6 network, and links that are made get no IPv6 on this machine (net.ipv6.conf.default.disable_ipv6)",
			Fix:  "sysctl -w net.ipv6.conf.default.disable_ipv6=0, and the same in /etc/sysctl.d" + without,
		}
	}
	if f, err := os.OpenFile(conf+"/conf/all/forwarding", os.O_WRONLY, 0); err != nil {
		if now, err := os.ReadFile(conf + "/conf/all/forwarding"); err != nil || strings.TrimSpace(string(now)) != "1" {
			return &hostcheck.Problem{
				What: "the cluster has an IPv6 network, this machine does not forward IPv6, and that cannot be changed from here (net.ipv6.conf.all.forwarding)",
				Fix:  "sysctl -w net.ipv6.conf.all.forwarding=1 on the host, with accept_ra=2 on links that follow router advertisements" + without,
			}
		}
	} else {
		_ = f.Close()
	}
	return nil
}
