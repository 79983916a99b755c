// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/config/v1"

	"github.com/wasmplane/wasmplane/core/resourcename"
)

// Settings of one extender, as kube-scheduler's configuration has them.
type Settings = v1.Extender

// Timeout for an answer, where the settings have none: upstream's.
const Timeout = 5 * time.Second

// FieldError says which field of the list of extenders is wrong.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

func wrong(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

// Check says what is wrong with extenders, as a *FieldError. It reads no files.
func Check(all []Settings) error {
	binder, managed := -1, map[string]bool{}
	for i := range all {
		s, at := &all[i], fmt.Sprintf("[%d]", i)
		if err := checkURL(at, s); err != nil {
			return err
		}
		for _, verb := range []struct{ field, text string }{
			{"filterVerb", s.FilterVerb}, {"prioritizeVerb", s.PrioritizeVerb}, {"preemptVerb", s.PreemptVerb}, {"bindVerb", s.BindVerb},
		} {
			if strings.ContainsAny(verb.text, "?#") {
				return wrong(at+"."+verb.field, "expected a path to go below urlPrefix, found %q", verb.text)
			}
		}
		switch {
		case s.FilterVerb+s.PrioritizeVerb+s.PreemptVerb+s.BindVerb == "":
			return wrong(at, "expected a verb: filterVerb, prioritizeVerb, preemptVerb or bindVerb; without one the extender is never asked")
		case s.PrioritizeVerb != "" && (s.Weight <= 0 || s.Weight > mostWeight):
			return wrong(at+".weight", "expected 1 to %d beside a prioritizeVerb, found %d", mostWeight, s.Weight)
		case s.HTTPTimeout.Duration < 0 || s.HTTPTimeout.Duration > mostTimeout:
			return wrong(at+".httpTimeout", "expected up to %s (0: %s), found %s", mostTimeout, Timeout, s.HTTPTimeout.Duration)
		case s.BindVerb != "" && binder >= 0:
			return wrong(at+".bindVerb", "only one extender can bind, and extenders[%d] does already", binder)
		case s.BindVerb != "":
			binder = i
		}
		for j, r := range s.ManagedResources {
			field := fmt.Sprintf("%s.managedResources[%d].name", at, j)
			if !resourcename.Extended(r.Name) {
				return wrong(field, "expected the name of an extended resource, such as example.com/gpu, found %q", r.Name)
			}
			if managed[r.Name] {
				return wrong(field, "%s is managed twice", r.Name)
			}
			managed[r.Name] = true
		}
	}
	return nil
}

const (
	// Scores are at most an int32 here, ten times that and the weight has room in an int64 many times.
	mostWeight = 1 << 20
	// All other pods wait for an answer.
	mostTimeout = time.Minute
)

func checkURL(at string, s *Settings) error {
	u, err := url.Parse(s.URLPrefix)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return wrong(at+".urlPrefix", "expected a URL such as https://extender.example.com/scheduler, found %q", s.URLPrefix)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return wrong(at+".urlPrefix", "expected a URL without user, query and fragment: it stands in messages, and a verb goes below it")
	case u.Scheme == "http" && (s.EnableHTTPS || s.TLSConfig != nil):
		return wrong(at+".urlPrefix", "expected https:// beside enableHTTPS and tlsConfig, found %q: the URL alone decides that TLS is spoken", s.URLPrefix)
	}
	t := s.TLSConfig
	if t == nil {
		t = &v1.ExtenderTLSConfig{}
	}
	authorities := t.CAFile != "" || len(t.CAData) > 0
	switch {
	case t.Insecure && authorities:
		return wrong(at+".tlsConfig.insecure", "cannot be beside caFile and caData, by which the server is verified")
	case s.EnableHTTPS && !t.Insecure && !authorities:
		// Upstream does not verify the server then, and says so nowhere.
		return wrong(at+".enableHTTPS", "needs tlsConfig.caFile or caData, to verify the server by, or tlsConfig.insecure: true, "+
			"which verifies nothing; without enableHTTPS an https:// URL is verified by this machine's roots")
	case (t.CertFile != "" || len(t.CertData) > 0) != (t.KeyFile != "" || len(t.KeyData) > 0):
		return wrong(at+".tlsConfig", "a client certificate needs certFile or certData, and keyFile or keyData")
	}
	return nil
}

