// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/images"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }

// program is an image around the test program, under a name.
func program(t *testing.T, called string) images.Program {
	t.Helper()
	content, err := os.ReadFile(nodetest.Program(t))
	if err != nil {
		t.Fatal(err)
	}
	return images.Program{Name: called, Path: "/bin/testprogram", Content: content, Arch: runtime.GOARCH, Env: []string{"FROM=" + called}}
}

func image(t *testing.T, called string) v1.Image {
	t.Helper()
	img, err := program(t, called).Image()
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// runs starts a container of the image and asks it something.
func runs(t *testing.T, node *nodetest.Node, pod, img string) {
	t.Helper()
	c := nodetest.Container("main", "serve", ":80")
	c.Image = &cri.ImageSpec{Image: img}
	sandbox, container := node.RunWith(t, node.Sandbox(pod), c)
	out, _, code, err := node.Engine().ExecSync(t.Context(), container, []string{"/bin/testprogram", "env", "FROM"}, 10)
	if err != nil || code != 0 || !strings.HasPrefix(string(out), "wasmplane.local/") && !strings.Contains(string(out), "/") {
		t.Errorf("a container of %s says %q (exit code %d, %v)", img, out, code, err)
	}
	if err := node.Engine().StopSandbox(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
}

// Images come in as docker archives and OCI layouts, packed in any way, and run.
func TestImport(t *testing.T) {
	node := nodetest.Start(t)
	dir := t.TempDir()
	store, err := node.Images()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()

	archive, err := program(t, "wasmplane.local/archive:1").Archive()
	if err != nil {
		t.Fatal(err)
	}
	archiveFile := write(t, dir, "archive.tar", archive)
	zipped := write(t, dir, "zipped.tar.gz", gzipped(t, must(program(t, "wasmplane.local/zipped:1").Archive())))
	layoutDir := writeLayout(t, filepath.Join(dir, "layout"), image(t, "wasmplane.local/layout:1"), "wasmplane.local/layout:1")
	byTag := writeLayout(t, filepath.Join(dir, "bytag"), image(t, "wasmplane.local/bytag:v2"), "v2")
	nameless := writeLayout(t, filepath.Join(dir, "nameless"), image(t, "wasmplane.local/nameless:1"), "")

	for _, c := range []struct{ what, file, called, want string }{
		{"docker archive", archiveFile, "", "wasmplane.local/archive:1"},
		{"the same again", archiveFile, "", "wasmplane.local/archive:1"},
		{"gzipped archive", zipped, "", "wasmplane.local/zipped:1"},
		{"layout directory", layoutDir, "", "wasmplane.local/layout:1"},
		{"layout with tags only", byTag, "wasmplane.local/bytag", "wasmplane.local/bytag:v2"},
		{"short name", byTag, "short:9", "docker.io/library/short:9"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var told []string
			got, err := store.Import(t.Context(), images.Source{File: c.file, Name: c.called}, func(s string) { told = append(told, s) })
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 || got[0].Name != c.want || got[0].Size == 0 || !strings.HasPrefix(got[0].Digest, "sha256:") {
				t.Errorf("imported %+v, want %s", got, c.want)
			}
			if len(told) < 2 || !strings.Contains(told[len(told)-1], c.want) {
				t.Errorf("progress: %q", told)
			}
		})
	}
	runs(t, node, "archive", "wasmplane.local/archive:1")
	runs(t, node, "layout", "wasmplane.local/layout:1")

	for _, c := range []struct{ what, file, called, want string }{
		{"nothing there", filepath.Join(dir, "absent"), "", "no such file"},
		{"not an image", write(t, dir, "junk", []byte("junk")), "", "import " + filepath.Join(dir, "junk")},
		{"an empty tar", write(t, dir, "empty.tar", make([]byte, 1024)), "", images.ErrNotAnImage.Error()},
		{"a directory of something", dir, "", "oci-layout"},
		{"a layout without names", nameless, "", "--name"},
		{"a layout with tags only and no name", byTag, "", "--name"},
		{"a bad name", layoutDir, "Wasm/UPPER:1", "Wasm/UPPER:1"},
		{"half an archive", write(t, dir, "half.tar", archive[:len(archive)/2]), "", "half.tar"},
	} {
		t.Run(c.what, func(t *testing.T) {
			got, err := store.Import(t.Context(), images.Source{File: c.file, Name: c.called}, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("imported %+v with error %v, want one with %q", got, err, c.want)
			}
		})
	}
	all, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	want := "docker.io/library/short:9 wasmplane.local/archive:1 wasmplane.local/bytag:v2 wasmplane.local/layout:1 wasmplane.local/pause:1 wasmplane.local/testprogram:1 wasmplane.local/zipped:1"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("images\n%s, want\n%s", got, want)
	}
}

