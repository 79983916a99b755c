// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
)

// containerLists are the fields of a pod with containers.
var containerLists = []string{"containers", "initContainers", "ephemeralContainers"}

// podFields are the paths of what a pod's spec is in, by resource.
var podFields = map[schema.GroupResource][]string{
	{Resource: "pods"}: {"spec"}, {Group: "batch", Resource: "jobs"}: {"spec", "template", "spec"},
	{Group: "apps", Resource: "deployments"}:  {"spec", "template", "spec"},
	{Group: "apps", Resource: "statefulsets"}: {"spec", "template", "spec"},
	{Group: "apps", Resource: "daemonsets"}:   {"spec", "template", "spec"},
	{Group: "apps", Resource: "replicasets"}:  {"spec", "template", "spec"},
	{Group: "batch", Resource: "cronjobs"}:    {"spec", "jobTemplate", "spec", "template", "spec"},
}

// containersOf are the fields of the pod that a request's object is, or makes.
func containersOf(r *admission.Request, tree map[string]any) (fields map[string]any, known bool) {
	path, known := podFields[r.Resource.GroupResource()]
	for _, field := range path {
		tree, _ = tree[field].(map[string]any)
	}
	return tree, known
}

// containers of a list of a pod.
func containers(fields map[string]any, list string) (out []map[string]any) {
	items, _ := fields[list].([]any)
	for _, i := range items {
		if c, ok := i.(map[string]any); ok {
			out = append(out, c)
		}
	}
	return out
}

// Pin turns the tags of an object's images that the policy is about into digests. It answers the object that came of it; nil = it
// stays as it is. An image that cannot be looked up is an error.
func (p *Policy) Pin(ctx context.Context, w *World, r *admission.Request) (changed map[string]any, err error) {
	if !p.Pins || r.Object == nil || r.Operation != admission.Create && r.Operation != admission.Update {
		return nil, nil
	}
	if _, known := podFields[r.Resource.GroupResource()]; !known {
		return nil, nil
	}
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	s, _, err := p.begin(ctx, w, r, &Verified{})
	if s == nil || err != nil {
		return nil, err
	}
	tree, err := r.Object.Tree()
	if err != nil {
		return nil, err
	}
	tree = runtime.DeepCopyJSON(tree)
	fields, _ := containersOf(r, tree)
	var errs []error
	n, replaced := 0, false
	for _, list := range containerLists {
		for _, c := range containers(fields, list) {
			image, _ := c["image"].(string)
			if n++; n > mostImages {
				return nil, fmt.Errorf("the object names more than %d images", mostImages)
			}
			pinned, err := s.pinned(image)
			if err != nil {
				errs = append(errs, err)
			}
			if pinned != "" {
				c["image"], replaced = pinned, true
			}
		}
	}
	if err := errors.Join(errs...); err != nil || !replaced {
		return nil, err
	}
	return tree, nil
}

// pinned is an image with its digest; "" = it stays as it is.
func (s *session) pinned(image string) (string, error) {
	if image == "" || strings.Contains(image, "@") {
		return "", nil
	}
	about, err := s.about(image)
	if err != nil || !about {
		return "", err
	}
	reference, err := evidence.Parse(image, s.p.PlainHTTP)
	if err != nil {
		return "", err
	}
	tag, ok := reference.(name.Tag)
	if !ok {
		return "", nil
	}
	d, _, err := s.open(image)
	if err != nil {
		return "", fmt.Errorf("image %s cannot be looked up: %w", image, err)
	}
	return withTag(image, tag) + "@" + d.DigestStr(), nil
}

// withTag is an image as it was written, with its tag.
func withTag(image string, tag name.Tag) string {
	if strings.Contains(image[strings.LastIndexByte(image, '/')+1:], ":") {
		return image
	}
	return image + ":" + tag.TagStr()
}

// Images are those of the pod that a request's object is, or makes, by the list in which they stand. Other objects have none.
func Images(r *admission.Request) (map[string][]string, error) {
	out := map[string][]string{}
	for _, list := range containerLists {
		out[list] = []string{}
	}
	o := r.Object
	if o == nil {
		o = r.OldObject
	}
	if o == nil {
		return out, nil
	}
	tree, err := o.Tree()
	if err != nil {
		return nil, err
	}
	fields, _ := containersOf(r, tree)
	for _, list := range containerLists {
		for _, c := range containers(fields, list) {
			if image, ok := c["image"].(string); ok {
				out[list] = append(out[list], image)
			}
		}
	}
	return out, nil
}
