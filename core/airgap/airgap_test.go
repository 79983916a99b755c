// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const amd64 = "linux/amd64"

// parts are the contents of an archive by their paths.
type parts map[string][]byte

// sample has an image by itself, one of an index with two platforms, a module and a manifest.
func sample(t *testing.T) (*List, parts) {
	t.Helper()
	p := parts{}
	var described []Described
	blob := func(content []byte) { p[blobs+strings.TrimPrefix(Digest(content), "sha256:")] = content }
	add := func(img v1.Image) v1.Descriptor {
		raw, err := img.RawManifest()
		check(t, err)
		config, err := img.RawConfigFile()
		check(t, err)
		blob(raw)
		blob(config)
		layers, err := img.Layers()
		check(t, err)
		for _, l := range layers {
			r, err := l.Compressed()
			check(t, err)
			content, err := io.ReadAll(r)
			check(t, err)
			blob(content)
		}
		digest, err := img.Digest()
		check(t, err)
		media, err := img.MediaType()
		check(t, err)
		return v1.Descriptor{Digest: digest, MediaType: media, Size: int64(len(raw))}
	}
	one, err := random.Image(3000, 2)
	check(t, err)
	d := add(one)
	described = append(described, Described{Image{"example.com/one:1", d.Digest.String(), true}, d.MediaType, d.Size})
	ours, err := random.Image(700, 1)
	check(t, err)
	theirs, err := random.Image(700, 1)
	check(t, err)
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: theirs, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}},
		mutate.IndexAddendum{Add: ours, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	add(ours)
	raw, err := index.RawManifest()
	check(t, err)
	blob(raw)
	described = append(described, Described{Image{"example.com/two:1", Digest(raw), false}, types.OCIImageIndex, int64(len(raw))})
	module := []byte("\x00asm")
	p[modules+"blobs/"+strings.ReplaceAll(Digest(module), ":", "-")] = module
	p[manifests+"web.yaml"] = []byte("kind: Pod\n")
	p[Program] = bytes.Repeat([]byte("program"), 100)
	files, err := LayoutFiles(described)
	check(t, err)
	maps.Copy(p, files)
	l := &List{Platform: amd64, MadeBy: "test", Images: []Image{described[0].Image, described[1].Image}}
	for _, path := range slices.Sorted(maps.Keys(p)) {
		l.Files = append(l.Files, File{path, int64(len(p[path])), Digest(p[path])})
	}
	return l, p
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p parts) open(_ context.Context, f File) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(p[f.Path])), nil
}

// written makes an archive.
func written(t *testing.T, l *List, p parts) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.tar")
	check(t, Write(t.Context(), file, l, nil, p.open, nil))
	return file
}

func anyList(*List, []byte, []byte) error { return nil }

func kept(t *testing.T, dir, file string) (*Archive, error) {
	t.Helper()
	from, err := FileSource(file)
	check(t, err)
	a, err := Keep(t.Context(), dir, from, anyList, nil)
	if a != nil {
		t.Cleanup(func() { _ = a.Close() })
	}
	return a, err
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	check(t, err)
	return b
}

func TestTheSameContentIsTheSameBytes(t *testing.T) {
	l, p := sample(t)
	one, two := read(t, written(t, l, p)), read(t, written(t, l, p))
	if !bytes.Equal(one, two) {
		t.Error("two archives of the same content differ")
	}
	kept, err := kept(t, t.TempDir(), written(t, l, p))
	check(t, err)
	if !bytes.Equal(read(t, kept.File), one) {
		t.Error("an archive that was taken over differs from the one that was made")
	}
	for path, content := range p {
		r, err := kept.Content(path)
		check(t, err)
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %v, or another content", path, err)
		}
	}
}

// untar unpacks regular files into a new folder.
func untar(t *testing.T, r io.Reader) string {
	t.Helper()
	dir := t.TempDir()
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		check(t, err)
		file := filepath.Join(dir, h.Name)
		check(t, os.MkdirAll(filepath.Dir(file), 0o755))
		content, err := io.ReadAll(in)
		check(t, err)
		check(t, os.WriteFile(file, content, 0o644))
	}
}

