// SPDX-License-Identifier: Apache-2.0

package etcdclient_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdtest"
	"github.com/wasmplane/wasmplane/core/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExternalStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		listen := etcdtest.Socket(t)
		etcdtest.Start(t, etcd.ServerConfig{NoFsync: true, Listen: []string{listen}})
		s, err := etcdclient.Dial(t.Context(), etcdclient.Config{Endpoints: []string{listen}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	})
}

func TestDialSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		cfg  etcdclient.Config
		want []string
	}{
		{"no endpoints", etcdclient.Config{}, []string{"no endpoints"}},
		{"no scheme", etcdclient.Config{Endpoints: []string{"10.0.0.1:2379"}}, []string{"10.0.0.1:2379", "https://"}},
		{"mixed schemes", etcdclient.Config{Endpoints: []string{"http://127.0.0.1:1", "https://127.0.0.1:2"}}, []string{"all of them or for none"}},
		{"certificates without TLS", etcdclient.Config{Endpoints: []string{"http://127.0.0.1:1"}, CAFile: empty}, []string{"no endpoint begins with https"}},
		{"no such CA", etcdclient.Config{Endpoints: []string{"https://127.0.0.1:1"}, CAFile: dir + "/none"}, []string{"CA certificates", dir + "/none"}},
		{"empty CA", etcdclient.Config{Endpoints: []string{"https://127.0.0.1:1"}, CAFile: empty}, []string{empty, "no PEM certificate"}},
		{"certificate without key", etcdclient.Config{Endpoints: []string{"https://127.0.0.1:1"}, CertFile: empty}, []string{"needs both files"}},
		{"nobody there", etcdclient.Config{Endpoints: []string{"http://127.0.0.1:1", "unix://" + dir + "/none"}, Timeout: 200 * time.Millisecond}, []string{"no etcd answers", "http://127.0.0.1:1", dir + "/none", "store.endpoints"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := etcdclient.Dial(t.Context(), c.cfg)
			if err == nil {
				t.Fatalf("no error, want one that says %q", c.want)
			}
			for _, text := range c.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not say %q", err, text)
				}
			}
		})
	}
}

func TestTooLargeValue(t *testing.T) {
	s := etcdtest.Start(t, etcd.ServerConfig{NoFsync: true, MaxRequest: 100_000}).Store()
	_, err := s.Put(t.Context(), "/registry/large", make([]byte, 200_000), 0, 0)
	if !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
}

func TestLeasesAreShared(t *testing.T) {
	s := etcdtest.Start(t, etcd.ServerConfig{NoFsync: true}).Store()
	ids := map[int64]int{}
	for i := range 1500 {
		key := "/registry/events/" + strings.Repeat("e", i%50) + string(rune('a'+i/50))
		if _, err := s.Put(t.Context(), key, nil, 0, time.Hour); err != nil {
			t.Fatal(err)
		}
		kv, err := s.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		ids[kv.LeaseID]++
	}
	if len(ids) != 2 {
		t.Errorf("1500 events have %d leases, want 2", len(ids))
	}
}

func TestBackupHoldsEverything(t *testing.T) {
	s := etcdtest.Start(t, etcd.ServerConfig{}).Store()
	if _, err := s.Put(t.Context(), "/registry/a", []byte("needle in the backup"), 0, 0); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := s.Backup(ctx, &b)
	if err != nil || n != int64(b.Len()) || !bytes.Contains(b.Bytes(), []byte("needle in the backup")) {
		t.Fatalf("%d bytes, %v", n, err)
	}
}
