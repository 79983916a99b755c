// SPDX-License-Identifier: Apache-2.0

package celpolicy

import (
	"bytes"
	"compress/gzip"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp/syntax"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Computing are Kyverno's functions that only compute, and orValue as Kyverno's policies use it.
func Computing() cel.EnvOption { return all([]cel.EnvOption{computing(), lenient()}) }

// computingMore are Kyverno's functions about time, chance, numbers, lists, certificates and compressed bytes.
func computingMore() []cel.EnvOption {
	out := []cel.EnvOption{
		cel.Function("time.now", cel.Overload("kyverno_time_now", nil, cel.TimestampType,
			cel.FunctionBinding(func(...ref.Val) ref.Val { return types.Timestamp{Time: time.Now()} }))),
		cel.Function("time.truncate", cel.Overload("kyverno_time_truncate", []*cel.Type{cel.TimestampType, cel.DurationType},
			cel.TimestampType, cel.BinaryBinding(truncated))),
		cel.Function("time.toCron", cel.Overload("kyverno_time_tocron", []*cel.Type{cel.TimestampType}, cel.StringType,
			cel.UnaryBinding(cron))),
		cel.Function("math.round", cel.Overload("kyverno_math_round", []*cel.Type{cel.DoubleType, cel.IntType}, cel.DoubleType,
			cel.BinaryBinding(rounded))),
		cel.Function("x509.decode", cel.Overload("kyverno_x509_decode", []*cel.Type{cel.StringType}, cel.DynType,
			cel.UnaryBinding(certificate))),
		cel.Function("gzip.compress", cel.Overload("kyverno_gzip_compress", []*cel.Type{cel.DynType}, cel.BytesType,
			cel.UnaryBinding(compressed))),
		cel.Function("gzip.decompress", cel.Overload("kyverno_gzip_decompress", []*cel.Type{cel.BytesType}, cel.StringType,
			cel.UnaryBinding(decompressed))),
	}
	for i, name := range []string{"random", "random.generate"} {
		out = append(out, cel.Function(name,
			cel.Overload(fmt.Sprintf("kyverno_random_%d", i), nil, cel.StringType,
				cel.FunctionBinding(func(...ref.Val) ref.Val { return random("[0-9a-z]{8}") })),
			cel.Overload(fmt.Sprintf("kyverno_random_string_%d", i), []*cel.Type{cel.StringType}, cel.StringType,
				cel.UnaryBinding(func(v ref.Val) ref.Val {
					text, ok := v.Value().(string)
					if !ok {
						return types.MaybeNoSuchOverloadErr(v)
					}
					return random(text)
				}))))
	}
	list, anyMap := cel.ListType(cel.DynType), cel.MapType(cel.StringType, cel.DynType)
	for i, name := range []string{"listObjToMap", "transform.listObjToMap"} {
		out = append(out, cel.Function(name, cel.Overload(fmt.Sprintf("kyverno_list_to_map_%d", i),
			[]*cel.Type{list, list, cel.StringType, cel.StringType}, anyMap, cel.FunctionBinding(listToMap))))
	}
	return out
}

func truncated(v, by ref.Val) ref.Val {
	t, ok := v.(types.Timestamp)
	d, ok2 := by.(types.Duration)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	return types.Timestamp{Time: t.Truncate(d.Duration)}
}

// cron is the minute, hour, day, month and weekday of a time.
func cron(v ref.Val) ref.Val {
	t, ok := v.(types.Timestamp)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	return types.String(fmt.Sprintf("%d %d %d %d %d", t.Minute(), t.Hour(), t.Day(), int(t.Month()), int(t.Weekday())))
}

func rounded(v, digits ref.Val) ref.Val {
	x, ok := v.(types.Double)
	n, ok2 := digits.(types.Int)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	shift := math.Pow(10, float64(n))
	return types.Double(math.Round(float64(x)*shift) / shift)
}

// listToMap takes a key of each object of one list and a value of each object of another.
func listToMap(args ...ref.Val) ref.Val {
	keys, ok := args[0].(traits.Lister)
	values, ok2 := args[1].(traits.Lister)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	if keys.Size().Equal(values.Size()) != types.True {
		return types.NewErr("listObjToMap: the lists have %v and %v items, expected as many", keys.Size(), values.Size())
	}
	out := map[ref.Val]ref.Val{}
	for k, v := keys.Iterator(), values.Iterator(); k.HasNext() == types.True; {
		key, err := member(k.Next(), args[2])
		if err != nil {
			return types.WrapErr(err)
		}
		if _, text := key.(types.String); !text {
			return types.NewErr("listObjToMap: the key %v is a %s, expected a string", args[2], key.Type().TypeName())
		}
		if out[key], err = member(v.Next(), args[3]); err != nil {
			return types.WrapErr(err)
		}
	}
	return types.DefaultTypeAdapter.NativeToValue(out)
}

func member(object, name ref.Val) (ref.Val, error) {
	m, ok := object.(traits.Mapper)
	if !ok {
		return nil, fmt.Errorf("listObjToMap: expected objects in the lists, found a %s", object.Type().TypeName())
	}
	v, ok := m.Find(name)
	if !ok {
		return nil, fmt.Errorf("listObjToMap: an object has no %v", name.Value())
	}
	return v, nil
}

// longestKey bounds keys of certificates: writing a number down takes the square of its length, which nothing interrupts.
const longestKey = 16384 // bits

// certificate reads a certificate, or a request for one, in PEM. Its fields have the names of Go's.
func certificate(v ref.Val) ref.Val {
	text, ok := v.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	if len(text) > largestText {
		return types.NewErr("x509.decode: a text of more than %d bytes is not decoded", largestText)
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return types.NewErr("x509.decode: expected a certificate or a certificate request in PEM")
	}
	var what, key any
	if c, err := x509.ParseCertificate(block.Bytes); err == nil {
		what, key, c.PublicKey = c, c.PublicKey, nil
	} else if r, other := x509.ParseCertificateRequest(block.Bytes); other == nil {
		what, key, r.PublicKey = r, r.PublicKey, nil
	} else {
		return types.WrapErr(fmt.Errorf("x509.decode: %w", err))
	}
	if k, ok := key.(*rsa.PublicKey); ok && k.N.BitLen() > longestKey {
		return types.NewErr("x509.decode: the key has %d bits, expected at most %d bits", k.N.BitLen(), longestKey)
	}
	encoded, err := json.Marshal(what)
	if err != nil {
		return types.WrapErr(fmt.Errorf("x509.decode: %w", err))
	}
	var out map[string]any
	if err := utiljson.Unmarshal(encoded, &out); err != nil {
		return types.WrapErr(fmt.Errorf("x509.decode: %w", err))
	}
	if k, ok := key.(*rsa.PublicKey); ok {
		out["PublicKey"] = map[string]any{"N": k.N.String(), "E": int64(k.E)}
	}
	return types.DefaultTypeAdapter.NativeToValue(out)
}

// compressed is a text, bytes, or anything else as JSON.
func compressed(v ref.Val) ref.Val {
	var plain []byte
	switch x := v.(type) {
	case types.String:
		plain = []byte(x)
	case types.Bytes:
		plain = x
	default:
		text := encoded(v)
		s, ok := text.(types.String)
		if !ok {
			return text
		}
		plain = []byte(s)
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(plain)
	if err := errors.Join(err, w.Close()); err != nil {
		return types.WrapErr(err)
	}
	return types.Bytes(out.Bytes())
}

func decompressed(v ref.Val) ref.Val {
	b, err := v.ConvertToNative(reflect.TypeFor[[]byte]())
	if err != nil {
		return types.WrapErr(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(b.([]byte)))
	if err != nil {
		return types.WrapErr(fmt.Errorf("gzip.decompress: %w", err))
	}
	out, err := io.ReadAll(io.LimitReader(r, largestText+1))
	if err == nil && len(out) > largestText {
		err = fmt.Errorf("there are more than %d bytes", largestText)
	}
	if err != nil {
		return types.WrapErr(fmt.Errorf("gzip.decompress: %w", err))
	}
	return types.String(out)
}

// Bounds of texts by chance.
const (
	longestRandom = 4096 // bytes
	longestRepeat = 16   // of what an expression leaves open
)

// random is a text, by chance, that a regular expression matches.
func random(expression string) ref.Val {
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return types.WrapErr(fmt.Errorf("random: %w", err))
	}
	var out strings.Builder
	if err := generate(&out, re.Simplify()); err != nil {
		return types.WrapErr(fmt.Errorf("random: %w", err))
	}
	return types.String(out.String())
}

func generate(out *strings.Builder, re *syntax.Regexp) error {
	if out.Len() > longestRandom {
		return fmt.Errorf("the expression makes more than %d bytes", longestRandom)
	}
	times := func(n int) error {
		for range n {
			if err := generate(out, re.Sub[0]); err != nil {
				return err
			}
		}
		return nil
	}
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText:
		return nil
	case syntax.OpLiteral:
		out.WriteString(string(re.Rune))
		return nil
	case syntax.OpCharClass:
		return oneOf(out, re.Rune)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return oneOf(out, []rune{'0', '9', 'A', 'Z', 'a', 'z'})
	case syntax.OpCapture:
		return times(1)
	case syntax.OpQuest:
		return times(chance(2))
	case syntax.OpStar:
		return times(chance(longestRepeat))
	case syntax.OpPlus:
		return times(1 + chance(longestRepeat))
	case syntax.OpRepeat:
		most := re.Max
		if most < 0 {
			most = re.Min + longestRepeat
		}
		return times(re.Min + chance(most-re.Min+1))
	case syntax.OpAlternate:
		return generate(out, re.Sub[chance(len(re.Sub))])
	case syntax.OpConcat:
		for _, s := range re.Sub {
			if err := generate(out, s); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("%q matches nothing that could be made", re)
	}
}

// oneOf writes a character of some ranges.
func oneOf(out *strings.Builder, ranges []rune) error {
	n := 0
	for i := 0; i < len(ranges); i += 2 {
		n += int(ranges[i+1]-ranges[i]) + 1
	}
	if n == 0 {
		return errors.New("an empty class of characters matches nothing")
	}
	at := chance(n)
	for i := 0; i < len(ranges); i += 2 {
		size := int(ranges[i+1]-ranges[i]) + 1
		if at < size {
			out.WriteRune(ranges[i] + rune(at)) //nolint:gosec // it is within the range
			return nil
		}
		at -= size
	}
	return nil
}

func chance(n int) int { return rand.IntN(n) } //nolint:gosec // such texts are names, not secrets
