// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

func dirOf(t *testing.T) datadir.Dir {
	t.Helper()
	d, err := datadir.Open(filepath.Join(t.TempDir(), "d"), func(notice string) { t.Error(notice) })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestKeysComeBackAsTheyWere(t *testing.T) {
	from, to := dirOf(t), dirOf(t)
	if _, err := pki.Open(pki.Config{Dir: from.PKI()}); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "keys.tar.gz")
	if err := SaveKeys(from, archive, false); err != nil {
		t.Fatal(err)
	}
	if err := SaveKeys(from, archive, false); err == nil {
		t.Error("an archive was overwritten")
	}
	if info, err := os.Stat(archive); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := RestoreKeys(to, archive, false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "ca.crt", "sa.key"} {
		a, errA := os.ReadFile(filepath.Join(from.PKI(), name))
		b, errB := os.ReadFile(filepath.Join(to.PKI(), name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v, %v", name, errA, errB)
		}
	}
	if _, err := RestoreKeys(to, archive, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("keys that are there: %v", err)
	}
	aside, err := RestoreKeys(to, archive, true)
	if err != nil || aside == "" {
		t.Errorf("with force: %q, %v", aside, err)
	}
	if _, err := os.Stat(filepath.Join(aside, "ca.key")); err != nil {
		t.Error(err)
	}
}

// TestBackupsAreReadableByTheirOwnerAlone: also where somebody else was there first, with a file or a link under a name
// that is written to.
func TestBackupsAreReadableByTheirOwnerAlone(t *testing.T) {
	o := Options{Config: config.Default(), Dir: dirOf(t)}
	if _, err := pki.Open(pki.Config{Dir: o.Dir.PKI()}); err != nil {
		t.Fatal(err)
	}
	server, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: o.Dir.Etcd(), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Store().Put(t.Context(), "/registry/x", []byte("v"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for name, save := range map[string]func(file string) error{
		"store.db": func(file string) error {
			_, err := Save(t.Context(), o, file, true, nil)
			return err
		},
		"keys.tar.gz": func(file string) error { return SaveKeys(o.Dir, file, true) },
	} {
		file, others := filepath.Join(folder, name), filepath.Join(folder, "others-"+name)
		if err := os.WriteFile(others, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(others, 0o666), os.Symlink(others, file), os.Link(others, file+".part")); err != nil {
			t.Fatal(err)
		}
		if err := save(file); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(file); err != nil || info.Mode() != 0o600 || info.Size() == 0 {
			t.Errorf("%s is %v", name, info)
		}
		if got, err := os.ReadFile(others); err != nil || len(got) > 0 {
			t.Errorf("%s: another's file got %d bytes of it", name, len(got))
		}
	}
}

func TestArchivesThatAreNoKeysAreRefused(t *testing.T) {
	for name, h := range map[string]*tar.Header{
		"climbs out":  {Name: "../ca.key", Typeflag: tar.TypeReg},
		"is a link":   {Name: "ca.key", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"},
		"is absolute": {Name: "/etc/passwd", Typeflag: tar.TypeReg},
		"is hidden":   {Name: ".lock", Typeflag: tar.TypeReg},
		"is not all":  {Name: "ca.key", Typeflag: tar.TypeReg},
	} {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := unpackKeys(&b, filepath.Join(dir)); err == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := os.Lstat(filepath.Join(filepath.Dir(dir), "ca.key")); err == nil {
			t.Errorf("%s: it climbed out", name)
		}
	}
}

func TestAStoreThatIsThereIsPutAsideOnlyWithForce(t *testing.T) {
	o := Options{Config: config.Default(), Dir: dirOf(t)}
	server, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: o.Dir.Etcd(), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Store().Put(t.Context(), "/registry/x", []byte("v"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "b.db")
	info, err := Save(t.Context(), o, file, false, nil)
	if err != nil || info.Keys != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	if _, err := Save(t.Context(), o, file, false, nil); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("a backup was overwritten: %v", err)
	}
	if _, _, err := Restore(t.Context(), o, file, 1000, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("a store was overwritten: %v", err)
	}
	aside, _, err := Restore(t.Context(), o, file, 1000, true)
	if err != nil || !strings.HasPrefix(aside, o.Dir.Etcd()+".before-") {
		t.Fatalf("%q, %v", aside, err)
	}
	if server, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: o.Dir.Etcd(), NoFsync: true}); err != nil {
		t.Fatal(err)
	}
	if kv, err := server.Store().Get(t.Context(), "/registry/x"); err != nil || string(kv.Value) != "v" {
		t.Errorf("%q, %v", kv.Value, err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	external := Options{Config: config.Default(), Dir: o.Dir}
	external.Config.Store.Endpoints = []string{"http://127.0.0.1:1"}
	if _, _, err := Restore(t.Context(), external, file, 1000, true); err == nil ||
		!strings.Contains(err.Error(), "--member NAME --initial-cluster") {
		t.Errorf("an external etcd: %v", err)
	}
	m := etcd.Member{Name: "m1", InitialCluster: "m1=https://10.0.0.1:2380,m2=https://10.0.0.2:2380"}
	dir := filepath.Join(t.TempDir(), "m1")
	if info, err := RestoreMember(external, file, dir, 1000, m); err != nil || info.Keys == 0 {
		t.Errorf("a member of an external etcd: %+v, %v", info, err)
	}
	if _, err := RestoreMember(external, file, dir, 1000, m); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a member that is there: %v", err)
	}
}

// A server of several is restored as the only one of its cluster, and never while another one runs.
func TestAServerOfSeveralIsRestoredAlone(t *testing.T) {
	o := Options{Config: config.Default(), Dir: dirOf(t)}
	server, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: o.Dir.Etcd(), NoFsync: true})
	check(t, err)
	_, err = server.Store().Put(t.Context(), "/registry/x", []byte("v"), 0, 0)
	check(t, errors.Join(err, server.Close()))
	file := filepath.Join(t.TempDir(), "b.db")
	_, err = Save(t.Context(), o, file, false, nil)
	check(t, err)

	authority, err := pki.Open(pki.Config{Dir: o.Dir.PKI()})
	check(t, err)
	serving, err := authority.APIServer()
	check(t, err)
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.TLS = pki.ServerTLS(serving)
	other.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	other.StartTLS()
	foreign := httptest.NewUnstartedServer(http.NotFoundHandler()) // has the address of one that is gone
	foreign.Config.ErrorLog = other.Config.ErrorLog
	foreign.StartTLS()
	defer foreign.Close()
	defer other.Close()
	around := join.Server{Name: "a", Host: "127.0.0.1", Address: "127.0.0.1:2380"}
	check(t, around.Write(o.Dir.Server()))
	list, err := json.Marshal([]string{other.Listener.Addr().String(), foreign.Listener.Addr().String(), "127.0.0.1:1"})
	check(t, errors.Join(err, os.WriteFile(o.Dir.Servers(), list, 0o600)))

	running := other.Listener.Addr().String()
	if _, _, err = Restore(t.Context(), o, file, 1000, true); err == nil ||
		!strings.Contains(err.Error(), "servers of this cluster run, at "+running+": ") {
		t.Errorf("beside another one that runs: %v", err)
	}
	other.Close()
	_, _, err = Restore(t.Context(), o, file, 1000, true)
	check(t, err)
	server, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: o.Dir.Etcd(), NoFsync: true})
	check(t, err)
	members, err := server.Members(t.Context())
	check(t, errors.Join(err, server.Close()))
	if len(members) != 1 || members[0].Peer != "https://127.0.0.1:2380" {
		t.Errorf("members %+v", members)
	}
}
