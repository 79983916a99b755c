// SPDX-License-Identifier: Apache-2.0

// Package static has the pods that a node runs from files of a folder, whether or not
// there is an API server: one pod a file, YAML or JSON.
//
// Such a pod is identified by what its file says: a changed file is another pod, which
// comes when the former one has ended. Its name ends with the node's, and it refers to
// nothing in the API, which may be away. A file with an error harms no other; what was
// last right in it stays until the file is mended or removed.
//
// What the API shows is a mirror of such a pod: see Mirror and Plan. To delete a mirror
// does not end the pod.
package static

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/run/folderwatch"
)

// Annotations of static pods and their mirrors, in upstream's words.
const (
	HashAnnotation   = "kubernetes.io/config.hash"
	SourceAnnotation = "kubernetes.io/config.source"
	SeenAnnotation   = "kubernetes.io/config.seen"
	// FileSource is the value of SourceAnnotation.
	FileSource = "file"
)

const (
	// mostFiles and mostBytes bound what is read.
	mostFiles = 256
	mostBytes = 1 << 20
	// every is upstream's fileCheckFrequency, the net under the events of the file system.
	every = 20 * time.Second
)

// Config of a Folder.
type Config struct {
	// Dir is the folder: absolute. It need not be there yet.
	Dir string
	// NodeName of the node.
	NodeName string
	// Parse makes a pod of a file, with the API's defaults, and judges it as the API does.
	// Its errors begin with the file and the line.
	Parse func(ctx context.Context, file string, data []byte) (*corev1.Pod, error)
	// Every is how often the folder is read though nothing was heard of it (20 s if zero).
	Every  time.Duration
	Logger *slog.Logger
}

// Folder of static pods.
type Folder struct {
	cfg Config
	// files by name, as last read.
	files map[string]file
}

// file as it was last read.
type file struct {
	data []byte
	pod  *corev1.Pod // the last that was right; nil if none
	err  string      // what is wrong with it
	// problem is what was last said about it.
	problem string
}

// New makes a Folder; Run reads it.
func New(cfg Config) (*Folder, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("the folder of static pods %q is no absolute path", cfg.Dir)
	}
	if cfg.NodeName == "" || cfg.Parse == nil {
		return nil, errors.New("static pods need a node's name and a parser")
	}
	if cfg.Every <= 0 {
		cfg.Every = every
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Folder{cfg: cfg, files: map[string]file{}}, nil
}

// Dir is the folder's path.
func (f *Folder) Dir() string { return f.cfg.Dir }

// Run calls changed with all pods, at first and when they have changed, and failed with
// each new error of a file, until ctx ends.
func (f *Folder) Run(ctx context.Context, changed func([]*corev1.Pod), failed func(error)) error {
	var last []types.UID
	known := false
	watch := folderwatch.Watch{Dir: f.cfg.Dir, What: "the folder of static pods", Every: f.cfg.Every, Logger: f.cfg.Logger}
	return watch.Run(ctx, func(ctx context.Context) {
		pods, ok := f.read(ctx, failed)
		if now := uids(pods); ok && (!known || !slices.Equal(now, last)) {
			known, last = true, now
			changed(pods)
		}
	})
}

func uids(pods []*corev1.Pod) []types.UID {
	out := make([]types.UID, 0, len(pods))
	for _, p := range pods {
		out = append(out, p.UID)
	}
	return out
}

// read reads the folder; ok is false where that cannot be done: nothing has gone because
// it cannot be seen.
func (f *Folder) read(ctx context.Context, failed func(error)) (pods []*corev1.Pod, ok bool) {
	names, err := f.names()
	if err != nil {
		f.cfg.Logger.WarnContext(ctx, "the folder of static pods cannot be read; what runs stays", "folder", f.cfg.Dir, "error", err)
		return nil, false
	}
	files, taken := map[string]file{}, map[types.NamespacedName]string{}
	for _, name := range names {
		got, there := f.look(ctx, name)
		if !there {
			continue // gone meanwhile
		}
		got.problem = got.err
		if p := got.pod; p != nil {
			if by, double := taken[Key(p)]; double {
				got.problem = fmt.Sprintf("%s: pod %s stands in %s too: choose another name", filepath.Join(f.cfg.Dir, name), Key(p), by)
			} else {
				taken[Key(p)] = name
				pods = append(pods, p)
			}
		}
		if got.problem != "" && got.problem != f.files[name].problem {
			failed(errors.New(got.problem))
		}
		files[name] = got
	}
	f.files = files
	return pods, true
}

// names of the files, in order; none where there is no folder.
func (f *Folder) names() ([]string, error) {
	entries, err := os.ReadDir(f.cfg.Dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the folder: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() {
			continue // editors' files are hidden
		}
		if len(out) == mostFiles {
			return nil, fmt.Errorf("there are more than %d files in it: take some out", mostFiles)
		}
		out = append(out, e.Name())
	}
	return out, nil
}

// look reads a file. What was last right in it stays while it is wrong.
func (f *Folder) look(ctx context.Context, name string) (got file, there bool) {
	path := filepath.Join(f.cfg.Dir, name)
	before := f.files[name]
	data, err := readFile(path)
	switch {
	case os.IsNotExist(err):
		return file{}, false
	case err != nil:
		return file{pod: before.pod, err: fmt.Sprintf("%s: %v", path, err)}, true
	case before.data != nil && string(before.data) == string(data):
		return before, true
	}
	p, err := f.pod(ctx, path, data)
	switch {
	case err != nil:
		return file{data: data, pod: before.pod, err: err.Error()}, true
	case before.pod != nil && before.pod.UID == p.UID:
		p = before.pod // nothing that counts has changed
	}
	return file{data: data, pod: p}, true
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("expected a file with a pod, found something else")
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > mostBytes {
		return nil, fmt.Errorf("a manifest may have %d bytes, and this one has more", mostBytes)
	}
	return data, nil
}

// pod makes the node's pod of a file.
func (f *Folder) pod(ctx context.Context, path string, data []byte) (*corev1.Pod, error) {
	p, err := f.cfg.Parse(ctx, path, data)
	if err != nil {
		return nil, err
	}
	if what := refersTo(&p.Spec); what != "" {
		return nil, fmt.Errorf("%s: static pods may not reference %s", path, what)
	}
	// Of the file's own words, so that neither a comment nor another version's defaults make another pod.
	words, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	h := fnv.New128a()
	_, _ = fmt.Fprintf(h, "%s\nhost:%s\nfile:%s", words, f.cfg.NodeName, path)
	p.UID = types.UID(hex.EncodeToString(h.Sum(nil)))
	p.Name += "-" + strings.ToLower(f.cfg.NodeName)
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	p.Spec.NodeName = f.cfg.NodeName
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[HashAnnotation], p.Annotations[SourceAnnotation] = string(p.UID), FileSource
	p.Annotations[SeenAnnotation] = time.Now().Format(time.RFC3339Nano)
	// No problem of the node's ends it.
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
		Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
	})
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return p, nil
}
