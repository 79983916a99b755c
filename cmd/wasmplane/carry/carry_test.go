// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/plugins/author/distribution"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/source"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hub is a registry with an index for two architectures (both:1), and an image for each alone.
func hub(t *testing.T) (s *httptest.Server, host string) {
	t.Helper()
	s = httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	host = strings.TrimPrefix(s.URL, "http://")
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := random.Image(2000, 2)
		check(t, err)
		config, err := img.ConfigFile()
		check(t, err)
		config = config.DeepCopy()
		config.OS, config.Architecture = "linux", arch
		img, err = mutate.ConfigFile(img, config)
		check(t, err)
		platform := v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: platform})
		ref, err := name.ParseReference(host + "/" + arch + ":1")
		check(t, err)
		check(t, remote.Write(ref, img))
	}
	ref, err := name.ParseReference(host + "/both:1")
	check(t, err)
	check(t, remote.WriteIndex(ref, index))
	return s, host
}

func wanted(host string, images ...string) Wanted {
	w := Wanted{Registry: Registry{PlainHTTP: []string{host}}, Arch: "amd64", Program: NoProgram, Version: "test"}
	for _, i := range images {
		w.Images = append(w.Images, host+"/"+i)
	}
	return w
}

func quiet(string) {}

func TestAnArchiveHasWhatItsImagesConsistOf(t *testing.T) {
	_, host := hub(t)
	file := filepath.Join(t.TempDir(), "all.tar")
	l, err := Create(t.Context(), file, wanted(host, "both:1", "amd64:1", "amd64:1"), quiet)
	check(t, err)
	if len(l.Images) != 2 || !l.Images[0].Pinned {
		t.Errorf("images %v", l.Images)
	}
	from, err := airgap.FileSource(file)
	check(t, err)
	a, err := airgap.Keep(t.Context(), t.TempDir(), from, func(*airgap.List, []byte, []byte) error { return nil }, nil)
	check(t, err) // which looks whether all of an image is there
	defer a.Close()
	// Of the index one image, which the other name has too: layout, index, index, manifest, configuration, two layers.
	if len(l.Files) != 7 {
		t.Errorf("%d files: %v", len(l.Files), l.Files)
	}
	again := filepath.Join(t.TempDir(), "all.tar")
	_, err = Create(t.Context(), again, wanted(host, "amd64:1", "both:1"), quiet)
	check(t, err)
	one, err := os.ReadFile(file)
	check(t, err)
	two, err := os.ReadFile(again)
	check(t, err)
	if !bytes.Equal(one, two) {
		t.Error("the same images make two archives")
	}
}

func TestWhatCannotBePutIn(t *testing.T) {
	_, host := hub(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		check(t, os.WriteFile(file, []byte(text), 0o644))
		return file
	}
	for name, c := range map[string]struct {
		change func(w *Wanted)
		want   string
	}{
		"nothing":                 {func(w *Wanted) { w.Images = nil }, "nothing to put into the archive"},
		"another architecture":    {func(w *Wanted) { w.Images = []string{host + "/arm64:1"} }, "it is for linux/arm64"},
		"none of an index":        {func(w *Wanted) { w.Arch = "s390x"; w.Images = []string{host + "/both:1"} }, "it is for linux/amd64, linux/arm64"},
		"an image that is not":    {func(w *Wanted) { w.Images = []string{host + "/none:1"} }, "/none:1: ask for it"},
		"no name of an image":     {func(w *Wanted) { w.Images = []string{"No:Name:"} }, `the image "No:Name:"`},
		"without TLS":             {func(w *Wanted) { w.PlainHTTP = nil }, "--plain-http"},
		"a manifest without YAML": {func(w *Wanted) { w.Manifests = []string{write("a.yaml", "a: [")} }, "a.yaml: document 1"},
		"a hidden manifest":       {func(w *Wanted) { w.Manifests = []string{write(".b.yaml", "a: b")} }, "expected a name of"},
		"a Secret in a list": {func(w *Wanted) {
			w.Manifests = []string{write("h.yaml", `{kind: List, apiVersion: v1, items: [{apiVersion: v1, kind: Secret, metadata: {name: s}}]}`)}
		}, `has the Secret "s"`},
		"two of one name": {func(w *Wanted) {
			file := write("c.yaml", "a: b")
			w.Manifests = []string{file, file}
		}, "there are two files c.yaml"},
		"a program of no kind": {func(w *Wanted) { w.Program = write("d", "#!/bin/sh") }, "is no program"},
		"a key that is none":   {func(w *Wanted) { w.Key = write("e.key", "secret") }, "expected a private key"},
		"a plugin that is not there": {func(w *Wanted) {
			w.Config = write("f.yaml", `{apiVersion: wasmplane.dev/v1alpha1, kind: Configuration, plugins: [{name: p, source: "oci://`+host+`/none:1", digest: "sha256:`+strings.Repeat("0", 64)+`", fetch: {plainHTTP: true}}]}`)
		}, "plugin p: fetch"},
		"a plugin that is not pinned": {func(w *Wanted) {
			w.Manifests = []string{write("g.yaml", `{apiVersion: plugins.wasmplane.dev/v1, kind: Plugin, metadata: {name: p}, spec: {source: "oci://`+host+`/none:1"}}`)}
		}, "pinned"},
	} {
		t.Run(name, func(t *testing.T) {
			w := wanted(host, "amd64:1")
			c.change(&w)
			out := t.TempDir()
			_, err := Create(t.Context(), filepath.Join(out, "all.tar"), w, quiet)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if entries, err := os.ReadDir(out); err != nil || len(entries) > 0 {
				t.Errorf("%v, %v stays", err, entries)
			}
		})
	}
}

