// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// publisher signs bundles with a key of its own.
type publisher struct {
	t               *testing.T
	private, public string // in PEM
}

func newPublisher(t *testing.T) *publisher {
	t.Helper()
	p := &publisher{t: t}
	p.private, p.public = plugintest.SigningKey(t)
	return p
}

// bundle builds some files, for a target and entrypoints.
func (p *publisher) bundle(files map[string]string, target string, entrypoints ...string) []byte {
	p.t.Helper()
	return plugintest.Bundle(p.t, files, p.private, target, entrypoints...)
}

// admission is a bundle whose policy refuses an image.
func (p *publisher) admission(image string) []byte {
	p.t.Helper()
	return p.bundle(map[string]string{
		".manifest":  `{"roots": ["kubernetes/admission", "images"]}`,
		"data.json":  `{"images": {"refused": ["` + image + `"]}}`,
		"admit.rego": "package kubernetes.admission\ndeny contains msg if {\n\tsome c in input.request.object.spec.containers\n\tc.image in data.images.refused\n\tmsg := sprintf(\"%s is refused (%s)\", [c.image, data.team])\n}\n",
	}, "rego")
}

// entry is the entry of a bundle from somewhere.
func (p *publisher) entry(source, more string) string {
	key, err := json.Marshal(p.public)
	if err != nil {
		p.t.Fatal(err)
	}
	return "plugins:\n- name: policy\n  source: '" + source + "'\n  bundle: {keys: [{id: main, algorithm: ES256, key: " +
		string(key) + "}]}\n" + "  limits: {deadline: 1m, startDeadline: 1m}\n  settings: {team: red}\n" + more
}

func TestABundleComesFromAFile(t *testing.T) {
	p := newPublisher(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "b.tar.gz")
	if err := os.WriteFile(file, p.admission("a:1"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, p.entry("file:b.tar.gz", ""))})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked := l.AdmissionPlugins()[0]
	if err := validate(t, asked); err == nil || !strings.Contains(err.Error(), "a:1 is refused (red)") {
		t.Errorf("decision %v", err)
	}
	first := l.Status()[0].Digest

	// Other data under the same policy are another version.
	if err := os.WriteFile(file, p.admission("b:1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := validate(t, asked); err != nil {
		t.Errorf("decision %v", err)
	}
	if s := l.Status()[0]; s.Digest == first || s.Replaced != first {
		t.Errorf("digest %s after %s", s.Digest, first)
	}

	// What another has signed is not loaded, and what was stays in force.
	if err := os.WriteFile(file, newPublisher(t).admission("a:1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "its signature does not count") {
		t.Errorf("loading what another has signed: %v", err)
	}
	if err := validate(t, asked); err != nil {
		t.Errorf("decision %v", err)
	}
}

// TestABundleIsFollowed: what a server holds now is in force, if it is signed; a restart does not need the server.
func TestABundleIsFollowed(t *testing.T) {
	p := newPublisher(t)
	var held atomic.Pointer[[]byte]
	hold := func(b []byte) { held.Store(&b) }
	hold(p.admission("a:1"))
	var sent, unchanged atomic.Int32
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := *held.Load()
		tag := `"` + source.Digest(b) + `"`
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			unchanged.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent.Add(1)
		_, _ = w.Write(b)
	}))
	stop := sync.OnceFunc(s.Close)
	t.Cleanup(stop)
	ca, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	if err != nil {
		t.Fatal(err)
	}
	cfg := loader.Config{
		InProcess: true, ModuleDir: filepath.Join(t.TempDir(), "modules"),
		Entries: entries(t, p.entry(s.URL+"/b.tar.gz", "  fetch: {check: 10s, ca: "+string(ca)+"}\n")),
	}
	l := newLoader(t, cfg)
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked := l.AdmissionPlugins()[0]
	refuses := func() bool { return validate(t, asked) != nil }
	if !refuses() {
		t.Error("the bundle's policy is not in force")
	}
	l.LookNow(t.Context())
	eventually(t, "asking whether it has changed", func() bool { return unchanged.Load() == 1 })
	if sent.Load() != 1 {
		t.Errorf("it was sent %d times", sent.Load())
	}

	hold(p.admission("other:1.2.3"))
	l.LookNow(t.Context())
	eventually(t, "loading what has changed", func() bool { return !refuses() })
	good := l.Status()[0].Digest

	// What is not signed by the key changes nothing, and is said.
	hold(newPublisher(t).admission("a:1"))
	l.LookNow(t.Context())
	eventually(t, "a refusal", func() bool { return strings.Contains(l.Status()[0].Error, "its signature does not count") })
	if s := l.Status()[0]; !s.Ready || s.Digest != good || refuses() {
		t.Errorf("status %+v", s)
	}

	stop()
	again := newLoader(t, cfg)
	if err := again.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := again.Status()[0]; s.Digest != good {
		t.Errorf("after a restart without the server: %+v", s)
	}
}

