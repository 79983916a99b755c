// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/sign"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// What Debian's docker-registry 2.8.2 held after the Python package oras 0.2.43
// had pushed to it and cosign 2.4.1 had signed: testdata/registry.
const (
	orasDigest = "sha256:d5a1f2505ebd25b4ae17fdfc3d5f9e6d50edd7a4ec0663687180b8ab1d95d7e8"
	kwDigest   = "sha256:66e69716c034626ecea125e44aaf930b9cd3463c67fce9c512d8fe85584c9e46"
	module     = "sha256:93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476"
)

// recorded serves testdata/registry as the registry did; change may replace what a path answers.
func recorded(t *testing.T, change func(path string, content []byte) []byte) *httptest.Server {
	t.Helper()
	byDigest := map[string][]byte{}
	root := filepath.Join("testdata", "registry")
	if err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		byDigest[source.Digest(b)] = b
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
		if r.URL.Path == "/v2/" {
			return
		}
		last := parts[len(parts)-1]
		content, ok := byDigest[last]
		if !ok && len(parts) > 2 && parts[len(parts)-2] == "manifests" {
			b, err := os.ReadFile(filepath.Join(root, parts[0], parts[1], last))
			content, ok = b, err == nil
		}
		if !ok {
			http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, http.StatusNotFound)
			return
		}
		w.Header().Set("Docker-Content-Digest", source.Digest(content))
		var m struct{ MediaType string }
		if strings.Contains(r.URL.Path, "/manifests/") && yaml.Unmarshal(content, &m) == nil {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			if strings.Contains(string(content), "image.index") {
				w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
			}
		}
		if change != nil {
			content = change(r.URL.Path, content)
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(s.Close)
	return s
}

