// SPDX-License-Identifier: Apache-2.0

package kyverno

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// The kind of what policies share by globalContext.Get.
const (
	GlobalGroup = "kyverno.io"
	GlobalKind  = "GlobalContextEntry"
)

// GlobalVersions of the kind, which have the same fields here.
func GlobalVersions() []string { return []string{"v2beta1", "v2alpha1", "v2"} }

// Bounds of what is asked again by itself.
const (
	defaultRefresh  = 10 * time.Minute
	shortestRefresh = time.Second
	mostRetries     = 10
)

// GlobalEntry is a GlobalContextEntry that has been read: objects of the cluster, or the answer to a request.
type GlobalEntry struct {
	Name string
	// Group, Version, Resource and Namespace of objects; no Resource: it is a request. Name is that of one object.
	Group, Version, Resource, Namespace, Object string
	// Single: a request is for one object, or for a list as the API answers it, and not for its items.
	Single bool
	// URL, Method, Headers, Body and Authorities of a request to a server.
	URL, Method string
	Headers     map[string]string
	Body        map[string]any
	Authorities string
	// Refresh is how long an answer is used, Retries how often a request that fails is made again.
	Refresh time.Duration
	Retries int
}

// globalObject is an entry as it is written.
type globalObject struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       struct {
		KubernetesResource *struct {
			Group     string `json:"group"`
			Version   string `json:"version"`
			Resource  string `json:"resource"`
			Namespace string `json:"namespace"`
		} `json:"kubernetesResource"`
		APICall     *globalCall     `json:"apiCall"`
		Projections json.RawMessage `json:"projections"`
	} `json:"spec"`
}

type globalCall struct {
	URLPath string `json:"urlPath"`
	Method  string `json:"method"`
	Data    []struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	} `json:"data"`
	Service *struct {
		URL      string `json:"url"`
		CABundle string `json:"caBundle"`
		Headers  []struct {
			Key   string `json:"key"`
			Value string `json:"value"`
		} `json:"headers"`
	} `json:"service"`
	RefreshInterval string `json:"refreshInterval"`
	RetryLimit      *int   `json:"retryLimit"`
}

// ReadGlobalEntry reads a GlobalContextEntry.
func ReadGlobalEntry(o map[string]any) (*GlobalEntry, error) {
	var g globalObject
	if err := tree.Decode(o, &g, "entry"); err != nil {
		return nil, err
	}
	s := &g.Spec
	if len(s.Projections) > 0 && string(s.Projections) != "null" && string(s.Projections) != "[]" {
		return nil, errors.New("spec.projections: they are in JMESPath, which is not evaluated here: select in the policy's expression")
	}
	e := &GlobalEntry{Name: g.Metadata.Name, Refresh: defaultRefresh, Retries: 3}
	switch {
	case (s.KubernetesResource == nil) == (s.APICall == nil):
		return nil, errors.New("spec: expected one of kubernetesResource and apiCall")
	case s.KubernetesResource != nil:
		r := s.KubernetesResource
		if r.Version == "" || r.Resource == "" {
			return nil, errors.New("spec.kubernetesResource: expected a version and a resource")
		}
		e.Group, e.Version, e.Resource, e.Namespace = r.Group, r.Version, r.Resource, r.Namespace
		return e, nil
	}
	return e, s.APICall.read(e)
}

// read completes an entry that is a request.
func (c *globalCall) read(e *GlobalEntry) error {
	if c.RefreshInterval != "" {
		d, err := time.ParseDuration(c.RefreshInterval)
		if err != nil || d < shortestRefresh {
			return fmt.Errorf("spec.apiCall.refreshInterval: expected a duration of %s or more, found %q", shortestRefresh, c.RefreshInterval)
		}
		e.Refresh = d
	}
	if c.RetryLimit != nil {
		if *c.RetryLimit < 1 || *c.RetryLimit > mostRetries {
			return fmt.Errorf("spec.apiCall.retryLimit: expected 1 to %d", mostRetries)
		}
		e.Retries = *c.RetryLimit
	}
	if (c.URLPath == "") == (c.Service == nil) {
		return errors.New("spec.apiCall: expected one of urlPath and service")
	}
	if e.Method = c.Method; e.Method == "" {
		e.Method = "GET"
	}
	if e.Method != "GET" && (e.Method != "POST" || c.Service == nil) {
		return fmt.Errorf("spec.apiCall.method: expected GET, or POST to a service, found %q", c.Method)
	}
	if len(c.Data) > 0 && e.Method != "POST" {
		return errors.New("spec.apiCall.data: only a POST has it")
	}
	if c.Service == nil {
		return e.path(c.URLPath)
	}
	u, err := url.Parse(c.Service.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return errors.New("spec.apiCall.service.url: expected https:// or http:// and a host, without credentials")
	}
	e.URL, e.Authorities, e.Headers, e.Body = c.Service.URL, c.Service.CABundle, map[string]string{}, map[string]any{}
	for _, h := range c.Service.Headers {
		e.Headers[h.Key] = h.Value
	}
	for _, d := range c.Data {
		e.Body[d.Key] = d.Value
	}
	return nil
}

// path reads a path of the API: a list of objects, or one of them.
func (e *GlobalEntry) path(path string) error {
	wrong := fmt.Errorf("spec.apiCall.urlPath: expected the path of a list of objects, or of one (/apis/apps/v1/namespaces/default/deployments), found %q", path)
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case strings.ContainsAny(path, "?#"):
		return wrong
	case len(parts) > 2 && parts[0] == "api":
		e.Version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		e.Group, e.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return wrong
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		e.Namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 2 {
		return wrong
	}
	e.Single, e.Resource = true, parts[0]
	if len(parts) == 2 {
		e.Object = parts[1]
	}
	return nil
}
