// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	yamlv3 "go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// Bounds of what is read.
const (
	mostFiles   = 256
	mostBytes   = 1 << 20 // of one file
	mostObjects = 2000
)

// files of the folder, by path: their contents, or why they are not read.
type files map[string]content

type content struct {
	data []byte
	err  error
}

// names of the files that count, in order; none where there is no folder.
func (f *Folder) names() ([]string, error) {
	entries, err := os.ReadDir(f.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of manifests: %w; what was applied stays", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		if len(out) == mostFiles {
			return nil, fmt.Errorf("%s: there are more than %d files in it: take some out, nothing is applied meanwhile", f.cfg.Dir, mostFiles)
		}
		out = append(out, e.Name())
	}
	return out, nil
}

// read reads the folder. Whoever can write there commands the cluster, so that it must not
// be open to others.
func (f *Folder) read() (files, error) {
	if info, err := os.Stat(f.cfg.Dir); err == nil {
		if err := safe(info); err != nil {
			return nil, fmt.Errorf("%s: %w", f.cfg.Dir, err)
		}
	}
	names, err := f.names()
	if err != nil {
		return nil, err
	}
	out := files{}
	for _, name := range names {
		path := filepath.Join(f.cfg.Dir, name)
		data, err := readFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // gone meanwhile
		}
		out[path] = content{data, err}
	}
	return out, nil
}

// safe refuses what other users may write.
func safe(info os.FileInfo) error {
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("other users may write it (%04o), and what is in it is applied with every right: close it (chmod go-w)", info.Mode().Perm())
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, and what is in it is applied with every right: give it to root (chown)", s.Uid)
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	// Without O_NONBLOCK a named pipe would be waited for.
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("expected a file, found something else")
	}
	if err := safe(info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err == nil && len(data) > mostBytes {
		err = fmt.Errorf("it has more than %d bytes: divide it", mostBytes)
	}
	return data, err
}

// digests of the files by their names.
func (f files) digests() map[string]string {
	out := map[string]string{}
	for path, c := range f {
		sum := sha256.Sum256(c.data)
		if c.err != nil {
			sum = sha256.Sum256([]byte(c.err.Error()))
		}
		out[filepath.Base(path)] = hex.EncodeToString(sum[:8])
	}
	return out
}

// item is one object of a file.
type item struct {
	file   string
	node   *yamlv3.Node // where it stands, for lines; offset is added to those
	offset int
	object *unstructured.Unstructured
}

func (i item) key() key {
	return keyOf(i.object.GroupVersionKind(), i.object.GetNamespace(), i.object.GetName())
}

func (i item) digest() string {
	data, _ := json.Marshal(i.object.Object) // it was JSON
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

var (
	quotedField   = regexp.MustCompile(`(?:field|unknown field) "([^"]+)"`)
	declaredField = regexp.MustCompile(`\.([\w.\[\]-]+): field not declared`)
)

// wrong is an error about the object, with the line of the field that it names.
func (i item) wrong(err error) error {
	path := ""
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		path = status.Status().Details.Causes[0].Field
	}
	for _, form := range []*regexp.Regexp{quotedField, declaredField} {
		if m := form.FindStringSubmatch(err.Error()); m != nil && path == "" {
			path = m[1]
		}
	}
	return &strictyaml.FieldError{
		File: i.file, Line: config.NearestLine(i.node, path) + i.offset, Path: path, Problem: fmt.Sprintf("%s: %v", i.key(), err),
	}
}

// first are the kinds that others need, in order.
var first = []string{"CustomResourceDefinition", "Namespace"}

// items are the objects of all files, in the order in which they are applied, and what is
// wrong with files that are left out whole, by their paths.
func (f files) items() (items []item, wrong map[string]error) {
	wrong = map[string]error{}
	taken := map[key]string{}
	paths := make([]string, 0, len(f))
	for path := range f {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		found, err := f[path].parse(path)
		for _, it := range found {
			if by := taken[it.key()]; by != "" && err == nil {
				err = it.wrong(fmt.Errorf("it stands in %s too", by))
			}
		}
		if err == nil && len(items)+len(found) > mostObjects {
			err = fmt.Errorf("%s: with it there are more than %d objects in the folder", path, mostObjects)
		}
		if err != nil {
			wrong[path] = err
			continue
		}
		for _, it := range found {
			taken[it.key()] = path
		}
		items = append(items, found...)
	}
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Compare(a.rank(), b.rank()) })
	return items, wrong
}

