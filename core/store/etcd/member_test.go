// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
)

// freeURL is an address that nobody listens at just now.
func freeURL(t *testing.T) url.URL {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

// A backup becomes an etcd cluster of three members, each restored on its own, as on
// three machines; it goes on after everything that clients can have seen.
func TestMembersRestoredOneByOneAreOneCluster(t *testing.T) {
	s, end := startAt(t, filepath.Join(t.TempDir(), "a"))
	first, err := s.Put(t.Context(), "/registry/x", []byte("old"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := saved(t, s)
	end()
	t.Cleanup(func() { // members that are closed hang up on each other after a while
		for limit := time.Now().Add(time.Minute); goleak.Find() != nil && time.Now().Before(limit); {
		}
	})
	names := []string{"m1", "m2", "m3"}
	peers, clients := map[string]url.URL{}, map[string]url.URL{}
	var cluster, endpoints []string
	for _, name := range names {
		peers[name], clients[name] = freeURL(t), freeURL(t)
		p, c := peers[name], clients[name]
		cluster, endpoints = append(cluster, name+"="+p.String()), append(endpoints, c.String())
	}
	var started []*embed.Etcd
	for _, name := range names {
		m := Member{Name: name, InitialCluster: strings.Join(cluster, ","), Token: "after-the-fire"}
		dir := filepath.Join(t.TempDir(), name)
		if err := Restore(RestoreConfig{File: file, Dir: dir, Bump: 1000, Member: &m}); err != nil {
			t.Fatal(err)
		}
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir, cfg.LogLevel, cfg.UnsafeNoFsync = name, dir, "fatal", true
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peers[name]}, []url.URL{peers[name]}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{clients[name]}, []url.URL{clients[name]}
		cfg.InitialCluster, cfg.InitialClusterToken = m.InitialCluster, m.Token
		e, err := embed.StartEtcd(cfg)
		if err != nil {
			t.Fatal(err)
		}
		started = append(started, e)
		t.Cleanup(e.Close)
	}
	for _, e := range started {
		select {
		case <-e.Server.ReadyNotify():
		case err := <-e.Err():
			t.Fatal(err)
		case <-time.After(2 * time.Minute):
			t.Fatal("the members do not find each other")
		}
	}
	for _, endpoint := range endpoints {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Get(t.Context(), "/registry/x")
		if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "old" || r.Header.Revision < first+1000 {
			t.Errorf("%s: %v, %v", endpoint, r, err)
		}
		if list, err := c.MemberList(t.Context()); err != nil || len(list.Members) != 3 {
			t.Errorf("%s: members %v, %v", endpoint, list, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAMemberThatIsNotInItsClusterIsRefused(t *testing.T) {
	for _, c := range []struct {
		m    Member
		want string
	}{
		{Member{Name: "m4", InitialCluster: "m1=http://127.0.0.1:1"}, `m4 is not among the members of "m1=http://127.0.0.1:1"`},
		{Member{Name: "m1", InitialCluster: "m1"}, "NAME=PEER_URL"},
		{Member{Name: "m1", InitialCluster: "m1=127.0.0.1:1"}, "NAME=PEER_URL"},
	} {
		err := Restore(RestoreConfig{File: "none", Dir: filepath.Join(t.TempDir(), "d"), Bump: 1, Member: &c.m})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, expected one with %q", c.m, err, c.want)
		}
	}
}
