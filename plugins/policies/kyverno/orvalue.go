// SPDX-License-Identifier: Apache-2.0

package kyverno

import (
	"slices"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/parser"
)

// At Kyverno, orValue of a value that is no optional one is the value. In Kubernetes it is an error, which only shows when the
// expression is evaluated. Where an expression says by its form that there is nothing optional, as in
// object.spec.containers.orValue([]), the call is left out: it does nothing.

// plainRoots are variables that hold nothing optional.
var plainRoots = []string{"object", "oldObject", "request", "namespaceObject"}

// loops are macros whose first argument is the name of an element.
var loops = []string{"all", "exists", "exists_one", "map", "filter"}

// withoutIdleOrValue leaves out calls of orValue that do nothing. An expression that cannot be parsed stays as it is.
func withoutIdleOrValue(expression string) string {
	if !strings.Contains(expression, "orValue") {
		return expression
	}
	p, err := parser.NewParser(parser.EnableOptionalSyntax(true)) // without macros: the text's own form is looked at
	if err != nil {
		return expression
	}
	for range strings.Count(expression, "orValue") { // one at a time: positions move
		tree, problems := p.Parse(common.NewTextSource(expression))
		if problems != nil && len(problems.GetErrors()) > 0 {
			return expression
		}
		next, found := cutIdle(expression, tree)
		if !found {
			return expression
		}
		expression = next
	}
	return expression
}

// cutIdle leaves out the first such call.
func cutIdle(expression string, tree *ast.AST) (string, bool) {
	roots := slices.Clone(plainRoots)
	var calls []ast.Expr
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || !e.AsCall().IsMemberFunction() {
			return
		}
		c := e.AsCall()
		if args := c.Args(); slices.Contains(loops, c.FunctionName()) && len(args) > 1 && args[0].Kind() == ast.IdentKind {
			roots = append(roots, args[0].AsIdent())
		}
		if c.FunctionName() == "orValue" && len(c.Args()) == 1 {
			calls = append(calls, e)
		}
	}))
	for _, e := range calls {
		if !fields(e.AsCall().Target(), roots) {
			continue
		}
		at, ok := tree.SourceInfo().GetOffsetRange(e.ID())
		if !ok {
			continue
		}
		if text, cut := cutCall(expression, int(at.Start)); cut {
			return text, true
		}
	}
	return expression, false
}

// fields says that an expression names a field below one of the roots, without anything optional.
func fields(e ast.Expr, roots []string) bool {
	for depth := 0; ; depth++ {
		switch {
		case e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly():
			e = e.AsSelect().Operand()
		case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.Index:
			e = e.AsCall().Args()[0]
		case e.Kind() == ast.IdentKind:
			return depth > 0 && slices.Contains(roots, e.AsIdent())
		default:
			return false
		}
	}
}

// cutCall cuts .orValue(...) out, of which the parenthesis that opens stands at a place counted in characters.
func cutCall(expression string, paren int) (string, bool) {
	text := []rune(expression)
	if paren >= len(text) || text[paren] != '(' {
		return "", false
	}
	before := strings.TrimRight(string(text[:paren]), " \t\n")
	before, ok := strings.CutSuffix(before, "orValue")
	if !ok {
		return "", false
	}
	if before, ok = strings.CutSuffix(strings.TrimRight(before, " \t\n"), "."); !ok {
		return "", false
	}
	rest := string(text[paren+1:])
	end := closingOf(rest, 0, '(', ')')
	if end >= len(rest) {
		return "", false
	}
	return strings.TrimRight(before, " \t\n") + rest[end+1:], true
}
