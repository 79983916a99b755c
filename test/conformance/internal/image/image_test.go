// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func entries(t *testing.T, r io.Reader) map[string]*tar.Header {
	t.Helper()
	found := map[string]*tar.Header{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if found[h.Name] != nil {
			t.Errorf("%s is there twice", h.Name)
		}
		found[h.Name] = h
	}
}

func TestALayerHasParentsAndTheFirstOfEachName(t *testing.T) {
	var pkg bytes.Buffer
	w := tar.NewWriter(&pkg)
	for _, h := range []*tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./etc/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "./etc/passwd", Size: 3},
		{Name: "./usr/share/doc/x", Size: 0},
		{Name: "./../escape", Size: 0},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("pkg")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	l := newLayer(&out)
	if err := addAll(l, []File{
		{Path: "/etc/passwd", Mode: 0o644, Content: []byte("ours!")},
		{Path: "/bin/ls", Link: "busybox"},
		{Path: "/x/su", Mode: os.ModeSetuid | 0o755},
	}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.merge(&pkg), l.close()); err != nil {
		t.Fatal(err)
	}
	found := entries(t, &out)
	for name, check := range map[string]func(*tar.Header) bool{
		"etc/":       func(h *tar.Header) bool { return h.Mode == 0o755 },
		"etc/passwd": func(h *tar.Header) bool { return h.Size == 5 },
		"bin/ls":     func(h *tar.Header) bool { return h.Linkname == "busybox" },
		"x/su":       func(h *tar.Header) bool { return h.Mode == 0o4755 },
		"escape":     func(*tar.Header) bool { return true }, // inside, where it can do no harm
	} {
		if h := found[name]; h == nil || !check(h) {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if found["usr/share/doc/x"] != nil {
		t.Error("documentation is in the layer")
	}
}

func TestAnArchiveHasEveryName(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "images.tar")
	b := &Builder{Dir: filepath.Join(dir, "layers")}
	err := b.Build(t.Context(), []Spec{{
		Names: []string{"r.example/a:1", "r.example/a:2"}, Top: []File{{Path: "/a", Mode: 0o755, Content: []byte("a")}},
		Config: v1.Config{Entrypoint: []string{"/a"}, User: "7"},
	}}, archive)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[v1.Hash]bool{}
	for _, n := range []string{"r.example/a:1", "r.example/a:2"} {
		tag, err := name.NewTag(n)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(archive, &tag)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		files := entries(t, mutate.Extract(img))
		if cfg.Config.User != "7" || len(cfg.Config.Env) == 0 || files["a"] == nil {
			t.Errorf("%s: %+v, files %v", n, cfg.Config, files)
		}
		id, err := img.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		ids[id] = true
	}
	if len(ids) != 2 {
		t.Errorf("two names have the ID %v: a runtime takes them for one image", ids)
	}
}

func TestEveryImageThatIsMadeIsAskedFor(t *testing.T) {
	all := []string{
		"agnhost:2.66.1", "agnhost:2.55", "nonroot:1", "busybox:1", "ipc-utils:1", "glibc-dns-testing:1", "nonewprivs:1",
		"nginx:1", "sample-apiserver:1", "nautilus:1", "kitten:1", "resource-consumer:1", "sample-device-plugin:1", "regression-issue-74839:1",
	}
	for i := range all {
		all[i] = e2e + all[i]
	}
	for _, name := range []string{
		"csi-attacher:1", "csi-provisioner:1", "csi-resizer:1", "csi-snapshotter:1", "csi-node-driver-registrar:1", "livenessprobe:1",
		"hostpathplugin:1",
	} {
		all = append(all, storage+name)
	}
	all = append(all, "registry.k8s.io/etcd:3", "registry.k8s.io/pause:3", "registry.k8s.io/build-image/distroless-iptables:1")
	specs, err := Specs(Programs{Applets: []string{"ls", "ip"}}, all)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs[0].Names) != 2 {
		t.Errorf("agnhost has the names %v", specs[0].Names)
	}
	if _, err := Specs(Programs{}, all[1:len(all)-1]); err == nil || !strings.Contains(err.Error(), "-list-images") {
		t.Errorf("an image that nobody asks for: %v", err)
	}
}

func TestOfABaseWhatIsThereFirstStays(t *testing.T) {
	b := &Builder{Dir: t.TempDir()}
	img, err := b.image(t.Context(), Spec{
		Names: []string{"r.example/a:1"},
		Base:  []File{{Path: "/bin/sh", Link: "dash"}},
		Rest:  []File{{Path: "/bin/sh", Link: "busybox"}, {Path: "/bin/ls", Link: "busybox"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	files := entries(t, mutate.Extract(img))
	if sh, ls := files["bin/sh"], files["bin/ls"]; sh == nil || sh.Linkname != "dash" || ls == nil || ls.Linkname != "busybox" {
		t.Errorf("sh is %+v, ls is %+v", sh, ls)
	}
}

func TestARecipeChangesWithWhatItNames(t *testing.T) {
	program := filepath.Join(t.TempDir(), "busybox")
	seen := map[string]string{}
	recipe := func(what string, s Spec) {
		t.Helper()
		r, err := Recipe([]Spec{s})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Recipe([]Spec{s}); err != nil || again != r {
			t.Errorf("%s: %s, then %s (%v)", what, r, again, err)
		}
		if before, ok := seen[r]; ok {
			t.Errorf("%s: the same recipe as %s", what, before)
		}
		seen[r] = what
	}
	spec := Spec{Names: []string{"r.example/a:1"}, Top: []File{{Path: "/bin/busybox", From: program}}}
	if _, err := Recipe([]Spec{spec}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is missing: %v", err)
	}
	for _, content := range []string{"one", "another"} {
		if err := os.WriteFile(program, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		recipe("program "+content, spec)
	}
	spec.Packages = []string{"libc6"}
	recipe("with a package", spec)
}
