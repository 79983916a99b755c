// SPDX-License-Identifier: Apache-2.0

// Package bundle reads bundles of Open Policy Agent: policies in Rego or compiled, with their
// data, and perhaps a signature of all of it.
//
// What Read returns is within the bundle's roots, and where keys are given, each file has the
// digest that one of them has signed, and none is missing. Sizes and counts are bounded. Rego is
// not parsed here: whoever compiles it does so in a process with limits.
package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/wasmplane/wasmplane/plugins/rego"
)

// Key verifies signatures.
type Key struct {
	// Algorithm: RS256, ES384, HS512 and so on.
	Algorithm string
	// Text is a public key in PEM, or the secret of an HS algorithm.
	Text string
}

// Options say what is expected of a bundle.
type Options struct {
	// Keys by their id; none = signatures are not looked at.
	Keys map[string]Key
	// Scope that the signature has to have.
	Scope string
	// Entrypoint is the rule or package that is asked; "" = the first that there is of those under
	// which such policies are published.
	Entrypoint string
	// Authorization: it is asked who may do what, not about admission.
	Authorization bool
	// Pinned: the bundle's digest was checked, so that a signature may go unverified.
	Pinned bool
}

// entrypoints are the names under which policies of Kubernetes are published, of admission or
// of authorization, in the order in which they are looked for.
func (o *Options) entrypoints() []string {
	if o.Authorization {
		return []string{"k8s/authz/decision", "k8s/authz", "kubernetes/authorization"}
	}
	return []string{"system/main", "kubernetes/admission"}
}

// Bundle is what a bundle holds.
type Bundle struct {
	// Wasm is the policy where it was compiled before; else Policy is to be compiled.
	Wasm       []byte
	Policy     rego.Policy
	Entrypoint string // in Wasm
	Data       map[string]any
	// Roots are the paths that belong to the bundle; "" = all.
	Roots []string
}

// Error is what is wrong with a bundle.
type Error struct{ err error }

func (e *Error) Error() string { return "bundle: " + e.err.Error() }

// Unwrap is what is wrong.
func (e *Error) Unwrap() error { return e.err }

// Read reads a bundle, a tar archive compressed with gzip, and verifies it.
func Read(archive []byte, o Options) (*Bundle, error) {
	b, err := read(archive, o)
	if err != nil {
		return nil, &Error{err}
	}
	return b, nil
}

func read(archive []byte, o Options) (*Bundle, error) {
	files, err := unpack(archive)
	if err != nil {
		return nil, err
	}
	if err := bounded(files); err != nil {
		return nil, err
	}
	if err := verify(files, o); err != nil {
		return nil, err
	}
	m, err := readManifest(files[manifestFile])
	if err != nil {
		return nil, err
	}
	b := &Bundle{Roots: *m.Roots}
	if b.Data, err = data(files, b.Roots); err != nil {
		return nil, err
	}
	if len(m.WasmResolvers) > 0 || files[wasmFile] != nil {
		return b, b.compiled(files, m.WasmResolvers, o)
	}
	return b, b.written(files, m, o)
}

// The files of a bundle that have a meaning by their name.
const (
	manifestFile   = ".manifest"
	signaturesFile = ".signatures.json"
	wasmFile       = "policy.wasm"
	patchFile      = "patch.json"
)

func readManifest(text []byte) (*bundle.Manifest, error) {
	m := &bundle.Manifest{}
	if text != nil {
		if err := json.Unmarshal(text, m); err != nil {
			return nil, fmt.Errorf("%s: %w", manifestFile, err)
		}
	}
	m.Init() // without roots, all is its own
	if len(m.FileRegoVersions) > 0 {
		return nil, fmt.Errorf("%s: file_rego_versions is not supported: all files are of one version, rego_version", manifestFile)
	}
	if v := m.RegoVersion; v != nil && *v != 0 && *v != 1 {
		return nil, fmt.Errorf("%s: rego_version: expected 0 or 1, found %d", manifestFile, *v)
	}
	roots := *m.Roots
	if len(roots) > mostRoots {
		return nil, fmt.Errorf("%s: roots: at most %d, found %d", manifestFile, mostRoots, len(roots))
	}
	for i := range roots {
		roots[i] = strings.Trim(roots[i], "/")
		for _, other := range roots[:i] {
			if bundle.RootPathsOverlap(roots[i], other) {
				return nil, fmt.Errorf("%s: roots: %q and %q overlap", manifestFile, other, roots[i])
			}
		}
	}
	return m, nil
}

// verify holds the files against the signature.
func verify(files map[string][]byte, o Options) error {
	text := files[signaturesFile]
	switch {
	case text == nil && len(o.Keys) > 0:
		return fmt.Errorf("it is not signed (%s is missing), and bundle.keys asks for a signature; `opa build --bundle --signing-key KEY` signs", signaturesFile)
	case text == nil || len(o.Keys) == 0 && o.Pinned:
		return nil
	case len(o.Keys) == 0:
		return errors.New("it is signed, and the entry has no keys to verify it with (bundle.keys), nor a digest")
	}
	var s bundle.SignaturesConfig
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", signaturesFile, err)
	}
	keys := map[string]*bundle.KeyConfig{}
	for id, k := range o.Keys {
		keys[id] = &bundle.KeyConfig{Key: k.Text, Algorithm: k.Algorithm}
	}
	how := bundle.NewVerificationConfig(keys, "", o.Scope, nil)
	if len(keys) == 1 { // as signatures need not name their key
		for how.KeyID = range keys {
		}
	}
	signed, err := bundle.VerifyBundleSignature(s, how)
	if err != nil {
		return fmt.Errorf("its signature does not count: %w", err)
	}
	for _, name := range names(files) {
		if name == signaturesFile {
			continue
		}
		if err := bundle.VerifyBundleFile(name, *bytes.NewBuffer(files[name]), signed); err != nil {
			return fmt.Errorf("its signature does not count: %w", err)
		}
	}
	if len(signed) > 0 {
		return fmt.Errorf("its signature does not count: %s is signed and missing", names(signed)[0])
	}
	return nil
}

