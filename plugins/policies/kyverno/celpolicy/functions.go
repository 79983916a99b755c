// SPDX-License-Identifier: Apache-2.0

package celpolicy

import (
	"crypto/md5"  //nolint:gosec // policies ask for it by its name
	"crypto/sha1" //nolint:gosec // policies ask for it by its name
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/go-containerregistry/pkg/name"
	"sigs.k8s.io/yaml"
)

// imageType is of parsed references of images.
var imageType = cel.OpaqueType("kyverno.image")

// image is a parsed reference.
type image struct {
	name.Reference
	text string
}

func (i image) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("an image is no %s", t)
}

func (i image) ConvertToType(t ref.Type) ref.Val {
	if t == types.StringType {
		return types.String(i.text)
	}
	return types.NewErr("an image is no %s", t.TypeName())
}

func (i image) Equal(other ref.Val) ref.Val {
	o, ok := other.(image)
	return types.Bool(ok && o.Name() == i.Name())
}
func (image) Type() ref.Type { return imageType }
func (i image) Value() any   { return i }

// tag of a reference, also where a digest stands behind it.
func (i image) tag() string {
	if t, ok := i.Reference.(name.Tag); ok {
		return t.TagStr()
	}
	before, _, _ := strings.Cut(i.text, "@")
	if at := strings.LastIndexByte(before, ':'); at > strings.LastIndexByte(before, '/') {
		return before[at+1:]
	}
	return ""
}

func (i image) digest() string {
	if d, ok := i.Reference.(name.Digest); ok {
		return d.DigestStr()
	}
	return ""
}

// ParseImage reads a reference as nodes do.
func parseImage(v ref.Val) ref.Val {
	text, ok := v.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	r, err := name.ParseReference(text)
	if err != nil {
		return types.WrapErr(err)
	}
	return image{r, text}
}

// ofImage is a member of an image.
func ofImage(function string, result *cel.Type, f func(image) ref.Val) cel.EnvOption {
	return cel.Function(function, cel.MemberOverload("kyverno_image_"+function, []*cel.Type{imageType}, result,
		cel.UnaryBinding(func(v ref.Val) ref.Val {
			i, ok := v.(image)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			return f(i)
		})))
}

// ofString is a function of one string. It may stand under several names.
func ofString(result *cel.Type, f func(string) ref.Val, names ...string) []cel.EnvOption {
	var out []cel.EnvOption
	for _, n := range names {
		out = append(out, cel.Function(n, cel.Overload("kyverno_"+strings.ReplaceAll(n, ".", "_")+"_string", []*cel.Type{cel.StringType}, result,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				text, ok := v.Value().(string)
				if !ok {
					return types.MaybeNoSuchOverloadErr(v)
				}
				return f(text)
			}))))
	}
	return out
}

// computing are Kyverno's functions that only compute.
func computing() cel.EnvOption {
	options := []cel.EnvOption{
		cel.Function("image", cel.Overload("kyverno_image_string", []*cel.Type{cel.StringType}, imageType, cel.UnaryBinding(parseImage))),
		cel.Function("parseImageReference",
			cel.Overload("kyverno_parse_image_string", []*cel.Type{cel.StringType}, imageType, cel.UnaryBinding(parseImage))),
		ofImage("containsDigest", cel.BoolType, func(i image) ref.Val { return types.Bool(i.digest() != "") }),
		ofImage("registry", cel.StringType, func(i image) ref.Val { return types.String(i.Context().RegistryStr()) }),
		ofImage("repository", cel.StringType, func(i image) ref.Val { return types.String(i.Context().RepositoryStr()) }),
		ofImage("tag", cel.StringType, func(i image) ref.Val { return types.String(i.tag()) }),
		ofImage("digest", cel.StringType, func(i image) ref.Val { return types.String(i.digest()) }),
		ofImage("identifier", cel.StringType, func(i image) ref.Val {
			if i.digest() != "" && i.tag() != "" {
				return types.String(i.tag() + "@" + i.digest())
			}
			return types.String(i.Identifier())
		}),
		ofImage("identifierWithSeparator", cel.StringType, func(i image) ref.Val {
			if i.digest() != "" {
				return types.String("@" + i.digest())
			}
			return types.String(":" + i.Identifier())
		}),
		constant("json", jsonType), constant("yaml", yamlType),
		cel.Function("unmarshal", cel.MemberOverload("kyverno_json_unmarshal", []*cel.Type{jsonType, cel.StringType}, cel.DynType,
			cel.BinaryBinding(func(_, v ref.Val) ref.Val { return decoded(v, json.Unmarshal) }))),
		cel.Function("marshal", cel.MemberOverload("kyverno_json_marshal", []*cel.Type{jsonType, cel.DynType}, cel.StringType,
			cel.BinaryBinding(func(_, v ref.Val) ref.Val { return encoded(v) }))),
		cel.Function("parse", cel.MemberOverload("kyverno_yaml_parse", []*cel.Type{yamlType, cel.StringType}, cel.DynType,
			cel.BinaryBinding(func(_, v ref.Val) ref.Val {
				return decoded(v, func(b []byte, into any) error { return yaml.Unmarshal(b, into) })
			}))),
	}
	options = append(options, computingMore()...)
	options = append(options, ofString(cel.BoolType, func(s string) ref.Val {
		_, err := name.ParseReference(s)
		return types.Bool(err == nil)
	}, "isImage")...)
	options = append(options, ofString(cel.MapType(cel.StringType, cel.StringType), serviceAccount, "parseServiceAccount",
		"user.parseServiceAccount")...)
	hex := func(b []byte) ref.Val { return types.String(hex.EncodeToString(b)) }
	options = append(options, ofString(cel.StringType, func(s string) ref.Val {
		sum := sha256.Sum256([]byte(s))
		return hex(sum[:])
	}, "sha256", "hash.sha256")...)
	options = append(options, ofString(cel.StringType, func(s string) ref.Val {
		sum := sha1.Sum([]byte(s)) //nolint:gosec // policies ask for it by its name
		return hex(sum[:])
	}, "sha1", "hash.sha1")...)
	options = append(options, ofString(cel.StringType, func(s string) ref.Val {
		sum := md5.Sum([]byte(s)) //nolint:gosec // policies ask for it by its name
		return hex(sum[:])
	}, "md5", "hash.md5")...)
	return all(options)
}