// IgnoredResources are the extended resources that only extenders look at: no plugin filters nodes by them.
func IgnoredResources(all []Settings) (names []string) {
	for i := range all {
		for _, r := range all[i].ManagedResources {
			if r.IgnoredByScheduler {
				names = append(names, r.Name)
			}
		}
	}
	return names
}

// New makes the extenders of a configuration that Check has found right, in the order in which they are asked:
// the ignorable ones last. Relative names of files are of dir. What is wrong with a file is a *FieldError.
func New(all []Settings, dir string, reach Reach) ([]*Extender, error) {
	var firm, ignorable []*Extender
	names := map[string]int{}
	for i := range all {
		trust, err := trust(&all[i], dir)
		if err != nil {
			var field *FieldError
			if errors.As(err, &field) {
				err = wrong(fmt.Sprintf("[%d].tlsConfig.%s", i, field.Field), "%s", field.Problem)
			}
			return nil, err
		}
		x := newExtender(all[i], trust, reach)
		if names[x.name]++; names[x.name] > 1 {
			x.name = fmt.Sprintf("%s (%d)", x.name, names[x.name])
		}
		if x.s.Ignorable {
			ignorable = append(ignorable, x)
		} else {
			firm = append(firm, x)
		}
	}
	return append(firm, ignorable...), nil
}

func newExtender(s Settings, trust *tls.Config, reach Reach) *Extender {
	if s.HTTPTimeout.Duration == 0 {
		s.HTTPTimeout.Duration = Timeout
	}
	s.URLPrefix = strings.TrimRight(s.URLPrefix, "/")
	x := &Extender{
		name: "extender " + s.URLPrefix, s: s, reach: reach, managed: map[corev1.ResourceName]bool{},
		client: reach.Dial.DirectClient(trust, s.HTTPTimeout.Duration, 1<<30), // send reads less
	}
	for _, r := range s.ManagedResources {
		x.managed[corev1.ResourceName(r.Name)] = true
	}
	return x
}

// readFile reads a file of certificates or a key, which is small.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, 1<<20))
}

// trust is whom the extender's server is verified by, and what is shown to it; nil = by this machine's roots, and nothing.
func trust(s *Settings, dir string) (*tls.Config, error) {
	t := s.TLSConfig
	if t == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	path := func(name string) string {
		if name == "" || filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(dir, name)
	}
	read := func(field, name string, data []byte) ([]byte, error) {
		if len(data) > 0 || name == "" {
			return data, nil
		}
		data, err := readFile(path(name))
		if err != nil {
			return nil, wrong(field, "%v", err)
		}
		return data, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure} //nolint:gosec // as its field says
	ca, err := read("caFile", t.CAFile, t.CAData)
	if err != nil {
		return nil, err
	}
	if len(ca) > 0 {
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(ca) {
			return nil, wrong("caFile", "expected certificates in PEM")
		}
	}
	if t.CertFile == "" && len(t.CertData) == 0 {
		return out, nil
	}
	// Files are read again for each connection: a certificate that is renewed is shown from then on.
	pair := func() (*tls.Certificate, error) {
		cert, err := read("certFile", t.CertFile, t.CertData)
		if err != nil {
			return nil, err
		}
		key, err := read("keyFile", t.KeyFile, t.KeyData)
		if err != nil {
			return nil, err
		}
		both, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, wrong("certFile", "%v", err)
		}
		return &both, nil
	}
	if _, err := pair(); err != nil {
		return nil, err
	}
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair() }
	return out, nil
}
