// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	opa "github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/compile"

	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/rego"
	"github.com/wasmplane/wasmplane/plugins/rego/bundle"
)

// policies are the files of a bundle.
var policies = map[string]string{
	".manifest":       `{"roots": ["kubernetes", "lists"], "revision": "7"}`,
	"deny.rego":       "package kubernetes.admission\nimport data.lists\ndeny contains msg if {\n\tinput.request.object.metadata.name in lists.bad\n\tmsg := \"a bad name\"\n}\n",
	"other.rego":      "package kubernetes.other\nx := 1\n",
	"lists/data.json": `{"bad": ["x"]}`,
	"lists/data.yaml": "good: [y]\n",
}

// build is what Open Policy Agent's own library builds and signs of some files.
func build(t *testing.T, files map[string]string, private, target string, entrypoints ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	c := compile.New().WithFS(os.DirFS(dir)).WithPaths(".").WithAsBundle(true).WithTarget(target).
		WithEntrypoints(entrypoints...).WithOutput(&out)
	if private != "" {
		c = c.WithBundleSigningConfig(opa.NewSigningConfig(private, "ES256", "")).WithBundleVerificationKeyID("main")
	}
	if err := c.Build(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// pack makes an archive by hand.
func pack(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for i := range headers {
		h := headers[i]
		text := h.Linkname
		if h.Typeflag == 0 {
			h.Typeflag, h.Linkname, h.Size = tar.TypeReg, "", int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// file is a file of an archive.
func file(name, text string) tar.Header { return tar.Header{Name: name, Linkname: text} }

// changed is an archive with some of its files replaced ("" = left out) or added.
func changed(t *testing.T, archive []byte, by map[string]string) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	var out []tar.Header
	seen := map[string]bool{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, "/")
		seen[name] = true
		if other, ok := by[name]; ok {
			text = []byte(other)
		}
		if len(text) > 0 {
			out = append(out, file(h.Name, string(text)))
		}
	}
	for name, text := range by {
		if !seen[name] {
			out = append(out, file(name, text))
		}
	}
	return pack(t, out...)
}

func TestABundleOfOpenPolicyAgentIsRead(t *testing.T) {
	private, public := plugintest.SigningKey(t)
	archive := build(t, policies, private, compile.TargetRego)
	b, err := bundle.Read(archive, bundle.Options{Keys: map[string]bundle.Key{"main": {Algorithm: "ES256", Text: public}}})
	if err != nil {
		t.Fatal(err)
	}
	if wasm, err := rego.Compile(t.Context(), b.Policy); err != nil || !bytes.Contains(wasm, []byte("kubernetes/admission")) {
		t.Errorf("its Rego becomes %d bytes: %v", len(wasm), err)
	}
	document, err := b.Document([]byte(`{"team": "red"}`))
	if want := `{"lists":{"bad":["x"],"good":["y"]},"team":"red"}`; err != nil || string(document) != want {
		t.Errorf("its data are %s, %v", document, err)
	}
	for settings, want := range map[string]string{
		`{"lists": {"bad": []}}`: "settings.lists: data.lists belongs to the bundle", `[]`: "expected an object",
	} {
		if _, err := b.Document([]byte(settings)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("settings %s: %v", settings, err)
		}
	}
}

func TestACompiledBundleIsRead(t *testing.T) {
	for name, c := range map[string]struct {
		has               []string
		asked, want, fail string
	}{
		"the only one":  {has: []string{"kubernetes/admission/deny"}, want: "kubernetes/admission/deny"},
		"the known one": {has: []string{"kubernetes/other/x", "kubernetes/admission"}, want: "kubernetes/admission"},
		"the named one": {has: []string{"kubernetes/other/x", "kubernetes/admission"}, asked: "data.kubernetes.other.x", want: "kubernetes/other/x"},
		"another":       {has: []string{"kubernetes/admission/deny"}, asked: "system/main", fail: "entrypoint: the bundle's module has kubernetes/admission/deny"},
		"one of many":   {has: []string{"kubernetes/other/x", "kubernetes/admission/deny"}, fail: "name one"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := bundle.Read(build(t, policies, "", compile.TargetWasm, c.has...), bundle.Options{Entrypoint: c.asked})
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) {
					t.Fatalf("error %v, want %q", err, c.fail)
				}
				return
			}
			if err != nil || b.Entrypoint != c.want || !bytes.HasPrefix(b.Wasm, []byte("\x00asm")) {
				t.Errorf("entrypoint %q, %v", b.Entrypoint, err)
			}
		})
	}
}

