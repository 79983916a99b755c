// SPDX-License-Identifier: Apache-2.0

package beyond

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
)

const mostCalls = 100 // of one evaluation

// session is what functions ask, for one request at a time.
type session struct {
	ctx    context.Context //nolint:containedctx // CEL's functions get none
	reach  Reach
	calls  int
	memory map[string]ref.Val
	r      *admission.Request
}

func (s *session) begin(ctx context.Context, r *admission.Request, reach Reach) {
	*s = session{ctx: ctx, reach: reach, r: r, memory: map[string]ref.Val{}}
}

func (s *session) end() { *s = session{} }

// place is a value of the language with functions: resource, http, ...
type place struct {
	t           *cel.Type
	authorities string // of http
}

func (p place) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s is no %s", p.t, t)
}

func (p place) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("%s is no %s", p.t, t.TypeName())
}
func (p place) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(p)) }
func (p place) Type() ref.Type              { return p.t }
func (p place) Value() any                  { return p }

var (
	resourceType = cel.OpaqueType("kyverno.resource")
	globalType   = cel.OpaqueType("kyverno.globalContext")
	httpType     = cel.OpaqueType("kyverno.http")
	dataType     = cel.OpaqueType("kyverno.imageData")
)

// gvr is what resource.ToGVR answers: the group, version and resource of a kind, as arguments of resource.Get and List.
const gvrVersion, gvrResource = "apiVersion", "resource"

// asked is one question, with its arguments.
type asked func(s *session, args []ref.Val) (any, error)

// library are the functions that Kyverno's expressions have and Kubernetes' do not. A policy of a namespace reads there alone, so that
// its functions take no namespace, and sends nothing.
func library(s *session, namespace string) []cel.EnvOption {
	text, labels, dyn := cel.StringType, cel.MapType(cel.StringType, cel.StringType), cel.DynType
	gvr := cel.MapType(cel.StringType, cel.StringType)
	out := []cel.EnvOption{
		celpolicy.Computing(),
		celpolicy.Global("resource", resourceType, place{t: resourceType}),
		celpolicy.Global("globalContext", globalType, place{t: globalType}),
		celpolicy.Global("image", dataType, place{t: dataType}),
		celpolicy.Global("images", cel.MapType(cel.StringType, cel.ListType(cel.StringType)), images{s}),
	}
	add := func(on *cel.Type, result *cel.Type, ask asked, names []string, overloads ...[]*cel.Type) {
		for _, name := range names {
			for i, args := range overloads {
				id := fmt.Sprintf("kyverno_%s_%s_%d", strings.TrimPrefix(on.TypeName(), "kyverno."), name, i)
				out = append(out, cel.Function(name, cel.MemberOverload(id, append([]*cel.Type{on}, args...), result,
					cel.FunctionBinding(func(values ...ref.Val) ref.Val { return s.ask(name, values, ask) }))))
			}
		}
	}
	where := []*cel.Type{text} // the argument that names a namespace
	if namespace != "" {
		where = nil
	}
	of := func(before []*cel.Type, after ...*cel.Type) []*cel.Type {
		return append(append(append([]*cel.Type{}, before...), where...), after...)
	}
	in := func(args []ref.Val, at int) []ref.Val { // puts the policy's own namespace where none is given
		if namespace == "" {
			return args
		}
		return append(append(append([]ref.Val{}, args[:at]...), types.String(namespace)), args[at:]...)
	}
	add(resourceType, dyn, func(s *session, args []ref.Val) (any, error) { return s.get(in(resourceArgs(args), 3)) }, []string{"Get", "get"},
		of([]*cel.Type{text, text}, text), of([]*cel.Type{gvr}, text))
	add(resourceType, dyn, func(s *session, args []ref.Val) (any, error) { return s.list(in(resourceArgs(args), 3)) },
		[]string{"List", "list"},
		of([]*cel.Type{text, text}), of([]*cel.Type{text, text}, labels), of([]*cel.Type{gvr}), of([]*cel.Type{gvr}, labels))
	posted := [][]*cel.Type{{text, text, cel.MapType(text, dyn)}}
	if namespace == "" {
		posted = append(posted, []*cel.Type{text, text, text, cel.MapType(text, dyn)})
	}
	add(resourceType, dyn, func(s *session, args []ref.Val) (any, error) {
		if namespace == "" && len(args) == 4 {
			args = append(append(append([]ref.Val{}, args[:3]...), types.String("")), args[3])
		}
		return s.post(in(args, 3))
	}, []string{"Post", "post"}, posted...)
	add(resourceType, gvr, (*session).kind, []string{"ToGVR", "toGVR"}, []*cel.Type{text, text})
	add(globalType, dyn, (*session).global, []string{"Get", "get"}, []*cel.Type{text}, []*cel.Type{text, text})
	add(dataType, dyn, (*session).data, []string{"GetMetadata", "getMetadata"}, []*cel.Type{text})
	if namespace == "" {
		out = append(out, celpolicy.Global("http", httpType, place{t: httpType}))
		add(httpType, dyn, (*session).httpGet, []string{"Get", "get"}, []*cel.Type{text}, []*cel.Type{text, labels})
		add(httpType, dyn, (*session).httpPost, []string{"Post", "post"}, []*cel.Type{text, dyn}, []*cel.Type{text, dyn, labels})
		for _, name := range []string{"Client", "client"} {
			out = append(out, cel.Function(name, cel.MemberOverload("kyverno_http_"+name, []*cel.Type{httpType, text}, httpType,
				cel.BinaryBinding(func(_, v ref.Val) ref.Val {
					bundle, ok := v.Value().(string)
					if !ok {
						return types.MaybeNoSuchOverloadErr(v)
					}
					return place{httpType, bundle}
				}))))
		}
	}
	return out
}