// An archive is an OCI layout to other tools, and so is what WriteImages makes of some of its images.
func TestOtherToolsReadTheImages(t *testing.T) {
	l, p := sample(t)
	a, err := kept(t, t.TempDir(), written(t, l, p))
	check(t, err)
	valid := func(r io.Reader, want ...string) {
		t.Helper()
		index, err := layout.ImageIndexFromPath(untar(t, r))
		check(t, err)
		m, err := index.IndexManifest()
		check(t, err)
		var names []string
		for _, d := range m.Manifests {
			names = append(names, d.Annotations[refNameNote])
			of := index
			if d.MediaType.IsIndex() {
				of, err = index.ImageIndex(d.Digest)
				check(t, err)
				all, err := of.IndexManifest()
				check(t, err)
				d = all.Manifests[slices.IndexFunc(all.Manifests, func(d v1.Descriptor) bool { return d.Platform.Architecture == "amd64" })]
			}
			img, err := of.Image(d.Digest)
			check(t, err)
			if err := validate.Image(img); err != nil {
				t.Errorf("%s: %v", d.Digest, err)
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("images %v, want %v", names, want)
		}
	}
	valid(bytes.NewReader(read(t, a.File)), "example.com/one:1", "example.com/two:1")
	var some bytes.Buffer
	check(t, a.WriteImages(&some, []string{"example.com/two:1"}))
	valid(&some, "example.com/two:1")
}

// Whatever is changed about an archive, nothing of it is used.
func TestADamagedArchiveIsRefused(t *testing.T) {
	l, p := sample(t)
	good := read(t, written(t, l, p))
	plan, err := readHead(bytes.NewReader(good))
	check(t, err)
	change := func(at int64, by ...byte) func([]byte) []byte {
		return func(b []byte) []byte {
			copy(b[at:], by)
			return b
		}
	}
	link := func(i int) func([]byte) []byte { // a header of a link in the place of a file
		var h bytes.Buffer
		check(t, tar.NewWriter(&h).WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: l.Files[i].Path, Linkname: "/etc/shadow"}))
		return change(plan.at[i], h.Bytes()[:block]...)
	}
	cases := map[string]func([]byte) []byte{
		"nothing":           func([]byte) []byte { return nil },
		"cut in its list":   func(b []byte) []byte { return b[:700] },
		"cut in a file":     func(b []byte) []byte { return b[:plan.at[3]+600] },
		"cut before a file": func(b []byte) []byte { return b[:plan.at[3]] },
		"without its end":   func(b []byte) []byte { return b[:len(b)-1] },
		"with more":         func(b []byte) []byte { return append(b, make([]byte, block)...) },
		"compressed":        func([]byte) []byte { return append([]byte{0x1f, 0x8b, 8, 0}, make([]byte, 2000)...) },
		"a link":            link(0),
		"a later link":      link(len(l.Files) - 1),
		"another name":      change(plan.at[2], []byte("../../etc/cron.d/x\x00")...),
		"in the list":       change(600, 'X'),
		"in the padding of a file": func(b []byte) []byte {
			for i, f := range l.Files {
				if padding(f.Size) > 0 {
					return change(plan.content(i)+f.Size, 1)(b)
				}
			}
			return nil
		},
		"at its end": change(plan.total-3, 1),
	}
	for i := range l.Files {
		cases["in "+l.Files[i].Path] = change(plan.content(i)+l.Files[i].Size/2, p[l.Files[i].Path][l.Files[i].Size/2]^1)
		cases["in the header of "+l.Files[i].Path] = change(plan.at[i]+100, '7')
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			file, dir := filepath.Join(t.TempDir(), "a.tar"), t.TempDir()
			check(t, os.WriteFile(file, spoil(bytes.Clone(good)), 0o644))
			if a, err := kept(t, dir, file); err == nil {
				if name != "in the padding of a file" && name != "at its end" {
					t.Fatal("it was taken over")
				}
				// What is nobody's content is not copied.
				if !bytes.Equal(read(t, a.File), good) {
					t.Error("what was taken over is not what was made")
				}
			}
			if files, err := Kept(dir); err != nil || name != "in the padding of a file" && name != "at its end" && len(files) > 0 {
				t.Errorf("%v, %v is there", err, files)
			}
		})
	}
}

// Lists that somebody else made, well-formed otherwise.
func TestAListAsksForNothingElse(t *testing.T) {
	digest := Digest(nil)
	for name, l := range map[string]List{
		"a path out of the folder":      {Files: []File{{"manifests/../../x.yaml", 0, digest}}},
		"an absolute path":              {Files: []File{{"/etc/passwd", 0, digest}}},
		"a hidden manifest":             {Files: []File{{"manifests/.x.yaml", 0, digest}}},
		"a manifest in a folder":        {Files: []File{{"manifests/a/x.yaml", 0, digest}}},
		"a manifest that is large":      {Files: []File{{"manifests/x.yaml", mostManifest + 1, digest}}},
		"a blob of another digest":      {Files: []File{{blobs + strings.Repeat("0", 64), 0, digest}}},
		"a module of another digest":    {Files: []File{{modules + "blobs/sha256-" + strings.Repeat("0", 64), 0, digest}}},
		"a negative size":               {Files: []File{{Program, -1, digest}}},
		"more than a header can say":    {Files: []File{{Program, mostFile + 1, digest}}},
		"a file twice":                  {Files: []File{{Program, 0, digest}, {Program, 0, digest}}},
		"no digest":                     {Files: []File{{Program, 0, "md5:0"}}},
		"an image that is not there":    {Images: []Image{{Name: "a", Digest: digest}}},
		"an index without its layout":   {Files: []File{{indexName, 0, digest}}},
		"a platform that is a path":     {Platform: "linux/../x"},
		"more bytes than a disk has":    {Files: large(mostTotal/mostFile + 1)},
		"more files than anybody wants": {Files: make([]File, mostFiles+1)},
	} {
		t.Run(name, func(t *testing.T) {
			if l.Platform == "" {
				l.Platform = amd64
			}
			l.Form = Version
			text, err := l.encode()
			check(t, err)
			p, err := newPlan(&List{}, text, nil)
			check(t, err)
			if _, err := readHead(bytes.NewReader(p.head)); err == nil {
				t.Error("it was accepted")
			}
		})
	}
}