func entry(t *testing.T, text string) *manifest.Entry {
	t.Helper()
	e, err := manifest.ParseBytes([]byte("name: p\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return &e
}

func fetcher(t *testing.T, cfg source.Config) *source.Fetcher {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = "testdata"
	}
	f, err := source.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func host(s *httptest.Server) string {
	return strings.TrimPrefix(strings.TrimPrefix(s.URL, "http://"), "https://")
}

func TestModulesAndSignaturesOfOtherToolsAreRead(t *testing.T) {
	s := recorded(t, nil)
	other := writeKey(t)
	for _, c := range []struct{ name, ref, more, problem string }{
		{"by digest", "team/oras@" + orasDigest, "", ""},
		{"by tag and digest", "team/oras:1@" + orasDigest, "", ""},
		{"by tag and the module's digest", "team/oras:1", "digest: " + module, ""},
		{"Kubewarden's media type", "team/kw@" + kwDigest, "", ""},
		{"signed, ECDSA", "team/oras@" + orasDigest, "signatures: [{keys: [cosign.pub], annotations: {env: prod}}]", ""},
		{"signed, RSA", "team/oras@" + orasDigest, "signatures: [{keys: [rsa.pub]}]", ""},
		{"signed, Ed25519", "team/oras@" + orasDigest, "signatures: [{keys: [ed.pub]}]", ""},
		{"signed by all of them", "team/oras@" + orasDigest, "signatures: [{keys: [cosign.pub]}, {keys: [rsa.pub]}, {keys: [ed.pub]}]", ""},
		{"signed by one of two", "team/oras@" + orasDigest, "signatures: [{keys: [" + other + ", ed.pub]}]", ""},
		{"signed, as a referrer", "team/kw@" + kwDigest, "signatures: [{keys: [cosign.pub]}]", ""},

		{"another key", "team/oras@" + orasDigest, "signatures: [{keys: [" + other + "]}]", "it was made by another key"},
		{"one key of two that are wanted", "team/kw@" + kwDigest, "signatures: [{keys: [cosign.pub]}, {keys: [ed.pub]}]", "it was made by another key"},
		{"another annotation", "team/oras@" + orasDigest, "signatures: [{keys: [ed.pub], annotations: {env: test}}]", `its annotation env is not "test"`},
		{"another module", "team/oras:1", "digest: sha256:" + strings.Repeat("0", 64), "has digest " + module + ": the entry pins sha256:000"},
		{"no such tag", "team/oras:2", "digest: " + module, "MANIFEST_UNKNOWN"},
		{"too large", "team/oras:1", "digest: " + module + "\nfetch: {plainHTTP: true, maxSize: 4}", "at most 4 are allowed (fetch.maxSize)"},
		{"no such key", "team/oras@" + orasDigest, "signatures: [{keys: [none.pub]}]", "signatures: read the key"},
		{"without TLS", "team/oras@" + orasDigest, "fetch: {plainHTTP: false}", "without TLS; fetch.plainHTTP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "source: oci://" + host(s) + "/" + c.ref + "\n" + c.more
			if !strings.Contains(c.more, "fetch:") {
				text += "\nfetch: {plainHTTP: true}"
			}
			e := entry(t, text)
			m, err := fetcher(t, source.Config{CacheDir: t.TempDir()}).Fetch(t.Context(), e)
			if c.problem != "" {
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("error %v, want %q", err, c.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.Digest != module || len(m.Wasm) != 8 || m.Verified != (len(e.Signatures) > 0) {
				t.Errorf("%+v", m)
			}
		})
	}
}

// writeKey writes a fresh public key that signed nothing.
func writeKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return writePublic(t, key.Public())
}

func writePublic(t *testing.T, key crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "other.pub")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatWasTamperedWithIsRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(path string, content []byte) []byte
		problem string
	}{
		{"the module", func(path string, content []byte) []byte {
			if strings.HasSuffix(path, module) {
				return []byte("\x00asm\x02\x00\x00\x00")
			}
			return content
		}, "verifying sha256 checksum"},
		{"the module is cut off", func(path string, content []byte) []byte {
			if strings.HasSuffix(path, module) {
				return content[:5]
			}
			return content
		}, "verifying sha256 checksum"},
		{"the manifest", func(path string, content []byte) []byte {
			if strings.HasSuffix(path, orasDigest) {
				return append(content, ' ')
			}
			return content
		}, "digest"},
		{"a signature moved here from another image", func(path string, content []byte) []byte {
			if strings.HasSuffix(path, ".sig") {
				b, _ := os.ReadFile("testdata/registry/team/kw/sha256@b6ef43e64dd186191122f782e18c2832830fa6b84334d9d033ee8cb93451051e")
				return b
			}
			return content
		}, "it is for the manifest " + kwDigest},
		{"a payload that was changed", func(path string, content []byte) []byte {
			if strings.HasSuffix(path, ".sig") { // another blob in the payload's place
				return []byte(strings.ReplaceAll(strings.ReplaceAll(string(content), "9be677c8cca5c4496d578013c05f1bffdb0a28f9b211bb53c5362b4174a80260",
					"a3c6d3dca5dc3a4b57bf1e08cb74f7e6d0740325a470cdedbe0503d0aff42e74"), `"size":251`, `"size":239`))
			}
			return content
		}, "another key, or its payload was changed"},
		{"a signature of nonsense", func(path string, content []byte) []byte {
			if strings.HasSuffix(path, ".sig") {
				return []byte(`{"schemaVersion":2,"layers":[]}`)
			}
			return content
		}, "there is none; sign it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := recorded(t, c.change)
			e := entry(t, "source: oci://"+host(s)+"/team/oras@"+orasDigest+"\nfetch: {plainHTTP: true}\nsignatures: [{keys: [cosign.pub]}]")
			if _, err := fetcher(t, source.Config{}).Fetch(t.Context(), e); err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("error %v, want %q", err, c.problem)
			}
		})
	}
}

