// SPDX-License-Identifier: Apache-2.0

// Package linuxhost is the Linux machine under a node. Host gives pods their directories,
// hosts files, logs and cgroups, and reports what the node has. Names are the names that a
// cluster uses on the machine; Check says what the machine lacks to run containers, and the
// functions that remove leave it as it was.
//
// All that Host makes for a pod carries the pod's UID in its path, below the
// directories and the cgroup that it was given; it removes nothing else, and no
// directory in which something is still mounted.
//
// Everything host-wide (bridge, nftables tables, cgroups) is named by Names, so
// that several clusters, and a containerd or Docker of the machine's own, never
// meet; Clean removes what carries a cluster's name or lies below its directory,
// and refuses to touch anything else.
package linuxhost

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// idPrefix marks every host-wide name as ours.
	idPrefix = "wp-"
	// maxPlain is the longest cluster name that is used as it is. A longer or
	// stranger one becomes hashedLen characters, one more than maxPlain, so that no
	// plain name can equal a hashed one.
	maxPlain  = 11
	slugLen   = 6
	hashedLen = 12
)

// Names are the host-wide names of one cluster on one host. Each is derived
// from ID, which contains exactly one dash: what follows a second dash names the
// purpose, so no cluster's names are a prefix of another's.
type Names struct {
	// ID is at most 15 bytes, the kernel's limit for the name of a link.
	ID string
}

// NamesOf derives the names of a cluster. A short name of lower-case letters and
// digits is kept readable ("default" gives "wp-default"); any other is shortened
// and told apart by a hash of the whole.
func NamesOf(cluster string) Names {
	if len(cluster) > 0 && len(cluster) <= maxPlain && slug(cluster) == cluster {
		return Names{ID: idPrefix + cluster}
	}
	s := slug(cluster)
	s = s[:min(len(s), slugLen)]
	sum := sha256.Sum256([]byte(cluster))
	return Names{ID: idPrefix + s + hex.EncodeToString(sum[:])[:hashedLen-len(s)]}
}

// slug keeps the lower-case letters and digits of a name.
func slug(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))
}

// Bridge is the link that the pods of the cluster hang on.
func (n Names) Bridge() string { return n.ID }

// Tunnel is the link to nodes that share none with this machine. It has no dash, which
// every cluster's ID has: no other link of ours can be of that name.
func (n Names) Tunnel() string { return "wpx" + strings.TrimPrefix(n.ID, idPrefix) }

// Table is the nftables table for a purpose, such as "node" or "proxy".
func (n Names) Table(purpose string) string { return n.ID + "-" + purpose }

// Network is the name of the CNI network.
func (n Names) Network() string { return n.ID }

// Cgroup is the parent of all cgroups of the cluster, absolute within each
// hierarchy.
func (n Names) Cgroup() string { return "/" + n.ID }

// RuntimeCgroup holds containerd and its shims. It is apart from our own cgroup,
// so that a service manager which kills ours leaves the pods alone.
func (n Names) RuntimeCgroup() string { return n.Cgroup() + "/runtime" }

// PodsCgroup is the parent of every pod's cgroup.
func (n Names) PodsCgroup() string { return n.Cgroup() + "/pods" }