func TestImagesOfObjects(t *testing.T) {
	text := `
apiVersion: v1
kind: List
items:
- kind: Pod
  spec:
    initContainers: [{image: a}]
    containers: [{image: "b:1"}, {name: none}]
    ephemeralContainers: [{image: c}]
    volumes: [{name: v, image: {reference: "d:1"}}, {name: w, emptyDir: {}}]
---
kind: CronJob
spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: e}]}}}}}
---
kind: Widget
spec: {image: not, containers: none, pool: {template: {spec: {containers: [{image: f}]}}}}
---
`
	objects, err := parse("all.yaml", strings.NewReader(text))
	check(t, err)
	var found []string
	for _, o := range objects {
		found = append(found, named(o.tree)...)
	}
	slices.Sort(found)
	if got := strings.Join(found, " "); got != "a b:1 c d:1 e f" {
		t.Errorf("images %s", got)
	}
	full, err := distinct([]string{"b:1", "a", "docker.io/library/a:latest"})
	check(t, err)
	if got := strings.Join(full, " "); got != "docker.io/library/a:latest docker.io/library/b:1" {
		t.Errorf("images %s", got)
	}
}

// A module and its signature are found without the registry that they came from.
func TestAPluginsModuleNeedsNoNetwork(t *testing.T) {
	s, host := hub(t)
	dir := t.TempDir()
	t.Chdir(dir)
	private, public, err := distribution.GenerateKey(filepath.Join(dir, "team"))
	check(t, err)
	module := []byte("\x00asm\x01\x00\x00\x00")
	f, err := source.New(source.Config{Dir: dir})
	check(t, err)
	entry := func(source string) *manifest.Entry {
		e, err := manifest.ParseBytes(fmt.Appendf(nil, "name: p\nsource: %s\ndigest: %s\nfetch: {plainHTTP: true}\nsignatures: [{keys: [%s]}]\n",
			source, airgap.Digest(module), public))
		check(t, err)
		return &e
	}
	e := entry("oci://" + host + "/policy:1")
	digest, err := f.Push(t.Context(), e, module, nil)
	check(t, err)
	_, err = distribution.Registry{PlainHTTP: true}.Sign(t.Context(), "oci://"+host+"/policy:1@"+digest, private, nil)
	check(t, err)
	conf := filepath.Join(dir, "cluster.yaml")
	text, err := json.Marshal(map[string]any{
		"apiVersion": "wasmplane.dev/v1alpha1", "kind": "Configuration", "plugins": []any{map[string]any{
			"name": "p", "source": e.Source, "digest": e.Digest, "fetch": map[string]any{"plainHTTP": true},
			"signatures": []any{map[string]any{"keys": []any{public}}},
		}},
	})
	check(t, err)
	check(t, os.WriteFile(conf, text, 0o600))
	w := wanted(host)
	w.Config, w.Key = conf, private
	file := filepath.Join(dir, "all.tar")
	l, err := Create(t.Context(), file, w, quiet)
	check(t, err)
	if len(l.Modules) != 1 || l.Modules[0].Digest != e.Digest {
		t.Errorf("modules %v", l.Modules)
	}
	s.Close()

	data := datadir.Dir(filepath.Join(dir, "data"))
	keys, err := Keys([]string{public})
	check(t, err)
	a, err := Load(t.Context(), data, file, "", keys, quiet)
	check(t, err)
	check(t, a.Close())
	offline, err := source.New(source.Config{Dir: dir, CacheDir: data.PluginModules()})
	check(t, err)
	got, err := offline.Fetch(t.Context(), e)
	check(t, err)
	if !bytes.Equal(got.Wasm, module) || !got.Verified {
		t.Errorf("the module is %q, verified %v", got.Wasm, got.Verified)
	}
	// What the machine has lost is put back at a start.
	check(t, os.RemoveAll(data.PluginModules()))
	check(t, PlaceKept(data))
	_, err = offline.Fetch(t.Context(), e)
	check(t, err)
	// What a key did not sign is not taken over, nor what another key signed.
	_, other, err := distribution.GenerateKey(filepath.Join(dir, "other"))
	check(t, err)
	if keys, err = Keys([]string{other}); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), data, file, "", keys, quiet); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("error %v", err)
	}
}

