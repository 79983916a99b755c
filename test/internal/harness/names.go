// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/wasmplane/wasmplane/core/config"
)

// names that were given out by this process.
var names struct {
	sync.Mutex
	networks map[string]bool
	next     int
}

// ClusterName is one whose networks no other cluster of this host has: a
// cluster's name decides on its networks.
func ClusterName() (string, error) {
	names.Lock()
	defer names.Unlock()
	if names.networks == nil {
		names.networks = map[string]bool{}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for range 500 {
		names.next++
		c := config.Default()
		c.Cluster.Name = fmt.Sprintf("t%dx%d", os.Getpid()%100000, names.next)
		if err := c.Complete(); err != nil {
			return "", err
		}
		_, pods, err := net.ParseCIDR(c.Cluster.PodCIDR)
		if err != nil {
			return "", err
		}
		taken := names.networks[c.Cluster.PodCIDR]
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && pods.Contains(n.IP) {
				taken = true
			}
		}
		if !taken {
			names.networks[c.Cluster.PodCIDR] = true
			return c.Cluster.Name, nil
		}
	}
	return "", errors.New("every network that a cluster's name can give is in use on this host")
}

// FreeAddress is one on this machine where nobody listens now.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}
