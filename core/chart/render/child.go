// SPDX-License-Identifier: Apache-2.0

package render

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/run/confine"
)

// role is that of the child. Its variable carries the child's bounds.
var role = &confine.Role{Variable: "WASMPLANE_CHARTS_ROLE", Name: "charts"}

// MaybeRun takes the process over when it was started to render (confine.Role).
func MaybeRun() { role.MaybeRun(runRole) }

// runRole is the life of the child.
func runRole(encoded string) error {
	var b confine.Bounds
	if err := json.Unmarshal([]byte(encoded), &b); err != nil {
		return fmt.Errorf("read the role from %s: %w", role.Variable, err)
	}
	if _, _, err := b.Enter(); err != nil {
		return err
	}
	debug.SetMemoryLimit(b.Memory * 3 / 4)
	debug.SetMaxStack(int(b.Memory / 8))
	var q request
	if err := readJSON(os.Stdin, inputLimit, &q); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	body, err := readFrame(os.Stdin, inputLimit)
	if err != nil {
		return fmt.Errorf("read what the request is about: %w", err)
	}
	rep, err := q.answer(body)
	if err != nil {
		rep = &reply{Error: err.Error()}
	}
	return writeJSON(os.Stdout, rep)
}

func (q *request) answer(body []byte) (*reply, error) {
	switch {
	case q.Order != nil:
		r, err := q.render(body)
		return &reply{Rendered: r}, err
	case q.Texts:
		var texts []string
		if err := json.Unmarshal(body, &texts); err != nil {
			return nil, err
		}
		left := q.Limits.Objects
		out := make([][]json.RawMessage, len(texts))
		for i, t := range texts {
			var err error
			if out[i], err = objects(t, left); err != nil {
				return nil, err
			}
			left -= len(out[i])
		}
		return &reply{Objects: out}, nil
	default:
		e, err := find(body, q.Find, q.Version)
		return &reply{Entry: e}, err
	}
}

// render is what Helm does for an install or an upgrade, up to the record of the release.
func (q *request) render(packed []byte) (*Rendered, error) {
	c, err := q.load(packed)
	if err != nil {
		return nil, err
	}
	given, err := merge(q.Order.Values)
	if err != nil {
		return nil, err
	}
	kube, err := common.ParseKubeVersion(q.Order.KubeVersion)
	if err != nil {
		return nil, fmt.Errorf("the version of the cluster: %w", err)
	}
	if want := c.Metadata.KubeVersion; want != "" && !chartutil.IsCompatibleRange(want, kube.String()) {
		return nil, fmt.Errorf("the chart is for Kubernetes %s, and this is %s", want, kube.Version)
	}
	out := &Rendered{Name: c.Metadata.Name, Version: c.Metadata.Version, AppVersion: c.Metadata.AppVersion}
	if out.Config, err = json.Marshal(given); err != nil {
		return nil, fmt.Errorf("the values: %w", err)
	}
	if err := chartutil.ProcessDependencies(c, given); err != nil {
		return nil, fmt.Errorf("the charts that it depends on: %w", err)
	}
	files, err := q.execute(c, given, kube)
	if err != nil {
		return nil, err
	}
	if err := out.sort(c, files); err != nil {
		return nil, err
	}
	if err := out.count(q.Limits.Objects); err != nil {
		return nil, err
	}
	for _, crd := range c.CRDObjects() {
		list, err := objects(string(crd.File.Data), q.Limits.Objects-len(out.CRDs))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.Filename, err)
		}
		out.CRDs = append(out.CRDs, list...)
	}
	if out.Chart, err = json.Marshal(c); err != nil {
		return nil, fmt.Errorf("encode the chart: %w", err)
	}
	return out, nil
}

// load reads an archive within its bounds.
func (q *request) load(packed []byte) (*chart.Chart, error) {
	if err := q.look(packed); err != nil {
		return nil, fmt.Errorf("the archive: %w", err)
	}
	archive.MaxDecompressedChartSize = q.Limits.Unpacked
	c, err := loader.LoadArchive(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("the archive: %w", err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("the chart is not valid: %w", err)
	}
	if t := c.Metadata.Type; t != "" && t != "application" {
		return nil, fmt.Errorf("the chart is of type %s, which makes no objects: only application charts can be installed", t)
	}
	for _, d := range c.Metadata.Dependencies {
		if !slices.ContainsFunc(c.Dependencies(), func(have *chart.Chart) bool { return have.Name() == d.Name }) {
			return nil, fmt.Errorf("the archive lacks the chart %s that it depends on: pack it after helm dependency update", d.Name)
		}
	}
	return c, nil
}

// look goes through an archive before anything of it is kept.
func (q *request) look(packed []byte) error {
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return fmt.Errorf("it is no packed chart (.tgz): %w", err)
	}
	// A little more than the files may have: their headers.
	tr := tar.NewReader(io.LimitReader(zr, q.Limits.Unpacked+int64(q.Limits.Files)<<10))
	var bytes int64
	for files := 0; ; files++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpacked it may have %d bytes: %w", q.Limits.Unpacked, err)
		}
		switch bytes += h.Size; {
		case files >= q.Limits.Files:
			return fmt.Errorf("it has more than %d files", q.Limits.Files)
		case bytes > q.Limits.Unpacked:
			return fmt.Errorf("unpacked it has more than %d bytes", q.Limits.Unpacked)
		case h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink:
			return fmt.Errorf("%q is a link, which no chart may have", h.Name)
		case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeXGlobalHeader:
			return fmt.Errorf("%q is neither file nor directory", h.Name)
		}
	}
}

