// SPDX-License-Identifier: Apache-2.0

// Package handover gives a machine that joins as a further server what a server needs:
// the keys of the cluster's authorities, of its service accounts and of its Secrets at rest,
// and a place among the members of the store.
//
// It is guarded four times. The connection is TLS to the authority that the token's pin
// names; the caller has a token of the servers' group, which lives for minutes and is used up
// by the first hand-over; the keys are sealed by a key that only the two ends of this
// exchange can derive (X25519, with the token's digest mixed in), so that they are in no
// log, proxy or audit event; and each hand-over is written to the log.
//
// A light server, which keeps no part of the store, gets no place among its members, and not the key of the
// authority by which those know each other: that signs its certificate as a client of theirs.
//
// Everything that can be wrong is looked at first, by Prepare, which changes nothing.
package handover

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/wasmplane/wasmplane/core/store"
)

// Paths of the API. What is below JoinPath is for tokens of servers, MembersPath may be
// read by nodes, everything else is for administrators.
const (
	MembersPath = "/servers"
	OpenPath    = "/servers/open"
	JoinPath    = "/servers/join/"
	PreparePath = JoinPath + "prepare"
	TakePath    = JoinPath + "take"
	// StorePath signs the certificates of light servers again.
	StorePath = "/servers/store-certificate"
)

// Cluster is what all servers of a cluster agree on.
type Cluster struct {
	Name        string `json:"name"`
	Domain      string `json:"domain"`
	PodCIDR     string `json:"podCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	// VirtualAddress by which all servers are reached; "" = there is none.
	VirtualAddress string `json:"virtualAddress,omitempty"`
}

// differs says which field of c another configuration contradicts; fields that are empty
// there are not said.
func (c Cluster) differs(o Cluster) error {
	for _, f := range []struct{ field, has, want string }{
		{"cluster.name", c.Name, o.Name},
		{"cluster.domain", c.Domain, o.Domain},
		{"cluster.podCIDR", c.PodCIDR, o.PodCIDR},
		{"cluster.serviceCIDR", c.ServiceCIDR, o.ServiceCIDR},
		{"apiserver.virtualAddress", c.VirtualAddress, o.VirtualAddress},
	} {
		if f.want != "" && f.has != f.want {
			return fmt.Errorf("%s is %q in this machine's configuration and %q in the cluster: leave the field out, and the cluster's is taken", f.field, f.want, f.has)
		}
	}
	return nil
}

// Request is what a machine says of itself.
type Request struct {
	// Name of the server, and of its node; Machine is the identity of its data directory.
	Name    string `json:"name"`
	Machine string `json:"machine"`
	// Light: it is to keep no part of the store. It says then at which Host others reach its API, and asks by CSR
	// (PKCS #10, DER) for the certificate by which it uses the stores of others.
	Light bool   `json:"light,omitempty"`
	Host  string `json:"host,omitempty"`
	CSR   []byte `json:"csr,omitempty"`
	// Address at which the other servers reach its store, HOST:PORT; "" = it is a light one, or uses an
	// external etcd. Nonce is what it answers there until it has joined.
	Address string `json:"address"`
	Nonce   string `json:"nonce,omitempty"`
	// Port of its API, Version of the Kubernetes that it is of.
	Port    int    `json:"port"`
	Version string `json:"version"`
	// Node: it runs a node of its name.
	Node bool `json:"node"`
	// Cluster is what its configuration says; empty fields say nothing.
	Cluster Cluster `json:"cluster"`
	// Key is its half of the exchange, for Take.
	Key []byte `json:"key,omitempty"`
}

// Offer is the answer to Prepare, and what a server says of itself and the others.
type Offer struct {
	Cluster Cluster        `json:"cluster"`
	Members []store.Member `json:"members"`
	// Light are the servers that are none of Members.
	Light  []Light `json:"light,omitempty"`
	Server Server  `json:"server,omitzero"`
}

// Server is the one that answers.
type Server struct {
	// Name of its node or machine; Address of its API for others, HOST:PORT.
	Name    string `json:"name"`
	Address string `json:"address"`
	// Version of wasmplane, and of the Kubernetes that it serves.
	Version    string `json:"version"`
	Kubernetes string `json:"kubernetes"`
}

// Sealed is the answer to Take.
type Sealed struct {
	Key  []byte `json:"key"`
	Data []byte `json:"data"`
}

// Keys are files of a cluster's folder pki.
type Keys map[string][]byte

// etcdKey is that of the authority by which the servers' stores know each other: a light server has no use for it.
const etcdKey = "etcd-ca.key"

// StoreCertificateFile is, among Keys, the certificate by which a light server uses the stores of others.
const StoreCertificateFile = "etcd-client.crt"

// Files are the names of what Keys may hold: what every server has and none may make anew.
func Files() []string {
	return []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "etcd-ca.crt", etcdKey, "sa.key", "encryption.yaml"}
}

func (k Keys) validate(light bool) error {
	may := Files()
	if light {
		may = append(slices.DeleteFunc(may, func(name string) bool { return name == etcdKey }), StoreCertificateFile)
		if len(k[StoreCertificateFile]) == 0 || len(k["etcd-ca.crt"]) == 0 {
			return errors.New("the server did not send the certificates by which a light server uses the store")
		}
	}
	for name := range k {
		if !slices.Contains(may, name) {
			return fmt.Errorf("the server sent a file %q, which no server needs", name)
		}
	}
	for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key"} {
		if len(k[name]) == 0 {
			return fmt.Errorf("the server did not send %s", name)
		}
	}
	return nil
}

// purpose keeps the derived key apart from every other use of the same secrets.
const purpose = "wasmplane server hand-over, version 1"

// cipherOf derives the key of an exchange. digest is the token's, as the cluster keeps it.
func cipherOf(own *ecdh.PrivateKey, theirs, taker, giver []byte, digest string) (cipher.AEAD, error) {
	public, err := ecdh.X25519().NewPublicKey(theirs)
	if err != nil {
		return nil, fmt.Errorf("the other side's key of the exchange: %w", err)
	}
	shared, err := own.ECDH(public)
	if err != nil {
		return nil, fmt.Errorf("the exchange of keys: %w", err)
	}
	key, err := hkdf.Key(sha256.New, shared, []byte(digest), purpose+string(taker)+string(giver), 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// bound is what a sealed answer belongs to.
func (r Request) bound() []byte {
	out := []byte(r.Name + "\x00" + r.Machine + "\x00" + r.Address)
	if r.Light {
		out = append(append(out, 0), r.CSR...)
	}
	return out
}

// Seal encrypts keys for the machine that made the request.
func Seal(r Request, digest string, keys Keys) (Sealed, error) {
	own, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Sealed{}, err
	}
	public := own.PublicKey().Bytes()
	aead, err := cipherOf(own, r.Key, r.Key, public, digest)
	if err != nil {
		return Sealed{}, err
	}
	plain, err := json.Marshal(keys)
	if err != nil {
		return Sealed{}, err
	}
	return Sealed{Key: public, Data: aead.Seal(nil, nil, plain, r.bound())}, nil
}

// Open decrypts what Seal has encrypted for the request whose key is own.
func Open(r Request, own *ecdh.PrivateKey, digest string, s Sealed) (Keys, error) {
	aead, err := cipherOf(own, s.Key, own.PublicKey().Bytes(), s.Key, digest)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, nil, s.Data, r.bound())
	if err != nil {
		return nil, errors.New("what the server sent was sealed for another machine or token")
	}
	var keys Keys
	if err := json.Unmarshal(plain, &keys); err != nil {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	return keys, keys.validate(r.Light)
}