func TestARestartNeedsNoRegistry(t *testing.T) {
	s := recorded(t, nil)
	dir := filepath.Join(t.TempDir(), "cache")
	var entries []*manifest.Entry
	for _, text := range []string{
		"source: oci://" + host(s) + "/team/oras:1@" + orasDigest + "\nsignatures: [{keys: [ed.pub]}]",
		"source: oci://" + host(s) + "/team/oras:1\ndigest: " + module + "\nsignatures: [{keys: [ed.pub]}]",
		"source: oci://" + host(s) + "/team/kw@" + kwDigest,
	} {
		e := entry(t, text+"\nfetch: {plainHTTP: true}")
		if m, err := fetcher(t, source.Config{CacheDir: dir}).Fetch(t.Context(), e); err != nil || m.Digest != module {
			t.Fatal(m, err)
		}
		entries = append(entries, e)
	}
	s.Close()
	for _, e := range entries {
		m, err := fetcher(t, source.Config{CacheDir: dir}).Fetch(t.Context(), e)
		if err != nil || !m.Cached || m.Digest != module || m.Verified != (len(e.Signatures) > 0) {
			t.Errorf("%s: %+v, %v", e.Source, m, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the cache's mode: %v, %v", info.Mode(), err)
	}
	// What lies in the cache is not believed.
	path := filepath.Join(dir, "blobs", strings.ReplaceAll(module, ":", "-"))
	if err := os.WriteFile(path, []byte("\x00asm\x01\x00\x00\x01"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fetcher(t, source.Config{CacheDir: dir}).Fetch(t.Context(), entries[0]); err == nil {
		t.Error("a module that was changed in the cache was taken")
	}
}

func TestWhatIsPushedAndSignedComesBack(t *testing.T) {
	s := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)), ggcr.WithReferrersSupport(true)))
	defer s.Close()
	f := fetcher(t, source.Config{CacheDir: t.TempDir()})
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ours := writePublic(t, key.Public())
	at := "oci://" + host(s) + "/team/policy"
	common := "\nfetch: {plainHTTP: true}\ndigest: sha256:" + strings.Repeat("0", 64)
	wasm := []byte("\x00asm\x01\x00\x00\x00\x00\x02\x01a")
	first, err := f.Push(t.Context(), entry(t, "source: "+at+":1"+common), wasm, map[string]string{"org.opencontainers.image.version": "1"})
	if err != nil {
		t.Fatal(err)
	}
	pinned := entry(t, "source: "+at+":1@"+first+"\nfetch: {plainHTTP: true}\nsignatures: [{keys: ["+ours+"], annotations: {by: me}}]")
	if _, err := f.Fetch(t.Context(), pinned); err == nil || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("an unsigned module: %v", err)
	}
	repository, _, options, err := f.Open(t.Context(), pinned)
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []string{"somebody", "me"} {
		if err := sign.Sign(t.Context(), repository.Digest(first), key, map[string]string{"by": by}, options...); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := f.Fetch(t.Context(), pinned); err != nil || !m.Verified || string(m.Wasm) != string(wasm) {
		t.Fatalf("%+v, %v", m, err)
	}
	if now, err := f.Moved(t.Context(), pinned); err != nil || now != "" {
		t.Errorf("moved to %q, %v", now, err)
	}
	second, err := f.Push(t.Context(), entry(t, "source: "+at+":1"+common), append(wasm, 0, 2, 1, 'b'), nil)
	if err != nil {
		t.Fatal(err)
	}
	byModule := entry(t, "source: "+at+":1\nfetch: {plainHTTP: true}\ndigest: "+source.Digest(wasm))
	for _, e := range []*manifest.Entry{pinned, byModule} {
		if now, err := f.Moved(t.Context(), e); err != nil || now != second {
			t.Errorf("%s has moved to %q, %v; want %s", e.Source, now, err, second)
		}
		if m, err := f.Fetch(t.Context(), e); err != nil || string(m.Wasm) != string(wasm) {
			t.Errorf("what is pinned is no longer there: %v", err)
		}
	}
	if _, err := fetcher(t, source.Config{}).Fetch(t.Context(), byModule); err == nil || !strings.Contains(err.Error(), "the entry pins") {
		t.Errorf("a moved tag gave another module: %v", err)
	}
}