// TestSignaturesOfBundles: each way in which a bundle can differ from what was signed.
func TestSignaturesOfBundles(t *testing.T) {
	private, public := plugintest.SigningKey(t)
	_, others := plugintest.SigningKey(t)
	signed := build(t, policies, private, compile.TargetRego)
	key := func(id, text string) map[string]bundle.Key {
		return map[string]bundle.Key{id: {Algorithm: "ES256", Text: text}}
	}
	both := key("main", public)
	both["other"] = bundle.Key{Algorithm: "ES256", Text: others}
	for name, c := range map[string]struct {
		archive []byte
		o       bundle.Options
		fail    string
	}{
		"sound":                 {archive: signed, o: bundle.Options{Keys: key("main", public)}},
		"one of two keys":       {archive: signed, o: bundle.Options{Keys: both}},
		"another's key":         {archive: signed, o: bundle.Options{Keys: key("main", others)}, fail: "its signature does not count: failed to verify"},
		"no such key":           {archive: signed, o: bundle.Options{Keys: map[string]bundle.Key{"a": both["main"], "b": both["other"]}}, fail: "its signature does not count: verification key"},
		"another algorithm":     {archive: signed, o: bundle.Options{Keys: map[string]bundle.Key{"main": {Algorithm: "RS256", Text: public}}}, fail: "its signature does not count"},
		"another scope":         {archive: signed, o: bundle.Options{Keys: key("main", public), Scope: "write"}, fail: "scope mismatch"},
		"a changed file":        {archive: changed(t, signed, map[string]string{"data.json": `{"lists": {}}`}), o: bundle.Options{Keys: key("main", public)}, fail: "data.json: digest mismatch"},
		"a missing file":        {archive: changed(t, signed, map[string]string{"data.json": ""}), o: bundle.Options{Keys: key("main", public)}, fail: "data.json is signed and missing"},
		"a file more":           {archive: changed(t, signed, map[string]string{"more.rego": "package kubernetes.more\n"}), o: bundle.Options{Keys: key("main", public)}, fail: "file more.rego not included in bundle signature"},
		"without its signature": {archive: changed(t, signed, map[string]string{".signatures.json": ""}), o: bundle.Options{Keys: key("main", public)}, fail: ".signatures.json is missing"},
		"a broken signature":    {archive: changed(t, signed, map[string]string{".signatures.json": "{"}), o: bundle.Options{Keys: key("main", public)}, fail: ".signatures.json: "},
		"no signatures":         {archive: changed(t, signed, map[string]string{".signatures.json": `{"signatures": []}`}), o: bundle.Options{Keys: key("main", public)}, fail: "missing JWT"},
		"another's verifier":    {archive: changed(t, signed, map[string]string{".signatures.json": `{"signatures": ["a.b.c"], "plugin": "x"}`}), o: bundle.Options{Keys: key("main", public)}, fail: "no verifier"},
		"keys are missing":      {archive: signed, fail: "the entry has no keys"},
		"its digest is known":   {archive: signed, o: bundle.Options{Pinned: true}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := bundle.Read(c.archive, c.o)
			if (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
				t.Errorf("error %v, want %q", err, c.fail)
			}
		})
	}
}