func TestABundleComesFromARegistry(t *testing.T) {
	p := newPublisher(t)
	s := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	at := strings.TrimPrefix(s.URL, "http://") + "/team/policies:1"
	push := func(b []byte) {
		t.Helper()
		image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
			static.NewLayer(b, "application/vnd.oci.image.layer.v1.tar+gzip"))
		if err != nil {
			t.Fatal(err)
		}
		tag, err := name.NewTag(at, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(tag, image, remote.WithContext(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	push(p.admission("a:1"))
	l := newLoader(t, loader.Config{InProcess: true, Entries: entries(t, p.entry("oci://"+at, "  fetch: {plainHTTP: true, check: 10s}\n"))})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked := l.AdmissionPlugins()[0]
	if validate(t, asked) == nil {
		t.Error("the bundle's policy is not in force")
	}
	push(p.admission("b:1"))
	l.LookNow(t.Context())
	eventually(t, "loading what has changed", func() bool { return validate(t, asked) == nil })
}

// TestABundleAuthorizes: a policy gets a SubjectAccessReview, and answers one.
func TestABundleAuthorizes(t *testing.T) {
	p := newPublisher(t)
	const review = `package k8s.authz
import data.hours

decision := {"kind": "SubjectAccessReview", "status": {"allowed": false, "denied": true, "reason": reason}} if {
	input.kind == "SubjectAccessReview"
	input.spec.resourceAttributes.resource == "secrets"
	not input.spec.user in hours.admins
	reason := sprintf("%s reads no secrets of %s", [input.spec.user, input.spec.resourceAttributes.namespace])
} else := {"status": {"allowed": input.spec.user in hours.admins}}
`
	files := map[string]string{"p.rego": review, "data.json": `{"hours": {"admins": ["root"]}}`, ".manifest": `{"roots": ["k8s", "hours"]}`}
	for _, target := range []string{"rego", "wasm"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "b.tar.gz"), p.bundle(files, target, "k8s/authz/decision"), 0o600); err != nil {
			t.Fatal(err)
		}
		l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, p.entry("file:b.tar.gz", "  points: [authorization]\n"))})
		if err := l.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		before, _ := l.Authorizers()
		for who, want := range map[string]authz.Decision{"jane": authz.Deny, "root": authz.Allow} {
			got, reason, err := before[0].Authorize(t.Context(), authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: who}, Verb: "get", Resource: "secrets", Namespace: "shop", APIVersion: "v1", ResourceRequest: true,
			})
			if got != want || err != nil || want == authz.Deny && !strings.Contains(reason, "jane reads no secrets of shop") {
				t.Errorf("%s, %s: %v %q %v", target, who, got, reason, err)
			}
		}
		path := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}, Verb: "get", Path: "/metrics"}
		got, _, err := before[0].Authorize(t.Context(), path)
		if got != authz.NoOpinion || err != nil {
			t.Errorf("%s: a path: %v %v", target, got, err)
		}
	}
}

func TestWhatIsWrongWithABundleIsSaidWithItsPlace(t *testing.T) {
	dir := t.TempDir()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for file, text := range map[string]string{".manifest": `{"roots": ["system"]}`, "a/p.rego": "package system\n\nmain := foo(1)\n"} {
		if err := w.WriteHeader(&tar.Header{Name: file, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.tar.gz"), packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for more, want := range map[string]string{
		"bundle: {}": "a/p.rego:3: undefined function foo",
		"abi: opa":   "not a valid WebAssembly module",
	} {
		l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t,
			"plugins: [{name: policy, source: 'file:b.tar.gz', "+more+"}]")})
		if err := l.Load(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", more, err)
		}
	}
}