// all are several options as one.
func all(options []cel.EnvOption) cel.EnvOption {
	return func(e *cel.Env) (*cel.Env, error) {
		var err error
		for _, o := range options {
			if e, err = o(e); err != nil {
				return nil, err
			}
		}
		return e, nil
	}
}

var (
	jsonType = cel.OpaqueType("kyverno.json")
	yamlType = cel.OpaqueType("kyverno.yaml")
)

// named is a value that only has functions.
type named struct{ t *cel.Type }

func (n named) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s is no %s", n.t, t)
}

func (n named) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("%s is no %s", n.t, t.TypeName())
}
func (n named) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(n)) }
func (n named) Type() ref.Type              { return n.t }
func (n named) Value() any                  { return n }

func constant(name string, t *cel.Type) cel.EnvOption { return Global(name, t, named{t}) }

// Global gives expressions a name whose value is always there. A constant will not do: Kubernetes wants expressions that it can
// write down.
func Global(name string, t *cel.Type, value ref.Val) cel.EnvOption {
	return cel.Lib(global{name, t, value})
}

type global struct {
	name  string
	t     *cel.Type
	value ref.Val
}

// LibraryName implements cel.SingletonLibrary.
func (g global) LibraryName() string { return "kyverno." + g.name }

// CompileOptions implements cel.Library.
func (g global) CompileOptions() []cel.EnvOption { return []cel.EnvOption{cel.Variable(g.name, g.t)} }

// ProgramOptions implements cel.Library.
func (g global) ProgramOptions() []cel.ProgramOption {
	return []cel.ProgramOption{cel.Globals(map[string]any{g.name: g.value})}
}

// serviceAccount reads the name of a service account's user.
func serviceAccount(user string) ref.Val {
	namespace, account := "", ""
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		if namespace, account, ok = strings.Cut(rest, ":"); !ok {
			namespace, account = "", ""
		}
	}
	return types.DefaultTypeAdapter.NativeToValue(map[string]string{
		"Name": account, "Namespace": namespace, "name": account,
		"namespace": namespace,
	})
}

// largestText bounds what is decoded, in bytes.
const largestText = 1 << 20

func decoded(v ref.Val, decode func([]byte, any) error) ref.Val {
	text, ok := v.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	if len(text) > largestText {
		return types.NewErr("a text of more than %d bytes is not decoded", largestText)
	}
	var out any
	if err := decode([]byte(text), &out); err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(out)
}

func encoded(v ref.Val) ref.Val {
	native, err := Native(v)
	if err != nil {
		return types.WrapErr(err)
	}
	text, err := json.Marshal(native)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.String(text)
}

// Native is a value as JSON has it, with whole numbers.
func Native(v ref.Val) (any, error) {
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case *types.Err:
		return nil, v
	case *types.Optional:
		if !v.HasValue() {
			return nil, nil
		}
		return Native(v.GetValue())
	case types.Bool, types.Int, types.Uint, types.Double, types.String, types.Bytes:
		return v.Value(), nil
	case traits.Mapper:
		out := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			name, ok := key.Value().(string)
			if !ok {
				return nil, fmt.Errorf("a key is a %s, and JSON has texts alone", key.Type().TypeName())
			}
			field, err := Native(v.Get(key))
			if err != nil {
				return nil, err
			}
			out[name] = field
		}
		return out, nil
	case traits.Lister:
		out := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			item, err := Native(it.Next())
			if err != nil {
				return nil, err
			}
			out = append(out, item)
		}
		return out, nil
	}
	text := v.ConvertToType(types.StringType) // times, quantities, addresses
	if s, ok := text.(types.String); ok {
		return string(s), nil
	}
	return nil, fmt.Errorf("JSON has no %s", v.Type().TypeName())
}

// lenient has orValue answer a value that is no optional one: public policies were written when CEL did so.
func lenient() cel.EnvOption {
	macro := func(h cel.MacroExprFactory, target ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		return h.NewCall("@orValue", target, args[0]), nil
	}
	return all([]cel.EnvOption{
		cel.Macros(cel.ReceiverMacro("orValue", 1, macro)),
		cel.Function("@orValue", cel.Overload("kyverno_or_value", []*cel.Type{cel.DynType, cel.DynType}, cel.DynType,
			cel.BinaryBinding(func(v, otherwise ref.Val) ref.Val {
				o, optional := v.(*types.Optional)
				switch {
				case !optional:
					return v
				case o.HasValue():
					return o.GetValue()
				}
				return otherwise
			}))),
	})
}
