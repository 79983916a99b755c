// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/wasmplane/wasmplane/core/airgap"
)

// mostJSON bounds an image's index, manifest and configuration, as registries do.
const mostJSON = 4 << 20

func reader(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// fullName of an image: docker.io/library/nginx:1.27.
func fullName(image string) (string, error) {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", fmt.Errorf("the image %q: %w", image, err)
	}
	return named.String(), nil
}

// piece is what an image consists of, and which image that was.
type piece struct {
	v1.Descriptor
	image   string
	content []byte // of a manifest or index, which was read already
}

// take finds out what an image for a platform (linux/ARCH) consists of.
func take(ctx context.Context, from origin, image, platform string) (airgap.Described, []piece, error) {
	name, err := fullName(image)
	if err != nil {
		return airgap.Described{}, nil, err
	}
	d, pieces, err := taken(ctx, from, name, strings.TrimPrefix(platform, "linux/"))
	if err != nil {
		return d, nil, fmt.Errorf("image %s: %w", name, err)
	}
	return d, pieces, nil
}

func taken(ctx context.Context, from origin, name, arch string) (airgap.Described, []piece, error) {
	d, err := from.describe(ctx, name)
	if err != nil {
		return d, nil, err
	}
	digest, err := v1.NewHash(d.Digest)
	if err != nil {
		return d, nil, err
	}
	root := v1.Descriptor{MediaType: d.MediaType, Digest: digest, Size: d.Size}
	if !root.MediaType.IsIndex() && !root.MediaType.IsImage() {
		return d, nil, fmt.Errorf("it is of type %s: expected an image of OCI or of docker's second schema", root.MediaType)
	}
	text, err := small(ctx, from, name, root)
	if err != nil {
		return d, nil, err
	}
	d.Size = int64(len(text))
	pieces := []piece{{Descriptor: root, image: name, content: text}}
	pieces[0].Size = d.Size
	if root.MediaType.IsIndex() {
		manifest, err := forArch(text, arch)
		if err != nil {
			return d, nil, err
		}
		if text, err = small(ctx, from, name, manifest); err != nil {
			return d, nil, err
		}
		pieces = append(pieces, piece{Descriptor: manifest, image: name, content: text})
	}
	m, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return d, nil, fmt.Errorf("read its manifest: %w", err)
	}
	config, err := small(ctx, from, name, m.Config)
	if err != nil {
		return d, nil, err
	}
	if err := ofArch(config, arch); err != nil {
		return d, nil, err
	}
	pieces = append(pieces, piece{Descriptor: m.Config, image: name, content: config})
	for _, l := range m.Layers {
		pieces = append(pieces, piece{Descriptor: l, image: name})
	}
	return d, pieces, nil
}

// small reads a piece of JSON, and compares it with its digest.
func small(ctx context.Context, from origin, image string, d v1.Descriptor) ([]byte, error) {
	if d.Size > mostJSON {
		return nil, fmt.Errorf("%s has %d bytes: at most %d are read", d.Digest, d.Size, mostJSON)
	}
	r, err := from.open(ctx, image, d)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, mostJSON+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if airgap.Digest(text) != d.Digest.String() {
		return nil, fmt.Errorf("%d bytes came that have not the digest %s", len(text), d.Digest)
	}
	return text, nil
}

func forArch(index []byte, arch string) (v1.Descriptor, error) {
	m, err := v1.ParseIndexManifest(bytes.NewReader(index))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("read its index: %w", err)
	}
	var there []string
	for _, d := range m.Manifests {
		if d.Platform == nil || !d.MediaType.IsImage() {
			continue
		}
		if d.Platform.OS == "linux" && d.Platform.Architecture == arch {
			return d, nil
		}
		there = append(there, d.Platform.OS+"/"+d.Platform.Architecture)
	}
	return v1.Descriptor{}, fmt.Errorf("it is not for linux/%s: it is for %s", arch, strings.Join(there, ", "))
}

func ofArch(config []byte, arch string) error {
	var c struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("read its configuration: %w", err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != arch {
		return fmt.Errorf("it is for %s/%s, and the archive for linux/%s (--arch)", c.OS, c.Architecture, arch)
	}
	return nil
}

// named are the images that an object names, wherever it has containers or volumes of images.
func named(tree any) (out []string) {
	switch t := tree.(type) {
	case []any:
		for _, v := range t {
			out = append(out, named(v)...)
		}
	case map[string]any:
		for key, v := range t {
			switch key {
			case "containers", "initContainers", "ephemeralContainers":
				out = append(out, imagesOf(v, "image")...)
			case "volumes":
				out = append(out, imagesOf(v, "image", "reference")...)
			}
			out = append(out, named(v)...)
		}
	}
	return out
}

// imagesOf are the texts at a path of each item of a list.
func imagesOf(list any, path ...string) (out []string) {
	items, _ := list.([]any)
	for _, i := range items {
		m, _ := i.(map[string]any)
		if text, found, err := unstructured.NestedString(m, path...); found && err == nil && text != "" {
			out = append(out, text)
		}
	}
	return out
}

// running are the images of what runs in a cluster, or would.
func running(ctx context.Context, c dynamic.Interface) ([]string, error) {
	var out []string
	for _, r := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"},
		{Version: "v1", Resource: "replicationcontrollers"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "apps", Version: "v1", Resource: "daemonsets"},
		{Group: "apps", Version: "v1", Resource: "statefulsets"},
		{Group: "batch", Version: "v1", Resource: "jobs"},
		{Group: "batch", Version: "v1", Resource: "cronjobs"},
	} {
		next := ""
		for {
			list, err := c.Resource(r).List(ctx, metav1.ListOptions{Limit: 500, Continue: next})
			if err != nil {
				return nil, fmt.Errorf("list the cluster's %s: %w", r.Resource, err)
			}
			for i := range list.Items {
				out = append(out, named(list.Items[i].Object)...)
			}
			if next = list.GetContinue(); next == "" {
				break
			}
		}
	}
	return out, nil
}

// distinct are full names, sorted, each once.
func distinct(images []string) ([]string, error) {
	var out []string
	for _, i := range images {
		full, err := fullName(i)
		if err != nil {
			return nil, err
		}
		out = append(out, full)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// secretOf is the name of a Secret among objects, in lists too; "" = there is none.
func secretOf(objects []document) string {
	for _, o := range objects {
		u := &unstructured.Unstructured{Object: o.tree}
		if u.GetKind() == "Secret" && u.GetAPIVersion() == "v1" {
			return cmp.Or(u.GetName(), "without a name")
		}
		items, _ := o.tree["items"].([]any)
		for _, i := range items {
			if tree, ok := i.(map[string]any); ok {
				if name := secretOf([]document{{o.file, tree}}); name != "" {
					return name
				}
			}
		}
	}
	return ""
}
