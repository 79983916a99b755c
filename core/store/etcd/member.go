// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"golang.org/x/sync/errgroup"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/clientport"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
)

var _ store.Membership = (*Server)(nil)

const (
	// answering bounds how long a member may take to say that it lives.
	answering = 2 * time.Second
	// connected: etcd takes a member for connected once it has been for 5 s, and adds none
	// before most are. A change of members is tried that long.
	connected = 20 * time.Second
)

// Members implements store.Membership.
func (s *Server) Members(ctx context.Context) ([]store.Member, error) {
	ctx, cancel := s.store.Bound(ctx)
	defer cancel()
	var list *clientv3.MemberListResponse
	err := s.store.Outlive(ctx, func(ctx context.Context) (err error) {
		list, err = s.store.Client().MemberList(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", store.ErrQuorum, etcdclient.Plain(err))
	}
	self, leader := uint64(s.etcd.Server.MemberID()), s.etcd.Server.Lead()
	out := make([]store.Member, len(list.Members))
	var g errgroup.Group
	for i, m := range list.Members {
		out[i] = memberOf(m)
		out[i].Leader, out[i].Self, out[i].Alive = m.ID == leader, m.ID == self, m.ID == self
		if out[i].Self || out[i].Peer == "" || s.peers == nil {
			continue
		}
		g.Go(func() error {
			out[i].Alive = s.peers.alive(ctx, out[i].Peer)
			return nil
		})
	}
	_ = g.Wait() // none of them fails
	byName(out)
	return out, nil
}

// memberOf is what the membership says of a member.
func memberOf(m *etcdserverpb.Member) store.Member {
	out := store.Member{ID: strconv.FormatUint(m.ID, 16), Name: m.Name, Learner: m.IsLearner}
	if len(m.PeerURLs) > 0 && !alone(m.PeerURLs[0]) {
		out.Peer = m.PeerURLs[0]
	}
	return out
}

func byName(all []store.Member) {
	slices.SortFunc(all, func(a, b store.Member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
}

// alone is the address of a member that has no others.
func alone(peer string) bool { return peer == nobody }

const nobody = "http://localhost:0"

// Open implements store.Membership. The store goes on meanwhile.
func (s *Server) Open(ctx context.Context, address string) error {
	if s.peers == nil {
		return errors.New("this store was started for one server alone")
	}
	if err := s.peers.listen(address); err != nil {
		return err
	}
	s.peers.serve(s.etcd)
	return s.advertise(ctx, address)
}

// advertise has the membership name the address, where it names another.
func (s *Server) advertise(ctx context.Context, address string) error {
	own, want := s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID()), "https://"+address
	if own == nil || slices.Equal(own.PeerURLs, []string{want}) {
		return nil
	}
	ctx, cancel := s.store.Bound(ctx)
	defer cancel()
	if err := s.store.Outlive(ctx, func(ctx context.Context) error {
		_, err := s.store.Client().MemberUpdate(ctx, uint64(own.ID), []string{want})
		return err
	}); err != nil {
		return fmt.Errorf("have the other servers know the address %s: %s", address, etcdclient.Plain(err))
	}
	return nil
}

// Add implements store.Membership.
func (s *Server) Add(ctx context.Context, address string) error {
	tries := 0
	err := s.persist(ctx, func(ctx context.Context) error {
		tries++
		_, err := s.store.Client().MemberAddAsLearner(ctx, []string{"https://" + address})
		if tries > 1 && errors.Is(err, rpctypes.ErrPeerURLExist) {
			return nil // by a try that a change of leaders left unknown
		}
		return err
	})
	switch {
	case errors.Is(err, rpctypes.ErrTooManyLearners):
		return errors.New("another server is joining and does not vote yet: wait until `wasmplane status` shows that it does, or take it out if it never will (wasmplane node remove)")
	case unhealthy(err):
		return fmt.Errorf("%w to take in another: start those that are down, or remove them for good (wasmplane node remove)", store.ErrQuorum)
	case err != nil:
		return fmt.Errorf("add a member of the store: %s", etcdclient.Plain(err))
	}
	return nil
}

func unhealthy(err error) bool {
	return errors.Is(err, rpctypes.ErrUnhealthy) || errors.Is(err, rpctypes.ErrMemberNotEnoughStarted)
}

// persist tries a change of members again while members find each other, or elect.
func (s *Server) persist(ctx context.Context, change func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, connected)
	defer cancel()
	again := run.Backoff{First: 200 * time.Millisecond, Longest: time.Second}
	for {
		err := s.store.Outlive(ctx, change)
		if !unhealthy(err) || !again.Wait(ctx) {
			return err
		}
	}
}

// Removable implements store.Membership.
func (s *Server) Removable(ctx context.Context, id string) error {
	all, err := s.Members(ctx)
	if err != nil {
		return err
	}
	voters, alive := 0, 0
	for _, m := range all {
		if m.ID == id && m.Learner {
			return nil
		}
		if m.Learner || m.ID == id {
			continue
		}
		voters++
		if m.Alive {
			alive++
		}
	}
	switch {
	case voters == 0:
		return fmt.Errorf("%w: it is the only server that votes, and its data would go with it", store.ErrQuorum)
	case alive <= voters/2:
		return fmt.Errorf("%w: of the %d servers that would be left %d answer, and more than half must; start another one first, or remove first one that is gone", store.ErrQuorum, voters, alive)
	}
	return nil
}

// Remove implements store.Membership.
func (s *Server) Remove(ctx context.Context, id string) error {
	number, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return fmt.Errorf("expected the ID of a member in hexadecimal digits, found %q", id)
	}
	if err := s.Removable(ctx, id); err != nil {
		return err
	}
	err = s.persist(ctx, func(ctx context.Context) error {
		_, err := s.store.Client().MemberRemove(ctx, number)
		return err
	})
	switch {
	case errors.Is(err, rpctypes.ErrMemberNotFound):
		return nil
	case unhealthy(err):
		return fmt.Errorf("%w to agree on it once it is gone: start those that are down first", store.ErrQuorum)
	case err != nil:
		return fmt.Errorf("remove a member of the store: %s", etcdclient.Plain(err))
	}
	return nil
}

// promote has a member vote that has come as a learner, as soon as it has everything.
func (s *Server) promote(ctx context.Context, progress func(string)) error {
	if !s.etcd.Server.IsLearner() {
		return nil
	}
	progress("copying the cluster's state")
	again := run.Backoff{First: 100 * time.Millisecond, Longest: time.Second}
	for s.etcd.Server.IsLearner() {
		one, cancel := context.WithTimeout(ctx, answering)
		_, err := s.store.Client().MemberPromote(one, uint64(s.etcd.Server.MemberID()))
		cancel()
		if errors.Is(err, rpctypes.ErrMemberNotLearner) || err == nil {
			continue // this member hears of it in a moment
		}
		if errors.Is(err, rpctypes.ErrMemberNotFound) || s.isRemoved() {
			return store.ErrRemoved
		}
		if !again.Wait(ctx) {
			return fmt.Errorf("have this server vote: %s", etcdclient.Plain(err))
		}
	}
	return nil
}

func (s *Server) isRemoved() bool { return s.etcd.Server.IsIDRemoved(uint64(s.etcd.Server.MemberID())) }

// watchRemoval tells whether the others say that this member is none of them, as soon as
// one of them answers.
func (s *Server) watchRemoval(ctx context.Context) bool {
	again := run.Backoff{First: 500 * time.Millisecond, Longest: 5 * time.Second}
	for {
		removed, known := s.askOthers(ctx)
		if known || !again.Wait(ctx) {
			return removed
		}
	}
}

// askOthers asks the members that this one knew whether it is one of them: one that was
// removed while it was off hears it from nobody else.
func (s *Server) askOthers(ctx context.Context) (removed, known bool) {
	own, cluster := s.etcd.Server.MemberID(), s.etcd.Server.Cluster()
	for _, m := range cluster.Members() {
		if m.ID == own || len(m.PeerURLs) == 0 {
			continue
		}
		members, id, err := s.peers.list(ctx, m.PeerURLs[0])
		if err == nil && id == cluster.ID().String() {
			return !slices.ContainsFunc(members, func(m *membership.Member) bool { return m.ID == own }), true
		}
	}
	return false, false
}

// why is the reason for which etcd has stopped by itself.
func (s *Server) why(ctx context.Context, otherwise error) error {
	removed := s.isRemoved()
	if !removed && s.peers != nil {
		removed, _ = s.askOthers(ctx)
	}
	if removed {
		return store.ErrRemoved
	}
	return otherwise
}

// peers is the side of a member that faces the others.
type peers struct {
	cfg  Peers
	http *http.Client

	mu       sync.Mutex
	listener *peerListener
}

func newPeers(cfg Peers) (*peers, error) {
	config, err := etcdclient.Config{CAFile: cfg.CAFile, CertFile: cfg.PairFile, KeyFile: cfg.PairFile}.TLS()
	if err != nil {
		return nil, err
	}
	return &peers{cfg: cfg, http: &http.Client{
		Timeout: answering, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSClientConfig: config, TLSHandshakeTimeout: answering, DisableKeepAlives: true},
	}}, nil
}

