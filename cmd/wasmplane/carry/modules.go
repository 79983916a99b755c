// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// mostManifests bounds a file of manifests whose images are looked for, in bytes.
const mostManifests = 64 << 20

// document is one object of a file.
type document struct {
	file string
	tree map[string]any
}

// readManifests reads a file of YAML or JSON; "-" is in.
func readManifests(file string, in io.Reader) ([]document, error) {
	if file == "-" {
		return parse("the standard input", in)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parse(file, f)
}

func parse(file string, r io.Reader) (out []document, err error) {
	limited := &io.LimitedReader{R: r, N: mostManifests}
	dec := yaml.NewYAMLOrJSONDecoder(limited, 4096)
	for {
		var tree map[string]any
		err := dec.Decode(&tree)
		switch {
		case limited.N == 0:
			return nil, fmt.Errorf("%s has %d bytes or more: divide it", file, int64(mostManifests))
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("%s: document %d: %w", file, len(out)+1, err)
		}
		if len(tree) > 0 {
			out = append(out, document{file, tree})
		}
	}
}

// plugins are the entries whose modules are wanted: those of the configuration, and those of Plugins among the manifests.
func (m *making) plugins(objects []document) (entries []manifest.Entry, dir string, err error) {
	dir = "."
	if m.Config != "" {
		c, err := config.LoadFile(m.Config)
		if err != nil {
			return nil, "", err
		}
		if entries, err = manifest.OfFile(c); err != nil {
			return nil, "", err
		}
		dir = filepath.Dir(m.Config)
	}
	for _, o := range objects {
		u := &unstructured.Unstructured{Object: o.tree}
		of := u.GroupVersionKind().GroupKind()
		if of.Group != plugindefinition.Resource().Group || of.Kind != "Plugin" && of.Kind != "TenantPlugin" {
			continue
		}
		e, err := apiobject.Rules{}.Entry(u)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %s %s: %w", o.file, of.Kind, u.GetName(), err)
		}
		entries = append(entries, e)
	}
	return entries, dir, nil
}

// addModules fetches the modules of plugins, with their signatures, as a server does.
func (m *making) addModules(ctx context.Context, objects []document) ([]airgap.Module, error) {
	entries, dir, err := m.plugins(objects)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	cache := filepath.Join(m.scratch, "modules")
	f, err := source.New(source.Config{Dir: dir, CacheDir: cache})
	if err != nil {
		return nil, err
	}
	var out []airgap.Module
	for i := range entries {
		for _, e := range all(&entries[i]) {
			switch e.Kind() {
			case "https", "oci":
			case "file":
				m.progress(fmt.Sprintf("note: plugin %s is of the file %s, which is not in the archive: bring it along", entries[i].Name, e.Source))
				continue
			default: // it has no module
				continue
			}
			m.progress("fetching the module of plugin " + entries[i].Name)
			e.Namespace = "" // the guard is for what runs in a cluster; here the one who makes the archive asks
			module, err := f.Fetch(ctx, e)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", entries[i].Name, err)
			}
			out = append(out, airgap.Module{Source: e.Source, Digest: module.Digest})
		}
	}
	slices.SortFunc(out, func(a, b airgap.Module) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Digest, b.Digest))
	})
	out = slices.Compact(out)
	names, err := source.CacheFiles(cache)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := m.addFile("modules/"+name, filepath.Join(cache, filepath.FromSlash(name))); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// all are an entry's own module, that of its candidate and those of a group's members.
func all(e *manifest.Entry) []*manifest.Entry {
	out := []*manifest.Entry{e}
	if e.Candidate != nil {
		out = append(out, e.CandidateEntry())
	}
	members := e.MemberEntries()
	for name := range members {
		one := members[name]
		out = append(out, &one)
	}
	return out
}

// digestOf reads a file through.
func digestOf(file string) (digest string, size int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	sum := sha256.New()
	size, err = io.Copy(sum, f)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), size, err
}
