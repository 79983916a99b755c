// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// bare are the files whose go statements stay, with the reason. All others use
// core/run, whose goroutines have a name and an owner.
var bare = map[string]string{
	"core/run/go.go":          "starts the goroutines of all others",
	"core/run/run.go":         "starts the units of a group",
	"core/client/inmemory.go": "one for each request within the process: a label would cost as much as the rest",
}

// A goroutine without an owner outlives its work unseen.
func TestGoroutinesHaveOwners(t *testing.T) {
	used := map[string]bool{}
	for _, root := range []string{"core", "plugins", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file := filepath.ToSlash(strings.TrimPrefix(path, filepath.FromSlash("../../")))
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				if g, ok := n.(*ast.GoStmt); ok {
					used[file] = true
					if bare[file] == "" {
						t.Errorf("%s:%d: a bare go statement; use run.Go or run.Tasks, which name the goroutine and tell its owner of its end", file, fset.Position(g.Pos()).Line)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for file := range bare {
		if !used[file] {
			t.Errorf("%s has no go statement any more; delete its line", file)
		}
	}
}