// data makes one document of those in the bundle, each at the place of its folder.
func data(files map[string][]byte, roots []string) (map[string]any, error) {
	root := map[string]any{}
	for _, name := range names(files) {
		if kindOf(name) != inJSON && kindOf(name) != inYAML {
			continue
		}
		var value any
		if err := util.Unmarshal(files[name], &value); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var at []string
		if dir := path.Dir(name); dir != "." {
			at = strings.Split(dir, "/")
		}
		if err := within(roots, at, value); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := merge(root, at, value); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return root, nil
}

// within says that what stands at a path is below the roots.
func within(roots, at []string, value any) error {
	here := strings.Join(at, "/")
	if bundle.RootPathsContain(roots, here) {
		return nil
	}
	leads := slices.ContainsFunc(roots, func(root string) bool { return here == "" || strings.HasPrefix(root, here+"/") })
	tree, ok := value.(map[string]any)
	if !leads || !ok {
		return fmt.Errorf("data.%s is outside of the bundle's roots, %v", strings.Join(at, "."), roots)
	}
	for _, key := range names(tree) {
		if err := within(roots, append(slices.Clip(at), key), tree[key]); err != nil {
			return err
		}
	}
	return nil
}

// merge puts a value at a path of a document, where nothing else is.
func merge(into map[string]any, at []string, value any) error {
	if len(at) > 0 {
		below, there := into[at[0]]
		if !there {
			below = map[string]any{}
			into[at[0]] = below
		}
		tree, ok := below.(map[string]any)
		if !ok {
			return fmt.Errorf("data.%s is there twice", at[0])
		}
		return merge(tree, at[1:], value)
	}
	tree, ok := value.(map[string]any)
	if !ok {
		return errors.New("expected an object")
	}
	for _, key := range names(tree) {
		was, there := into[key]
		if !there {
			into[key] = tree[key]
			continue
		}
		both, ok := was.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is there twice", key)
		}
		if err := merge(both, nil, tree[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// Document is the policy's data: the bundle's with settings added, which may not be within its roots.
func (b *Bundle) Document(settings []byte) ([]byte, error) {
	more := map[string]any{}
	if len(settings) > 0 {
		if err := json.Unmarshal(settings, &more); err != nil {
			return nil, fmt.Errorf("settings: expected an object, which is added to the bundle's data: %w", err)
		}
	}
	out := map[string]any{}
	if err := merge(out, nil, b.Data); err != nil {
		return nil, err
	}
	for _, key := range names(more) {
		if slices.ContainsFunc(b.Roots, func(root string) bool { return bundle.RootPathsOverlap(root, key) }) {
			return nil, fmt.Errorf("settings.%s: data.%s belongs to the bundle, whose roots are %v; settings are added where no root is", key, key, b.Roots)
		}
		out[key] = more[key]
	}
	return json.Marshal(out)
}

// compiled takes the policy that was compiled before.
func (b *Bundle) compiled(files map[string][]byte, resolvers []bundle.WasmResolver, o Options) error {
	module := wasmFile
	var has []string
	for _, r := range resolvers {
		has = append(has, r.Entrypoint)
	}
	b.Entrypoint = slashed(o.Entrypoint)
	if o.Entrypoint == "" {
		if i := slices.IndexFunc(o.entrypoints(), func(e string) bool { return slices.Contains(has, e) }); i >= 0 {
			b.Entrypoint = o.entrypoints()[i]
		} else if len(has) == 1 {
			b.Entrypoint = has[0]
		}
	}
	if i := slices.Index(has, b.Entrypoint); i >= 0 {
		module = strings.TrimPrefix(resolvers[i].Module, "/")
	} else if len(has) > 0 {
		return fmt.Errorf("entrypoint: the bundle's module has %s: name one", strings.Join(has, ", "))
	}
	if b.Wasm = files[module]; b.Wasm == nil {
		return fmt.Errorf("%s names the module %s, which is missing", manifestFile, module)
	}
	return nil
}

// slashed is the path of a rule, however it was written.
func slashed(rule string) string {
	return strings.ReplaceAll(strings.TrimPrefix(rule, "data."), ".", "/")
}

// written takes the policy's text.
func (b *Bundle) written(files map[string][]byte, m *bundle.Manifest, o Options) error {
	b.Policy = rego.Policy{Version: rego.V1, Entrypoint: slashed(o.Entrypoint), Roots: b.Roots}
	if m.RegoVersion != nil && *m.RegoVersion == 0 {
		b.Policy.Version = rego.V0
	}
	if o.Entrypoint == "" {
		b.Policy.Among = o.entrypoints()
	}
	size := 0
	for _, name := range names(files) {
		if path.Ext(name) != ".rego" {
			continue
		}
		size += len(files[name])
		b.Policy.Files = append(b.Policy.Files, rego.File{Name: name, Text: string(files[name])})
	}
	switch {
	case len(b.Policy.Files) == 0:
		return errors.New("it holds no policy: neither a file *.rego nor policy.wasm")
	case size > rego.MostText:
		return fmt.Errorf("it has %d bytes of Rego: at most %d are allowed", size, rego.MostText)
	}
	return nil
}
