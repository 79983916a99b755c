// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/encryption/kms"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/storetest"
)

const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"

// secretOf is a key of n bytes in base64.
func secretOf(fill byte, n int) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, n))
}

func rule(resources string, providers ...string) string {
	return "- resources: [" + resources + "]\n  providers:\n  - " + strings.Join(providers, "\n  - ") + "\n"
}

func provider(kind string, keys ...string) string {
	var list []string
	for _, k := range keys {
		name, fill, _ := strings.Cut(k, "=")
		list = append(list, fmt.Sprintf("{name: %s, secret: %s}", name, secretOf(fill[0], 32)))
	}
	return fmt.Sprintf("%s: {keys: [%s]}", kind, strings.Join(list, ", "))
}

type world struct {
	*Store
	raw  store.Store
	file string
}

func newWorld(t *testing.T, rules string) *world {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(t.TempDir(), "etcd"), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{raw: server.Store(), file: filepath.Join(t.TempDir(), "encryption.yaml")}
	w.write(t, rules)
	w.Store, err = New(t.Context(), Config{Store: w.raw, File: w.file, Resource: resource})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// resource of a key "/registry/RESOURCE/...", where RESOURCE may be "name.group".
func resource(key string) (schema.GroupResource, bool) {
	name, _, ok := strings.Cut(strings.TrimPrefix(key, "/registry/"), "/")
	return schema.ParseGroupResource(name), ok
}

func (w *world) write(t *testing.T, rules string) {
	t.Helper()
	if err := os.WriteFile(w.file, []byte(header+rules), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *world) reload(t *testing.T, rules string) {
	t.Helper()
	w.write(t, rules)
	if err := w.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (w *world) put(t *testing.T, key, value string) int64 {
	t.Helper()
	expect := int64(0)
	if kv, err := w.raw.Get(t.Context(), key); err == nil {
		expect = kv.ModRevision
	}
	rev, err := w.Put(t.Context(), key, []byte(value), expect, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// stored is what etcd has.
func (w *world) stored(t *testing.T, key string) string {
	t.Helper()
	kv, err := w.raw.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(kv.Value)
}

func TestTheContractHoldsWithEncryption(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return newWorld(t, rule(`"*.*"`, provider("secretbox", "k=1"))) })
}

const key = "/registry/secrets/ns/s"

func TestWhatIsStored(t *testing.T) {
	for kind, prefix := range map[string]string{
		"aesgcm": "k8s:enc:aesgcm:v1:k1:", "aescbc": "k8s:enc:aescbc:v1:k1:",
		"secretbox": "k8s:enc:secretbox:v1:k1:", "identity": "the value",
	} {
		p := provider(kind, "k1=1")
		if kind == "identity" {
			p = "identity: {}"
		}
		w := newWorld(t, rule("secrets", p))
		w.put(t, key, "the value")
		w.put(t, "/registry/configmaps/ns/c", "not secret")
		stored := w.stored(t, key)
		if !strings.HasPrefix(stored, prefix) || kind != "identity" && strings.Contains(stored, "the value") {
			t.Errorf("%s stores %q", kind, stored)
		}
		if got := w.stored(t, "/registry/configmaps/ns/c"); got != "not secret" {
			t.Errorf("a resource without a rule is stored as %q", got)
		}
		kv, err := w.Get(t.Context(), key)
		if err != nil || string(kv.Value) != "the value" {
			t.Errorf("%s: %q, %v", kind, kv.Value, err)
		}
	}
}

// The format is upstream's: a nonce of 12 bytes, then AES-GCM with the key in the
// store as additional data. This reads it without any of our code.
func TestAnotherToolDecryptsIt(t *testing.T) {
	w := newWorld(t, rule("secrets", provider("aesgcm", "k1=1")))
	w.put(t, key, "the value")
	sealed := strings.TrimPrefix(w.stored(t, key), "k8s:enc:aesgcm:v1:k1:")
	block, err := aes.NewCipher(bytes.Repeat([]byte("1"), 32))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gcm.Open(nil, []byte(sealed[:gcm.NonceSize()]), []byte(sealed[gcm.NonceSize():]), []byte(key))
	if err != nil || string(plain) != "the value" {
		t.Errorf("%q, %v", plain, err)
	}
}

func TestAValueThatWasMovedToAnotherKeyIsRefused(t *testing.T) {
	w := newWorld(t, rule("secrets", provider("aesgcm", "k1=1")))
	w.put(t, key, "the value")
	if _, err := w.raw.Put(t.Context(), key+"2", []byte(w.stored(t, key)), 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Get(t.Context(), key+"2"); err == nil || !strings.Contains(err.Error(), `"`+key+`2"`) {
		t.Errorf("error %v", err)
	}
}

func TestKeysAreRotatedWithoutARestart(t *testing.T) {
	w := newWorld(t, rule("secrets", "identity: {}"))
	stale := func(want bool) {
		t.Helper()
		if got, err := w.Stale(t.Context(), key); err != nil || got != want {
			t.Errorf("stale %t, %v", got, err)
		}
	}
	reads := func() {
		t.Helper()
		if kv, err := w.Get(t.Context(), key); err != nil || string(kv.Value) != "v" {
			t.Errorf("%q, %v", kv.Value, err)
		}
	}
	w.put(t, key, "v")
	stale(false)
	for _, step := range []struct {
		rules, prefix string
		stale         bool
	}{
		{rule("secrets", provider("aesgcm", "k1=1"), "identity: {}"), "v", true}, // turned on
		{
			rule("secrets", provider("aesgcm", "k1=1", "k2=2")), "k8s:enc:aesgcm:v1:k1:",
			false,
		}, // the next key is known everywhere
		{rule("secrets", provider("aesgcm", "k2=2", "k1=1")), "k8s:enc:aesgcm:v1:k1:", true},                        // and then written with
		{rule("secrets", provider("secretbox", "k3=3"), provider("aesgcm", "k2=2")), "k8s:enc:aesgcm:v1:k2:", true}, // another algorithm
		{rule("secrets", "identity: {}", provider("secretbox", "k3=3")), "k8s:enc:secretbox:v1:k3:", true},          // turned off
	} {
		w.reload(t, step.rules)
		if got := w.stored(t, key); !strings.HasPrefix(got, step.prefix) {
			t.Fatalf("stored %q, want %s", got, step.prefix)
		}
		stale(step.stale)
		reads()
		w.put(t, key, "v")
		stale(false)
		reads()
	}
	if got := w.stored(t, key); got != "v" {
		t.Errorf("after it was turned off: %q", got)
	}
}

func TestALostKeyIsToldByNameAndTheRestStays(t *testing.T) {
	w := newWorld(t, rule("secrets", provider("aesgcm", "k1=1")))
	w.put(t, key, "v")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	from, err := w.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.reload(t, rule("secrets", provider("aesgcm", "k2=2")))
	w.put(t, "/registry/secrets/ns/t", "readable")
	page, err := w.List(t.Context(), "/registry/secrets/", store.ListOptions{})
	if err != nil || len(page.Items) != 2 || page.Items[0].Unreadable == nil || page.Items[0].Value != nil ||
		page.Items[1].Unreadable != nil || string(page.Items[1].Value) != "readable" {
		t.Errorf("%+v, %v", page, err)
	}
	if !strings.Contains(page.Items[0].Unreadable.Error(), key) || !strings.Contains(page.Items[0].Unreadable.Error(), w.file) {
		t.Errorf("it says: %v", page.Items[0].Unreadable)
	}
	watch, err := w.WatchLean(ctx, "/registry/", from-1)
	if err != nil {
		t.Fatal(err)
	}
	var events []store.Event
	for deadline := time.After(time.Minute); len(events) < 2; {
		select {
		case b := <-watch.Batches():
			events = append(events, b.Events...)
		case <-deadline:
			t.Fatalf("events %+v", events)
		}
	}
	if events[0].KV.Unreadable == nil || events[1].KV.Unreadable != nil || string(events[1].KV.Value) != "readable" {
		t.Errorf("events %+v", events)
	}
	// A write that loses against it does not show the ciphertext.
	if _, err := w.Put(t.Context(), key, []byte("x"), 12345, 0); err == nil || errors.As(err, new(*store.ConflictError)) ||
		!strings.Contains(err.Error(), key) {
		t.Errorf("error %v", err)
	}
}

func TestWildcards(t *testing.T) {
	w := newWorld(t, rule("secrets", provider("aesgcm", "a=1"))+rule(`"*.apps"`, provider("aesgcm", "b=2"))+rule(`"*."`,
		provider("aesgcm", "c=3"))+rule(`"*.*"`, provider("aesgcm", "d=4")))
	for k, name := range map[string]string{
		"/registry/secrets/x": "a", "/registry/deployments.apps/x": "b", "/registry/pods/x": "c",
		"/registry/widgets.example.com/x": "d",
	} {
		w.put(t, k, "v")
		if got := w.stored(t, k); !strings.HasPrefix(got, "k8s:enc:aesgcm:v1:"+name+":") {
			t.Errorf("%s is stored as %q", k, got)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	for doc, want := range map[string]string{
		"":        "the file is empty",
		"kind: x": "kind",
		header + rule("secrets", "aesgcm: {keys: [{name: k, secret: c2hvcnQ=}]}"): "secret is not of the expected length",
		header + rule("secrets", "aesgcm: {keys: [{name: k, secret: '!'}]}"):      "secrets must be base64 encoded",
		header + rule("secrets",
			"kms: {apiVersion: v1, name: x, endpoint: 'unix:///x', timeout: 3s}"): "resources[0].providers[0]: kms.apiVersion: v1 is not supported",
		header + rule("secrets", "kms: {apiVersion: v2, name: x, endpoint: 'tcp://x', timeout: 3s}"):  "unsupported scheme",
		header + rule(`"*.*"`, "identity: {}") + rule("secrets", "identity: {}"):                      "masked",
		header + rule("secrets", "identity: {}", "rot13: {}"):                                         "unknown field",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: []\n": "AuthorizationConfiguration",
	} {
		file := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(t.Context(), Config{Store: (*etcdclient.Store)(nil), File: file, Resource: resource})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", doc, err)
		}
	}
	if _, err := New(t.Context(), Config{Store: (*etcdclient.Store)(nil), File: "/does/not/exist", Resource: resource}); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestABrokenFileChangesNothing(t *testing.T) {
	w := newWorld(t, rule("secrets", provider("aesgcm", "k1=1")))
	w.put(t, key, "v")
	w.write(t, "- resources: [secrets]\n")
	if err := w.Reload(t.Context()); err == nil {
		t.Error("a broken file was taken")
	}
	if kv, err := w.Get(t.Context(), key); err != nil || string(kv.Value) != "v" {
		t.Errorf("%q, %v", kv.Value, err)
	}
}

// nobody has a KMS plugin.
func nobody(c kms.Config) (*kms.Provider, error) { return nil, errors.New("no plugin " + c.Name) }

func FuzzParse(f *testing.F) {
	f.Add([]byte(header + rule("secrets", provider("aesgcm", "k=1"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		if found, err := parse(data, nobody); (err == nil) == (found == nil) {
			t.Errorf("%v and %v", found, err)
		}
	})
}

// FuzzOpen: whatever lies in etcd, reading it is a value or an error.
func FuzzOpen(f *testing.F) {
	file := filepath.Join(f.TempDir(), "f.yaml")
	if err := os.WriteFile(file,
		[]byte(header+rule("secrets", provider("aesgcm", "k=1"), provider("aescbc", "k=1"), provider("secretbox", "k=1"))), 0o600); err != nil {
		f.Fatal(err)
	}
	s, err := New(f.Context(), Config{Store: (*etcdclient.Store)(nil), File: file, Resource: resource})
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range []string{prefixGCM, prefixCBC, prefixSecretbox} {
		f.Add([]byte(p + "k:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))
		f.Add([]byte(p))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		kv := store.KV{Key: key, Value: value}
		if _, err := s.open(t.Context(), &kv); err == nil && bytes.Equal(kv.Value, value) && len(value) > 0 {
			t.Errorf("%q came through as it was", value)
		}
	})
}
