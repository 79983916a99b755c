// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// A row that can be kept is the one that is printed, for random objects of every
// kind: only its age is told anew.
func TestKeptRowsAreThePrintedOnes(t *testing.T) {
	c := newContract(t)
	kept := 0
	for _, r := range c.Resources() {
		if r.Virtual {
			continue
		}
		t.Run(r.GroupResource.String(), func(t *testing.T) {
			for seed := range int64(8) {
				random := r.storage.Empty()
				fillerOf(r, seed).Fill(random)
				internal, err := r.storage.Internal(random)
				if err != nil {
					t.Fatal(err)
				}
				row, ok, err := c.Row(t.Context(), r, internal)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					continue
				}
				kept++
				table, err := c.Table(t.Context(), r, TableRequest{}, []runtime.Object{internal})
				if err != nil {
					t.Fatal(err)
				}
				m, err := meta.Accessor(internal)
				if err != nil {
					t.Fatal(err)
				}
				if created := m.GetCreationTimestamp(); row.Age >= 0 && !created.IsZero() {
					row.Cells[row.Age] = duration.HumanDuration(time.Since(created.Time))
				}
				if diff := cmp.Diff(jsonOf(t, table.Rows[0].Cells), jsonOf(t, row.Cells)); diff != "" {
					t.Errorf("cells (-printed +kept):\n%s", diff)
				}
				if diff := cmp.Diff(table.Rows[0].Conditions, row.Conditions); diff != "" {
					t.Errorf("conditions (-printed +kept):\n%s", diff)
				}
			}
		})
	}
	if kept < 100 {
		t.Errorf("only %d rows can be kept", kept)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The printers that tell other times than an object's age are those that timely
// names, and that of pods, which Row looks at.
func TestTimelyKindsAreThoseWhosePrintersReadTheClock(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "printers.go", upstreamFile(t, "pkg/printers/internalversion/printers.go"), 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "print") || len(f.Type.Params.List) == 0 {
			continue
		}
		kind := ""
		if star, ok := f.Type.Params.List[0].Type.(*ast.StarExpr); ok {
			if of, ok := star.X.(*ast.SelectorExpr); ok {
				kind = of.Sel.Name
			}
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if ok && readsClock(call) {
				found[kind] = true
			}
			return true
		})
	}
	got := make([]string, 0, len(found))
	for kind := range found {
		got = append(got, kind)
	}
	slices.Sort(got)
	want := append(timely(), "Pod")
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds whose rows go with the time (-known +upstream):\n%s", diff)
	}
}

// readsClock says whether a call tells a time from now other than that of creation.
func readsClock(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		if !strings.HasPrefix(f.Name, "translate") || !strings.Contains(f.Name, "Timestamp") {
			return false
		}
		of, ok := call.Args[0].(*ast.SelectorExpr)
		return !ok || of.Sel.Name != "CreationTimestamp"
	case *ast.SelectorExpr:
		of, ok := f.X.(*ast.Ident)
		return ok && of.Name == "time" && (f.Sel.Name == "Now" || f.Sel.Name == "Since" || f.Sel.Name == "Until")
	}
	return false
}
