// SPDX-License-Identifier: Apache-2.0

// Package images fills a node's image store without a registry: it imports OCI
// layouts and docker archives, builds the sandbox image and images around a single
// static program, and writes down how registries are reached.
//
// What is imported is unpacked and known to CRI when Import returns, so that a pod
// which names it with imagePullPolicy IfNotPresent or Never starts at once.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/distribution/reference"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/images/pause"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// Namespace is the one in which containerd keeps what CRI sees.
	Namespace = "k8s.io"
	// PauseImage is the sandbox image that EnsurePause puts in place.
	PauseImage = "wasmplane.local/pause:1"

	connectTimeout = 10 * time.Second
	// noticeTimeout is how long CRI may take to hear of an imported image; it takes
	// milliseconds.
	noticeTimeout = 30 * time.Second
	noticeEvery   = 5 * time.Millisecond
)

// ErrNotAnImage means that a file holds no image in a form that is known.
var ErrNotAnImage = errors.New("neither an OCI layout nor a docker archive")

// Image is an image in the store.
type Image struct {
	Name   string // normalized: docker.io/library/nginx:1.14.2
	Digest string // of its manifest or index
	Size   int64  // in bytes, compressed, of the platform of this machine
}

// Store is the image store of a running containerd.
type Store struct {
	client      *containerd.Client
	snapshotter string
	cri         cri.ImageServiceClient
}

// Open connects to the containerd at a socket. An empty snapshotter is overlayfs.
func Open(socket, snapshotter string) (*Store, error) {
	client, err := containerd.New(socket,
		containerd.WithDefaultNamespace(Namespace), containerd.WithTimeout(connectTimeout))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s (does the node run?): %w", socket, err)
	}
	if snapshotter == "" {
		snapshotter = "overlayfs"
	}
	conn, ok := client.Conn().(grpc.ClientConnInterface)
	if !ok {
		client.Close()
		return nil, errors.New("connect to containerd: its client has no gRPC connection")
	}
	return &Store{client: client, snapshotter: snapshotter, cri: cri.NewImageServiceClient(conn)}, nil
}

// Close closes the connection.
func (s *Store) Close() error { return s.client.Close() }

// Source of images: an OCI layout, as a directory or a tar file, or a docker archive ("docker save"), either compressed or not.
type Source struct {
	File string
	// Name for an OCI layout that names its images by tags alone, or not at all: "registry/repository", or with ":tag".
	Name string
	// Pinned images are removed by nobody to make room.
	Pinned bool
}

// Import imports images. progress is told, in words, what is done; nil is allowed.
func (s *Store) Import(ctx context.Context, from Source, progress func(string)) ([]Image, error) {
	if progress == nil {
		progress = func(string) {}
	}
	in, err := openArchive(from.File)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	progress("reading " + from.File)
	var with []containerd.ImportOpt
	if from.Pinned {
		with = append(with, containerd.WithImageLabels(map[string]string{pinned: "pinned"}))
	}
	imported, err := s.load(ctx, in, from.Name, progress, with...)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", from.File, err)
	}
	return imported, nil
}

// load imports a tar stream, unpacks the images and waits until CRI knows them.
func (s *Store) load(
	ctx context.Context, in io.Reader, name string, progress func(string), with ...containerd.ImportOpt,
) ([]Image, error) {
	names, err := namer(name)
	if err != nil {
		return nil, err
	}
	loaded, err := s.client.Import(ctx, in, append(with, containerd.WithImageRefTranslator(names))...)
	if err != nil {
		if strings.Contains(err.Error(), "unrecognized image format") {
			err = ErrNotAnImage
		}
		return nil, err
	}
	if len(loaded) == 0 {
		return nil, errors.New("it does not say what its images are called; give a name (--name registry/repository:tag)")
	}
	var out []Image
	for _, l := range loaded {
		progress("unpacking " + l.Name)
		img := containerd.NewImage(s.client, l)
		if err := img.Unpack(ctx, s.snapshotter); err != nil {
			return out, fmt.Errorf("unpack %s: %w", l.Name, err)
		}
		if err := s.noticed(ctx, l.Name); err != nil {
			return out, err
		}
		size, err := img.Size(ctx)
		if err != nil {
			return out, fmt.Errorf("measure %s: %w", l.Name, err)
		}
		out = append(out, Image{Name: l.Name, Digest: l.Target.Digest.String(), Size: size})
	}
	return out, nil
}

