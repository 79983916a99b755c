// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"
)

// inventory is what a binary and the programs embedded in it were made of.
type inventory struct {
	arch      string
	digest    string // of the binary, SHA-256
	goVersion string
	modules   []debug.Module // sorted, each once; ours first
}

func (r *release) inventory(b build) (*inventory, error) {
	content, err := os.ReadFile(b.binary)
	if err != nil {
		return nil, fmt.Errorf("the binary: %w", err)
	}
	out := &inventory{arch: b.arch, digest: fmt.Sprintf("%x", sha256.Sum256(content))}
	seen := map[string]bool{}
	var deps []debug.Module
	for _, program := range append([]string{b.binary}, b.helpers...) {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, fmt.Errorf("what %s was built from: %w", program, err)
		}
		out.goVersion = info.GoVersion
		for _, m := range info.Deps {
			if !seen[m.Path+"@"+m.Version] {
				seen[m.Path+"@"+m.Version] = true
				deps = append(deps, *m)
			}
		}
		if len(out.modules) == 0 {
			out.modules = []debug.Module{{Path: info.Main.Path, Version: r.version}}
		}
	}
	slices.SortFunc(deps, func(a, b debug.Module) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Version, b.Version))
	})
	out.modules = append(out.modules, deps...)
	return out, nil
}

// ours reports whether a module is a part of this repository.
func (i *inventory) ours(m debug.Module) bool {
	return m.Path == i.modules[0].Path || strings.HasPrefix(m.Path, i.modules[0].Path+"/")
}

// The parts of an SPDX 2.3 document in JSON that we fill
// (https://spdx.github.io/spdx-spec/v2.3/).
type (
	spdxDocument struct {
		SPDXVersion       string             `json:"spdxVersion"`
		DataLicense       string             `json:"dataLicense"`
		SPDXID            string             `json:"SPDXID"`
		Name              string             `json:"name"`
		DocumentNamespace string             `json:"documentNamespace"`
		CreationInfo      spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Relationships     []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string         `json:"SPDXID"`
		Name             string         `json:"name"`
		VersionInfo      string         `json:"versionInfo"`
		DownloadLocation string         `json:"downloadLocation"`
		FilesAnalyzed    bool           `json:"filesAnalyzed"`
		LicenseConcluded string         `json:"licenseConcluded"`
		LicenseDeclared  string         `json:"licenseDeclared"`
		CopyrightText    string         `json:"copyrightText"`
		PrimaryPurpose   string         `json:"primaryPackagePurpose,omitempty"`
		Checksums        []spdxChecksum `json:"checksums,omitempty"`
		ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func spdxID(name string) string { return "SPDXRef-" + notInID.ReplaceAllString(name, "-") }

// spdx is the inventory as a document: the binary, and under it the standard library and
// every module with its version.
func (i *inventory) spdx(r *release) ([]byte, error) {
	const none = "NOASSERTION"
	binary := spdxPackage{
		SPDXID: "SPDXRef-wasmplane", Name: "wasmplane", VersionInfo: r.version, DownloadLocation: none, PrimaryPurpose: "APPLICATION",
		LicenseConcluded: "Apache-2.0", LicenseDeclared: "Apache-2.0", CopyrightText: "Copyright the wasmplane authors",
		Checksums: []spdxChecksum{{"SHA256", i.digest}},
	}
	if r.commit != "" {
		binary.DownloadLocation = "git+https://github.com/wasmplane/wasmplane@" + r.commit
	}
	d := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT",
		Name:              "wasmplane-" + r.version + "-linux-" + i.arch,
		DocumentNamespace: "https://github.com/wasmplane/wasmplane/spdx/" + r.version + "-linux-" + i.arch + "-" + i.digest,
		CreationInfo: spdxCreation{
			Created:  r.time.Format(time.RFC3339),
			Creators: []string{"Tool: wasmplane-release", "Organization: The wasmplane authors"},
		},
		Packages:      []spdxPackage{binary},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", binary.SPDXID}},
	}
	add := func(name, version, purl, license string) {
		p := spdxPackage{
			SPDXID: spdxID("go-" + name + "-" + version), Name: name, VersionInfo: version, DownloadLocation: none, PrimaryPurpose: "LIBRARY",
			LicenseConcluded: none, LicenseDeclared: license, CopyrightText: none,
			ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", purl}},
		}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, spdxRelationship{binary.SPDXID, "STATIC_LINK", p.SPDXID})
	}
	goVersion := strings.TrimPrefix(i.goVersion, "go")
	add("stdlib", goVersion, "pkg:golang/stdlib@"+goVersion, "BSD-3-Clause")
	for _, m := range i.modules[1:] {
		license := none
		if i.ours(m) {
			license = "Apache-2.0"
		}
		add(m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version, license)
	}
	b, err := json.MarshalIndent(d, "", " ")
	return append(b, '\n'), err
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright|unlicense)([.-].*)?$`)

// licenses are the texts that the modules want to be passed on with a binary, each once, under
// the names of the modules that have it.
func (r *release) licenses(i *inventory) ([]byte, error) {
	type text struct {
		content []byte
		modules []string
	}
	var texts []*text
	byContent := map[string]*text{}
	for _, m := range i.modules {
		if i.ours(m) {
			continue
		}
		if m.Replace != nil {
			m = *m.Replace
		}
		found, err := r.licensesOf(m)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			t := byContent[string(f.content)]
			if t == nil {
				t = &text{content: f.content}
				byContent[string(f.content)] = t
				texts = append(texts, t)
			}
			t.modules = append(t.modules, m.Path+"@"+m.Version+" ("+f.name+")")
		}
	}
	var b bytes.Buffer
	b.WriteString("The licenses and notices of the modules in wasmplane, and of the Go standard library (BSD-3-Clause, https://go.dev/LICENSE).\n")
	for _, t := range texts {
		b.WriteString("\n" + strings.Repeat("=", 80) + "\n" + strings.Join(t.modules, "\n") + "\n" + strings.Repeat("-", 80) + "\n")
		b.Write(bytes.TrimSpace(bytes.ReplaceAll(t.content, []byte("\r\n"), []byte("\n"))))
		b.WriteString("\n")
	}
	return b.Bytes(), nil
}

// licensesOf are the files in a module's folder; a module without one is an error.
func (r *release) licensesOf(m debug.Module) ([]file, error) {
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return nil, err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.modules, filepath.FromSlash(path.Clean(escaped))+"@"+version)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the license of %s: %w", m.Path, err)
	}
	var out []file
	for _, e := range entries {
		if e.Type().IsRegular() && licenseFile.MatchString(e.Name()) {
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			out = append(out, file{name: e.Name(), content: content})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s@%s has no license in %s: find out under which it may be passed on", m.Path, m.Version, dir)
	}
	return out, nil
}
