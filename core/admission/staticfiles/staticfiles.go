// SPDX-License-Identifier: Apache-2.0

// Package staticfiles reads webhook configurations and admission policies from a
// folder. They are in force before the first request, nobody can touch them
// through the API, and they may judge what those of the API may not: webhook
// configurations and policies themselves.
//
// Names end in ".static.k8s.io", which the API refuses, so that an annotation, a
// metric or a refusal never confuses the two. Since they don't depend on the
// API's objects, webhooks are named by url and policies take no parameters. The
// folder is followed; a state of it that has a mistake changes nothing.
package staticfiles

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// Suffix of the names.
const Suffix = ".static.k8s.io"

const (
	// maxBytes bounds the folder's files together.
	maxBytes = 16 << 20
	// lookEvery is how often the folder is looked at.
	lookEvery = time.Second
)

// Config of the folder.
type Config struct {
	Dir string
	// Decode reads one document, fills in defaults and validates it, but for its name.
	Decode func(ctx context.Context, document []byte) (runtime.Object, error)
	// Note is told what a person wants to know: a state that is taken, or why not; nil = nobody.
	Note func(string)
	Log  *slog.Logger // nil = discard
}

// None is where there is no folder.
type None struct{}

// Mutating are no webhooks.
func (None) Mutating() []*admissionregistrationv1.MutatingWebhookConfiguration { return nil }

// Validating are no webhooks.
func (None) Validating() []*admissionregistrationv1.ValidatingWebhookConfiguration { return nil }

// ValidatingPolicies are none.
func (None) ValidatingPolicies() (
	[]*admissionregistrationv1.ValidatingAdmissionPolicy, []*admissionregistrationv1.ValidatingAdmissionPolicyBinding,
) {
	return nil, nil
}

// MutatingPolicies are none.
func (None) MutatingPolicies() (
	[]*admissionregistrationv1.MutatingAdmissionPolicy, []*admissionregistrationv1.MutatingAdmissionPolicyBinding,
) {
	return nil, nil
}

// set is one state of the folder.
type set struct {
	mutatingHooks      []*admissionregistrationv1.MutatingWebhookConfiguration
	validatingHooks    []*admissionregistrationv1.ValidatingWebhookConfiguration
	validating         []*admissionregistrationv1.ValidatingAdmissionPolicy
	validatingBindings []*admissionregistrationv1.ValidatingAdmissionPolicyBinding
	mutating           []*admissionregistrationv1.MutatingAdmissionPolicy
	mutatingBindings   []*admissionregistrationv1.MutatingAdmissionPolicyBinding
}

// Folder is the folder in force.
type Folder struct {
	cfg  Config
	now  atomic.Pointer[set]
	seen [sha256.Size]byte
}

// Open reads the folder. A mistake in it is an error that names the file: a
// server must not start without the policies that it was told to have.
func Open(ctx context.Context, cfg Config) (*Folder, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Note == nil {
		cfg.Note = func(string) {}
	}
	f := &Folder{cfg: cfg}
	files, sum, err := f.read()
	if err != nil {
		return nil, err
	}
	now, err := f.load(ctx, files)
	if err != nil {
		return nil, err
	}
	f.now.Store(now)
	f.seen = sum
	return f, nil
}

// Mutating implements webhook.Static.
func (f *Folder) Mutating() []*admissionregistrationv1.MutatingWebhookConfiguration {
	return f.now.Load().mutatingHooks
}

// Validating implements webhook.Static.
func (f *Folder) Validating() []*admissionregistrationv1.ValidatingWebhookConfiguration {
	return f.now.Load().validatingHooks
}

// ValidatingPolicies implements policy.Static.
func (f *Folder) ValidatingPolicies() (
	[]*admissionregistrationv1.ValidatingAdmissionPolicy, []*admissionregistrationv1.ValidatingAdmissionPolicyBinding,
) {
	s := f.now.Load()
	return s.validating, s.validatingBindings
}

// MutatingPolicies implements policy.Static.
func (f *Folder) MutatingPolicies() (
	[]*admissionregistrationv1.MutatingAdmissionPolicy, []*admissionregistrationv1.MutatingAdmissionPolicyBinding,
) {
	s := f.now.Load()
	return s.mutating, s.mutatingBindings
}

// Run follows the folder until ctx ends.
func (f *Folder) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	last := f.seen
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		files, sum, err := f.read()
		switch {
		case err != nil:
			if last != ([sha256.Size]byte{}) {
				f.cfg.Note(fmt.Sprintf("static admission: %v (what was in force stays in force)", err))
			}
			last = [sha256.Size]byte{}
		case sum == f.seen:
			last = sum
		case sum != last:
			last = sum // it is still being written, maybe: it has to be the same twice
		default:
			f.take(ctx, files, sum)
		}
	}
}

func (f *Folder) take(ctx context.Context, files []file, sum [sha256.Size]byte) {
	f.seen = sum
	next, err := f.load(ctx, files)
	if err != nil {
		f.cfg.Note(fmt.Sprintf("static admission: %v (what was in force stays in force)", err))
		return
	}
	f.now.Store(next)
	f.cfg.Log.InfoContext(ctx, "the admission policies and webhooks of files were read again", "dir", f.cfg.Dir, "files", len(files))
}

type file struct {
	path string
	data []byte
}

