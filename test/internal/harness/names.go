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
	networks map[string]string // of clusters: the cluster that has it, "" = it is gone
	next     int
}

// ClusterName is one whose networks no other cluster of this host has: a
// cluster's name decides on its networks. There are some sixty; those that nobody has had yet come
// first. ReturnName ends its use.
func ClusterName() (string, error) {
	names.Lock()
	defer names.Unlock()
	name, err := clusterName(false)
	if name == "" && err == nil {
		name, err = clusterName(true)
	}
	if name == "" && err == nil {
		err = errors.New("every network that a cluster's name can give is in use on this host")
	}
	return name, err
}

// ReturnName says that the cluster of that name is gone from the host.
func ReturnName(name string) {
	names.Lock()
	defer names.Unlock()
	for network, user := range names.networks {
		if user == name {
			names.networks[network] = ""
		}
	}
}

// clusterName looks for a name; again = also for networks that others have had.
func clusterName(again bool) (string, error) {
	if names.networks == nil {
		names.networks = map[string]string{}
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
		user, used := names.networks[c.Cluster.PodCIDR]
		taken := user != "" || used && !again
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && pods.Contains(n.IP) {
				taken = true
			}
		}
		if !taken {
			names.networks[c.Cluster.PodCIDR] = c.Cluster.Name
			return c.Cluster.Name, nil
		}
	}
	return "", nil
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
