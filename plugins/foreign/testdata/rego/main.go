// Regotool is Open Policy Agent's own compiler and built-in functions, for tests:
//
//	regotool compile POLICY.rego ENTRYPOINT...   the module, on standard output
//	regotool bundle FOLDER KEY ALGORITHM TARGET ENTRYPOINT...
//	                                             what opa build --bundle FOLDER writes, signed by a key if there is one
//	regotool call                                lines {"name", "args"} to lines {"result"} or {}
//
// It is a module of its own, so that what it needs is no dependency of ours.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/compile"
	"github.com/open-policy-agent/opa/v1/topdown"
)

func main() {
	var err error
	switch os.Args[1] {
	case "compile":
		err = compilePolicy(os.Args[2], os.Args[3:])
	case "bundle":
		err = buildBundle(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6:])
	case "call":
		err = call()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func compilePolicy(path string, entrypoints []string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	module, err := ast.ParseModuleWithOpts(path, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1})
	if err != nil {
		return err
	}
	b := &bundle.Bundle{Modules: []bundle.ModuleFile{{URL: path, Path: path, Raw: text, Parsed: module}}, Data: map[string]any{}}
	b.Manifest.Init()
	b.Manifest.SetRegoVersion(ast.RegoV1)
	var out bytes.Buffer
	c := compile.New().WithTarget(compile.TargetWasm).WithEntrypoints(entrypoints...).WithBundle(b).WithRegoVersion(ast.RegoV1).WithOutput(&out)
	if err := c.Build(context.Background()); err != nil {
		return err
	}
	_, err = os.Stdout.Write(c.Bundle().WasmModules[0].Raw)
	return err
}

// buildBundle is what opa build does with --bundle, --signing-key, --signing-alg, --target and --entrypoint.
func buildBundle(folder, key, algorithm, target string, entrypoints []string) error {
	var out bytes.Buffer
	c := compile.New().WithTarget(target).WithAsBundle(true).WithPaths(folder).WithEntrypoints(entrypoints...).WithRegoVersion(ast.RegoV1).WithOutput(&out)
	if key != "" {
		c = c.WithBundleSigningConfig(bundle.NewSigningConfig(key, algorithm, "")).WithBundleVerificationKeyID("main")
	}
	if err := c.Build(context.Background()); err != nil {
		return err
	}
	_, err := os.Stdout.Write(out.Bytes())
	return err
}

func call() error {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var q struct {
			Name string
			Args []string // as Rego writes them
		}
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			return err
		}
		var args []*ast.Term
		for _, a := range q.Args {
			t, err := ast.ParseTerm(a)
			if err != nil {
				return fmt.Errorf("%s: %w", a, err)
			}
			args = append(args, t)
		}
		out := map[string]string{}
		f := topdown.GetBuiltin(q.Name)
		if f == nil {
			return fmt.Errorf("there is no %s", q.Name)
		}
		ctx := topdown.BuiltinContext{Context: context.Background(), Time: ast.NumberTerm(json.Number(fmt.Sprint(time.Now().UnixNano()))), Cancel: topdown.NewCancel()}
		err := f(ctx, args, func(t *ast.Term) error {
			out["result"] = t.String()
			return nil
		})
		if err != nil {
			delete(out, "result")
		}
		line, err := json.Marshal(out)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return in.Err()
}
