// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

const ourMark = "# Written by wasmplane from node.registries; changes here are lost.\n"

// AnyRegistry is a Host that stands for all registries that are not named.
const AnyRegistry = "*"

// Registry says how the images of one registry are fetched. Credentials are not
// here: they come with each pull, from a pod's pull secrets.
type Registry struct {
	// Host as it stands in an image's name: "docker.io", "registry.example.com:5000",
	// or "*" for all others.
	Host string
	// Mirrors are tried in order before the registry itself: URLs such as
	// "https://mirror.example.com". One that is the registry itself under http
	// ("http://localhost:5000" for localhost:5000) says PlainHTTP in other words.
	Mirrors []string
	// MirrorsOnly leaves the registry itself out.
	MirrorsOnly bool
	// PlainHTTP reaches the registry itself without TLS.
	PlainHTTP bool
	// SkipVerify accepts any certificate of the registry and of its mirrors.
	SkipVerify bool
	// CAFile is a file of certificates that vouch for the registry and its mirrors,
	// besides the system's.
	CAFile string
}

// hostName is what may stand before the first slash of an image's name.
var hostName = regexp.MustCompile(`^(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?)(:[0-9]{1,5})?$`)

// Validate checks an entry; the error names the field.
func (r Registry) Validate() error {
	if r.Host != AnyRegistry && !hostName.MatchString(r.Host) {
		return fmt.Errorf("registries: host %q is not a registry's name such as docker.io or registry.example.com:5000", r.Host)
	}
	for _, m := range r.Mirrors {
		u, err := url.Parse(m)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
			return fmt.Errorf("registries: mirror %q of %s is not a URL such as https://mirror.example.com", m, r.Host)
		}
	}
	if r.MirrorsOnly && len(r.Mirrors) == 0 {
		return fmt.Errorf("registries: %s has mirrorsOnly and no mirrors", r.Host)
	}
	if r.Host == AnyRegistry && r.PlainHTTP {
		return errors.New("registries: plainHTTP for all registries is not allowed; name the registry")
	}
	return r.checkCA()
}

// checkCA reads the file once, so that a wrong one is an error at start and not at
// the first pull.
func (r Registry) checkCA() error {
	if r.CAFile == "" {
		return nil
	}
	if !filepath.IsAbs(r.CAFile) {
		return fmt.Errorf("registries: caFile %q of %s is not an absolute path", r.CAFile, r.Host)
	}
	data, err := os.ReadFile(r.CAFile)
	if err != nil {
		return fmt.Errorf("registries: caFile of %s: %w", r.Host, err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return fmt.Errorf("registries: caFile %s of %s contains no certificate in PEM form", r.CAFile, r.Host)
	}
	return nil
}

// dirName is the directory that containerd looks for.
func (r Registry) dirName() string {
	if r.Host == AnyRegistry {
		return "_default"
	}
	if host, port, err := net.SplitHostPort(r.Host); err == nil {
		// A colon is no good in a directory's name on every system.
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return host + "_" + port + "_"
	}
	return r.Host
}

// hosts renders hosts.toml.
func (r Registry) hosts() []byte {
	if plain := "http://" + r.Host; slices.Contains(r.Mirrors, plain) {
		r.PlainHTTP = true
		r.Mirrors = slices.DeleteFunc(slices.Clone(r.Mirrors), func(m string) bool { return m == plain })
	}
	var b bytes.Buffer
	b.WriteString(ourMark)
	if server := r.server(); server != "" {
		fmt.Fprintf(&b, "server = %s\n", strconv.Quote(server))
	}
	b.WriteString(r.trust())
	if r.MirrorsOnly {
		// The server stays the last resort for containerd; it is given no capability.
		b.WriteString("capabilities = []\n")
	}
	for _, m := range r.Mirrors {
		m = strings.TrimSuffix(m, "/")
		fmt.Fprintf(&b, "\n[host.%s]\ncapabilities = [\"pull\", \"resolve\"]\n%s", strconv.Quote(m), r.trust())
	}
	return b.Bytes()
}

func (r Registry) server() string {
	switch {
	case r.Host == AnyRegistry:
		return ""
	case r.PlainHTTP:
		return "http://" + r.Host
	case r.Host == "docker.io":
		return "https://registry-1.docker.io"
	default:
		return "https://" + r.Host
	}
}

func (r Registry) trust() string {
	var b strings.Builder
	if r.SkipVerify {
		b.WriteString("skip_verify = true\n")
	}
	if r.CAFile != "" {
		fmt.Fprintf(&b, "ca = %s\n", strconv.Quote(r.CAFile))
	}
	return b.String()
}

// WriteRegistries makes dir say what the entries say. Directories in it that
// somebody else wrote are left alone; containerd reads them at each pull, so no
// restart is needed.
func WriteRegistries(dir string, registries []Registry) error {
	seen := map[string]bool{}
	for _, r := range registries {
		if err := r.Validate(); err != nil {
			return err
		}
		if seen[r.dirName()] {
			return fmt.Errorf("registries: %s is there twice", r.Host)
		}
		seen[r.dirName()] = true
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the registries: %w", err)
	}
	if err := removeOurs(dir, seen); err != nil {
		return err
	}
	for _, r := range registries {
		to := filepath.Join(dir, r.dirName())
		if err := os.MkdirAll(to, 0o755); err != nil {
			return fmt.Errorf("write the registries: %w", err)
		}
		if err := atomicfile.Write(filepath.Join(to, "hosts.toml"), r.hosts(), 0o644); err != nil {
			return fmt.Errorf("write the registries: %w", err)
		}
	}
	return nil
}

// removeOurs removes what an earlier configuration said.
func removeOurs(dir string, keep map[string]bool) error {
	files, err := filepath.Glob(filepath.Join(dir, "*", "hosts.toml"))
	if err != nil {
		return fmt.Errorf("look at the registries: %w", err)
	}
	for _, f := range slices.Sorted(slices.Values(files)) {
		data, err := os.ReadFile(f)
		if err != nil || !bytes.HasPrefix(data, []byte(ourMark)) || keep[filepath.Base(filepath.Dir(f))] {
			continue
		}
		if err := os.RemoveAll(filepath.Dir(f)); err != nil {
			return fmt.Errorf("remove a registry's configuration: %w", err)
		}
	}
	return nil
}