func TestCredentialsComeFromDockerConfigAndSecret(t *testing.T) {
	inner := recorded(t, nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "jane" || password != "pass:word" {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		inner.Config.Handler.ServeHTTP(w, r)
	}))
	defer s.Close()
	dir := t.TempDir()
	config := `{"auths":{"https://` + host(s) + `/v1/":{"auth":"amFuZTpwYXNzOndvcmQ="}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	secrets := func(_ context.Context, namespace, name string) (map[string][]byte, error) {
		switch namespace + "/" + name {
		case "a/docker":
			return map[string][]byte{".dockerconfigjson": []byte(config)}, nil
		case "a/basic":
			return map[string][]byte{"username": []byte("jane"), "password": []byte("pass:word")}, nil
		}
		return nil, fmt.Errorf("no secret %s/%s", namespace, name)
	}
	for how, problem := range map[string]string{
		"dockerConfig: config.json": "", "secret: a/docker": "", "secret: a/basic": "", "secret: a/none": "no secret a/none",
		"timeout: 30s": "UNAUTHORIZED",
	} {
		e := entry(t, "source: oci://"+host(s)+"/team/oras@"+orasDigest+"\nfetch: {plainHTTP: true, "+how+"}")
		_, err := fetcher(t, source.Config{Dir: dir, Secrets: secrets}).Fetch(t.Context(), e)
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", how, err, problem)
		}
	}
}

func TestFilesCanBeSignedToo(t *testing.T) {
	wasm, err := os.ReadFile("testdata/policy.module")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"cosign", "rsa", "ed"} {
		dir := t.TempDir()
		signature, err := os.ReadFile("testdata/policy." + key + ".sig")
		if err != nil {
			t.Fatal(err)
		}
		pub, err := filepath.Abs("testdata/" + key + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		e := entry(t, "source: file:policy.wasm\nsignatures: [{keys: ["+pub+"]}]")
		f := fetcher(t, source.Config{Dir: dir})
		write := func(name string, b []byte) {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("policy.wasm", wasm)
		if _, err := f.Fetch(t.Context(), e); err == nil || !strings.Contains(err.Error(), "there is none beside it") {
			t.Errorf("%s: without a signature: %v", key, err)
		}
		write("policy.wasm.sig", signature)
		if m, err := f.Fetch(t.Context(), e); err != nil || !m.Verified {
			t.Errorf("%s: %v", key, err)
		}
		write("policy.wasm", append(wasm, 0, 1, 0))
		if _, err := f.Fetch(t.Context(), e); err == nil || !strings.Contains(err.Error(), "another key, or the content was changed") {
			t.Errorf("%s: changed: %v", key, err)
		}
	}
}

func TestACosignKeySigns(t *testing.T) {
	text, err := os.ReadFile("testdata/cosign.key")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sign.ParsePrivateKey(text, []byte("wrong")); err == nil || !strings.Contains(err.Error(), "the password does not open") {
		t.Errorf("a wrong password: %v", err)
	}
	key, err := sign.ParsePrivateKey(text, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := os.ReadFile("testdata/cosign.pub")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := sign.ParsePublicKeys(pub)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := sign.SignBytes(key, []byte("x"))
	if err != nil || sign.VerifyBytes(keys[0], []byte("x"), signature) != nil || sign.VerifyBytes(keys[0], []byte("y"), signature) == nil {
		t.Errorf("the key's own signature: %v", err)
	}
}

func TestHTTPSIsBoundedResumedAndChecked(t *testing.T) {
	content := []byte(strings.Repeat("\x00asm", 64<<10))
	digest := func(b []byte) string { h := sha256.Sum256(b); return "sha256:" + hex.EncodeToString(h[:]) }
	var breaks atomic.Int32
	var plain *httptest.Server
	mux := http.NewServeMux()
	serve := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(content)))
	}
	mux.HandleFunc("/ok", serve)
	mux.HandleFunc("/flaky", func(w http.ResponseWriter, r *http.Request) {
		if breaks.Add(1) <= 2 {
			w.Header().Set("ETag", `"v1"`)
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content[:1000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		if breaks.Load() == 3 && r.Header.Get("Range") == "" {
			http.Error(w, "not resumed", http.StatusTeapot)
			return
		}
		serve(w, r)
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content[:1000])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/changed", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(append([]byte("x"), content...)) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/bomb", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "99999999999") })
	mux.HandleFunc("/stalls", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/down", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) })
	mux.HandleFunc("/none", http.NotFound)
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	plain = httptest.NewServer(http.HandlerFunc(serve))
	defer plain.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, more, problem string }{
		{"ok", "", ""},
		{"flaky", "", ""},
		{"elsewhere", "", ""},
		{"cut", "", "it broke off 4 times"},
		{"changed", "", "the entry pins"},
		{"endless", ", maxSize: 1Mi", "more than 1048576 bytes (fetch.maxSize)"},
		{"bomb", ", maxSize: 1Mi", "at most 1048576 are allowed"},
		{"stalls", ", timeout: 200ms", "fetching took longer than 200ms (fetch.timeout)"},
		{"down", "", "away from TLS"},
		{"none", "", "404 Not Found"},
	} {
		t.Run(c.path, func(t *testing.T) {
			dir := t.TempDir()
			e := entry(t, "source: "+s.URL+"/"+c.path+"\ndigest: "+digest(content)+"\nfetch: {caFile: "+ca+c.more+"}")
			m, err := fetcher(t, source.Config{CacheDir: dir}).Fetch(t.Context(), e)
			if c.problem != "" {
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("error %v, want %q", err, c.problem)
				}
				return
			}
			if err != nil || m.Cached {
				t.Fatalf("%+v, %v", m, err)
			}
			if m, err := fetcher(t, source.Config{CacheDir: dir}).Fetch(t.Context(), e); err != nil || !m.Cached {
				t.Errorf("not kept: %v", err)
			}
		})
	}
	unknown := entry(t, "source: "+s.URL+"/ok\ndigest: "+digest(content))
	if _, err := fetcher(t, source.Config{}).Fetch(t.Context(), unknown); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an authority that nobody named: %v", err)
	}
}

func FuzzSource(f *testing.F) {
	for _, s := range []string{
		"oci://a.example/b:1@sha256:00", "oci://localhost:5000/x", "https://a/b", "file:x", "oci://@",
		"oci://a/b@sha256:" + strings.Repeat("a", 64),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := &manifest.Entry{Name: "p", Source: s, Digest: module}
		e.Fetch.Timeout = manifest.Duration(time.Second)
		if e.Kind() != "oci" {
			return
		}
		fetch, err := source.New(source.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // nothing is asked: only the reference is read
		if _, err := fetch.Fetch(ctx, e); err == nil {
			t.Error("something was fetched from nowhere")
		}
	})
}

// Signatures are the manifest's. What a source led to before says nothing of
// another module, not even when that is asked for a second time and is cached by then.
func TestSignaturesOfAnotherModuleDoNotCount(t *testing.T) {
	s := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)), ggcr.WithReferrersSupport(true)))
	defer s.Close()
	f := fetcher(t, source.Config{CacheDir: t.TempDir()})
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := "source: oci://" + host(s) + "/team/policy:1\nfetch: {plainHTTP: true}\nsignatures: [{keys: [" + writePublic(t,
		key.Public()) + "]}]\ndigest: "
	good := []byte("\x00asm\x01\x00\x00\x00\x00\x02\x01a")
	bad := []byte("\x00asm\x01\x00\x00\x00\x00\x02\x01b")
	signed := entry(t, text+source.Digest(good))
	pushed, err := f.Push(t.Context(), signed, good, nil)
	if err != nil {
		t.Fatal(err)
	}
	repository, _, options, err := f.Open(t.Context(), signed)
	if err != nil {
		t.Fatal(err)
	}
	if err := sign.Sign(t.Context(), repository.Digest(pushed), key, nil, options...); err != nil {
		t.Fatal(err)
	}
	if m, err := f.Fetch(t.Context(), signed); err != nil || !m.Verified {
		t.Fatalf("the signed module: %+v, %v", m, err)
	}
	unsigned := entry(t, text+source.Digest(bad))
	if _, err := f.Push(t.Context(), unsigned, bad, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // the loader tries again
		if m, err := f.Fetch(t.Context(), unsigned); err == nil {
			t.Fatalf("try %d: a module that nobody signed was taken: %+v", i+1, m)
		}
	}
	// The signed one goes on without the registry.
	s.Close()
	if m, err := f.Fetch(t.Context(), signed); err != nil || !m.Verified || !m.Cached {
		t.Errorf("the signed module from the cache: %+v, %v", m, err)
	}
}
