// SPDX-License-Identifier: Apache-2.0

// Package rego compiles policies in Rego to the WebAssembly that Open Policy Agent's
// compiler makes of them, so that a policy runs from the text in which it was written.
//
// Compiling reads text that somebody wrote and may take as long as it likes: callers that
// do not trust the text run it in a process with limits (plugins/host does).
package rego

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/compile"
	"github.com/open-policy-agent/opa/v1/types"
	"github.com/open-policy-agent/opa/v1/version"
)

// Version is a version of the language.
type Version string

// The versions. In V0, `if` and `contains` are names like any other unless they are imported.
const (
	V0 Version = "v0"
	V1 Version = "v1"
)

// File is one module of Rego. Its name is what errors call it.
type File struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Policy is what is compiled into one module of WebAssembly.
type Policy struct {
	// Files: the first one has the rule that is asked, the others are what it imports.
	Files   []File  `json:"files"`
	Version Version `json:"version"` // empty: V1
	// Entrypoint is the path of the rule or package that is asked, package/rule; empty: the first
	// of Among that there is, or where there are none the rule "violation" of the first file.
	Entrypoint string   `json:"entrypoint,omitempty"`
	Among      []string `json:"among,omitempty"`
	// Roots are the paths within which all packages have to be; none = anywhere.
	Roots []string `json:"roots,omitempty"`
}

// MostText bounds the text of all files of a policy, in bytes.
const MostText = 1 << 20

// Key names what is compiled of a policy by this version of the compiler.
func (p *Policy) Key() (string, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("name the policy by its text: %w", err)
	}
	return fmt.Sprintf("rego %s %x", version.Version, sha256.Sum256(text)), nil
}

// mostErrors bounds how many of the compiler's errors are shown.
const mostErrors = 10

// violation is the rule of Gatekeeper's policies.
const violation = "violation"

// Compile compiles a policy. An error names file and line.
func Compile(ctx context.Context, p Policy) (wasm []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the compiler for Rego crashed on this policy: %v", r)
		}
	}()
	b, err := p.read()
	if err != nil {
		return nil, err
	}
	entrypoint, err := p.entrypoint(b.Modules)
	if err != nil {
		return nil, err
	}
	c := compile.New().WithTarget(compile.TargetWasm).WithEntrypoints(entrypoint).WithBundle(b).
		WithRegoVersion(p.version()).WithCapabilities(p.capabilities())
	if err := c.Build(ctx); err != nil {
		return nil, shown(err)
	}
	for _, m := range c.Bundle().WasmModules {
		return m.Raw, nil
	}
	return nil, errors.New("the compiler for Rego made no module")
}

// read parses the files.
func (p *Policy) read() (*bundle.Bundle, error) {
	if len(p.Files) == 0 || strings.TrimSpace(p.Files[0].Text) == "" {
		return nil, errors.New("the policy has no text")
	}
	size := 0
	for _, f := range p.Files {
		size += len(f.Text)
	}
	if size > MostText {
		return nil, fmt.Errorf("the policy has %d bytes of text: at most %d are allowed", size, MostText)
	}
	b := &bundle.Bundle{Data: map[string]any{}}
	b.Manifest.Init()
	b.SetRegoVersion(p.version())
	var errs []error
	for _, f := range p.Files {
		m, err := ast.ParseModuleWithOpts(f.Name, f.Text, ast.ParserOptions{RegoVersion: p.version(), Capabilities: p.capabilities()})
		if err != nil || m == nil {
			errs = append(errs, shown(err))
			continue
		}
		if at := pathOf(m); len(p.Roots) > 0 && !bundle.RootPathsContain(p.Roots, at) {
			errs = append(errs, fmt.Errorf("%s: package %s is outside of the bundle's roots, %v", f.Name, strings.ReplaceAll(at, "/", "."), p.Roots))
			continue
		}
		b.Modules = append(b.Modules, bundle.ModuleFile{URL: f.Name, Path: f.Name, Parsed: m, Raw: []byte(f.Text)})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return b, nil
}

// pathOf is the path of a module's package.
func pathOf(m *ast.Module) string {
	return strings.ReplaceAll(strings.TrimPrefix(m.Package.Path.String(), "data."), ".", "/")
}

// entrypoint is the path of what is asked.
func (p *Policy) entrypoint(modules []bundle.ModuleFile) (string, error) {
	if p.Entrypoint != "" {
		return p.Entrypoint, nil
	}
	var has []string
	for i, m := range modules {
		if i > 0 && len(p.Among) == 0 {
			break
		}
		has = append(has, pathOf(m.Parsed))
		for _, r := range m.Parsed.Rules {
			if name := pathOf(m.Parsed) + "/" + r.Head.Ref()[0].Value.String(); !slices.Contains(has, name) {
				has = append(has, name)
			}
		}
	}
	among := p.Among
	if len(among) == 0 {
		among = []string{has[0] + "/" + violation}
	}
	for _, one := range among {
		if slices.Contains(has, one) {
			return one, nil
		}
	}
	if len(has) > mostErrors {
		has = append(has[:mostErrors], "and others")
	}
	return "", fmt.Errorf("entrypoint: which rule is asked? None is called %s; there are %s: name one",
		strings.Join(among, " or "), strings.Join(has, ", "))
}

func (p *Policy) version() ast.RegoVersion {
	if p.Version == V0 {
		return ast.RegoV0
	}
	return ast.RegoV1
}

// capabilities are those of the language, but for looking schemas up in the network.
func (p *Policy) capabilities() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion(ast.CapabilitiesRegoVersion(p.version()))
	c.AllowNet = []string{}
	c.Builtins = append(c.Builtins, external)
	return c
}

// external is how constraints of Gatekeeper ask providers. Whether a policy may is found out when it is loaded.
var external = &ast.Builtin{
	Name: "external_data",
	Decl: types.NewFunction(types.Args(types.NewObject(nil, types.NewDynamicProperty(types.S, types.A))), types.A),
}

// shown words an error of the compiler, one line for each thing that is wrong.
func shown(err error) error {
	var list ast.Errors
	if !errors.As(err, &list) {
		if err == nil {
			err = errors.New("the file has no package")
		}
		return err
	}
	var lines []string
	for _, e := range list[:min(len(list), mostErrors)] {
		at := ""
		if e.Location != nil {
			at = fmt.Sprintf("%s:%d: ", e.Location.File, e.Location.Row)
		}
		lines = append(lines, at+strings.TrimSpace(e.Message))
	}
	if more := len(list) - mostErrors; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(lines, "\n"))
}