// read the folder's manifests, by name.
func (f *Folder) read() ([]file, [sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	entries, err := os.ReadDir(f.cfg.Dir)
	if err != nil {
		return nil, sum, fmt.Errorf("read the folder of static admission manifests: %w", err)
	}
	h := sha256.New()
	var out []file
	total := int64(0)
	for _, e := range entries {
		switch strings.ToLower(filepath.Ext(e.Name())) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		path := filepath.Join(f.cfg.Dir, e.Name())
		info, err := os.Stat(path) // not the entry's: a mounted file is a link
		if err != nil || info.IsDir() {
			continue
		}
		if total += info.Size(); total > maxBytes {
			return nil, sum, fmt.Errorf("%s: the folder's manifests are larger than %d bytes together", path, maxBytes)
		}
		data, err := os.ReadFile(path) //nolint:gosec // the folder is named by the operator
		if err != nil {
			return nil, sum, fmt.Errorf("read %s: %w", path, err)
		}
		_, _ = fmt.Fprintf(h, "%s\x00%d\x00", e.Name(), len(data))
		_, _ = h.Write(data)
		out = append(out, file{path, data})
	}
	h.Sum(sum[:0])
	return out, sum, nil
}

// load makes a set of the files.
func (f *Folder) load(ctx context.Context, files []file) (*set, error) {
	out, names := &set{}, map[string]string{}
	for _, file := range files {
		docs, err := documents(file.data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.path, err)
		}
		for n, doc := range docs {
			o, err := f.cfg.Decode(ctx, doc)
			if err == nil {
				err = out.add(o, file.path, names)
			}
			if err != nil {
				return nil, fmt.Errorf("%s, document %d: %w", file.path, n+1, err)
			}
		}
	}
	return out, out.complete()
}

func documents(data []byte) ([][]byte, error) {
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var out [][]byte
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if !blank(doc) {
			out = append(out, doc)
		}
	}
}

// blank: comments only.
func blank(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && string(line) != "---" {
			return false
		}
	}
	return true
}

func (s *set) add(o runtime.Object, path string, names map[string]string) error {
	m, ok := o.(metav1.Object)
	if !ok {
		return fmt.Errorf("expected a webhook configuration or an admission policy, found a %T", o)
	}
	kind := o.GetObjectKind().GroupVersionKind().Kind
	key := kind + " " + m.GetName()
	if before, taken := names[key]; taken {
		return fmt.Errorf("%s is in %s already", key, before)
	}
	names[key] = path
	if !strings.HasSuffix(m.GetName(), Suffix) {
		return fmt.Errorf("metadata.name: expected a name that ends with %q, found %q", Suffix, m.GetName())
	}
	switch o := o.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		s.mutatingHooks = append(s.mutatingHooks, o)
		for i := range o.Webhooks {
			if err := byURL(i, &o.Webhooks[i].ClientConfig); err != nil {
				return err
			}
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		s.validatingHooks = append(s.validatingHooks, o)
		for i := range o.Webhooks {
			if err := byURL(i, &o.Webhooks[i].ClientConfig); err != nil {
				return err
			}
		}
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		s.validating = append(s.validating, o)
		return noParams(o.Spec.ParamKind != nil, "spec.paramKind")
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		s.mutating = append(s.mutating, o)
		return noParams(o.Spec.ParamKind != nil, "spec.paramKind")
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		s.validatingBindings = append(s.validatingBindings, o)
		return noParams(o.Spec.ParamRef != nil, "spec.paramRef")
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		s.mutatingBindings = append(s.mutatingBindings, o)
		return noParams(o.Spec.ParamRef != nil, "spec.paramRef")
	default:
		return fmt.Errorf("expected a webhook configuration or an admission policy of admissionregistration.k8s.io/v1, found a %s", kind)
	}
	return nil
}

func byURL(i int, c *admissionregistrationv1.WebhookClientConfig) error {
	if c.Service != nil || c.URL == nil || *c.URL == "" {
		return fmt.Errorf("webhooks[%d].clientConfig: a static webhook is named by url; a service would depend on the API", i)
	}
	return nil
}

func noParams(has bool, field string) error {
	if has {
		return fmt.Errorf("%s: a static policy takes no parameters; they would depend on the API", field)
	}
	return nil
}

// complete sorts, and sees to it that each binding has its policy in the folder.
func (s *set) complete() error {
	byName(s.mutatingHooks)
	byName(s.validatingHooks)
	byName(s.validating)
	byName(s.validatingBindings)
	byName(s.mutating)
	byName(s.mutatingBindings)
	for _, b := range s.validatingBindings {
		if !slices.ContainsFunc(s.validating,
			func(p *admissionregistrationv1.ValidatingAdmissionPolicy) bool { return p.Name == b.Spec.PolicyName }) {
			return missing(b.Name, b.Spec.PolicyName)
		}
	}
	for _, b := range s.mutatingBindings {
		if !slices.ContainsFunc(s.mutating,
			func(p *admissionregistrationv1.MutatingAdmissionPolicy) bool { return p.Name == b.Spec.PolicyName }) {
			return missing(b.Name, b.Spec.PolicyName)
		}
	}
	return nil
}

func missing(binding, policy string) error {
	return fmt.Errorf("binding %s: spec.policyName: no file of the folder has a policy %q", binding, policy)
}

func byName[T metav1.Object](list []T) {
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
}
