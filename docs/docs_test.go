// SPDX-License-Identifier: Apache-2.0

// Package docs tests that the documents lead somewhere: links have a target, the
// indexes are whole, and what CONTRIBUTING shows builds and passes.
package docs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = ".."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// pages are all documents of the tree, by their paths in it.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "testdata" || name == "node_modules" || name == "build" || name == "bin" || strings.HasPrefix(name,
			".") && path != root) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".md") {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			all = append(all, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil || len(all) < 20 {
		t.Fatal(len(all), err)
	}
	return all
}

var (
	link   = regexp.MustCompile(`\]\(([^)\s#]+)?(#[^)\s]*)?\)`)
	fenced = regexp.MustCompile("(?s)```.*?```")
)

// targets are the files and folders that a page links to, relative to the tree.
func targets(page, text string) (out []string) {
	for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		if m[1] != "" && !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
			out = append(out, filepath.ToSlash(filepath.Join(filepath.Dir(page), m[1])))
		}
	}
	return out
}

func TestLinksHaveATarget(t *testing.T) {
	links := 0
	for _, page := range pages(t) {
		for _, target := range targets(page, read(t, page)) {
			links++
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, target)
			}
		}
	}
	if links < 60 {
		t.Errorf("only %d links were found in all documents", links)
	}
}

func TestTheIndexNamesEveryDocument(t *testing.T) {
	named := map[string]bool{}
	for _, target := range targets("docs/README.md", read(t, "docs/README.md")) {
		named[target] = true
	}
	for _, page := range pages(t) {
		inDocs := strings.HasPrefix(page, "docs/") && page != "docs/README.md"
		atRoot := !strings.Contains(page, "/") && page != "README.md"
		if (inDocs || atRoot) && !named[page] {
			t.Errorf("docs/README.md does not name %s", page)
		}
	}
}

// declared are the names of all tests and fuzz targets of the tree.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && path != root) {
			return cmp.Or(err, error(fs.SkipDir))
		}
		if strings.HasSuffix(path, "_test.go") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range function.FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil || len(names) < 1000 {
		t.Fatal(len(names), err)
	}
	return names
}

var (
	testNamed  = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	storyNamed = regexp.MustCompile("story `(\\w+)(?:\\.txtar)?`")
)

// What a table of threats calls a protection is held by a test that there is, and each threat
// that our own code has to prevent has one.
func TestThreatsAreHeldByTests(t *testing.T) {
	tests := declared(t)
	for _, page := range []string{"docs/THREATS.md", "docs/ADVISORIES.md", "docs/SECURITY.md"} {
		for n, line := range strings.Split(read(t, page), "\n") {
			if !strings.HasPrefix(line, "| ") {
				continue
			}
			for _, m := range testNamed.FindAllStringSubmatch(line, -1) {
				if !tests[m[1]] {
					t.Errorf("%s:%d: there is no test %s", page, n+1, m[1])
				}
			}
			for _, m := range storyNamed.FindAllStringSubmatch(line, -1) {
				if _, err := os.Stat(filepath.Join(root, "test/story/testdata", m[1]+".txtar")); err != nil && !tests[m[1]] {
					t.Errorf("%s:%d: there is no story %s", page, n+1, m[1])
				}
			}
			if strings.Contains(line, "| code |") && strings.HasSuffix(line, "| |") {
				t.Errorf("%s:%d: no test holds what our own code has to prevent", page, n+1)
			}
		}
	}
}

// TestTheTablesNameEveryFolder: a new folder has a line in the README above it.
func TestTheTablesNameEveryFolder(t *testing.T) {
	for _, top := range []string{"core", "plugins", "cmd", "test"} {
		text := read(t, top+"/README.md")
		entries, err := os.ReadDir(filepath.Join(root, top))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() && !strings.Contains(text, "\n| ["+e.Name()+"]("+e.Name()+") |") && !strings.Contains(text, "\n| "+e.Name()+" |") {
				t.Errorf("%s/README.md has no line for the folder %s", top, e.Name())
			}
		}
	}
}

var (
	heading  = regexp.MustCompile(`^#+ `)
	pageRuns = regexp.MustCompile(`(?m)^page CLUSTER\.md '([^']+)'(?: ([0-9]+) )?`)
	notRun   = regexp.MustCompile("^<!-- not run: (?:.*the story `([a-z]+)` .{10,}) -->$")
)

