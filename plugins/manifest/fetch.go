// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Fetch says how a module is fetched from elsewhere.
type Fetch struct {
	// CAFile holds the authorities that the server's certificate is checked with,
	// as PEM; empty: those of the system. CA is the same, written here.
	CAFile string `yaml:"caFile"`
	CA     string `yaml:"ca"`
	// PlainHTTP asks a registry without TLS. It is refused everywhere else.
	PlainHTTP bool `yaml:"plainHTTP"`
	// DockerConfig is a config.json with credentials ("auths"). Helpers that it
	// names are not run.
	DockerConfig string `yaml:"dockerConfig"`
	// Secret, as namespace/name, holds credentials: of type
	// kubernetes.io/dockerconfigjson or kubernetes.io/basic-auth.
	Secret string `yaml:"secret"`
	// Timeout of all of it; default 60s.
	Timeout Duration `yaml:"timeout"`
	// MaxSize of the module; default 32Mi.
	MaxSize Bytes `yaml:"maxSize"`
	// Check is how often it is looked whether a tag has moved away from what is
	// pinned, or a signed bundle that is not pinned has changed; default 10m.
	Check Duration `yaml:"check"`
}

// Signature asks for a signature by one of some keys. Every one that an entry
// lists has to be there.
type Signature struct {
	// Keys: files with public keys in PEM, or the keys themselves. One of them has to fit.
	Keys []string `yaml:"keys"`
	// Annotations that the signature has to have (not for files and https).
	Annotations map[string]string `yaml:"annotations"`
}

// KindRego is the kind of an entry that has a policy's text instead of a source.
const KindRego = "rego"

// KindCEL is the kind of an entry that has a policy's expressions instead of a source.
const KindCEL = "cel"

// Kind of a source: "file", "https", "oci", KindRego or KindCEL; "" is none of them.
func (e *Entry) Kind() string {
	switch {
	case e.Rego != nil:
		return KindRego
	case e.CEL != nil:
		return KindCEL
	}
	for _, kind := range []string{"file:", "https://", "oci://"} {
		if rest, ok := strings.CutPrefix(e.Source, kind); ok && rest != "" {
			return strings.TrimRight(kind, ":/")
		}
	}
	return ""
}

// Pinned says whether it is fixed what the source has to hold, or who has to have signed it.
func (e *Entry) Pinned() bool {
	return e.Bundle.signed() || e.Digest != "" || e.Rego != nil || e.CEL != nil || e.Kind() == "oci" && strings.Contains(e.Source, "@sha256:")
}

// Follows says that the source may come to hold something else, which is then loaded: a
// bundle that is held by its signature alone.
func (e *Entry) Follows() bool {
	return e.Bundle.signed() && e.Digest == "" && (e.Kind() == "https" || e.Kind() == "oci" && !strings.Contains(e.Source, "@sha256:"))
}

const secondsADay = 24 * time.Hour

func (e *Entry) checkSource(n *yaml.Node, path string) error {
	switch e.Kind() {
	case KindRego:
		return e.checkRego(n, path)
	case KindCEL:
		return e.checkCEL(n, path)
	case "":
		return fault(n, path, "source", fmt.Sprintf("expected file: and a path, https://, or oci:// and a reference such as oci://registry.example/team/policy:1@sha256:..., found %q", e.Source))
	case "https":
		if u, err := url.Parse(e.Source); err != nil || u.Host == "" || u.User != nil {
			return fault(n, path, "source", fmt.Sprintf("expected https:// and a host without credentials, found %q", e.Source))
		}
	}
	if err := e.checkBundle(n, path); err != nil {
		return err
	}
	if e.Kind() != "file" && !e.Pinned() {
		return fault(n, path, "digest", "a module that is not a local file has to be pinned: digest: sha256:..., as `wasmplane plugin inspect` prints it, or @sha256:... behind the tag of an oci:// source")
	}
	f := &e.Fetch
	if f.Timeout == 0 {
		f.Timeout = Duration(time.Minute)
	}
	if f.MaxSize == 0 {
		f.MaxSize = 32 << 20
	}
	if f.Check == 0 {
		f.Check = Duration(10 * time.Minute)
	}
	for _, c := range []struct {
		field, problem string
		ok             bool
	}{
		{"fetch.plainHTTP", "only oci:// sources can be fetched without TLS", !f.PlainHTTP || e.Kind() == "oci"},
		{"fetch.secret", fmt.Sprintf("expected namespace/name, found %q", f.Secret), f.Secret == "" || strings.Count(f.Secret, "/") == 1},
		{"fetch.timeout", "at most 24h", time.Duration(f.Timeout) <= secondsADay},
		{"fetch.check", "at least 10s", time.Duration(f.Check) >= 10*time.Second},
		{"fetch.maxSize", "at most 256Mi", f.MaxSize <= 256<<20},
	} {
		if !c.ok {
			return fault(n, path, c.field, c.problem)
		}
	}
	for i, s := range e.Signatures {
		at := fmt.Sprintf("signatures[%d]", i)
		if len(s.Keys) == 0 {
			return fault(n, path, at, "keys are missing: files with public keys, or keys in PEM")
		}
		if len(s.Annotations) > 0 && e.Kind() != "oci" {
			return fault(n, path, at+".annotations", "only signatures in a registry have annotations")
		}
	}
	return nil
}
