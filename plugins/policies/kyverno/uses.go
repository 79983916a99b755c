// SPDX-License-Identifier: Apache-2.0

package kyverno

import (
	"slices"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/parser"
)

// ownFunctions are the functions that only Kyverno's expressions have.
var ownFunctions = []string{
	"image", "parseImageReference", "isImage", "parseServiceAccount", "listObjToMap", "random", "sha256", "sha1", "md5",
}

// ownMembers are Kyverno's functions that stand behind a name, by that name.
var ownMembers = map[string][]string{
	"resource":      {"Get", "List", "Post", "ToGVR", "get", "list", "post", "toGVR"},
	"globalContext": {"Get", "get"},
	"http":          {"Get", "Post", "Client", "get", "post", "client"},
	"image":         {"GetMetadata", "getMetadata"},
	"user":          {"parseServiceAccount"},
	"json":          {"unmarshal", "marshal"},
	"yaml":          {"parse"},
	"hash":          {"sha1", "sha256", "md5"},
	"time":          {"now", "truncate", "toCron"},
	"math":          {"round"},
	"random":        {"generate"},
	"x509":          {"decode"},
	"gzip":          {"compress", "decompress"},
	"transform":     {"listObjToMap"},
}

// imagesVariable holds the images of the request's object, by the list in which they stand.
const imagesVariable = "images"

// Uses are what an expression uses of what Kyverno's have and Kubernetes' do not: "resource.Get", "image". An expression that cannot
// be parsed uses nothing.
func Uses(expression string) (out []string) {
	if !slices.ContainsFunc(ownFunctions, func(f string) bool { return strings.Contains(expression, f) }) &&
		!strings.Contains(expression, imagesVariable) {
		found := false
		for name := range ownMembers {
			found = found || strings.Contains(expression, name)
		}
		if !found {
			return nil
		}
	}
	p, err := parser.NewParser(parser.EnableOptionalSyntax(true)) // without macros: the text's own form is looked at
	if err != nil {
		return nil
	}
	tree, problems := p.Parse(common.NewTextSource(expression))
	if problems != nil && len(problems.GetErrors()) > 0 {
		return nil
	}
	var bound []string // names of elements in loops
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.CallKind && e.AsCall().IsMemberFunction() && slices.Contains(loops, e.AsCall().FunctionName()) {
			if args := e.AsCall().Args(); len(args) > 1 && args[0].Kind() == ast.IdentKind {
				bound = append(bound, args[0].AsIdent())
			}
		}
	}))
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if use := usedBy(e, bound); use != "" && !slices.Contains(out, use) {
			out = append(out, use)
		}
	}))
	return out
}

// usedBy is what one part of an expression uses; "" = nothing.
func usedBy(e ast.Expr, bound []string) string {
	switch {
	case e.Kind() == ast.IdentKind && e.AsIdent() == imagesVariable && !slices.Contains(bound, imagesVariable):
		return imagesVariable
	case e.Kind() != ast.CallKind:
		return ""
	}
	c := e.AsCall()
	if !c.IsMemberFunction() {
		if slices.Contains(ownFunctions, c.FunctionName()) {
			return c.FunctionName()
		}
		return ""
	}
	if c.Target().Kind() != ast.IdentKind {
		return ""
	}
	name := c.Target().AsIdent()
	if slices.Contains(bound, name) || !slices.Contains(ownMembers[name], c.FunctionName()) {
		return ""
	}
	return name + "." + c.FunctionName()
}

// Literals are the texts that stand in an expression.
func Literals(expression string) (out []string) {
	p, err := parser.NewParser(parser.EnableOptionalSyntax(true))
	if err != nil {
		return nil
	}
	tree, problems := p.Parse(common.NewTextSource(expression))
	if problems != nil && len(problems.GetErrors()) > 0 {
		return nil
	}
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.LiteralKind {
			if text, ok := e.AsLiteral().Value().(string); ok {
				out = append(out, text)
			}
		}
	}))
	return out
}