// What one node exports another one imports, and docker reads.
func TestExport(t *testing.T) {
	node := nodetest.Start(t)
	store, err := node.Images()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	dir := t.TempDir()
	for _, tagged := range []string{"wasmplane.local/one:1", "wasmplane.local/two:1"} {
		in := images.Source{File: write(t, dir, "in.tar", must(program(t, tagged).Archive()))}
		if _, err := store.Import(t.Context(), in, nil); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := store.Export(t.Context(), &out, []string{"wasmplane.local/one:1", "wasmplane.local/two:1"}, nil); err != nil {
		t.Fatal(err)
	}
	file := write(t, dir, "out.tar", out.Bytes())
	for _, tagged := range []string{"wasmplane.local/one:1", "wasmplane.local/two:1"} {
		tag, err := name.NewTag(tagged)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(file, &tag)
		if err != nil {
			t.Fatalf("docker does not find %s: %v", tagged, err)
		}
		if layers, err := img.Layers(); err != nil || len(layers) == 0 {
			t.Errorf("%s has %d layers, %v", tagged, len(layers), err)
		}
	}
	got, err := store.Import(t.Context(), images.Source{File: file}, nil)
	if err != nil || len(got) != 2 || got[0].Name != "wasmplane.local/one:1" || got[1].Name != "wasmplane.local/two:1" {
		t.Errorf("imported %+v, %v", got, err)
	}
	runs(t, node, "exported", "wasmplane.local/two:1")

	for names, want := range map[string]string{
		"":              "there are none to export",
		"Not/A:name:1":  "no name of an image",
		"absent:1 gone": "the node has no docker.io/library/absent:1, docker.io/library/gone:latest",
	} {
		out.Reset()
		err := store.Export(t.Context(), &out, strings.Fields(names), nil)
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%q: %v and %d bytes, want an error with %q", names, err, out.Len(), want)
		}
	}
}