func (i item) rank() int {
	if n := slices.Index(first, i.object.GetKind()); n >= 0 {
		return n
	}
	return len(first)
}

// parse reads the documents of a file, as kubectl does.
func (c content) parse(path string) ([]item, error) {
	if c.err != nil {
		return nil, fmt.Errorf("%s: %w", path, c.err)
	}
	var out []item
	for _, d := range split(c.data) {
		var tree yamlv3.Node
		if err := yamlv3.Unmarshal(d.text, &tree); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, d.lineIn(err), err)
		}
		if len(tree.Content) == 0 || tree.Content[0].Tag == "!!null" {
			continue // comments
		}
		it := item{file: path, node: tree.Content[0], offset: d.line - 1}
		at := func(field, problem string) error {
			return &strictyaml.FieldError{File: path, Line: config.NearestLine(it.node, field) + it.offset, Path: field, Problem: problem}
		}
		words, err := yaml.YAMLToJSONStrict(d.text)
		if err != nil {
			return nil, at("", err.Error())
		}
		var object map[string]any
		if err := json.Unmarshal(words, &object); err != nil {
			return nil, at("", "expected an object of Kubernetes")
		}
		found, err := it.expand(words)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// expand makes an object of a document, or the objects of a list.
func (i item) expand(words []byte) ([]item, error) {
	at := func(field, problem string) error {
		return &strictyaml.FieldError{File: i.file, Line: config.NearestLine(i.node, field) + i.offset, Path: field, Problem: problem}
	}
	decoded, _, err := unstructured.UnstructuredJSONScheme.Decode(words, nil, nil)
	if err != nil {
		return nil, at("kind", "expected apiVersion and kind: "+err.Error())
	}
	if list, ok := decoded.(*unstructured.UnstructuredList); ok {
		var out []item
		for n := range list.Items {
			one := i
			one.object = &list.Items[n]
			if node := listed(i.node, n); node != nil {
				one.node = node
			}
			if err := one.check(); err != nil {
				return nil, err
			}
			out = append(out, one)
		}
		return out, nil
	}
	object, ok := decoded.(*unstructured.Unstructured)
	if !ok {
		return nil, at("kind", "expected an object of Kubernetes")
	}
	i.object = object
	return []item{i}, i.check()
}

func (i item) check() error {
	if i.object.GetAPIVersion() == "" || i.object.GetName() == "" {
		return &strictyaml.FieldError{
			File: i.file, Line: config.NearestLine(i.node, "metadata.name") + i.offset, Path: "metadata.name",
			Problem: "expected apiVersion, kind and metadata.name (a generated name would make an object at each start)",
		}
	}
	delete(i.object.Object, "status")
	unstructured.RemoveNestedField(i.object.Object, "metadata", "managedFields")
	unstructured.RemoveNestedField(i.object.Object, "metadata", "resourceVersion")
	return nil
}

// listed is an item of a list.
func listed(n *yamlv3.Node, at int) *yamlv3.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "items" && at < len(n.Content[i+1].Content) {
			return n.Content[i+1].Content[at]
		}
	}
	return nil
}

// document is a part of a file.
type document struct {
	text []byte
	line int // at which it begins
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// lineIn is the line of the file that an error about the document is about.
func (d document) lineIn(err error) int {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return d.line + n - 1
		}
	}
	return d.line
}

// split divides a file at lines of three dashes.
func split(data []byte) []document {
	docs := []document{{line: 1}}
	for n, line := range bytes.SplitAfter(data, []byte("\n")) {
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok && (len(bytes.TrimSpace(rest)) == 0 || bytes.HasPrefix(bytes.TrimSpace(rest), []byte("#"))) {
			docs = append(docs, document{line: n + 2})
			continue
		}
		last := &docs[len(docs)-1]
		last.text = append(last.text, line...)
	}
	return docs
}
