// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// Certificate is one of a folder, as people want to see it.
type Certificate struct {
	File, For, SignedBy string
	Ends                time.Time
	// Life is how long it lasts from its beginning.
	Life time.Duration
	// Leaves: it is of an authority that is being dropped, and is never renewed.
	Leaves bool
}

// purposes of files whose names alone don't say it.
var purposes = map[string]string{
	"ca.crt":                       "authority of the API, its clients and nodes",
	"front-proxy-ca.crt":           "authority of authenticating proxies",
	"ca.next.crt":                  "authority of the API that is to follow",
	"ca.old.crt":                   "authority of the API that is being dropped",
	"ca.cross.crt":                 "authority of the API, for who knows the one before",
	"front-proxy-ca.next.crt":      "authority of authenticating proxies that is to follow",
	"front-proxy-ca.old.crt":       "authority of authenticating proxies that is being dropped",
	"front-proxy-ca.cross.crt":     "authority of authenticating proxies, for who knows the one before",
	"etcd-ca.crt":                  "authority of the servers' stores",
	"etcd-peer.pem":                "this server's store, towards the others",
	StoreClient + ".pem":           "this light server, towards the servers' stores",
	"apiserver.pem":                "server of the API",
	"apiserver-kubelet-client.pem": "the API as a client of kubelets",
	"front-proxy-client.pem":       "the API as a proxy before other servers",
	"break-glass.pem":              "the way in above every authorizer",
	"kubelet-client.pem":           "this node, as a client",
	"kubelet-serving.pem":          "this node's kubelet, as a server",
}

// List reads the certificates of folders, those that end first before others. Keys are
// not read. A folder that is not there has none.
func List(dirs ...string) ([]Certificate, error) {
	var out []Certificate
	for _, dir := range dirs {
		for _, pattern := range []string{"*.crt", "*.pem"} {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, fmt.Errorf("list certificates: %w", err)
			}
			for _, file := range files {
				c, err := describe(file)
				if err != nil {
					return nil, err
				}
				out = append(out, c)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Certificate) int { return cmp.Or(a.Ends.Compare(b.Ends), cmp.Compare(a.File, b.File)) })
	return out, nil
}

func describe(file string) (Certificate, error) {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return Certificate{}, fmt.Errorf("%s: expected a file with a certificate: %w", file, err)
	}
	all, err := cabundle.Read(file)
	if err != nil {
		return Certificate{}, err
	}
	leaf, name := all[0], filepath.Base(file)
	c := Certificate{
		File: file, For: purposes[name], SignedBy: leaf.Issuer.CommonName, Ends: leaf.NotAfter,
		Life: leaf.NotAfter.Sub(leaf.NotBefore),
	}
	if leaf.IsCA {
		for _, above := range all[1:] { // an intermediate is of no use without those above it
			if above.NotAfter.Before(c.Ends) {
				c.Ends = above.NotAfter
			}
		}
	}
	c.Leaves = strings.HasSuffix(name, oldCert) || strings.HasSuffix(name, crossCert)
	switch {
	case c.For != "":
	case strings.HasPrefix(name, "kubelet-serving-"):
		c.For = "kubelet of " + leaf.Subject.CommonName + ", as a server"
	default:
		c.For = leaf.Subject.CommonName + ", as a client"
	}
	if leaf.IsCA && leaf.CheckSignatureFrom(leaf) == nil {
		c.SignedBy = "itself"
	}
	return c, nil
}