// Archives of a folder are imported once, pinned, and again when they change or their images are gone.
func TestFolder(t *testing.T) {
	node := nodetest.Start(t)
	store, err := node.Images()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	dir, record := t.TempDir(), filepath.Join(t.TempDir(), "images.json")
	var steps []string
	imports := func(want string) {
		t.Helper()
		steps = nil
		err := store.ImportFolder(t.Context(), dir, record, func(s string) { steps = append(steps, s) })
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	status := func(name string) *cri.Image {
		t.Helper()
		img, err := node.Engine().ImageStatus(t.Context(), &cri.ImageSpec{Image: name})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	imports("") // an empty folder
	write(t, dir, "a.tar", must(program(t, "wasmplane.local/folder-a:1").Archive()))
	write(t, dir, ".b.tar.part", []byte("half a copy"))
	writeLayout(t, filepath.Join(dir, "layout"), image(t, "wasmplane.local/folder-l:1"), "wasmplane.local/folder-l:1")
	write(t, dir, "broken.tar", []byte("junk"))
	imports("broken.tar")
	if a, l := status("wasmplane.local/folder-a:1"), status("wasmplane.local/folder-l:1"); a == nil || !a.Pinned || l == nil || !l.Pinned {
		t.Errorf("after a broken file: %v, %v", a, l)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "broken.tar")), os.RemoveAll(filepath.Join(dir, "layout"))); err != nil {
		t.Fatal(err)
	}
	if imports(""); len(steps) > 0 {
		t.Errorf("nothing has changed: %q", steps)
	}
	write(t, dir, "a.tar", must(program(t, "wasmplane.local/folder-a:2").Archive()))
	if err := os.Chtimes(filepath.Join(dir, "a.tar"), time.Time{}, time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	if imports(""); status("wasmplane.local/folder-a:2") == nil {
		t.Errorf("a file that has changed was not imported: %q", steps)
	}
	if err := node.Engine().RemoveImage(t.Context(), &cri.ImageSpec{Image: "wasmplane.local/folder-a:2"}); err != nil {
		t.Fatal(err)
	}
	if imports(""); status("wasmplane.local/folder-a:2") == nil {
		t.Errorf("an image that was removed did not come back: %q", steps)
	}
	dir = filepath.Join(dir, "absent")
	imports("")
}

// The sandbox image is pinned, and importing it again is nothing.
func TestPause(t *testing.T) {
	node := nodetest.Start(t)
	store, err := node.Images()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.EnsurePause(t.Context()); err != nil {
		t.Fatal(err)
	}
	img, err := node.Engine().ImageStatus(t.Context(), &cri.ImageSpec{Image: images.PauseImage})
	if err != nil || img == nil || !img.Pinned {
		t.Errorf("the sandbox image is %+v (%v), want it pinned", img, err)
	}
}

// server is a registry on loopback that counts requests, perhaps with a password.
type server struct {
	*httptest.Server
	host     string
	requests atomic.Int64
}

func serve(t *testing.T, user, password string, withTLS bool) *server {
	t.Helper()
	s := &server{}
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if u, p, _ := r.BasicAuth(); user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}`, http.StatusUnauthorized)
			return
		}
		reg.ServeHTTP(w, r)
	})
	if withTLS {
		s.Server = httptest.NewTLSServer(h)
	} else {
		s.Server = httptest.NewServer(h)
	}
	t.Cleanup(s.Close)
	s.host = s.Listener.Addr().String()
	return s
}

func (s *server) push(t *testing.T, repository, user, password string) string {
	t.Helper()
	ref := s.host + "/" + repository
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	opts := []remote.Option{remote.WithTransport(&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})}
	if user != "" {
		opts = append(opts, remote.WithAuth(&authn.Basic{Username: user, Password: password}))
	}
	if err := remote.Write(tag, image(t, ref), opts...); err != nil {
		t.Fatal(err)
	}
	return ref
}

// Pulls from registries as configured: plain HTTP, with and without credentials,
// over TLS, by a mirror; and what goes wrong says why.
func TestPull(t *testing.T) {
	open, guarded, secure := serve(t, "", "", false), serve(t, "joe", "s3cret", false), serve(t, "", "", true)
	free := open.push(t, "team/web:1", "", "")
	kept := guarded.push(t, "team/web:1", "joe", "s3cret")
	sealed := secure.push(t, "team/web:1", "", "")
	open.push(t, "library/mirrored:1", "", "")
	ca := write(t, t.TempDir(), "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))

	cfg := nodetest.Config(t)
	cfg.Registries = []images.Registry{
		{Host: open.host, PlainHTTP: true},
		{Host: guarded.host, Mirrors: []string{"http://" + guarded.host}}, // the same, in other words
		{Host: secure.host, CAFile: ca},
		{Host: "registry.invalid", Mirrors: []string{"http://" + open.host}},
	}
	node := nodetest.StartWith(t, cfg)
	e := node.Engine()
	pull := func(ref string, auth *cri.AuthConfig) error {
		_, err := e.PullImage(t.Context(), &cri.ImageSpec{Image: ref}, auth, nil)
		return err
	}
	joe := &cri.AuthConfig{Username: "joe", Password: "s3cret"}

	for _, c := range []struct {
		what, ref string
		auth      *cri.AuthConfig
	}{
		{"plain HTTP", free, nil},
		{"with credentials", kept, joe},
		{"TLS with a CA of its own", sealed, nil},
		{"through a mirror", "registry.invalid/library/mirrored:1", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			if err := pull(c.ref, c.auth); err != nil {
				t.Fatal(err)
			}
			img, err := e.ImageStatus(t.Context(), &cri.ImageSpec{Image: c.ref})
			if err != nil || img == nil {
				t.Fatalf("image status after the pull: %v (%v)", img, err)
			}
		})
	}
	runs(t, node, "pulled", free)

	for _, c := range []struct {
		what, ref string
		auth      *cri.AuthConfig
		want      []string
	}{
		{"no such image", open.host + "/team/absent:1", nil, []string{open.host + "/team/absent:1", "not found"}},
		{"no such tag", open.host + "/team/web:99", nil, []string{"team/web:99", "not found"}},
		{"no credentials", guarded.host + "/team/other:1", nil, []string{"authorization failed", "no basic auth credentials"}},
		{"wrong credentials", guarded.host + "/team/web:2", &cri.AuthConfig{Username: "joe", Password: "wrong"}, []string{"401"}},
		{"nobody listens", "127.0.0.1:9/team/web:1", nil, []string{"connection refused"}},
		{"not a name", "UPPER CASE", nil, []string{"UPPER CASE"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			err := pull(c.ref, c.auth)
			if err == nil {
				t.Fatal("the pull succeeded")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not say %q: %v", w, err)
				}
			}
		})
	}

	// Registries may change while the node runs.
	node.Close()
	cfg.Registries = append(cfg.Registries[1:], images.Registry{Host: "other.invalid", Mirrors: []string{"http://" + open.host}})
	again, err := realnode.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if !again.Adopted() {
		t.Error("containerd was restarted for a change of registries")
	}
	if _, err := again.Engine().PullImage(t.Context(), &cri.ImageSpec{Image: "other.invalid/team/web:1"}, nil, nil); err != nil {
		t.Error(err)
	}
}

// A pull that is called off ends at once.
func TestPullCancelled(t *testing.T) {
	asked := make(chan struct{}, 8)
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(hang.Close)
	host := hang.Listener.Addr().String()
	cfg := nodetest.Config(t)
	cfg.Registries = []images.Registry{{Host: host, PlainHTTP: true}}
	node := nodetest.StartWith(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	_, err := node.Engine().PullImage(ctx, &cri.ImageSpec{Image: host + "/slow:1"}, nil, nil)
	if err == nil || ctx.Err() == nil {
		t.Errorf("the pull ended with %v before it was called off", err)
	}
}

func TestRegistriesAreChecked(t *testing.T) {
	dir := t.TempDir()
	junk := write(t, dir, "junk.pem", []byte("junk"))
	for _, c := range []struct {
		r    images.Registry
		want string
	}{
		{images.Registry{Host: ""}, "host"},
		{images.Registry{Host: "https://docker.io"}, "https://docker.io"},
		{images.Registry{Host: "../../etc"}, "../../etc"},
		{images.Registry{Host: "a\nb"}, "host"},
		{images.Registry{Host: "docker.io", Mirrors: []string{"mirror.example.com"}}, "mirror"},
		{images.Registry{Host: "docker.io", Mirrors: []string{"ftp://mirror.example.com"}}, "ftp"},
		{images.Registry{Host: "docker.io", Mirrors: []string{"https://u:p@mirror.example.com"}}, "mirror"},
		{images.Registry{Host: "docker.io", MirrorsOnly: true}, "mirrorsOnly"},
		{images.Registry{Host: "*", PlainHTTP: true}, "plainHTTP"},
		{images.Registry{Host: "docker.io", CAFile: filepath.Join(dir, "absent")}, "caFile"},
		{images.Registry{Host: "docker.io", CAFile: junk}, "no certificate"},
		{images.Registry{Host: "docker.io", CAFile: "relative.pem"}, "absolute"},
	} {
		err := images.WriteRegistries(filepath.Join(dir, "certs.d"), []images.Registry{c.r})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want an error with %q", c.r, err, c.want)
		}
	}
	twice := []images.Registry{{Host: "docker.io"}, {Host: "docker.io"}}
	if err := images.WriteRegistries(filepath.Join(dir, "certs.d"), twice); err == nil {
		t.Error("a registry may be there twice")
	}
}

// What somebody else put beside our files stays; what we wrote and is no longer
// configured goes.
func TestRegistryFilesOfOthersStay(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "theirs.example.com"), 0o755); err != nil {
		t.Fatal(err)
	}
	theirs := write(t, filepath.Join(dir, "theirs.example.com"), "hosts.toml", []byte("server = \"https://x\"\n"))
	for _, rs := range [][]images.Registry{
		{{Host: "a.example.com:5000", PlainHTTP: true}, {Host: "*", Mirrors: []string{"https://m.example.com/"}}},
		{{Host: "[::1]:5000", PlainHTTP: true}},
	} {
		if err := images.WriteRegistries(dir, rs); err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		found = append(found, filepath.Base(f))
	}
	if got := strings.Join(found, " "); got != "[::1]_5000_ theirs.example.com" {
		t.Errorf("directories %q", got)
	}
	if data, err := os.ReadFile(theirs); err != nil || !bytes.HasPrefix(data, []byte("server")) {
		t.Errorf("theirs: %q (%v)", data, err)
	}
}

// The same program gives the same image, byte by byte: its digest can be pinned.
func TestProgramIsReproducible(t *testing.T) {
	p := images.Program{Name: "wasmplane.local/x:1", Path: "/a/b/x", Content: []byte("x"), Arch: "arm64"}
	one, two := must(p.Archive()), must(p.Archive())
	if !bytes.Equal(one, two) {
		t.Error("two builds of an image differ")
	}
	if _, err := (images.Program{Name: "wasmplane.local/x:a b", Path: "/x"}).Archive(); err == nil {
		t.Error("a bad name was taken")
	}
}

func write(t *testing.T, dir, file string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, file)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeLayout(t *testing.T, dir string, img v1.Image, refName string) string {
	t.Helper()
	l, err := layout.FromPath(dir)
	if err != nil {
		if l, err = layout.Write(dir, empty.Index); err != nil {
			t.Fatal(err)
		}
	}
	opts := []layout.Option{layout.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})}
	if refName != "" {
		opts = append(opts, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": refName}))
	}
	if err := l.ReplaceImage(img, match.Name(refName), opts...); err != nil {
		t.Fatal(err)
	}
	return dir
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