// What a configuration names is taken over at the first start only, and again when it is another archive.
func TestAStartTakesAnArchiveOverOnce(t *testing.T) {
	_, host := hub(t)
	dir := t.TempDir()
	file, data, manifests := filepath.Join(dir, "all.tar"), datadir.Dir(filepath.Join(dir, "data")), filepath.Join(dir, "manifests")
	made := func(text string) {
		check(t, os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(text), 0o644))
		w := wanted(host)
		w.Manifests = []string{filepath.Join(dir, "x.yaml")}
		_, err := Create(t.Context(), file, w, quiet)
		check(t, err)
	}
	begin := func(want bool) {
		t.Helper()
		var said []string
		check(t, loadOnce(t.Context(), data, file, manifests, nil, func(s string) { said = append(said, s) }))
		if len(said) > 0 != want {
			t.Errorf("it says %q", said)
		}
	}
	made("kind: A")
	begin(true)
	check(t, os.Remove(filepath.Join(manifests, "x.yaml"))) // an operator may take a manifest out
	begin(false)
	if _, err := os.Stat(filepath.Join(manifests, "x.yaml")); err == nil {
		t.Error("a manifest that was taken out comes back at each start")
	}
	check(t, os.Rename(file, file+".away"))
	begin(true) // a note
	check(t, os.Rename(file+".away", file))
	begin(false)
	made("kind: B")
	begin(true)
	if got, err := os.ReadFile(filepath.Join(manifests, "x.yaml")); err != nil || string(got) != "kind: B" {
		t.Errorf("%q, %v", got, err)
	}
	files, err := airgap.Kept(data.Airgap())
	check(t, err)
	if len(files) != 2 {
		t.Errorf("%v is kept", files)
	}
	old := time.Now().Add(-time.Hour)
	check(t, os.Chtimes(files[0], old, old))
	newest, err := airgap.Kept(data.Airgap())
	check(t, err)
	if newest[0] != files[1] {
		t.Errorf("the newest is %s", newest[0])
	}
}

// What is removed stays away from starts whose configuration names it, and pins no image any more that another archive does not pin.
func TestAnArchiveIsRemoved(t *testing.T) {
	_, host := hub(t)
	dir := t.TempDir()
	data := datadir.Dir(filepath.Join(dir, "data"))
	load := func(file string, images ...string) {
		_, err := Create(t.Context(), file, wanted(host, images...), quiet)
		check(t, err)
		a, err := Load(t.Context(), data, file, "", nil, quiet)
		check(t, err)
		check(t, a.Close())
	}
	one, other := filepath.Join(dir, "one.tar"), filepath.Join(dir, "other.tar")
	load(one, "both:1", "amd64:1")
	load(other, "both:1")
	kept := func(want int) {
		t.Helper()
		if files, err := airgap.Kept(data.Airgap()); err != nil || len(files) != want {
			t.Errorf("kept %q, %v, want %d", files, err, want)
		}
	}
	kept(2)
	for _, c := range []struct{ what, no string }{
		{"abc", "give 6 digits or more"},
		{"abcdefabcdef", "has no archive abcdefabcdef, and there is no such file"},
		{dir, "is no regular file"},
	} {
		if _, err := keptAs(t.Context(), data, c.what); err == nil || !strings.Contains(err.Error(), c.no) {
			t.Errorf("%s: error %v", c.what, err)
		}
	}
	name, err := keptAs(t.Context(), data, one)
	check(t, err)
	if short, err := keptAs(t.Context(), data, name[:shown]); err != nil || short != name {
		t.Errorf("%s is %s, %v", name[:shown], short, err)
	}
	check(t, airgap.Remove(data.Airgap(), name, 0))
	kept(1)
	free, done, err := airgap.Unpinned(data.Airgap())
	check(t, err)
	if len(free) != 1 || free[0].Name != host+"/amd64:1" {
		t.Errorf("unpinned: %v", free)
	}
	check(t, done())
	if free, _, err = airgap.Unpinned(data.Airgap()); err != nil || len(free) > 0 {
		t.Errorf("unpinned again: %v, %v", free, err)
	}
	var said string
	check(t, loadOnce(t.Context(), data, one, "", nil, func(s string) { said += s }))
	if kept(1); !strings.Contains(said, "was removed by `airgap rm`") {
		t.Errorf("it says %q", said)
	}
	load(one, "both:1", "amd64:1")
	kept(2)
}
