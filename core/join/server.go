// SPDX-License-Identifier: Apache-2.0

package join

import (
	"cmp"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/core/store"
)

// Server is what a server of several keeps about the others.
type Server struct {
	// Name among the members of the store, and Address at which the others reach this
	// one's, HOST:PORT; both are "" where the store is an external etcd.
	Name    string `json:"name,omitempty"`
	Address string `json:"address,omitempty"`
	// Light: it keeps no part of the store. It has a Name, and no Address.
	Light bool `json:"light,omitempty"`
	// What follows is of a server that has joined, and empty for the first one.

	// By is the server that it joined by, Listen where its own API listens, Peers the
	// stores of the servers that there were; a light server keeps those in step with the ones that there are.
	By     string   `json:"by,omitempty"`
	Listen string   `json:"listen,omitempty"`
	Peers  []string `json:"peers,omitempty"`
	// Host is the machine's address for pods and other machines.
	Host    string           `json:"host,omitempty"`
	Cluster handover.Cluster `json:"cluster"`
	// Names is what the names of all that is taken on this machine derive from; "" = the cluster's.
	Names string `json:"names,omitempty"`
}

// ReadServer reads what a server keeps; ErrNotJoined where it is alone, as far as it knows.
func ReadServer(file string) (Server, error) {
	var s Server
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNotJoined
	}
	if err != nil {
		return s, fmt.Errorf("read what this server knows of the others: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s is damaged: %w; its fields name and address are this server's in `wasmplane status` of another one", file, err)
	}
	return s, nil
}

// Write keeps s.
func (s Server) Write(file string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what this server knows of the others: %w", err)
	}
	return atomicfile.Write(file, append(data, '\n'), 0o600)
}

// Joined tells whether the server has joined others, and has the cluster's settings from them.
func (s Server) Joined() bool { return s.By != "" }

// grown is what has been said since, if that is what was before with a second IP family
// behind it; else what was before.
func grown(before, since string) string {
	if strings.HasPrefix(since, before+",") {
		return since
	}
	return before
}

// Configure is c with what the cluster says in the place of what a file says.
func (s Server) Configure(c *config.Configuration) *config.Configuration {
	own := *c
	if !s.Joined() {
		return &own
	}
	own.Cluster.Name, own.Cluster.Domain = cmp.Or(s.Names, s.Cluster.Name), s.Cluster.Domain
	own.Cluster.PodCIDR = grown(s.Cluster.PodCIDR, own.Cluster.PodCIDR)
	own.Cluster.ServiceCIDR = grown(s.Cluster.ServiceCIDR, own.Cluster.ServiceCIDR)
	if !slices.ContainsFunc(own.Node.Addresses(), func(a netip.Addr) bool { return a.String() == s.Host }) {
		own.Node.Address = s.Host
	}
	own.Node.Name, own.APIServer.Listen = cmp.Or(s.Name, own.Node.Name), s.Listen
	own.Join.AsServer, own.Join.Light = true, s.Light // also where a flag has said so, once
	own.APIServer.VirtualAddress = cmp.Or(own.APIServer.VirtualAddress, s.Cluster.VirtualAddress)
	return &own
}

// ServerConfig of one join as a server.
type ServerConfig struct {
	Config
	// PKI is the folder to make for the keys, File where Server is kept.
	PKI, File string
	// Listen of the machine's own API, as the configuration has it.
	Listen string
	// PeerPort is where the machine's store listens; 0 = it uses an external etcd, or is Light.
	PeerPort int
	// Light: it is to keep no part of the store.
	Light bool
	// Host is the machine's address for others; "" = the one that reaches the server.
	Host string
	// Node: the machine runs a node. Wants is what its configuration says of the cluster.
	Node  bool
	Wants handover.Cluster
	// Fits says why this machine cannot be a server of the cluster, which listens where Listen says. It may be nil.
	Fits func(c handover.Cluster, host string) error
}

