// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// Image is what a registry would answer about an image.
type Image struct {
	Digest    string         `yaml:"digest"`
	MediaType string         `yaml:"mediaType"`
	Manifest  map[string]any `yaml:"manifest"`
	Config    map[string]any `yaml:"config"`
}

// Access is what the cluster's authorizers would allow. What is left out is not looked at; the
// first that is about a question answers it, and what none is about is not allowed.
type Access struct {
	User        string   `yaml:"user"`
	Groups      []string `yaml:"groups"`
	Verb        string   `yaml:"verb"`
	Group       string   `yaml:"group"` // of the resource
	Resource    string   `yaml:"resource"`
	Subresource string   `yaml:"subresource"`
	Namespace   string   `yaml:"namespace"`
	Name        string   `yaml:"name"`
	Path        string   `yaml:"path"` // of what is no resource
	Allowed     bool     `yaml:"allowed"`
	Reason      string   `yaml:"reason"`
}

// stand is what a case puts behind a plugin's host functions, from case to case. Where a case
// lists no image and no access, there are none; nothing leaves the machine.
type stand struct {
	objects
	images map[string]Image
	access []Access
}

func newStand(c *Case) (stand, error) {
	o, err := newObjects(c.Objects)
	return stand{objects: o, images: c.Images, access: c.Access}, err
}

func (s *stand) image(name string) (Image, error) {
	if i, ok := s.images[name]; ok {
		return i, nil
	}
	return Image{}, fmt.Errorf("no registry is asked in a test, and the case lists no image %s: add it under images", name)
}

// Digest implements hostfn.Images.
func (s *stand) Digest(_ context.Context, image string, _ hostfn.ImageAccess) (string, error) {
	i, err := s.image(image)
	return i.Digest, err
}

// Manifest implements hostfn.Images.
func (s *stand) Manifest(_ context.Context, image string, _ hostfn.ImageAccess) (hostfn.ImageManifest, error) {
	i, err := s.image(image)
	if err != nil {
		return hostfn.ImageManifest{}, err
	}
	b, err := json.Marshal(i.Manifest)
	return hostfn.ImageManifest{Digest: i.Digest, MediaType: i.MediaType, Manifest: b}, err
}

// Config implements hostfn.Images.
func (s *stand) Config(_ context.Context, image string, _ hostfn.ImageAccess) (hostfn.ImageConfigFile, error) {
	i, err := s.image(image)
	if err != nil {
		return hostfn.ImageConfigFile{}, err
	}
	b, err := json.Marshal(i.Config)
	return hostfn.ImageConfigFile{Digest: i.Digest, Config: b}, err
}

// Review implements hostfn.Access.
func (s *stand) Review(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	for _, a := range s.access {
		if a.about(&spec) {
			return authorizationv1.SubjectAccessReviewStatus{Allowed: a.Allowed, Reason: a.Reason}, nil
		}
	}
	return authorizationv1.SubjectAccessReviewStatus{Reason: "the case lists nothing about it under access"}, nil
}

func (a *Access) about(spec *authorizationv1.SubjectAccessReviewSpec) bool {
	for _, g := range a.Groups {
		if !slices.Contains(spec.Groups, g) {
			return false
		}
	}
	asked := map[string]string{"user": spec.User}
	if r := spec.ResourceAttributes; r != nil {
		asked = map[string]string{
			"user": spec.User, "verb": r.Verb, "group": r.Group, "resource": r.Resource, "subresource": r.Subresource, "namespace": r.Namespace,
			"name": r.Name,
		}
	}
	if r := spec.NonResourceAttributes; r != nil {
		asked["verb"], asked["path"] = r.Verb, r.Path
	}
	for field, want := range map[string]string{
		"user": a.User, "verb": a.Verb, "group": a.Group, "resource": a.Resource, "subresource": a.Subresource, "namespace": a.Namespace,
		"name": a.Name, "path": a.Path,
	} {
		if want != "" && want != asked[field] {
			return false
		}
	}
	return true
}

// unwrap makes an AdmissionRequest the case's document, where it was given one in an
// AdmissionReview, as `kwctl scaffold admission-request` writes it, or in the place of an object.
func (c *Case) unwrap() {
	if isReview(c.Object) || isRequest(c.Object) {
		c.Input, c.Object = c.Object, nil
	}
	if request, ok := c.Input["request"].(map[string]any); ok && (isReview(c.Input) || isRequest(request)) {
		c.Input = request
	}
}

func isReview(doc map[string]any) bool {
	_, ok := doc["request"].(map[string]any)
	return ok && doc["kind"] == "AdmissionReview"
}

// isRequest: the kind of an object is a text, and that of a request three.
func isRequest(doc map[string]any) bool {
	_, kind := doc["kind"].(map[string]any)
	_, operation := doc["operation"].(string)
	return kind && operation
}

var (
	_ hostfn.Images = (*stand)(nil)
	_ hostfn.Access = (*stand)(nil)
)
