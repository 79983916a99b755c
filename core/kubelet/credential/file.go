// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	configv1 "k8s.io/kubelet/config/v1"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// versions of the file, and of the requests that programs get.
var (
	fileVersions    = []string{"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"}
	requestVersions = []string{
		"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1beta1", "credentialprovider.kubelet.k8s.io/v1alpha1",
	}
)

// Read the providers of a CredentialProviderConfig, YAML or JSON, or of all in a folder in the
// order of their names. Their programs have to be in binDir.
func Read(file, binDir string) ([]configv1.CredentialProvider, error) {
	files := []string{file}
	info, err := os.Stat(file)
	if err == nil && info.IsDir() {
		files = nil
		var entries []os.DirEntry
		entries, err = os.ReadDir(file)
		for _, e := range entries {
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
				files = append(files, filepath.Join(file, e.Name()))
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read credential providers: %w", err)
	}
	var all []configv1.CredentialProvider
	known := map[string]bool{}
	for _, f := range files {
		some, err := readFile(f, binDir, known)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func readFile(file, binDir string, known map[string]bool) ([]configv1.CredentialProvider, error) {
	data, err := os.ReadFile(file) //nolint:gosec // the operator names it
	if err != nil {
		return nil, fmt.Errorf("read credential providers: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(doc.Content) == 0 {
		return nil, fmt.Errorf("%s:1: expected a CredentialProviderConfig, found nothing", file)
	}
	wrong := func(path, format string, args ...any) error {
		line := config.NearestLine(doc.Content[0], path)
		return &strictyaml.FieldError{File: file, Line: line, Path: path, Problem: fmt.Sprintf(format, args...)}
	}
	var tree any
	if err := doc.Content[0].Decode(&tree); err != nil {
		return nil, wrong("", "%v", err)
	}
	words, err := json.Marshal(tree)
	if err != nil {
		return nil, wrong("", "%v", err)
	}
	var c configv1.CredentialProviderConfig
	strict := json.NewDecoder(bytes.NewReader(words))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&c); err != nil {
		return nil, wrong("", "expected a CredentialProviderConfig: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if !slices.Contains(fileVersions, c.APIVersion) || c.Kind != "CredentialProviderConfig" {
		return nil, wrong("apiVersion", "expected CredentialProviderConfig of %s, found %s of %s", fileVersions[0], c.Kind, c.APIVersion)
	}
	if len(c.Providers) == 0 {
		return nil, wrong("providers", "expected at least one")
	}
	for i := range c.Providers {
		p := &c.Providers[i]
		if path, problem := check(p, binDir, known); problem != "" {
			return nil, wrong(strings.TrimSuffix(fmt.Sprintf("providers[%d].%s", i, path), "."), "%s", problem)
		}
		known[p.Name] = true
	}
	return c.Providers, nil
}

// check one provider; the path is that of the field that is wrong.
func check(p *configv1.CredentialProvider, binDir string, known map[string]bool) (path, problem string) {
	switch {
	case p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ "):
		return "name", fmt.Sprintf("expected the name of a program in %s, found %q", binDir, p.Name)
	case known[p.Name]:
		return "name", fmt.Sprintf("there is another provider %q", p.Name)
	case len(p.MatchImages) == 0:
		return "matchImages", "expected at least one pattern of images"
	case p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0:
		return "defaultCacheDuration", "expected a duration such as 10m, or 0s"
	case !slices.Contains(requestVersions, p.APIVersion):
		return "apiVersion", fmt.Sprintf("expected %s, found %q", requestVersions[0], p.APIVersion)
	}
	for i, m := range p.MatchImages {
		if u, err := parse(m); err != nil || u.Hostname() == "" {
			return fmt.Sprintf("matchImages[%d]", i), fmt.Sprintf("expected HOST[:PORT][/PATH], found %q", m)
		}
	}
	if path, problem := checkToken(p); problem != "" {
		return path, problem
	}
	if _, err := exec.LookPath(filepath.Join(binDir, p.Name)); err != nil {
		return "name", fmt.Sprintf("expected a program of this name in %s: %v", binDir, errors.Unwrap(err))
	}
	return "", ""
}

func checkToken(p *configv1.CredentialProvider) (path, problem string) {
	t := p.TokenAttributes
	if t == nil {
		return "", ""
	}
	kinds := []configv1.ServiceAccountTokenCacheType{
		configv1.ServiceAccountServiceAccountTokenCacheType, configv1.TokenServiceAccountTokenCacheType,
	}
	switch {
	case p.APIVersion != requestVersions[0]:
		return "tokenAttributes", "expected apiVersion " + requestVersions[0] + " with it"
	case t.ServiceAccountTokenAudience == "":
		return "tokenAttributes.serviceAccountTokenAudience", "expected an audience"
	case !slices.Contains(kinds, t.CacheType):
		return "tokenAttributes.cacheType", fmt.Sprintf("expected one of %q, found %q", kinds, t.CacheType)
	case t.RequireServiceAccount == nil:
		return "tokenAttributes.requireServiceAccount", "expected true or false"
	case !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0:
		return "tokenAttributes.requiredServiceAccountAnnotationKeys", "expected requireServiceAccount: true with them"
	}
	for i, k := range t.OptionalServiceAccountAnnotationKeys {
		if slices.Contains(t.RequiredServiceAccountAnnotationKeys, k) {
			return fmt.Sprintf("tokenAttributes.optionalServiceAccountAnnotationKeys[%d]", i), fmt.Sprintf("%q is required, too", k)
		}
	}
	return "", ""
}
