// SPDX-License-Identifier: Apache-2.0

// Package carry makes archives for machines without a network (core/airgap), and puts what is
// in them into its place: images where the node imports them, modules where plugins find them,
// manifests into the folder that a server applies.
package carry

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/plugins/sign"
)

// NoProgram leaves wasmplane itself out of an archive.
const NoProgram = "none"

// Wanted is what an archive is made of.
type Wanted struct {
	// Images by their names; ImagesFrom are files of manifests whose images are taken, "-" = In.
	Images, ImagesFrom []string
	In                 io.Reader
	// Manifests are files, or folders of them, that are put into the archive, with their images.
	Manifests []string
	// Config is a configuration whose plugins' modules are taken; "" = none.
	Config string
	// Cluster whose images are taken; nil = none.
	Cluster *client.Set
	// Node is the data directory whose node gives the images; "" = registries do.
	Node datadir.Dir
	Registry
	// Arch that it is for, as GOARCH; Program is the file of wasmplane for that, NoProgram = none.
	Arch, Program string
	// Unpinned images may be removed to make room.
	Unpinned bool
	// Key is the file of a private key that signs the list; "" = it is not signed. Password opens the key.
	Key      string
	Password []byte
	Version  string // of wasmplane
}

// Create makes an archive. progress is told in lines what is done.
func Create(ctx context.Context, file string, w Wanted, progress func(string)) (l *airgap.List, err error) {
	scratch, err := os.MkdirTemp("", "wasmplane-airgap-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	m := &making{Wanted: w, scratch: scratch, progress: progress, files: map[string]content{}}
	if l, err = m.list(ctx); err != nil {
		return nil, err
	}
	signer, err := w.signer()
	if err != nil {
		return nil, err
	}
	return l, airgap.Write(ctx, file, l, signer, func(ctx context.Context, f airgap.File) (io.ReadCloser, error) {
		return m.files[f.Path].open(ctx)
	}, Percent(progress))
}

// signer signs by the key.
func (w *Wanted) signer() (func([]byte) ([]byte, error), error) {
	if w.Key == "" {
		return nil, nil
	}
	text, err := os.ReadFile(w.Key)
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	key, err := sign.ParsePrivateKey(text, w.Password)
	if err != nil {
		return nil, fmt.Errorf("--key %s: %w", w.Key, err)
	}
	return func(list []byte) ([]byte, error) { return sign.SignFile(key, list) }, nil
}

type opener func(ctx context.Context) (io.ReadCloser, error)

// making is one archive that is made.
type making struct {
	Wanted
	scratch  string // a folder for what has to be fetched first
	progress func(string)

	files map[string]content // by their paths
}

// content of a file.
type content struct {
	digest string
	size   int64
	open   opener
}

// add puts a file into the archive.
func (m *making) add(path, digest string, size int64, open opener) {
	m.files[path] = content{digest, size, open}
}

func (m *making) bytes(path string, content []byte) {
	m.add(path, airgap.Digest(content), int64(len(content)), func(context.Context) (io.ReadCloser, error) { return reader(content), nil })
}

// list finds out what the archive will hold.
func (m *making) list(ctx context.Context) (*airgap.List, error) {
	l := &airgap.List{Platform: "linux/" + m.Arch, MadeBy: m.Version}
	objects, err := m.addManifests()
	if err != nil {
		return nil, err
	}
	if l.Modules, err = m.addModules(ctx, objects); err != nil {
		return nil, err
	}
	names, err := m.names(ctx, objects)
	if err != nil {
		return nil, err
	}
	if len(names)+len(m.files) == 0 {
		return nil, errNothing
	}
	if l.Images, err = m.addImages(ctx, names, l.Platform); err != nil {
		return nil, err
	}
	if err := m.addProgram(); err != nil {
		return nil, err
	}
	for path, c := range m.files {
		l.Files = append(l.Files, airgap.File{Path: path, Size: c.size, Digest: c.digest})
	}
	slices.SortFunc(l.Files, func(a, b airgap.File) int {
		// The program first, so that it is unpacked soon.
		return cmp.Or(cmp.Compare(btoi(a.Path != airgap.Program), btoi(b.Path != airgap.Program)), strings.Compare(a.Path, b.Path))
	})
	return l, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// names are those of all images.
func (m *making) names(ctx context.Context, objects []document) ([]string, error) {
	all := slices.Clone(m.Images)
	for _, o := range objects {
		all = append(all, named(o.tree)...)
	}
	for _, file := range m.ImagesFrom {
		found, err := readManifests(file, m.In)
		if err != nil {
			return nil, fmt.Errorf("--images-from: %w", err)
		}
		for _, o := range found {
			all = append(all, named(o.tree)...)
		}
	}
	if m.Cluster != nil {
		found, err := running(ctx, m.Cluster.Dynamic)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return distinct(all)
}

// addImages adds the images, and the layout that they are in.
func (m *making) addImages(ctx context.Context, names []string, platform string) (out []airgap.Image, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	var from origin
	if m.Node != "" {
		n, err := openNode(m.Node)
		if err != nil {
			return nil, err
		}
		from = n
	} else if from, err = m.origin(); err != nil {
		return nil, err
	}
	var described []airgap.Described
	for _, name := range names {
		m.progress("looking at " + name)
		d, pieces, err := take(ctx, from, name, platform)
		if err != nil {
			return nil, err
		}
		d.Pinned = !m.Unpinned
		out, described = append(out, d.Image), append(described, d)
		for _, p := range pieces {
			m.add("blobs/sha256/"+p.Digest.Hex, p.Digest.String(), p.Size, func(ctx context.Context) (io.ReadCloser, error) {
				if p.content != nil {
					return reader(p.content), nil
				}
				return from.open(ctx, p.image, p.Descriptor)
			})
		}
	}
	layout, err := airgap.LayoutFiles(described)
	for path, content := range layout {
		m.bytes(path, content)
	}
	return out, err
}

// machines are the architectures of programs, by GOARCH.
func machines() map[string]elf.Machine {
	return map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
}

// addProgram adds wasmplane itself.
func (m *making) addProgram() error {
	if m.Program == NoProgram {
		return nil
	}
	f, err := elf.Open(m.Program)
	if err != nil {
		return fmt.Errorf("--binary: %s is no program: %w", m.Program, err)
	}
	is := f.Machine
	if err := f.Close(); err != nil {
		return err
	}
	if want, known := machines()[m.Arch]; !known || is != want {
		return fmt.Errorf("--binary: %s is of another architecture (%s) than the archive, linux/%s: name the program for that, or say --binary none", m.Program, is, m.Arch)
	}
	return m.addFile(airgap.Program, m.Program)
}

// addFile adds a file of this machine.
func (m *making) addFile(path, file string) error {
	digest, size, err := digestOf(file)
	if err != nil {
		return err
	}
	m.add(path, digest, size, func(context.Context) (io.ReadCloser, error) { return os.Open(file) })
	return nil
}

// Percent turns bytes into lines, one for every twentieth part.
func Percent(line func(string)) airgap.Progress {
	last := int64(-1)
	return func(done, total int64, _ string) {
		part := int64(20)
		if total > 0 {
			part = done * 20 / total
		}
		if line != nil && part != last {
			last = part
			line(fmt.Sprintf("%3d%% of %.1f MB", part*5, float64(total)/1e6))
		}
	}
}

// manifestFiles are the files that a --manifest names.
func manifestFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && airgap.ManifestName(e.Name()) {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	return out, nil
}

// addManifests adds the manifests, and answers what is in them.
func (m *making) addManifests() (all []document, err error) {
	for _, path := range m.Manifests {
		files, err := manifestFiles(path)
		if err != nil {
			return nil, fmt.Errorf("--manifest: %w", err)
		}
		for _, file := range files {
			name := filepath.Base(file)
			if !airgap.ManifestName(name) {
				return nil, fmt.Errorf("--manifest: %s: expected a name of at most 80 letters, digits, dots, - and _, with the ending .yaml, .yml or .json", file)
			}
			if _, twice := m.files["manifests/"+name]; twice {
				return nil, fmt.Errorf("--manifest: there are two files %s: call one of them otherwise", name)
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("--manifest: %w", err)
			}
			objects, err := parse(file, bytes.NewReader(content))
			if err != nil {
				return nil, fmt.Errorf("--manifest: %w", err)
			}
			if secret := secretOf(objects); secret != "" {
				return nil, fmt.Errorf("--manifest: %s has the Secret %q, and every node of the cluster can read the archive: bring Secrets to a server by another way", file, secret)
			}
			m.bytes("manifests/"+name, content)
			all = append(all, objects...)
		}
	}
	return all, nil
}
