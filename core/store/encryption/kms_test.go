// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/kms/pkg/service"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
)

// pluginDir makes this test binary a KMS plugin, see plugin.
const pluginDir = "WASMPLANE_TEST_KMS_PLUGIN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(pluginDir); dir != "" {
		err := service.NewGRPCService(filepath.Join(dir, "socket"), 10*time.Second, aesPlugin{dir}).ListenAndServe()
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

// aesPlugin is a KMS plugin whose key is derived from its name, which stands in
// DIR/key. Beside it, DIR/sick makes it say that it is not healthy.
type aesPlugin struct{ dir string }

func (p aesPlugin) key() (string, error) {
	name, err := os.ReadFile(filepath.Join(p.dir, "key"))
	return strings.TrimSpace(string(name)), err
}

func seal(name string) (cipher.AEAD, error) {
	key := sha256.Sum256([]byte(name))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func (p aesPlugin) Status(context.Context) (*service.StatusResponse, error) {
	name, err := p.key()
	if err != nil {
		return nil, err
	}
	health := "ok"
	if sick, err := os.ReadFile(filepath.Join(p.dir, "sick")); err == nil {
		health = string(sick)
	}
	return &service.StatusResponse{Version: "v2", Healthz: health, KeyID: name}, nil
}

func (p aesPlugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	name, err := p.key()
	if err != nil {
		return nil, err
	}
	aead, err := seal(name)
	if err != nil {
		return nil, err
	}
	return &service.EncryptResponse{
		Ciphertext: aead.Seal(nil, nil, data, nil), KeyID: name,
		Annotations: map[string][]byte{"plugin.example.com": []byte("aes")},
	}, nil
}

func (p aesPlugin) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	if string(r.Annotations["plugin.example.com"]) != "aes" {
		return nil, errors.New("the annotations are not those that were given")
	}
	aead, err := seal(r.KeyID)
	if err != nil {
		return nil, err
	}
	return aead.Open(nil, nil, r.Ciphertext, nil)
}

// plugin is a process with a KMS plugin in it.
type plugin struct {
	dir string
	cmd *exec.Cmd
}

func newPlugin(t *testing.T, key string) *plugin {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") //nolint:usetesting // a socket's path is short, t.TempDir is not
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &plugin{dir: dir}
	p.say(t, "key", key)
	return p
}

func (p *plugin) say(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start returns when the plugin can be connected to: who dials before it listens waits a
// second until gRPC dials again, which is all the time that a test gives it.
func (p *plugin) start(t *testing.T) {
	t.Helper()
	_ = os.Remove(filepath.Join(p.dir, "socket"))
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	p.cmd.Env = append(os.Environ(), pluginDir+"="+p.dir)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop() })
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		conn, err := net.Dial("unix", filepath.Join(p.dir, "socket"))
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the plugin does not listen: %v", err)
		}
	}
}

func (p *plugin) stop() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

func (p *plugin) provider(name string) string {
	return fmt.Sprintf("kms: {apiVersion: v2, name: %s, endpoint: 'unix://%s/socket', timeout: 10s}", name, p.dir)
}

// ask has the plugins asked now, instead of in a minute.
func (w *world) ask(t *testing.T) { w.poll(t.Context(), w.current.Load().providers) }

