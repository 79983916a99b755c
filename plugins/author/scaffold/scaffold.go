// SPDX-License-Identifier: Apache-2.0

// Package scaffold makes new plugins: a source that works, cases that it passes, an
// entry, and the SDK of its language beside it. It never writes over an author's file.
package scaffold

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/sdk"
)

//go:embed templates
var templates embed.FS

// Templates lists the points that Init knows, the default first.
func Templates() []string {
	var out []string
	for _, p := range abi.TemplatePoints() {
		out = append(out, string(p))
	}
	return out
}

var nameForm = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Init makes a plugin in the folder dir, which must not hold one: a source that
// works, cases that it passes, an entry, and the SDK of its language. It returns the files that are
// the author's own.
func Init(dir, name string, l toolchain.Language, point string) ([]string, error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("a plugin's name is 1 to 63 lower-case letters, digits and dashes and begins with a letter, found %q", name)
	}
	if !slices.Contains(toolchain.Languages(), l) {
		return nil, fmt.Errorf("there is no SDK for %q; there is one for %s (any other language can follow sdk/spec)", l, joined(toolchain.Languages()))
	}
	if !slices.Contains(Templates(), point) {
		return nil, fmt.Errorf("there is no template for point %q; there are templates for %s. Begin with one of them and name another hook in the source", point, strings.Join(Templates(), ", "))
	}
	for _, f := range []string{author.EntryFile, l.Main()} {
		if _, err := os.Stat(filepath.Join(dir, f)); err == nil {
			return nil, fmt.Errorf("%s is there already: init makes new plugins only, give it a folder of its own", filepath.Join(dir, f))
		}
	}
	if l == toolchain.Python && point == string(abi.SchedulingTable) {
		return nil, fmt.Errorf("there is no template for point %s in %s, whose modules are components: the table is kept in a module's own "+
			"memory. Take scheduling.filter or scheduling.score, or another language", point, l)
	}
	source, err := templates.ReadFile("templates/" + written(l) + "/" + point)
	if err != nil {
		return nil, fmt.Errorf("read the template: %w", err)
	}
	cases, err := templates.ReadFile("templates/cases/" + point + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("read the template: %w", err)
	}
	files := map[string]string{
		l.Main(): strings.ReplaceAll(string(source), "my-plugin", name),
		author.EntryFile: "# How " + name + " is loaded: an element of plugins in the configuration, or the spec of a Plugin.\n" +
			"name: " + name + "\nsource: file:" + name + ".wasm\npoints: [" + point + "]\n" + grants(point) + limits(l),
		author.CasesFile: string(cases),
		".gitignore":     "*.wasm\ntarget/\nnode_modules/\n__pycache__/\n",
	}
	for path, content := range project(name, l) {
		files[path] = content
	}
	var made []string
	for path, content := range files {
		made = append(made, path)
		if err := writeNew(filepath.Join(dir, path), content); err != nil {
			return nil, err
		}
	}
	slices.Sort(made)
	return made, sdk.Vendor(string(l), filepath.Join(dir, "wasmplane"))
}

// project are the files by which a language's own tools know a project.
func project(name string, l toolchain.Language) map[string]string {
	switch l {
	case toolchain.Go:
		return map[string]string{"go.mod": "module example.com/" + name + "\n\ngo 1.24\n\n" +
			"require github.com/wasmplane/wasmplane/sdk/go v0.0.0\n\n" +
			"// The SDK lies beside the plugin, in the version of the tool that made it.\n" +
			"replace github.com/wasmplane/wasmplane/sdk/go => ./wasmplane\n"}
	case toolchain.Rust:
		return map[string]string{"Cargo.toml": "[package]\nname = \"" + name + "\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n" +
			"[lib]\ncrate-type = [\"cdylib\"]\n\n[dependencies]\nwasmplane = { path = \"wasmplane\" }\n\n" +
			"[profile.release]\npanic = \"abort\"\nopt-level = 3\n"}
	case toolchain.AssemblyScript:
		return map[string]string{
			"package.json": "{\n  \"name\": \"" + name + "\",\n  \"version\": \"0.1.0\",\n  \"private\": true,\n" +
				"  \"dependencies\": {\n    \"wasmplane\": \"file:./wasmplane\"\n  },\n" +
				"  \"devDependencies\": {\n    \"assemblyscript\": \"" + toolchain.AssemblyScriptVersion + "\"\n  }\n}\n",
			"tsconfig.json": "{\n  \"extends\": \"assemblyscript/std/assembly.json\",\n  \"include\": [\"./*.ts\"]\n}\n",
		}
	case toolchain.JavaScript:
		return map[string]string{"package.json": scriptPackage(name, ""), "jsconfig.json": compilerOptions}
	case toolchain.TypeScript:
		return map[string]string{
			"package.json":  scriptPackage(name, ",\n  \"devDependencies\": {\n    \"typescript\": \""+toolchain.TypeScriptVersion+"\"\n  }"),
			"tsconfig.json": compilerOptions,
		}
	case toolchain.Python:
		return map[string]string{"pyproject.toml": "[project]\nname = \"" + name + "\"\nversion = \"0.1.0\"\n" +
			"requires-python = \">=3.11\" # of editors and tests; the plugin itself runs in CPython 3.14\n"}
	default:
		return nil
	}
}

// scriptPackage is the package.json of a plugin in JavaScript or TypeScript. Nothing of it has to be
// installed: wasmplane plugin build finds the SDK beside the plugin.
func scriptPackage(name, more string) string {
	return "{\n  \"name\": \"" + name + "\",\n  \"version\": \"0.1.0\",\n  \"private\": true,\n  \"type\": \"module\",\n" +
		"  \"dependencies\": {\n    \"wasmplane\": \"file:./wasmplane\"\n  }" + more + "\n}\n"
}

// grants are what the template of a point needs: without them the host refuses, and the plugin does nothing.
func grants(point string) string {
	if point != string(abi.SchedulingPostBind) {
		return ""
	}
	return "grants: {log: true}\n"
}

// limits are those that a language's plugins need beyond the defaults.
func limits(l toolchain.Language) string {
	if written(l) != string(toolchain.JavaScript) {
		return ""
	}
	return "limits:\n  stack: 4Mi # functions may call each other 390 deep; without this line, 110\n"
}

// written is the folder of a language's templates: the types of a plugin in TypeScript follow from
// those of the SDK, so that it is written as one in JavaScript is.
func written(l toolchain.Language) string {
	if l == toolchain.TypeScript {
		l = toolchain.JavaScript
	}
	return string(l)
}

// compilerOptions are what an editor, and tsc where it is installed, checks by.
const compilerOptions = `{
  "compilerOptions": {
    "strict": true, "noEmit": true, "checkJs": true,
    "target": "es2023", "lib": ["es2023"], "types": [],
    "module": "esnext", "moduleResolution": "bundler",
    "paths": {"wasmplane": ["./wasmplane/index.d.ts"]}
  },
  "include": ["*.ts", "*.js"]
}
`

func writeNew(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the plugin's folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil // a .gitignore, a go.mod: the author's own stays
	}
	if err != nil {
		return fmt.Errorf("make the plugin's folder: %w", err)
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

func joined[T ~string](list []T) string {
	var out []string
	for _, s := range list {
		out = append(out, string(s))
	}
	return strings.Join(out, ", ")
}