// namer makes full names of what an OCI layout calls its images. Docker archives
// and layouts written by containerd carry full names already.
func namer(name string) (func(string) string, error) {
	if name == "" {
		return func(ref string) string {
			if !strings.ContainsAny(ref, "/:@") {
				return "" // a tag alone
			}
			return normalized(ref)
		}, nil
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, fmt.Errorf("the name %q: %w", name, err)
	}
	if !reference.IsNameOnly(named) {
		return func(string) string { return named.String() }, nil
	}
	return func(ref string) string {
		tag := ref
		if i := strings.LastIndexByte(ref, ':'); i >= 0 {
			tag = ref[i+1:]
		}
		return normalized(named.Name() + ":" + tag)
	}, nil
}

// normalized is the full form of a name; empty when it is none.
func normalized(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ""
	}
	return named.String()
}

// noticed waits until CRI, which hears of images by containerd's events, knows one.
func (s *Store) noticed(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	tick := time.NewTicker(noticeEvery)
	defer tick.Stop()
	for {
		known, err := s.known(ctx, name)
		if err != nil {
			return err
		}
		if known {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("image %s was imported, but CRI does not notice it: %w", name, ctx.Err())
		}
	}
}

func (s *Store) known(ctx context.Context, name string) (bool, error) {
	r, err := s.cri.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		return false, fmt.Errorf("look for image %s: %w", name, err)
	}
	return r.Image != nil, nil
}

// List answers the images by name. Those without a name, which CRI adds for the
// identifiers of images, are left out.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	all, err := s.client.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []Image
	for _, img := range all {
		if strings.HasPrefix(img.Name(), "sha256:") || strings.Contains(img.Name(), "@") {
			continue
		}
		// An image of which only another platform is here has no size to speak of.
		size, _ := img.Size(ctx)
		out = append(out, Image{Name: img.Name(), Digest: img.Target().Digest.String(), Size: size})
	}
	slices.SortFunc(out, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// EnsurePause puts the sandbox image in place. CRI pins it, by its configuration,
// so that no garbage collection takes it.
func (s *Store) EnsurePause(ctx context.Context) error {
	known, err := s.known(ctx, PauseImage)
	if err != nil || known {
		return err
	}
	program, err := pause.Program(runtime.GOARCH)
	if err != nil {
		return err
	}
	archive, err := Program{
		Name: PauseImage, Path: "/pause", Content: program, Arch: runtime.GOARCH,
	}.Archive()
	if err != nil {
		return fmt.Errorf("build the sandbox image: %w", err)
	}
	if _, err := s.load(ctx, bytes.NewReader(archive), "", func(string) {}); err != nil {
		return fmt.Errorf("import the sandbox image: %w", err)
	}
	return nil
}

// openArchive opens a file, or a directory as if it were a tar file.
func openArchive(path string) (io.ReadCloser, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	if info.IsDir() {
		return tarOf(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	z, err := compression.DecompressStream(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	return &bothClosers{z, f}, nil
}

type bothClosers struct {
	io.ReadCloser
	under io.Closer
}

func (b *bothClosers) Close() error { return errors.Join(b.ReadCloser.Close(), b.under.Close()) }

// tarOf streams an OCI layout's directory. Only regular files matter; a link could
// lead out of the directory and is not followed.
func tarOf(dir string) (io.ReadCloser, error) {
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
		return nil, fmt.Errorf("import %s: %w: a layout's directory has a file oci-layout", dir, ErrNotAnImage)
	}
	r, w := io.Pipe()
	run.Go("images: archive of a layout", func() error { // ends when the reader is closed
		out := tar.NewWriter(w)
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			return addFile(out, dir, p)
		})
		return w.CloseWithError(errors.Join(err, out.Close()))
	})
	return r, nil
}

func addFile(out *tar.Writer, dir, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o644, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}
