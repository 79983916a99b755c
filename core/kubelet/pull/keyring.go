// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"path"
	"sort"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Keyring holds credentials by the registries, and paths in them, that they are for.
type Keyring struct {
	keys []key
	// Next has those that are tried after these; nil: none.
	Next *Keyring
}

// Add credentials for what a pattern matches: HOST[:PORT][/PATH].
func (k *Keyring) Add(pattern, username, password string) {
	host, p := splitRegistry(pattern)
	k.keys = append(k.keys, key{host: host, path: p, auth: &cri.AuthConfig{Username: username, Password: password}})
	k.sort()
}

type key struct {
	host, path string
	auth       *cri.AuthConfig
}

// dockerEntry is one entry of a Docker configuration file.
type dockerEntry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// AddSecret takes the credentials of a secret of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg.
func (k *Keyring) AddSecret(s *corev1.Secret) error {
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]dockerEntry `json:"auths"`
		}
		if err := json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &file); err != nil {
			return fmt.Errorf("read %s of secret %s/%s: %w", corev1.DockerConfigJsonKey, s.Namespace, s.Name, err)
		}
		return k.add(file.Auths)
	case corev1.SecretTypeDockercfg:
		var entries map[string]dockerEntry
		if err := json.Unmarshal(s.Data[corev1.DockerConfigKey], &entries); err != nil {
			return fmt.Errorf("read %s of secret %s/%s: %w", corev1.DockerConfigKey, s.Namespace, s.Name, err)
		}
		return k.add(entries)
	default:
		return fmt.Errorf("secret %s/%s has type %q: an image pull secret is of type %s", s.Namespace, s.Name, s.Type,
			corev1.SecretTypeDockerConfigJson)
	}
}

func (k *Keyring) add(entries map[string]dockerEntry) error {
	for registry, e := range entries {
		auth, err := e.config()
		if err != nil {
			return fmt.Errorf("credentials for %s: %w", registry, err)
		}
		host, p := splitRegistry(registry)
		k.keys = append(k.keys, key{host: host, path: p, auth: auth})
	}
	k.sort()
	return nil
}

// sort the most specific first; among equals an order that does not change.
func (k *Keyring) sort() {
	sort.SliceStable(k.keys, func(i, j int) bool {
		a, b := k.keys[i], k.keys[j]
		if len(a.path) != len(b.path) {
			return len(a.path) > len(b.path)
		}
		return a.host+a.path > b.host+b.path
	})
}

func (e dockerEntry) config() (*cri.AuthConfig, error) {
	c := &cri.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth != "" {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimRight(e.Auth, "\x00"))
		if err != nil {
			raw, err = base64.RawStdEncoding.DecodeString(e.Auth)
		}
		user, pass, ok := strings.Cut(string(raw), ":")
		if err != nil || !ok {
			return nil, fmt.Errorf("auth is not the base64 form of USER:PASSWORD")
		}
		c.Username, c.Password = user, strings.Trim(pass, "\x00")
	}
	return c, nil
}

// splitRegistry takes the host and the path of what Docker writes as a registry:
// a host, a host with a path, or the URL of an API.
func splitRegistry(s string) (host, p string) {
	for _, scheme := range []string{"https://", "http://"} {
		s = strings.TrimPrefix(s, scheme)
	}
	host, p, _ = strings.Cut(s, "/")
	p = strings.Trim(p, "/")
	for _, v := range []string{"v1", "v2"} {
		if p == v {
			p = ""
		}
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	return host, p
}

// Lookup answers the credentials to try for an image, the most specific first.
func (k *Keyring) Lookup(image string) []*cri.AuthConfig {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	host, repo := reference.Domain(named), reference.Path(named)
	var out []*cri.AuthConfig
	for _, c := range k.keys {
		if HostMatches(c.host, host) && pathMatches(c.path, repo) {
			out = append(out, c.auth)
		}
	}
	if k.Next != nil {
		out = append(out, k.Next.Lookup(image)...)
	}
	return out
}

// HostMatches says whether a pattern is for an image's host: both have as many parts between dots, each
// of which matches (*, ?, [a-z]), and the same port or none.
func HostMatches(pattern, host string) bool {
	ph, pp := splitPort(pattern)
	h, p := splitPort(host)
	if pp != p {
		return false
	}
	want, got := strings.Split(ph, "."), strings.Split(h, ".")
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], got[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitPort(s string) (host, port string) {
	if h, p, err := net.SplitHostPort(s); err == nil {
		return h, p
	}
	return s, ""
}

func pathMatches(prefix, repo string) bool {
	return prefix == "" || repo == prefix || strings.HasPrefix(repo, prefix+"/")
}
