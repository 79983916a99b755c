// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/plugins/sign"
)

func write(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func fails(t *testing.T, what string, err error, hint string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), hint) {
		t.Errorf("%s: %v, expected %q", what, err, hint)
	}
}

func TestOnlyWhatSomebodyVouchesForIsTaken(t *testing.T) {
	dir := t.TempDir()
	content := []byte("\x7fELF and so on")
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	s := Source{File: write(t, dir, "wasmplane", content)}
	fails(t, "nobody vouches", s.verify(), "nothing says that")
	if err := (Source{File: s.File, SHA256: strings.ToUpper(sum)}).verify(); err != nil {
		t.Error(err)
	}
	fails(t, "another digest", (Source{File: s.File, SHA256: "00"}).verify(), "damaged, or another file")

	write(t, dir, "SHA256SUMS", []byte(sum+"  another\n"))
	fails(t, "sums of another release", s.verify(), "does not list wasmplane")
	write(t, dir, "SHA256SUMS", []byte("00  another\n"+sum+"  wasmplane\n"))
	if err := s.verify(); err != nil {
		t.Error(err)
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	s.Key = write(t, dir, "release.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	fails(t, "no signature", s.verify(), "read the signature")
	signature, err := sign.SignBytes(key, content)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "wasmplane.sig", []byte(base64.StdEncoding.EncodeToString(signature)+"\n"))
	if err := s.verify(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "SHA256SUMS")); err != nil {
		t.Fatal(err)
	}
	if err := s.verify(); err != nil {
		t.Errorf("the signature alone: %v", err)
	}
	write(t, dir, "wasmplane", append(content, 'x'))
	if err := s.verify(); err == nil {
		t.Error("what was changed after it was signed is taken")
	}
}

// TestWhatWasVerifiedIsUnpacked: also where the file is another one by then, or a link to it.
func TestWhatWasVerifiedIsUnpacked(t *testing.T) {
	dir, ours := t.TempDir(), t.TempDir()
	content := []byte("\x7fELF of the release")
	s := Source{File: write(t, dir, "wasmplane", content), SHA256: fmt.Sprintf("%x", sha256.Sum256(content))}
	remove, err := s.keep(ours)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.verify(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(write(t, dir, "other", []byte("\x7fELF of somebody else")), s.File); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(ours, "out")
	if err := s.unpack(to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%q was unpacked, %v", got, err)
	}
	remove()
	if left, err := os.ReadDir(ours); err != nil || len(left) != 1 {
		t.Errorf("what was kept stays: %v, %v", left, err)
	}
}

// TestAProcessOfAnotherUserIsNotRunAnew by us.
func TestAProcessOfAnotherUserIsNotRunAnew(t *testing.T) {
	if err := runsAs(os.Getpid(), os.Geteuid()); err != nil {
		t.Error(err)
	}
	fails(t, "another's", runsAs(os.Getpid(), os.Geteuid()+1), "upgrade it as the user whose it is")
}

func archive(tb testing.TB, names ...string) []byte {
	tb.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range names {
		text := "content of " + name
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o755}); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func TestBinariesAndArchivesAreUnpacked(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content  []byte
		want, no string
	}{
		"binary":  {[]byte("\x7fELF1"), "\x7fELF1", ""},
		"archive": {archive(t, "wasmplane-v1/LICENSE", "wasmplane-v1/wasmplane"), "content of wasmplane-v1/wasmplane", ""},
		"deep":    {archive(t, "a/b/c/wasmplane"), "", "no wasmplane in the archive"},
		"empty":   {nil, "", "read "},
		"text":    {[]byte("#!/bin/sh\n"), "", "neither a binary"},
		"cut":     {archive(t, "wasmplane-v1/wasmplane")[:40], "", "EOF"},
	} {
		to := filepath.Join(dir, "out")
		err := Source{File: write(t, dir, name, c.content)}.unpack(to)
		if c.no != "" {
			fails(t, name, err, c.no)
			continue
		}
		got, e := os.ReadFile(to)
		info, _ := os.Stat(to)
		if err := errors.Join(err, e); err != nil || string(got) != c.want || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestVersionsFollowEachOther(t *testing.T) {
	for _, c := range []struct{ was, wasK, is, isK, no string }{
		{"v1.2.0", "v1.37.1", "v1.3.0", "v1.38.0", ""},
		{"v1.2.3", "v1.37.1", "v1.2.1", "v1.37.0", ""},
		{"1234567-dirty", "v1.37.1", "v9.0.0", "v1.37.1", ""},
		{"v1.2.0", "v1.37.1", "v1.4.0", "v1.37.1", "wasmplane v1.4.0 is more than one minor version after v1.2.0"},
		{"v1.2.0", "v1.37.1", "v1.1.0", "v1.37.1", "wasmplane v1.1.0 is older than v1.2.0"},
		{"v1.2.0", "v1.37.1", "v1.3.0", "v1.39.0", "Kubernetes v1.39.0 is more than one minor"},
		{"v1.2.0", "v1.37.1", "v1.3.0", "v1.36.0", "Kubernetes v1.36.0 is older"},
	} {
		err := mayFollow(release{c.was, c.wasK}, release{c.is, c.isK})
		if c.no == "" && err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if c.no != "" {
			fails(t, fmt.Sprintf("%+v", c), err, c.no)
		}
	}
}

// TestTheFormerBinaryStays: what the swap leaves is both, each whole.
func TestTheFormerBinaryStays(t *testing.T) {
	dir := t.TempDir()
	binary, next, previous := write(t, dir, "wp", []byte("old")), write(t, dir, "wp.next", []byte("new")), filepath.Join(dir, "wp.previous")
	write(t, dir, "wp.previous", []byte("older"))
	if err := swap(binary, previous, next); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{binary: "new", previous: "old"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", file, got, err)
		}
	}
	if _, err := os.Stat(next); err == nil {
		t.Error("the next one is there twice")
	}
}

func TestOneServerAfterTheOther(t *testing.T) {
	kube := fake.NewClientset()
	a, b := &server{kube: kube, id: "a", hold: time.Hour}, &server{kube: kube, id: "b", hold: time.Hour}
	unlock, err := a.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Lock(t.Context())
	fails(t, "the second", err, "another server is being upgraded")
	if _, err := a.Lock(t.Context()); err != nil {
		t.Errorf("the first one again, after a crash: %v", err)
	}
	unlock(t.Context())
	if unlock, err = b.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	// An upgrade that died is forgotten after a while.
	leases := kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	held, err := leases.Get(t.Context(), lease, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	long := metav1.NewMicroTime(time.Now().Add(-2 * time.Hour))
	held.Spec.RenewTime = &long
	if _, err := leases.Update(t.Context(), held, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Lock(t.Context()); err != nil {
		t.Error(err)
	}
	if _, other := busy(&coordinationv1.Lease{}, "a"); other {
		t.Error("a lease that nobody holds is busy")
	}
	unlock(t.Context())
}

func TestTheEndOfALog(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "log", []byte(strings.Repeat("a long line\n", 5000)+"last but one\nlast\n"))
	if got := tail(file, 2); len(got) != 2 || got[0] != "last but one" || got[1] != "last" {
		t.Errorf("%q", got)
	}
	if got := tail(filepath.Join(dir, "missing"), 2); got != nil {
		t.Errorf("%q", got)
	}
}