// merge makes one of documents with values; later ones win.
func merge(documents []string) (map[string]any, error) {
	out := map[string]any{}
	for i, d := range documents {
		v, err := loader.LoadValues(strings.NewReader(d))
		if err != nil {
			return nil, fmt.Errorf("values %d of %d: %w", i+1, len(documents), err)
		}
		out = loader.MergeMaps(out, v)
	}
	return out, nil
}

// execute runs the templates.
func (q *request) execute(c *chart.Chart, given map[string]any, kube *common.KubeVersion) (map[string]string, error) {
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion, capabilities.APIVersions = *kube, q.Order.APIVersions
	values, err := util.ToRenderValues(c, given, common.ReleaseOptions{
		Name: q.Order.Release, Namespace: q.Order.Namespace, Revision: q.Order.Revision, IsInstall: !q.Order.Upgrade, IsUpgrade: q.Order.Upgrade,
	}, capabilities)
	if err != nil {
		return nil, fmt.Errorf("the values: %w", err)
	}
	files, err := engine.RenderWithClientProvider(c, values, asking{})
	if err != nil {
		return nil, fmt.Errorf("the templates: %w", err)
	}
	return files, nil
}

const notes = "NOTES.txt"

// sort divides what the templates made into manifest, hooks and notes, in Helm's order.
func (out *Rendered) sort(c *chart.Chart, files map[string]string) error {
	out.Notes = files[path.Join(c.Name(), "templates", notes)]
	for name := range files {
		if strings.HasSuffix(name, notes) {
			delete(files, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return fmt.Errorf("what the templates made: %w", err)
	}
	var text strings.Builder
	for _, m := range manifests {
		fmt.Fprintf(&text, "---\n# Source: %s\n%s\n", m.Name, m.Content)
	}
	out.Manifest = text.String()
	encoded, err := json.Marshal(hooks) // Helm's form is the one that is stored
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, &out.Hooks)
}

// count holds the number of objects against its limit, and sees whether all can be read.
func (out *Rendered) count(limit int) error {
	list, err := objects(out.Manifest, limit)
	if err != nil {
		return err
	}
	left := limit - len(list)
	for _, h := range out.Hooks {
		list, err := objects(h.Manifest, left)
		if err != nil {
			return err
		}
		left -= len(list)
	}
	return nil
}

// objects are those of a stream of documents, with those of lists.
func objects(text string, limit int) ([]json.RawMessage, error) {
	var out []json.RawMessage
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		d, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("what the templates made: %w", err)
		}
		list, err := document(d)
		if err != nil {
			return nil, err
		}
		if out = append(out, list...); len(out) > limit {
			return nil, errTooMany
		}
	}
}

var errTooMany = errors.New("the chart is too expensive: it makes more objects than are allowed")

// document has the objects of one document.
func document(text []byte) ([]json.RawMessage, error) {
	whole, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("what the templates made is no YAML: %w in: %s", err, firstLines(text))
	}
	var head struct {
		APIVersion, Kind string
		Metadata         struct{ Name, GenerateName string }
		Items            []json.RawMessage
	}
	if string(whole) == "null" {
		return nil, nil
	}
	if err := json.Unmarshal(whole, &head); err != nil {
		return nil, fmt.Errorf("what the templates made is no object: %w in: %s", err, firstLines(text))
	}
	if strings.HasSuffix(head.Kind, "List") && head.Items != nil {
		return head.Items, nil
	}
	if head.APIVersion == "" || head.Kind == "" || head.Metadata.Name == "" {
		return nil, fmt.Errorf("what the templates made is no object with apiVersion, kind and metadata.name: %s", firstLines(text))
	}
	return []json.RawMessage{whole}, nil
}

func firstLines(text []byte) string {
	const most = 200
	return string(bytes.ToValidUTF8(text[:min(len(text), most)], nil))
}

// index is what is read of a repository's index.yaml.
type index struct {
	Entries map[string][]struct {
		Version string   `json:"version"`
		Digest  string   `json:"digest"`
		URLs    []string `json:"urls"`
	} `json:"entries"`
}

// find finds a chart in an index.
func find(text []byte, name, version string) (*Entry, error) {
	var i index
	if err := yaml.Unmarshal(text, &i); err != nil {
		return nil, fmt.Errorf("the repository's index.yaml: %w", err)
	}
	if len(i.Entries[name]) == 0 {
		return nil, fmt.Errorf("the repository has no chart %q", name)
	}
	want := version
	if want == "" {
		want = "*"
	}
	within, err := semver.NewConstraint(want)
	if err != nil {
		return nil, fmt.Errorf("version %q is neither a version nor a range: %w", version, err)
	}
	var best *Entry
	var newest *semver.Version
	for _, e := range i.Entries[name] {
		v, err := semver.NewVersion(e.Version)
		if err != nil || len(e.URLs) == 0 || e.Version != version && !within.Check(v) {
			continue
		}
		if newest == nil || e.Version == version || v.GreaterThan(newest) && best.Version != version {
			newest, best = v, &Entry{Version: e.Version, URL: e.URLs[0], Digest: e.Digest}
		}
	}
	if best == nil {
		return nil, fmt.Errorf("the repository has the chart %q, and no version %s of it", name, want)
	}
	if best.Digest != "" && !strings.HasPrefix(best.Digest, "sha256:") {
		best.Digest = "sha256:" + best.Digest
	}
	return best, nil
}
