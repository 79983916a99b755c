// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// renewedFile is written after certificates were made again by hand: who has the folder
// open reads them again.
const renewedFile = "renewed"

// RenewNow makes certificates of a folder again, with new keys, for the same names and by
// the same authority, whatever is left of their lives: those that are named, as their files
// are without .pem, or all. It answers which. Processes that have the folder open go on with
// the new ones within seconds. Authorities and the service account key stay.
func RenewNow(dir string, names []string, now time.Time) (renewed []string, err error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("read the certificates: %w", err)
	}
	unlock, err := lockDir(filepath.Join(dir, ".lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	files, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil {
		return nil, fmt.Errorf("list certificates: %w", err)
	}
	var all []string
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".pem"); name != StoreClient { // which another server signs
			all = append(all, name)
		}
	}
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no certificate %q to renew; there are %s", name, strings.Join(all, ", "))
		}
	}
	if len(names) == 0 {
		names = all
	}
	// All are read before the first one is replaced.
	var pairs []*Pair
	for _, name := range names {
		p, err := existing(dir, name)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, p)
	}
	for _, p := range pairs {
		if err := p.issue(now); err != nil {
			return renewed, fmt.Errorf("make the certificate %s: %w", p.file, err)
		}
		renewed = append(renewed, p.name)
	}
	note := now.UTC().Format(time.RFC3339Nano) + " " + strings.Join(renewed, " ") + "\n"
	return renewed, atomicfile.Write(filepath.Join(dir, renewedFile), []byte(note), 0o600)
}

// existing is a pair of a folder with what it says, and the authority there that signed it.
func existing(dir, name string) (*Pair, error) {
	p := &Pair{name: name, file: filepath.Join(dir, name+".pem")}
	data, err := os.ReadFile(p.file)
	if err != nil {
		return nil, fmt.Errorf("read a certificate: %w", err)
	}
	c, err := parsePair(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	leaf := c.tls.Leaf
	p.current.Store(c)
	p.request = request{
		user: leaf.Subject.CommonName, groups: leaf.Subject.Organization, hosts: leaf.DNSNames, usages: leaf.ExtKeyUsage,
		atOnce: slices.Contains(leaf.Subject.Organization, nodesGroup),
	}
	for _, ip := range leaf.IPAddresses {
		p.request.hosts = append(p.request.hosts, ip.String())
	}
	for _, authority := range []string{"ca", "front-proxy-ca", "etcd-ca"} {
		by := &ca{base: filepath.Join(dir, authority)}
		chain, err := readChain(by.certFile())
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s := &caState{cert: chain[0], above: chain[1:]}
		if s.old, err = readChain(by.file(oldCert)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if leaf.CheckSignatureFrom(s.cert) != nil && (s.old == nil || leaf.CheckSignatureFrom(s.old[0]) != nil) {
			continue
		}
		if s.key, err = readSigner(by.keyFile()); err != nil {
			return nil, fmt.Errorf("read the key of the authority that signed %s: %w", p.file, err)
		}
		if cross, err := cabundle.Read(by.file(crossCert)); err == nil && fits(cross[0], s.key) {
			s.cross = cross
		}
		by.state.Store(s)
		p.authority = by
		return p, nil
	}
	return nil, fmt.Errorf("%s was signed by none of the authorities in %s: it is renewed where it was made", p.file, dir)
}
