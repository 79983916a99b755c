// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// otherKeys are what readers of logs would have to search for besides.
var otherKeys = map[string]string{
	"in": "retryIn", "after": "retryIn", "nextTry": "retryIn", "err": "error", "ns": "namespace",
	"pod": "kind, namespace and name", "service": "kind, namespace and name", "configmap": "kind, namespace and name",
}

var logKey = regexp.MustCompile(`^[a-z][a-zA-Z]*$`)

// logging is a call of a slog.Logger, with what the rules below look at.
type logging struct {
	name string // Info, InfoContext, ...
	ctx  string // a context that the caller could have passed
	args []ast.Expr
}

// loggingOf recognizes a call by its method, its receiver's name and a constant message.
func loggingOf(call *ast.CallExpr, around []ast.Node) (l logging, message string, ok bool) {
	s, isMethod := call.Fun.(*ast.SelectorExpr)
	if !isMethod {
		return l, "", false
	}
	level := strings.TrimSuffix(s.Sel.Name, "Context")
	if !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, level) || !strings.Contains(strings.ToLower(fmt.Sprint(lastName(s.X))),
		"log") {
		return l, "", false
	}
	l = logging{name: s.Sel.Name, args: call.Args, ctx: contextAround(around)}
	if level != s.Sel.Name && len(l.args) > 0 {
		l.args = l.args[1:]
	}
	if len(l.args) == 0 {
		return l, "", false
	}
	message, ok = text(l.args[0])
	return l, message, ok
}

// lastName of an expression: Logger of s.cfg.Logger, Log of c.Log().
func lastName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.CallExpr:
		return lastName(x.Fun)
	}
	return ""
}

func text(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}

// contextAround is the name of the nearest context.Context among the parameters of
// the functions around.
func contextAround(around []ast.Node) string {
	for _, n := range slices.Backward(around) {
		var f *ast.FuncType
		switch x := n.(type) {
		case *ast.FuncLit:
			f = x.Type
		case *ast.FuncDecl:
			f = x.Type
		default:
			continue
		}
		for _, p := range f.Params.List {
			if s, ok := p.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Context" && lastName(s.X) == "context" && len(p.Names) > 0 &&
				p.Names[0].Name != "_" {
				return p.Names[0].Name
			}
		}
	}
	return ""
}

// faults are what is wrong with the form of one log.
func (l logging) faults(message string) (out []string) {
	if first := []rune(message); len(first) > 1 && unicode.IsUpper(first[0]) && !unicode.IsUpper(first[1]) {
		out = append(out, "a message begins in lower case, unless with an abbreviation")
	}
	if strings.HasSuffix(message, ".") || strings.HasSuffix(message, "!") {
		out = append(out, "a message has no final stop")
	}
	if !strings.HasSuffix(l.name, "Context") && l.ctx != "" {
		out = append(out, fmt.Sprintf("use %sContext(%s, ...): the log belongs to what is being done", l.name, l.ctx))
	}
	for i := 1; i < len(l.args); i += 2 {
		key, ok := text(l.args[i])
		if !ok {
			break // an slog.Attr, or a list
		}
		if !logKey.MatchString(key) {
			out = append(out, fmt.Sprintf("key %q: expected one word such as retryIn", key))
		}
		if otherKeys[key] != "" {
			out = append(out, fmt.Sprintf("key %q: expected %s", key, otherKeys[key]))
		}
	}
	return out
}

// Logs have one form, so that they can be searched: docs/GLOSSARY.md has the words.
func TestLogsHaveOneForm(t *testing.T) {
	found := 0
	for _, root := range []string{"core", "plugins", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			found += checkLogs(t, fset, tree)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 100 {
		t.Errorf("%d logs were found; the test does not recognize them any more", found)
	}
}

// checkLogs counts the logs of a file, and reports those of another form.
func checkLogs(t *testing.T, fset *token.FileSet, tree *ast.File) (found int) {
	t.Helper()
	var around []ast.Node
	ast.Inspect(tree, func(n ast.Node) bool {
		if n == nil {
			around = around[:len(around)-1]
			return true
		}
		around = append(around, n)
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if l, message, ok := loggingOf(call, around); ok {
			found++
			for _, fault := range l.faults(message) {
				t.Errorf("%s: log %q: %s", strings.TrimPrefix(fset.Position(call.Pos()).String(), "../../"), message, fault)
			}
		}
		return true
	})
	return found
}

func TestLogsOfAnotherFormAreFound(t *testing.T) {
	const source = `package p
func f(ctx context.Context) {
	s.log.Warn("A pod failed.", "pod", p, "in", d)
	go func() { c.Logger().Error("It failed", "error", err, "until then", x) }()
}
func g() { s.log.Info("KMS answers", "namespace", n, "retryIn", d) }
`
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var around []ast.Node
	ast.Inspect(tree, func(n ast.Node) bool {
		if n == nil {
			around = around[:len(around)-1]
			return true
		}
		around = append(around, n)
		if call, ok := n.(*ast.CallExpr); ok {
			if l, message, ok := loggingOf(call, around); ok {
				got = append(got, fmt.Sprintf("%s %d", message, len(l.faults(message))))
			}
		}
		return true
	})
	want := []string{"A pod failed. 5", "It failed 3", "KMS answers 0"}
	if !slices.Equal(got, want) {
		t.Errorf("faults %q, want %q", got, want)
	}
}
