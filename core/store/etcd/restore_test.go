// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

func startAt(t *testing.T, dir string) (*etcdclient.Store, func()) {
	t.Helper()
	server, err := Start(t.Context(), ServerConfig{Dir: dir, NoFsync: true, Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	end := func() {
		if closed {
			return
		}
		closed = true
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return server.Store(), end
}

func saved(t *testing.T, s *etcdclient.Store) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "backup.db")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestARestoredStoreIsTheOldOneLater(t *testing.T) {
	s, end := startAt(t, filepath.Join(t.TempDir(), "a"))
	first, err := s.Put(t.Context(), "/registry/x", []byte("old"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := saved(t, s)
	// What happens after the backup is lost, but clients have seen it.
	seen := first
	for i := range 20 {
		if seen, err = s.Put(t.Context(), "/registry/x", fmt.Append(nil, "new", i), seen, 0); err != nil {
			t.Fatal(err)
		}
	}
	end()
	info, err := snapshotfile.Check(file)
	if err != nil || info.Revision != first || info.Keys != 1 || len(info.SHA256) != 64 {
		t.Fatalf("%+v, %v", info, err)
	}
	dir := filepath.Join(t.TempDir(), "b")
	if err := Restore(RestoreConfig{File: file, Dir: dir, Bump: 1000}); err != nil {
		t.Fatal(err)
	}
	s, _ = startAt(t, dir)
	kv, err := s.Get(t.Context(), "/registry/x")
	if err != nil || string(kv.Value) != "old" {
		t.Errorf("%q, %v", kv.Value, err)
	}
	now, err := s.Revision(t.Context())
	if err != nil || now <= seen {
		t.Errorf("revision %d, clients have seen %d, %v", now, seen, err)
	}
	// Whoever asks for what he has seen is told that it is too old.
	if _, err := s.List(t.Context(), "/registry/", store.ListOptions{Revision: seen}); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a list at a lost revision: %v", err)
	}
	w, err := s.Watch(t.Context(), "/registry/", seen)
	if err == nil {
		for range w.Batches() { // until it ends
		}
		err = w.Err()
	}
	if !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch from a lost revision: %v", err)
	}
	// And life goes on.
	if _, err := s.Put(t.Context(), "/registry/x", []byte("next"), kv.ModRevision, 0); err != nil {
		t.Error(err)
	}
	if err := Restore(RestoreConfig{File: file, Dir: dir, Bump: 1000}); err == nil {
		t.Error("a directory that exists was overwritten")
	}
}

// plainEtcd is an etcd as others run it, with etcd's own defaults.
func plainEtcd(t *testing.T, dir string) *clientv3.Client {
	t.Helper()
	c := embed.NewConfig()
	c.Dir, c.Name = dir, "default"
	sock, err := os.MkdirTemp("", "e") //nolint:usetesting // the path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sock) })
	client, peer := url.URL{Scheme: "unix", Path: filepath.Join(sock, "c")}, url.URL{Scheme: "http", Host: "localhost:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{}, []url.URL{peer}
	c.InitialCluster = "default=" + peer.String()
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, Logger: zap.NewNop(), Context: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// object is a ConfigMap as upstream stores it: protobuf behind "k8s\x00".
func object(t *testing.T) []byte {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
		Data: map[string]string{"k": "v"},
	}
	data, err := runtime.Encode(protobuf.NewSerializer(scheme, scheme), cm)
	if err != nil || !strings.HasPrefix(string(data), "k8s\x00") {
		t.Fatalf("%q, %v", data, err)
	}
	return data
}

const objectKey = "/registry/configmaps/ns/c"

func TestASnapshotOfPlainEtcdOpensHere(t *testing.T) {
	cl := plainEtcd(t, filepath.Join(t.TempDir(), "plain"))
	want := object(t)
	if _, err := cl.Put(t.Context(), objectKey, string(want)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "plain.db")
	// etcd's own tool: what `etcdctl snapshot save` does.
	if _, err := snapshot.NewV3(zap.NewNop()).Save(t.Context(), clientv3.Config{Endpoints: cl.Endpoints(), Logger: zap.NewNop()},
		file); err != nil {
		t.Fatal(err)
	}
	if info, err := snapshotfile.Check(file); err != nil || info.Keys != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	dir := filepath.Join(t.TempDir(), "ours")
	if err := Restore(RestoreConfig{File: file, Dir: dir, Bump: 1000}); err != nil {
		t.Fatal(err)
	}
	s, _ := startAt(t, dir)
	kv, err := s.Get(t.Context(), objectKey)
	if err != nil || string(kv.Value) != string(want) {
		t.Errorf("%q, %v", kv.Value, err)
	}
}

func TestOurSnapshotOpensInPlainEtcd(t *testing.T) {
	s, _ := startAt(t, filepath.Join(t.TempDir(), "ours"))
	want := object(t)
	if _, err := s.Put(t.Context(), objectKey, want, 0, 0); err != nil {
		t.Fatal(err)
	}
	file := saved(t, s)
	tool := snapshot.NewV3(zap.NewNop())
	if status, err := tool.Status(file); err != nil || status.TotalKey != 1 {
		t.Fatalf("%+v, %v", status, err)
	}
	dir := filepath.Join(t.TempDir(), "plain")
	// What `etcdutl snapshot restore` does, with its defaults.
	if err := tool.Restore(snapshot.RestoreConfig{
		SnapshotPath: file, OutputDataDir: dir, Name: "default", PeerURLs: []string{"http://localhost:0"},
		InitialCluster: "default=http://localhost:0", InitialClusterToken: "etcd-cluster",
	}); err != nil {
		t.Fatal(err)
	}
	resp, err := plainEtcd(t, dir).Get(t.Context(), objectKey)
	if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != string(want) {
		t.Errorf("%+v, %v", resp, err)
	}
}