func TestWhatIsNoBundleIsSaid(t *testing.T) {
	policy := file("p.rego", "package system\nmain := 1\n")
	for name, c := range map[string]struct {
		archive []byte
		fail    string
	}{
		"nothing":            {nil, "expected an archive"},
		"no archive":         {[]byte("package a\n"), "expected an archive"},
		"a broken archive":   {pack(t, policy)[:60], "its archive is broken"},
		"empty":              {pack(t), "it holds no policy"},
		"a manifest, broken": {pack(t, policy, file(".manifest", "{")), ".manifest: "},
		"roots that overlap": {pack(t, policy, file(".manifest", `{"roots": ["system", "a/b", "/a/"]}`)), `roots: "a/b" and "a" overlap`},
		"data outside":       {pack(t, policy, file(".manifest", `{"roots": ["system", "a/b"]}`), file("a/data.json", `{"b": {"c": 1}, "d": 1}`)), "a/data.json: data.a.d is outside of the bundle's roots"},
		"data inside":        {pack(t, policy, file(".manifest", `{"roots": ["system", "a/b"]}`), file("a/data.json", `{"b": {"c": 1}}`)), ""},
		"data twice":         {pack(t, policy, file("a/data.json", `{"b": 1}`), file("data.json", `{"a": {"b": 2}}`)), "is there twice"},
		"data, no object":    {pack(t, policy, file("data.json", `[1]`)), "data.json: expected an object"},
		"data, broken":       {pack(t, policy, file("data.json", `{"a"`)), "data.json: "},
		"a file twice":       {pack(t, policy, policy), "p.rego is there twice"},
		"a file by two ways": {pack(t, policy, file("./a/../p.rego", "package b\n")), "p.rego is there twice"},
		"a link":             {pack(t, policy, tar.Header{Name: "data.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), "data.json is no regular file"},
		"a delta":            {pack(t, file("/patch.json", "{}")), "it is a delta bundle"},
		"another language":   {pack(t, policy, file(".manifest", `{"rego_version": 2}`)), "rego_version: expected 0 or 1, found 2"},
		"several languages":  {pack(t, policy, file(".manifest", `{"file_rego_versions": {"p.rego": 0}}`)), "file_rego_versions is not supported"},
		"a module, missing":  {pack(t, policy, file(".manifest", `{"wasm": [{"entrypoint": "system/main", "module": "/x.wasm"}]}`)), "names the module x.wasm, which is missing"},
		"too much Rego":      {pack(t, file("p.rego", "package a\n#"+strings.Repeat("x", rego.MostText))), "at most 1048576"},
		"too much data":      {pack(t, policy, file("data.json", `{"a": "`+strings.Repeat("x", 16<<20)+`"}`)), "the data have more than"},
		"too much YAML":      {pack(t, policy, file("a/data.yaml", "b: "+strings.Repeat("x", 1<<20))), "the data in YAML have more than 1048576 bytes"},
		"too many values":    {pack(t, policy, file("a/data.json", `{"a": [`+strings.Repeat("0,", 5e5)+`0]}`)), "more than 500000 values"},
		"many texts":         {pack(t, policy, file("a/data.json", `{"a": "`+strings.Repeat(`,[\"{`, 5e5)+`"}`)), ""},
		"too many roots":     {pack(t, policy, file(".manifest", `{"roots": ["system"`+strings.Repeat(`,"a"`, 512)+`]}`)), "roots: at most 512, found 513"},
		"a large manifest":   {pack(t, policy, file(".manifest", `{"revision": "`+strings.Repeat("x", 1<<20)+`"}`)), ".manifest: it has more than 1048576 bytes"},
		"large signatures":   {pack(t, policy, file(".signatures.json", strings.Repeat(" ", 4<<20+1))), ".signatures.json: it has more than 4194304 bytes"},
		"a bomb":             {pack(t, file("x", strings.Repeat("x", 65<<20))), "when it is unpacked"},
		"too many files": {pack(t, func() (all []tar.Header) {
			for range 4097 {
				all = append(all, tar.Header{Name: "d/", Typeflag: tar.TypeDir})
			}
			return all
		}()...), "more than 4096 files"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := bundle.Read(c.archive, bundle.Options{})
			if (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
				t.Errorf("error %v, want %q", err, c.fail)
			}
		})
	}
}

// FuzzRead: no archive does more than fail.
func FuzzRead(f *testing.F) {
	f.Add([]byte("package system\nmain := 1\n"), []byte(`{"roots": ["system"]}`), []byte(`{"a": 1}`), []byte(`{"signatures": ["a.b.c"]}`))
	f.Fuzz(func(t *testing.T, policy, manifest, data, signatures []byte) {
		archive := pack(t, file("p.rego", string(policy)), file(".manifest", string(manifest)), file("a/data.json", string(data)),
			file(".signatures.json", string(signatures)))
		b, err := bundle.Read(archive, bundle.Options{Keys: map[string]bundle.Key{"main": {Algorithm: "ES256", Text: "x"}}})
		if err == nil {
			t.Errorf("it was verified: %+v", b)
		}
		if b, err := bundle.Read(archive, bundle.Options{Pinned: true}); err == nil {
			if _, err := b.Document(nil); err != nil {
				t.Error(err)
			}
		}
	})
}