func TestAKMSPluginHoldsTheKey(t *testing.T) {
	p := newPlugin(t, "one")
	p.start(t)
	w := newWorld(t, rule("secrets", p.provider("vault")))
	defer w.Close()
	w.put(t, key, "the value")
	if got := w.stored(t, key); !strings.HasPrefix(got, "k8s:enc:kms:v2:vault:") || strings.Contains(got, "the value") {
		t.Fatalf("stored %q", got)
	}
	reads := func(store *Store) {
		t.Helper()
		if kv, err := store.Get(t.Context(), key); err != nil || string(kv.Value) != "the value" {
			t.Errorf("%q, %v", kv.Value, err)
		}
	}
	reads(w.Store)
	// Another server with the same file reads it, by the plugin.
	other, err := New(t.Context(), Config{Store: w.raw, File: w.file, Resource: resource})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	reads(other)

	// A new key in the plugin: what is there becomes stale, and is read all the same.
	if stale, err := w.Stale(t.Context(), key); err != nil || stale {
		t.Errorf("stale %t, %v", stale, err)
	}
	p.say(t, "key", "two")
	w.ask(t)
	if stale, err := w.Stale(t.Context(), key); err != nil || !stale {
		t.Errorf("with a new key: stale %t, %v", stale, err)
	}
	reads(w.Store)
	w.put(t, key, "the value")
	if stale, err := w.Stale(t.Context(), key); err != nil || stale {
		t.Errorf("written again: stale %t, %v", stale, err)
	}
	if !strings.Contains(w.stored(t, key), "two") {
		t.Error("what was written again does not name the new key")
	}

	// A value that was moved to another object is refused.
	if _, err := w.raw.Put(t.Context(), key+"2", []byte(w.stored(t, key)), 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Get(t.Context(), key+"2"); err == nil {
		t.Error("a value was moved to another object and read there")
	}
}

func TestAKMSPluginGoesAndComesBack(t *testing.T) {
	p := newPlugin(t, "one")
	p.start(t)
	w := newWorld(t, rule("secrets", strings.ReplaceAll(p.provider("vault"), "10s", "1s")))
	defer w.Close()
	w.put(t, key, "v")
	p.stop()
	w.ask(t)
	if err := w.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "KMS plugin vault at unix://"+p.dir) {
		t.Errorf("the plugin is gone, health says %v", err)
	}
	w.put(t, key, "w") // for three minutes
	if kv, err := w.Get(t.Context(), key); err != nil || string(kv.Value) != "w" {
		t.Errorf("%q, %v", kv.Value, err)
	}

	// A server that starts now comes up, says so, and does not show what it cannot read.
	var again atomic.Int32
	late, err := New(t.Context(), Config{Store: w.raw, File: w.file, Resource: resource, Changed: func() { again.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if late.Check(t.Context()) == nil {
		t.Error("the late server says it is healthy")
	}
	page, err := late.List(t.Context(), "/registry/secrets/", store.ListOptions{})
	if err != nil || len(page.Items) != 1 || page.Items[0].Unreadable == nil || page.Items[0].Value != nil {
		t.Errorf("%+v, %v", page, err)
	}
	if _, err := late.Put(t.Context(), key+"2", []byte("v"), 0, 0); err == nil || !strings.Contains(err.Error(), "has never answered") {
		t.Errorf("a write without a key: %v", err)
	}
	p.start(t)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- late.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); again.Load() == 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the plugin is back, and nobody is told: %v", late.Check(t.Context()))
		}
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if kv, err := late.Get(t.Context(), key); err != nil || string(kv.Value) != "w" {
		t.Errorf("%q, %v", kv.Value, err)
	}
	if err := late.Check(t.Context()); err != nil {
		t.Errorf("the plugin is back: %v", err)
	}
}

func TestASickKMSPlugin(t *testing.T) {
	p := newPlugin(t, "one")
	p.start(t)
	w := newWorld(t, rule("secrets", p.provider("vault")))
	defer w.Close()
	p.say(t, "sick", "the module is locked")
	w.ask(t)
	if err := w.Check(t.Context()); err == nil || !strings.Contains(err.Error(), `"the module is locked"`) {
		t.Errorf("health says %v", err)
	}
	if err := os.Remove(filepath.Join(p.dir, "sick")); err != nil {
		t.Fatal(err)
	}
	p.say(t, "key", strings.Repeat("x", 2000))
	w.ask(t)
	if err := w.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "it names no usable key") {
		t.Errorf("health says %v", err)
	}
}

func TestFromAKeyInTheFileToAKMSPluginAndBack(t *testing.T) {
	p := newPlugin(t, "one")
	w := newWorld(t, rule("secrets", provider("aesgcm", "k1=1")))
	defer w.Close()
	w.put(t, key, "v")
	p2 := strings.ReplaceAll(p.provider("vault"), "10s", "1s")
	w.write(t, rule("secrets", p2, provider("aesgcm", "k1=1")))
	if err := w.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "KMS plugin vault") {
		t.Errorf("a plugin that does not answer was taken on: %v", err)
	}
	w.put(t, key, "v")
	if got := w.stored(t, key); !strings.HasPrefix(got, "k8s:enc:aesgcm:v1:k1:") {
		t.Errorf("after a reload that failed: %q", got)
	}
	p.start(t)
	for _, step := range []struct{ rules, prefix string }{
		{rule("secrets", p.provider("vault"), provider("aesgcm", "k1=1")), "k8s:enc:kms:v2:vault:"},
		{rule("secrets", p.provider("vault")), "k8s:enc:kms:v2:vault:"},
		{rule("secrets", provider("secretbox", "k2=2"), p.provider("vault")), "k8s:enc:secretbox:v1:k2:"},
		{rule("secrets", provider("secretbox", "k2=2")), "k8s:enc:secretbox:v1:k2:"},
	} {
		before := w.current.Load().providers
		w.reload(t, step.rules)
		if kv, err := w.Get(t.Context(), key); err != nil || string(kv.Value) != "v" {
			t.Errorf("%s: %q, %v", step.prefix, kv.Value, err)
		}
		w.put(t, key, "v")
		if got := w.stored(t, key); !strings.HasPrefix(got, step.prefix) {
			t.Errorf("stored %q, want %s", got, step.prefix)
		}
		if now := w.current.Load().providers; len(before) == 1 && len(now) == 1 && before[0] != now[0] {
			t.Error("a plugin that stayed was connected anew")
		}
	}
}

// FuzzOpenKMS: whatever lies in etcd behind the prefix of a KMS plugin, reading it
// is a value or an error, and costs no call where it is no message at all.
func FuzzOpenKMS(f *testing.F) {
	file := filepath.Join(f.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte(header+rule("secrets", "kms: {apiVersion: v2, name: v, endpoint: 'unix:///nowhere/at/all', timeout: 1ms}")), 0o600); err != nil {
		f.Fatal(err)
	}
	s, err := New(f.Context(), Config{Store: (*etcdclient.Store)(nil), File: file, Resource: resource})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	junk := make([]byte, 64)
	_, _ = rand.Read(junk)
	for _, seed := range [][]byte{nil, junk, bytes.Repeat([]byte{0x0a}, 40), []byte("\x0a\x01x\x12\x01k\x1a\x01d")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		kv := store.KV{Key: key, Value: append([]byte("k8s:enc:kms:v2:v:"), value...)}
		if _, err := s.open(t.Context(), &kv); err == nil {
			t.Errorf("%q was opened without a key", value)
		}
	})
}