// ask asks a question once for each request.
func (s *session) ask(name string, args []ref.Val, ask asked) ref.Val {
	if s.reach == nil {
		return types.NewErr("%s can only be asked about a request", name)
	}
	key, err := keyOf(name, args)
	if err != nil {
		return types.WrapErr(err)
	}
	if v, ok := s.memory[key]; ok {
		return v
	}
	if s.calls++; s.calls > mostCalls {
		return types.WrapErr(errMany)
	}
	if s.ctx.Err() != nil {
		return types.WrapErr(context.Cause(s.ctx))
	}
	found, err := ask(s, args)
	var v ref.Val
	switch {
	case err != nil && s.ctx.Err() != nil:
		v = types.WrapErr(context.Cause(s.ctx))
	case err != nil:
		v = types.WrapErr(fmt.Errorf("%s: %w", name, err))
	default:
		v = types.DefaultTypeAdapter.NativeToValue(found)
	}
	s.memory[key] = v
	return v
}

// keyOf tells questions from each other.
func keyOf(name string, args []ref.Val) (string, error) {
	out := name
	for i, a := range args {
		if p, ok := a.(place); ok && i == 0 {
			out += "\x00" + p.t.TypeName() + "\x00" + p.authorities
			continue
		}
		v, err := celpolicy.Native(a)
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(v)
		if err != nil {
			return "", err
		}
		out += "\x00" + string(text)
	}
	return out, nil
}

// resourceArgs puts the parts of what ToGVR answered in the place of an apiVersion and a resource.
func resourceArgs(args []ref.Val) []ref.Val {
	v, err := celpolicy.Native(args[1])
	parts, ok := v.(map[string]any)
	if err != nil || !ok {
		return args
	}
	version, _ := parts[gvrVersion].(string)
	resource, _ := parts[gvrResource].(string)
	return append([]ref.Val{args[0], types.String(version), types.String(resource)}, args[2:]...)
}

// texts are arguments behind the first, which have to be texts.
func texts(args []ref.Val, n int) ([]string, error) {
	if len(args) < n+1 {
		return nil, fmt.Errorf("expected %d arguments, found %d", n, len(args)-1)
	}
	var out []string
	for _, a := range args[1 : n+1] {
		text, ok := a.Value().(string)
		if !ok {
			return nil, fmt.Errorf("expected a string, found a %s", a.Type().TypeName())
		}
		out = append(out, text)
	}
	return out, nil
}

// textMap is an argument that names texts; none = nil.
func textMap(args []ref.Val, at int) (map[string]string, error) {
	if len(args) <= at {
		return nil, nil
	}
	v, err := celpolicy.Native(args[at])
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	fields, _ := v.(map[string]any)
	for key, field := range fields {
		text, ok := field.(string)
		if !ok {
			return nil, fmt.Errorf("%s: expected a string", key)
		}
		out[key] = text
	}
	return out, nil
}

