// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celpolicy"
)

// The variables of these policies, beside those that all have.
const (
	imagesVariable       = "images"
	attestorsVariable    = "attestors"
	attestationsVariable = "attestations"
	refVariable          = "ref"
	// sessionVariable has the functions that look at registries. Nobody can write its name: macros put it
	// before the functions.
	sessionVariable = "@images"
)

var sessionType = cel.OpaqueType("kyverno.images")

// compiler compiles these policies' expressions.
var compiler = sync.OnceValues(func() (*celpolicy.Compiler, error) {
	return celpolicy.NewCompiler(
		cel.Variable(imagesVariable, cel.MapType(cel.StringType, cel.ListType(cel.StringType))),
		cel.Variable(attestorsVariable, cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable(attestationsVariable, cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable(sessionVariable, sessionType),
		function("verifyImageSignatures", cel.IntType, (*session).verifySignatures, cel.StringType, cel.ListType(cel.DynType)),
		function("verifyAttestationSignatures", cel.IntType, (*session).verifyAttestations, cel.StringType, cel.StringType,
			cel.ListType(cel.DynType)),
		function("getImageData", cel.DynType, (*session).imageData, cel.StringType),
		function("extractPayload", cel.DynType, (*session).payload, cel.StringType, cel.StringType),
	)
})

// references compiles expressions about one image.
var references = sync.OnceValues(func() (*celpolicy.Compiler, error) {
	return celpolicy.NewCompiler(cel.Variable(refVariable, cel.StringType))
})

// function is one of a session, which is called as if it stood alone.
func function(name string, result *cel.Type, f func(*session, []ref.Val) ref.Val, args ...*cel.Type) cel.EnvOption {
	macro := cel.GlobalMacro(name, len(args), func(h cel.MacroExprFactory, _ ast.Expr, list []ast.Expr) (ast.Expr, *cel.Error) {
		return h.NewMemberCall(name, h.NewIdent(sessionVariable), list...), nil
	})
	declared := cel.Function(name, cel.MemberOverload("kyverno_"+name, append([]*cel.Type{sessionType}, args...), result,
		cel.FunctionBinding(func(values ...ref.Val) ref.Val {
			s, ok := values[0].(*session)
			if !ok {
				return types.NewErr("%s is not known here", name)
			}
			return f(s, values[1:])
		})))
	return func(e *cel.Env) (*cel.Env, error) {
		e, err := cel.Macros(macro)(e)
		if err != nil {
			return nil, err
		}
		return declared(e)
	}
}

// A session is a value of its own type, which only has functions.

// ConvertToNative implements ref.Val.
func (s *session) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("images are no %s", t)
}

// ConvertToType implements ref.Val.
func (s *session) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("images are no %s", t.TypeName())
}

// Equal implements ref.Val.
func (s *session) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(s)) }

// Type implements ref.Val.
func (s *session) Type() ref.Type { return sessionType }

// Value implements ref.Val.
func (s *session) Value() any { return s }