// JoinServer makes this machine a server of the cluster: it then has the cluster's keys,
// and a place among the members of the store, which it takes at its start. Before keys are
// given out nothing is changed, here or there.
func JoinServer(ctx context.Context, c ServerConfig) (Server, error) {
	c.fill()
	address, err := c.check()
	if err != nil {
		return Server{}, err
	}
	if _, err := os.Stat(c.PKI); err == nil {
		return Server{}, fmt.Errorf("%s holds keys of a cluster already: move it away, or choose another --data-dir", c.PKI)
	}
	c.Report("asking the server at " + address + " who it is")
	ca, err := authority(ctx, address, c.Token.Pin)
	if err != nil {
		return Server{}, err
	}
	if err := checkClock(ctx, address, ca, c.Now); err != nil {
		return Server{}, err
	}
	invited, err := kubernetes.NewForConfig(reach(address, rest.TLSClientConfig{CAData: certificatePEM(ca)}, c.Token.Bearer()))
	if err != nil {
		return Server{}, fmt.Errorf("make the client for joining: %w", err)
	}
	s, err := c.begin(ctx, address)
	if err != nil {
		return s, err
	}
	return s, c.enter(ctx, &s, invited)
}

func (c *Config) fill() {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Report == nil {
		c.Report = func(string) {}
	}
}

// begin is what the machine knows of itself.
func (c *ServerConfig) begin(ctx context.Context, address string) (Server, error) {
	s := Server{By: address, Listen: c.Listen, Host: c.Host, Names: c.Names, Light: c.Light}
	if c.Light {
		s.Name = c.Config.Node
	}
	if s.Host == "" {
		conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
		if err != nil {
			return s, fmt.Errorf("reach the server at %s: %w", address, err)
		}
		s.Host, _, err = net.SplitHostPort(conn.LocalAddr().String())
		if err = errors.Join(err, conn.Close()); err != nil {
			return s, fmt.Errorf("find this machine's address: %w; name it by node.address", err)
		}
	}
	if c.PeerPort != 0 {
		s.Name, s.Address = c.Config.Node, net.JoinHostPort(s.Host, strconv.Itoa(c.PeerPort))
	}
	return s, nil
}

// enter asks to be let in, and keeps what it is given.
func (c *ServerConfig) enter(ctx context.Context, s *Server, invited kubernetes.Interface) error {
	request, err := c.request(s)
	if err != nil {
		return err
	}
	var client *pki.StoreClientRequest
	if c.Light {
		if client, err = pki.NewStoreClientRequest(s.Name); err != nil {
			return err
		}
		request.CSR = client.CSR
	}
	hangUp, err := answer(ctx, s.Address, request.Nonce)
	if err != nil {
		return err
	}
	defer hangUp()
	c.Report("asking whether this machine can be a server")
	var offer handover.Offer
	if err := c.call(ctx, invited, handover.PreparePath, request, &offer); err != nil {
		return err
	}
	s.Cluster = offer.Cluster
	if err := c.checkNetworks(Member{PodCIDR: s.Cluster.PodCIDR, ServiceCIDR: s.Cluster.ServiceCIDR}); err != nil {
		return err
	}
	if c.Fits != nil {
		if err := c.Fits(s.Cluster, s.Host); err != nil {
			return err
		}
	}
	if s.Peers, err = reachable(ctx, offer.Members); err != nil {
		return err
	}
	c.Report("taking over the cluster's keys")
	own, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for the exchange: %w", err)
	}
	request.Key = own.PublicKey().Bytes()
	var sealed handover.Sealed
	if err := c.call(ctx, invited, handover.TakePath, request, &sealed); err != nil {
		return err
	}
	keys, err := handover.Open(request, own, c.Token.Digest(), sealed)
	if err != nil {
		return err
	}
	return c.keep(*s, keys, client)
}