func (s *session) get(args []ref.Val) (any, error) {
	in, err := texts(args, 4)
	if err != nil {
		return nil, err
	}
	o, err := s.reach.Get(s.ctx, in[0], in[1], in[2], in[3])
	if o == nil || err != nil {
		return types.NullValue, err
	}
	return o, nil
}

func (s *session) list(args []ref.Val) (any, error) {
	in, err := texts(args, 3)
	if err != nil {
		return nil, err
	}
	labels, err := textMap(args, 4)
	if err != nil {
		return nil, err
	}
	return s.reach.List(s.ctx, in[0], in[1], in[2], labels)
}

func (s *session) post(args []ref.Val) (any, error) {
	in, err := texts(args, 3)
	if err != nil {
		return nil, err
	}
	v, err := celpolicy.Native(args[4])
	if err != nil {
		return nil, err
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("expected an object, found a %s", args[4].Type().TypeName())
	}
	return s.reach.Post(s.ctx, in[0], in[1], in[2], o)
}

func (s *session) kind(args []ref.Val) (any, error) {
	in, err := texts(args, 2)
	if err != nil {
		return nil, err
	}
	resource, err := s.reach.Resource(s.ctx, in[0], in[1])
	return map[string]string{gvrVersion: in[0], gvrResource: resource}, err
}

func (s *session) global(args []ref.Val) (any, error) {
	in, err := texts(args, len(args)-1)
	if err != nil {
		return nil, err
	}
	return s.reach.Global(s.ctx, in[0], strings.Join(in[1:], ""))
}

func (s *session) data(args []ref.Val) (any, error) {
	in, err := texts(args, 1)
	if err != nil {
		return nil, err
	}
	return s.reach.Image(s.ctx, in[0])
}

func (s *session) httpGet(args []ref.Val) (any, error) {
	in, err := texts(args, 1)
	if err != nil {
		return nil, err
	}
	headers, err := textMap(args, 2)
	if err != nil {
		return nil, err
	}
	return s.reach.Send(s.ctx, Request{Method: "GET", URL: in[0], Headers: headers, Authorities: args[0].(place).authorities})
}

func (s *session) httpPost(args []ref.Val) (any, error) {
	in, err := texts(args, 1)
	if err != nil {
		return nil, err
	}
	body, err := celpolicy.Native(args[2])
	if err != nil {
		return nil, err
	}
	headers, err := textMap(args, 3)
	if err != nil {
		return nil, err
	}
	return s.reach.Send(s.ctx, Request{
		Method: "POST", URL: in[0], Headers: headers, Body: body, Authorities: args[0].(place).authorities,
	})
}

// images are those of the request's object, by the list in which they stand: a map that is made when it is looked at.
type images struct{ s *session }

func (i images) value() ref.Val {
	if i.s.r == nil {
		return types.NewErr("images can only be asked about a request")
	}
	found, err := imagepolicy.Images(i.s.r)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(found)
}

// with does something with the map, or answers why there is none.
func (i images) with(do func(traits.Mapper) ref.Val) ref.Val {
	v := i.value()
	m, ok := v.(traits.Mapper)
	if !ok {
		return v
	}
	return do(m)
}

func (i images) ConvertToNative(t reflect.Type) (any, error) { return i.value().ConvertToNative(t) }
func (i images) ConvertToType(t ref.Type) ref.Val            { return i.value().ConvertToType(t) }
func (i images) Equal(other ref.Val) ref.Val                 { return i.value().Equal(other) }
func (i images) Type() ref.Type                              { return types.MapType }
func (i images) Value() any                                  { return i.value().Value() }

func (i images) Contains(v ref.Val) ref.Val {
	return i.with(func(m traits.Mapper) ref.Val { return m.Contains(v) })
}

func (i images) Get(v ref.Val) ref.Val {
	return i.with(func(m traits.Mapper) ref.Val { return m.Get(v) })
}

func (i images) Size() ref.Val { return i.with(func(m traits.Mapper) ref.Val { return m.Size() }) }

func (i images) Iterator() traits.Iterator {
	if m, ok := i.value().(traits.Mapper); ok {
		return m.Iterator()
	}
	return types.NewDynamicMap(types.DefaultTypeAdapter, map[string]any{}).Iterator()
}

func (i images) Find(v ref.Val) (ref.Val, bool) {
	value := i.value()
	if m, ok := value.(traits.Mapper); ok {
		return m.Find(v)
	}
	return value, true
}