// maxMembers bounds what another member's list may take, in bytes.
const maxMembers = 1 << 20

// list asks the member at url for all members that it knows, and its cluster's ID.
func (p *peers) list(ctx context.Context, url string) (members []*membership.Member, cluster string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/members", nil)
	if err != nil {
		return nil, "", err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("the member at %s answers %s", url, resp.Status)
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxMembers)).Decode(&members)
	return members, resp.Header.Get("X-Etcd-Cluster-ID"), err
}

func (p *peers) alive(ctx context.Context, url string) bool {
	_, _, err := p.list(ctx, url)
	return err == nil
}

// initialCluster is the membership that a joining server begins with, as the others have it.
func (p *peers) initialCluster(ctx context.Context) (string, error) {
	own := "https://" + p.cfg.Address
	var failures []error
	for _, url := range p.cfg.Join {
		members, _, err := p.list(ctx, url)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", url, err))
			continue
		}
		var out []string
		for _, m := range members {
			for _, peer := range m.PeerURLs {
				name := cmp.Or(m.Name, "member-"+m.ID.String())
				if peer == own {
					name = p.cfg.Name
				}
				out = append(out, name+"="+peer)
			}
		}
		if !slices.Contains(out, p.cfg.Name+"="+own) {
			return "", store.ErrRemoved
		}
		return strings.Join(out, ","), nil
	}
	return "", fmt.Errorf("no server of the cluster can be reached by the port of its store: %w", errors.Join(failures...))
}

// tls is how this member serves the others, and light servers: all show certificates of one authority. Those of light servers
// agree on another protocol, by which they reach the store alone.
func (p *peers) tls() (*tls.Config, error) {
	c, err := etcdclient.Config{CAFile: p.cfg.CAFile, CertFile: p.cfg.PairFile, KeyFile: p.cfg.PairFile}.TLS()
	if err != nil {
		return nil, err
	}
	client := c.GetClientCertificate
	out := &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.RootCAs, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return client(nil) },
		VerifyConnection: func(s tls.ConnectionState) error {
			if clientport.ForClient(s.PeerCertificates[0]) != (s.NegotiatedProtocol == clientport.Protocol) {
				return errors.New("members of the store speak with members, and light servers use the store")
			}
			return nil
		},
	}
	if p.cfg.Admit != nil {
		out.NextProtos = append(out.NextProtos, clientport.Protocol)
	}
	return out, nil
}