// TestCommandsOfAClusterAreRun finds for each block of CLUSTER.md a story that runs it, or the reason why none does, which names
// the story that does something like it.
func TestCommandsOfAClusterAreRun(t *testing.T) {
	run := map[string]bool{}
	stories, err := filepath.Glob(filepath.Join(root, "test", "story", "testdata", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, story := range stories {
		told[strings.TrimSuffix(filepath.Base(story), ".txtar")] = true
		b, err := os.ReadFile(story)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pageRuns.FindAllStringSubmatch(string(b), -1) {
			run[strings.TrimSpace(m[1]+" "+m[2])] = true
		}
	}
	below, n, before, within := "", 0, "", false
	for line := range strings.Lines(read(t, "docs/CLUSTER.md")) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case within:
			within = !strings.HasPrefix(line, "```")
		case line == "```sh":
			n++
			reason, runs := notRun.FindStringSubmatch(before), run[below] || run[fmt.Sprint(below, " ", n)]
			switch {
			case !runs && reason == nil:
				t.Errorf("block %d below %q is run by no story, and nothing says why", n, below)
			case runs && reason != nil:
				t.Errorf("block %d below %q is run by a story, and said not to be", n, below)
			case reason != nil && !told[reason[1]]:
				t.Errorf("block %d below %q: there is no story %q", n, below, reason[1])
			}
			within = true
		case strings.HasPrefix(line, "```"):
			within = true
		case heading.MatchString(line):
			below, n = line, 0
		}
		before = line
	}
}

func blocks(text, language string) (out []string) {
	for _, b := range strings.Split(text, "```"+language+"\n")[1:] {
		b, _, _ = strings.Cut(b, "```")
		out = append(out, b)
	}
	return out
}

// TestTheWalkThroughWorks follows CONTRIBUTING's steps to a new admission plugin: the
// files that it shows are laid over the tree, and the package's tests run with them.
func TestTheWalkThroughWorks(t *testing.T) {
	const builtin, own = "core/admission/builtin/", "core/admission/requireowner/"
	text := read(t, "CONTRIBUTING.md")
	code, edits := blocks(text, "go"), blocks(text, "diff")
	if len(code) != 2 || len(edits) != 4 {
		t.Fatalf("CONTRIBUTING shows %d files and %d edits; the test knows 2 and 4", len(code), len(edits))
	}
	files := map[string]string{
		own + "requireowner.go":      code[0],
		own + "requireowner_test.go": code[1],
		builtin + "builtin.go":       edited(t, builtin+"builtin.go", edits[0], edits[1]),
		builtin + "optional.go":      edited(t, builtin+"optional.go", edits[2], edits[3]),
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for path, content := range files {
		if formatted, err := format.Source([]byte(content)); err != nil || string(formatted) != content {
			t.Errorf("%s as CONTRIBUTING.md makes it is not as gofmt writes it (%v)", path, err)
		}
		at := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		abs, err := filepath.Abs(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		replace[abs] = at
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	// The new package's folder is in the overlay only, so its tests run in another one.
	tests := filepath.Join(dir, "requireowner.test")
	for _, command := range [][]string{
		{"go", "build", "-overlay", file, "./" + builtin},
		{"go", "test", "-c", "-vet=off", "-overlay", file, "-o", tests, "./" + own},
		{tests, "-test.v"},
	} {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...) //nolint:gosec // commands of this test
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err != nil || command[0] == tests && !strings.Contains(string(out), "--- PASS: TestNamespacesNeedAnOwner") {
			t.Fatalf("the steps of CONTRIBUTING.md: %v: %v\n%s", command, err, out)
		}
	}
}

// edited is a file after blocks of diffs: the lines that stay must be in it as they stand.
func edited(t *testing.T, path string, diffs ...string) string {
	t.Helper()
	text := read(t, path)
	for _, diff := range diffs {
		var was, is strings.Builder
		for line := range strings.Lines(diff) {
			switch kind, rest := line[:1], line[1:]; kind {
			case " ":
				fmt.Fprint(&was, rest)
				fmt.Fprint(&is, rest)
			case "+":
				fmt.Fprint(&is, rest)
			case "-":
				fmt.Fprint(&was, rest)
			default:
				t.Fatalf("%s: a line of the edit begins with %q", path, kind)
			}
		}
		if n := strings.Count(text, was.String()); n != 1 {
			t.Fatalf("%s has the lines that the edit begins from %d times:\n%s", path, n, was.String())
		}
		text = strings.Replace(text, was.String(), is.String(), 1)
	}
	return text
}