// large are files of the largest size.
func large(n int) (out []File) {
	for i := range n {
		out = append(out, File{fmt.Sprintf("blobs/sha256/%064x", i), mostFile, fmt.Sprintf("sha256:%064x", i)})
	}
	return out
}

// An index that is not the list's, and images that are not whole, are noticed before the archive has its name.
func TestImagesAreWhole(t *testing.T) {
	for name, spoil := range map[string]func(l *List, p parts){
		"a layer is missing": func(l *List, p parts) {
			var m v1.Manifest
			raw := p[blobs+strings.TrimPrefix(l.Images[0].Digest, "sha256:")]
			parsed, _ := v1.ParseManifest(bytes.NewReader(raw))
			m = *parsed
			l.Files = slices.DeleteFunc(l.Files, func(f File) bool { return f.Digest == m.Layers[0].Digest.String() })
		},
		"an image is not in the list": func(l *List, _ parts) { l.Images = l.Images[:1] },
		"another name":                func(l *List, _ parts) { l.Images[0].Name = "example.com/other:1" },
		"another platform":            func(l *List, _ parts) { l.Platform = "linux/s390x" },
		"the index is no JSON": func(l *List, p parts) {
			p[indexName] = []byte("{")
			i := slices.IndexFunc(l.Files, func(f File) bool { return f.Path == indexName })
			l.Files[i] = File{indexName, 1, Digest(p[indexName])}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, p := sample(t)
			spoil(l, p)
			dir := t.TempDir()
			_, err := kept(t, dir, written(t, l, p))
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Errorf("error %v", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("%v, %v stays", err, entries)
			}
		})
	}
}

// counting counts which files are opened.
type counting struct {
	parts
	opened []string
	fail   string // the file at which it breaks off
}