func (c *ServerConfig) request(s *Server) (handover.Request, error) {
	_, text, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return handover.Request{}, fmt.Errorf("apiserver.listen: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port == 0 {
		return handover.Request{}, fmt.Errorf("apiserver.listen: a server that joins needs the port that all servers of its cluster have, found %q", c.Listen)
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // it never fails
	return handover.Request{
		Name: c.Config.Node, Machine: c.Machine, Address: s.Address, Nonce: hex.EncodeToString(nonce[:]),
		Port: port, Version: c.Version, Node: c.Node, Cluster: c.Wants, Light: s.Light, Host: s.Host,
	}, nil
}

// answer says nonce to everybody who connects to address, until hangUp.
func answer(ctx context.Context, address, nonce string) (hangUp func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the other servers' stores: %w; choose another port by store.peerPort", err)
	}
	ended := run.Go("answer of a joining server", func() error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return nil //nolint:nilerr // hangUp has closed it
			}
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(conn, nonce) // who hangs up learns nothing
			_ = conn.Close()
		}
	})
	return func() { _ = l.Close(); <-ended }, nil
}

// reachable tries the stores of the members that live. Of one that is down nothing can be said.
func reachable(ctx context.Context, members []store.Member) (peers []string, err error) {
	for _, m := range members {
		if m.Peer == "" || !m.Alive {
			continue
		}
		d := net.Dialer{Timeout: patience}
		conn, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(m.Peer, "https://"))
		if err != nil {
			return nil, fmt.Errorf("the store of server %s cannot be reached from this machine: %w; open the port on that machine, and join again", m.Name, err)
		}
		_ = conn.Close()
		peers = append(peers, m.Peer)
	}
	return peers, nil
}

// call asks the server, whose refusals are sentences.
func (c *ServerConfig) call(ctx context.Context, invited kubernetes.Interface, path string, in handover.Request, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode the request to join: %w", err)
	}
	const long = 50 * time.Second // members of the store find each other meanwhile
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	answered := invited.Discovery().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).MaxRetries(
		0).Do(ctx)
	data, _ := answered.Raw() //nolint:errcheck // Error has read what a refusal says
	err = answered.Error()
	var status apierrors.APIStatus
	switch {
	case apierrors.IsUnauthorized(err) && errors.As(err, &status) && !strings.Contains(status.Status().Message, "token"):
		return fmt.Errorf("the server does not know the token %s.***: it is mistyped, has expired, was used already or was revoked; make a new one on a server: wasmplane token create --server", c.Token.ID)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the token %s.*** is not for servers: it lets a machine in as a worker at most; make one that is on a server: wasmplane token create --server", c.Token.ID)
	case apierrors.IsNotFound(err):
		return errors.New("the server's version of wasmplane takes in no further servers; upgrade it first")
	case errors.As(err, &status):
		return errors.New(status.Status().Message)
	case err != nil:
		return fmt.Errorf("ask the server to let this machine in: %w", err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}

// keep writes the keys beside, and moves them where they belong once all are there. What
// says that the machine has joined comes first: without it, the next start would begin a
// cluster of its own with these keys. A light server has the key to its certificate in client.
func (c *ServerConfig) keep(s Server, keys handover.Keys, client *pki.StoreClientRequest) (err error) {
	next := c.PKI + ".joining"
	if err := errors.Join(os.RemoveAll(next), os.MkdirAll(next, 0o700)); err != nil {
		return fmt.Errorf("make the folder for the cluster's keys: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(next), os.RemoveAll(c.File))
		}
	}()
	for name, data := range keys {
		if name == handover.StoreCertificateFile {
			continue // goes with its key
		}
		if err := atomicfile.Write(filepath.Join(next, name), data, 0o600); err != nil {
			return err
		}
	}
	if client != nil {
		if err := client.Keep(next, keys[handover.StoreCertificateFile]); err != nil {
			return err
		}
	}
	if err := s.Write(c.File); err != nil {
		return err
	}
	if err := os.Rename(next, c.PKI); err != nil {
		return fmt.Errorf("put the cluster's keys in place: %w", err)
	}
	return nil
}