func (c *counting) open(ctx context.Context, f File) (io.ReadCloser, error) {
	c.opened = append(c.opened, f.Path)
	if f.Path == c.fail {
		return io.NopCloser(io.MultiReader(bytes.NewReader(c.parts[f.Path][:1]), broken{})), nil
	}
	return c.parts.open(ctx, f)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the cable was pulled") }

func TestMakingGoesOnWhereItBrokeOff(t *testing.T) {
	l, p := sample(t)
	file := filepath.Join(t.TempDir(), "all.tar")
	c := &counting{parts: p, fail: l.Files[4].Path}
	if err := Write(t.Context(), file, l, nil, c.open, nil); err == nil || !strings.Contains(err.Error(), "cable") {
		t.Fatalf("error %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half an archive has its name: %v", err)
	}
	c.opened, c.fail = nil, ""
	check(t, Write(t.Context(), file, l, nil, c.open, nil))
	if len(c.opened) != len(l.Files)-4 || c.opened[0] != l.Files[4].Path {
		t.Errorf("%v were opened again", c.opened)
	}
	if !bytes.Equal(read(t, file), read(t, written(t, l, p))) {
		t.Error("it is another archive than one that was made at once")
	}
}

func TestTakingOverGoesOnWhereItBrokeOff(t *testing.T) {
	l, p := sample(t)
	whole := read(t, written(t, l, p))
	plan, err := readHead(bytes.NewReader(whole))
	check(t, err)
	for cut := plan.total - 1; cut > 0; cut -= 1111 {
		dir := t.TempDir()
		var offsets []int64
		from := Source{Name: "a server", Size: plan.total, From: func(_ context.Context, offset int64) (io.ReadCloser, error) {
			offsets = append(offsets, offset)
			return io.NopCloser(bytes.NewReader(whole[offset:])), nil
		}}
		part := filepath.Join(dir, "."+plan.kept()+".part")
		check(t, os.WriteFile(part, whole[:cut], 0o600))
		a, err := Keep(t.Context(), dir, from, anyList, nil)
		check(t, err)
		check(t, a.Close())
		if !bytes.Equal(read(t, a.File), whole) {
			t.Fatalf("cut at %d: it is another archive", cut)
		}
		for _, o := range offsets[1:] {
			if o < plan.at[0] || o > max(plan.at[0], cut+block) {
				t.Errorf("cut at %d: it was read from %d on", cut, o)
			}
		}
	}
}

// Whoever ends it finds what was copied, and can begin again.
func TestCtrlCLeavesWhatIsThere(t *testing.T) {
	l, p := sample(t)
	from, err := FileSource(written(t, l, p))
	check(t, err)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Keep(ctx, dir, from, anyList, func(_, _ int64, path string) {
		if path == l.Files[5].Path {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if files, err := Kept(dir); err != nil || len(files) > 0 {
		t.Errorf("%v, %v", err, files)
	}
	parts, err := filepath.Glob(filepath.Join(dir, ".*.part"))
	check(t, err)
	for _, part := range parts { // where this process's clock is ahead of the kernel's (make test-clock), it would be abandoned
		check(t, os.Chtimes(part, time.Now(), time.Now()))
	}
	var again []string
	a, err := Keep(t.Context(), dir, from, anyList, func(_, _ int64, path string) { again = append(again, path) })
	check(t, err)
	check(t, a.Close())
	if again[0] != l.Files[5].Path {
		t.Errorf("it went on at %s", again[0])
	}
}

func TestADiskThatIsTooSmallIsSaidBefore(t *testing.T) {
	l, p := sample(t)
	l.Files = append(l.Files, large(mostTotal/mostFile-1)...)
	c := &counting{parts: p}
	err := Write(t.Context(), filepath.Join(t.TempDir(), "all.tar"), l, nil, c.open, nil)
	if err == nil || !strings.Contains(err.Error(), "make room") || len(c.opened) > 0 {
		t.Errorf("error %v, %d were opened", err, len(c.opened))
	}
}

func TestACheckComesFirst(t *testing.T) {
	l, p := sample(t)
	from, err := FileSource(written(t, l, p))
	check(t, err)
	dir := t.TempDir()
	_, err = Keep(t.Context(), dir, from, func(*List, []byte, []byte) error { return errors.New("not for me") }, nil)
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("error %v", err)
	}
	if has, err := Has(t.Context(), dir, from, anyList); err != nil || has {
		t.Errorf("%v %v", has, err)
	}
	_, err = kept(t, dir, from.Name)
	check(t, err)
	if has, err := Has(t.Context(), dir, from, anyList); err != nil || !has {
		t.Errorf("%v %v", has, err)
	}
}

// One that the disk has damaged since is made good by taking it over again.
func TestAKeptArchiveIsMended(t *testing.T) {
	l, p := sample(t)
	file, dir := written(t, l, p), t.TempDir()
	a, err := kept(t, dir, file)
	check(t, err)
	f, err := os.OpenFile(a.File, os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteAt([]byte("rot"), a.plan.content(3))
	check(t, err)
	check(t, f.Close())
	_, err = kept(t, dir, file)
	check(t, err)
	if !bytes.Equal(read(t, a.File), read(t, file)) {
		t.Error("it is still damaged")
	}
}

// What was imported is not imported over something newer; whoever takes an archive over again wants it.
func TestAnArchiveRemembersThatItWasImported(t *testing.T) {
	l, p := sample(t)
	file, dir := written(t, l, p), t.TempDir()
	a, err := kept(t, dir, file)
	check(t, err)
	if a.Imported() {
		t.Error("it was imported")
	}
	check(t, a.SetImported())
	again, err := Open(a.File)
	check(t, err)
	defer again.Close()
	if !again.Imported() {
		t.Error("it is forgotten")
	}
	if files, err := Kept(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
	a, err = kept(t, dir, file)
	check(t, err)
	if a.Imported() {
		t.Error("it is still imported")
	}
}

func FuzzTheBeginningOfAnArchive(f *testing.F) {
	l := &List{Form: Version, Platform: amd64, Files: []File{{Program, 3, Digest([]byte("abc"))}}}
	text, err := l.encode()
	if err != nil {
		f.Fatal(err)
	}
	p, err := newPlan(l, text, []byte("signature"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p.head)
	f.Add(p.head[:600])
	f.Fuzz(func(t *testing.T, head []byte) {
		p, err := readHead(bytes.NewReader(head))
		if err != nil {
			return
		}
		if !bytes.HasPrefix(head, p.head) {
			t.Error("an archive was read that wasmplane does not write")
		}
		if err := p.list.check(); err != nil {
			t.Errorf("its list is wrong: %v", err)
		}
	})
}
