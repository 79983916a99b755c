// SPDX-License-Identifier: Apache-2.0

// Package regobuiltins has the built-in functions of Rego that a compiled policy imports
// from its host. They take and return values in the notation in which OPA's modules dump
// them. A function's error means that its result is undefined, as everywhere in Rego.
//
// What reaches out of the policy (http.send, net.lookup_ip_addr, opa.runtime) is not here,
// whatever is granted.
package regobuiltins

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"  //nolint:gosec // a built-in of that name
	"crypto/sha1" //nolint:gosec // a built-in of that name
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"
)

// Function is a built-in function that a policy imports.
type Function struct {
	// Grant names what an entry has to grant for it (clock, random); "" = nothing.
	Grant string

	args int
	// weight is what a byte of the arguments costs more than one to read.
	weight int64
	run    func(c *Evaluation, args []any) (any, error)
}

// Evaluation is what functions may use during one evaluation of a policy. Every one of
// them charges for what it does; what it makes is bounded by Limit.
type Evaluation struct {
	Charge   func(units int64)
	Now      func() time.Time // the same during one evaluation
	Random   func([]byte)
	Print    func(string)
	Limit    int // of the bytes of a result
	Patterns *Patterns

	// External asks a provider of external data about keys; nil = there are none.
	External func(provider string, keys []string) (any, error)

	seeds map[string]any // of random functions: one value for one seed
}

// keep remembers the value of a seed.
func (c *Evaluation) keep(seed string, v any) any {
	if c.seeds == nil {
		c.seeds = map[string]any{}
	}
	c.seeds[seed] = v
	return v
}

// External is the function by which constraints of Gatekeeper ask providers.
const External = "external_data"

// external asks a provider about keys: external_data({"provider": ..., "keys": [...]}).
func external(c *Evaluation, a []any) (any, error) {
	q, ok := plain(a[0]).(map[string]any)
	provider, named := q["provider"].(string)
	list, keyed := q["keys"].([]any)
	if !ok || !named || !keyed || c.External == nil {
		return nil, errors.New("expected a provider and keys")
	}
	var keys []string
	for _, k := range list {
		key, ok := k.(string)
		if !ok {
			return nil, errors.New("keys are strings")
		}
		keys = append(keys, key)
	}
	return c.External(provider, keys)
}

var errTooLarge = errors.New("the result is too large")

// Lookup finds a function by its name in Rego.
func Lookup(name string) (Function, bool) {
	f, ok := functions()[name]
	return f, ok
}

var functions = sync.OnceValue(func() map[string]Function {
	all := map[string]Function{
		"trace":          {args: 1, run: func(c *Evaluation, a []any) (any, error) { return printed(c, a) }},
		"print":          {args: 1, run: func(c *Evaluation, a []any) (any, error) { return printed(c, a) }},
		"internal.print": {args: 1, run: func(c *Evaluation, a []any) (any, error) { return printed(c, a) }},
		"sprintf":        {args: 2, run: sprintf},
		"json.patch":     {args: 2, run: jsonPatch},
		"json.is_valid":  {args: 1, run: isValid(json.Valid)},
		"yaml.is_valid": {args: 1, weight: 20, run: isValid(func(b []byte) bool {
			_, err := readYAML(string(b))
			return err == nil
		})},
		"yaml.marshal": {args: 1, weight: 20, run: func(c *Evaluation, a []any) (any, error) {
			var b bytes.Buffer
			e := yaml.NewEncoder(&b)
			e.SetIndent(2)
			err := errors.Join(e.Encode(yamlOf(plain(a[0]))), e.Close())
			return bounded(c, b.String(), err)
		}},
		"yaml.unmarshal": {args: 1, weight: 20, run: func(_ *Evaluation, a []any) (any, error) { return onString(a[0], readYAML) }},
		"hex.encode":     {args: 1, run: texts(func(s string) (any, error) { return hex.EncodeToString([]byte(s)), nil })},
		"hex.decode":     {args: 1, run: texts(func(s string) (any, error) { b, err := hex.DecodeString(s); return string(b), err })},
		"base64.is_valid": {
			args: 1,
			run:  texts(func(s string) (any, error) { _, err := base64.StdEncoding.DecodeString(s); return err == nil, nil }),
		},
		"base64url.encode_no_pad": {
			args: 1,
			run:  texts(func(s string) (any, error) { return base64.RawURLEncoding.EncodeToString([]byte(s)), nil }),
		},
		"urlquery.encode":        {args: 1, run: texts(func(s string) (any, error) { return url.QueryEscape(s), nil })},
		"urlquery.decode":        {args: 1, run: texts(func(s string) (any, error) { return url.QueryUnescape(s) })},
		"urlquery.encode_object": {args: 1, run: encodeQuery},
		"urlquery.decode_object": {args: 1, run: texts(decodeQuery)},
		"glob.quote_meta":        {args: 1, run: texts(func(s string) (any, error) { return quoteGlob.Replace(s), nil })},
		"crypto.md5":             {args: 1, run: hashed(md5.New)},
		"crypto.sha1":            {args: 1, run: hashed(sha1.New)},
		"crypto.sha256":          {args: 1, run: hashed(sha256.New)},
		"crypto.hmac.md5":        {args: 2, run: mac(md5.New)},
		"crypto.hmac.sha1":       {args: 2, run: mac(sha1.New)},
		"crypto.hmac.sha256":     {args: 2, run: mac(sha256.New)},
		"crypto.hmac.sha512":     {args: 2, run: mac(sha512.New)},
		"crypto.hmac.equal": {args: 2, run: func(_ *Evaluation, a []any) (any, error) {
			return onStrings(a, func(x, y string) (any, error) { return hmac.Equal([]byte(x), []byte(y)), nil })
		}},
		"strings.any_prefix_match": {args: 2, run: anyMatch(strings.HasPrefix)},
		"strings.any_suffix_match": {args: 2, run: anyMatch(strings.HasSuffix)},
		"strings.count": {args: 2, run: func(_ *Evaluation, a []any) (any, error) {
			return onStrings(a, func(s, sub string) (any, error) { return number(int64(strings.Count(s, sub))), nil })
		}},
		"indexof_n":     {args: 2, run: indexes},
		"object.subset": {args: 2, run: func(_ *Evaluation, a []any) (any, error) { return subset(a[0], a[1]), nil }},
		"semver.is_valid": {args: 1, run: func(_ *Evaluation, a []any) (any, error) {
			s, ok := a[0].(string)
			_, err := parseSemver(s)
			return ok && err == nil, nil
		}},
		"semver.compare":    {args: 2, run: func(_ *Evaluation, a []any) (any, error) { return onStrings(a, compareSemver) }},
		"units.parse":       {args: 1, run: texts(parseUnits)},
		"units.parse_bytes": {args: 1, run: texts(parseBytes)},
		External:            {args: 1, run: external},
		"uuid.rfc4122":      {args: 1, Grant: "random", run: newUUID},
		"rand.intn":         {args: 2, Grant: "random", run: randomNumber},
	}
	for name, b := range timeBuiltins() {
		all[name] = b
	}
	for name, b := range regexBuiltins() {
		all[name] = b
	}
	return all
})

// Call runs the function on arguments as the guest dumped them.
func (f Function) Call(c *Evaluation, dumped [][]byte) ([]byte, error) {
	if len(dumped) != f.args {
		return nil, fmt.Errorf("%d arguments: %d were expected", len(dumped), f.args)
	}
	args := make([]any, len(dumped))
	for i, d := range dumped {
		c.Charge(int64(len(d)) * (1 + f.weight))
		var err error
		if args[i], err = parse(d); err != nil {
			return nil, err
		}
	}
	out, err := f.run(c, args)
	if err != nil {
		return nil, err
	}
	if out, err = fromPlain(out); err != nil {
		return nil, err
	}
	dump := text(out)
	c.Charge(int64(len(dump)))
	if len(dump) > c.Limit {
		return nil, errTooLarge
	}
	return []byte(dump), nil
}

var errType = errors.New("an argument has the wrong type")

func onString(v any, f func(string) (any, error)) (any, error) {
	s, ok := v.(string)
	if !ok {
		return nil, errType
	}
	return f(s)
}

func onStrings(a []any, f func(x, y string) (any, error)) (any, error) {
	x, ok1 := a[0].(string)
	y, ok2 := a[1].(string)
	if !ok1 || !ok2 {
		return nil, errType
	}
	return f(x, y)
}

func texts(f func(string) (any, error)) func(*Evaluation, []any) (any, error) {
	return func(_ *Evaluation, a []any) (any, error) { return onString(a[0], f) }
}

func bounded(c *Evaluation, s string, err error) (any, error) {
	if len(s) > c.Limit {
		return nil, errTooLarge
	}
	return s, err
}

func number(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }

func integer(v any) (int64, error) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, errType
	}
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	f, ok := float(n)
	if !ok {
		return 0, errType
	}
	i, exact := f.Int64()
	if exact != big.Exact {
		return 0, errType
	}
	return i, nil
}

func printed(c *Evaluation, a []any) (any, error) {
	if s, ok := a[0].(string); ok {
		c.Print(s)
	} else {
		c.Print(text(a[0]))
	}
	return true, nil
}

func isValid(valid func([]byte) bool) func(*Evaluation, []any) (any, error) {
	return func(_ *Evaluation, a []any) (any, error) {
		s, ok := a[0].(string)
		return ok && valid([]byte(s)), nil
	}
}

// sprintf formats as fmt does. Widths and precisions are bounded: a few bytes of
// them would make as many bytes as they say.
func sprintf(c *Evaluation, a []any) (any, error) {
	format, ok := a[0].(string)
	list, ok2 := a[1].([]any)
	if !ok || !ok2 {
		return nil, errType
	}
	room := len(format)
	args := make([]any, len(list))
	for i, v := range list {
		args[i] = formatted(v)
		room += 2 * len(text(v))
	}
	wide, err := widths(format)
	if err != nil {
		return nil, err
	}
	c.Charge(int64(room + wide))
	if room+wide > c.Limit {
		return nil, errTooLarge
	}
	return bounded(c, fmt.Sprintf(format, args...), nil)
}

func formatted(v any) any {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if len(v) < 1000 {
			if i, ok := new(big.Int).SetString(string(v), 10); ok {
				return i
			}
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return string(v)
	}
	return text(v)
}

// widths adds up all numbers of a format; a star would take one from the arguments.
func widths(format string) (int, error) {
	total, current, verb := 0, 0, false
	for _, c := range format {
		switch {
		case c == '%':
			verb, current = !verb, 0
		case verb && c == '*':
			return 0, errors.New("a width cannot be an argument")
		case verb && c >= '0' && c <= '9':
			if current = current*10 + int(c-'0'); current > 1<<16 {
				return 0, errTooLarge
			}
			continue
		case verb && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'):
			verb = false
		}
		total, current = total+current, 0
	}
	return total, nil
}

// readYAML reads one document. Aliases are refused where they would multiply.
func readYAML(s string) (any, error) {
	var v any
	if err := yaml.Unmarshal([]byte(s), &v); err != nil {
		return nil, err
	}
	return jsonOf(v)
}

// jsonOf makes of decoded YAML what JSON can hold.
func jsonOf(v any) (any, error) {
	switch v := v.(type) {
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	case []any:
		for i := range v {
			var err error
			if v[i], err = jsonOf(v[i]); err != nil {
				return nil, err
			}
		}
		return v, nil
	case map[string]any:
		for k := range v {
			var err error
			if v[k], err = jsonOf(v[k]); err != nil {
				return nil, err
			}
		}
		return v, nil
	case map[any]any:
		out := map[string]any{}
		for k, item := range v {
			value, err := jsonOf(item)
			if err != nil {
				return nil, err
			}
			out[fmt.Sprint(k)] = value
		}
		return out, nil
	}
	return v, nil
}

// yamlOf turns numbers into what the encoder writes as numbers.
func yamlOf(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return string(v)
	case []any:
		for i := range v {
			v[i] = yamlOf(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = yamlOf(v[k])
		}
	}
	return v
}

var quoteGlob = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `\`, `\\`, `[`, `\[`, `]`, `\]`, `{`, `\{`, `}`, `\}`)

func hashed(h func() hash.Hash) func(*Evaluation, []any) (any, error) {
	return texts(func(s string) (any, error) {
		sum := h()
		_, _ = sum.Write([]byte(s)) // a hash never fails
		return hex.EncodeToString(sum.Sum(nil)), nil
	})
}

func mac(h func() hash.Hash) func(*Evaluation, []any) (any, error) {
	return func(_ *Evaluation, a []any) (any, error) {
		return onStrings(a, func(message, key string) (any, error) {
			m := hmac.New(h, []byte(key))
			_, _ = m.Write([]byte(message)) // a hash never fails
			return hex.EncodeToString(m.Sum(nil)), nil
		})
	}
}

func encodeQuery(_ *Evaluation, a []any) (any, error) {
	o, ok := a[0].(object)
	if !ok {
		return nil, errType
	}
	q := url.Values{}
	for _, m := range o {
		key, ok := m.key.(string)
		if !ok {
			return nil, errType
		}
		values, err := stringsOf(m.value)
		if err != nil {
			return nil, err
		}
		q[key] = values
	}
	return q.Encode(), nil
}

// stringsOf is a string, or a list or set of them.
func stringsOf(v any) ([]string, error) {
	var items []any
	switch v := v.(type) {
	case string:
		return []string{v}, nil
	case []any:
		items = v
	case set:
		items = v
	default:
		return nil, errType
	}
	var out []string
	for _, item := range items {
		s, ok := item.(string)
		if !ok {
			return nil, errType
		}
		out = append(out, s)
	}
	return out, nil
}

func decodeQuery(s string) (any, error) {
	q, err := url.ParseQuery(s)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for k, v := range q {
		list, err := fromPlain(v)
		if err != nil {
			return nil, err
		}
		out[k] = list
	}
	return out, nil
}

func anyMatch(match func(s, part string) bool) func(*Evaluation, []any) (any, error) {
	return func(c *Evaluation, a []any) (any, error) {
		whole, err1 := stringsOf(a[0])
		parts, err2 := stringsOf(a[1])
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		c.Charge(int64(len(whole)) * int64(len(parts)))
		return slices.ContainsFunc(whole, func(s string) bool {
			return slices.ContainsFunc(parts, func(p string) bool { return match(s, p) })
		}), nil
	}
}

func indexes(c *Evaluation, a []any) (any, error) {
	return onStrings(a, func(s, sub string) (any, error) {
		if sub == "" {
			return nil, errors.New("the substring is empty")
		}
		runes, want := []rune(s), []rune(sub)
		c.Charge(int64(len(runes)) * int64(len(want)))
		out := []any{}
		for i := 0; i+len(want) <= len(runes); i++ {
			if slices.Equal(runes[i:i+len(want)], want) {
				out = append(out, number(int64(i)))
			}
		}
		return out, nil
	})
}

// subset says whether everything in sub is in super, objects and arrays by their parts.
func subset(super, sub any) bool {
	switch sub := sub.(type) {
	case object:
		s, ok := super.(object)
		if !ok {
			return false
		}
		for _, m := range sub {
			v, there := s.get(m.key)
			if !there || compare(v, m.value) != 0 && !subset(v, m.value) {
				return false
			}
		}
		return true
	case set:
		return contains(super, sub)
	case []any:
		s, ok := super.([]any)
		if !ok {
			return false
		}
		for i := 0; i+len(sub) <= len(s); i++ {
			if compare(s[i:i+len(sub)], sub) == 0 {
				return true
			}
		}
		return len(sub) == 0
	}
	return false
}

func contains(super any, sub set) bool {
	var items []any
	switch s := super.(type) {
	case set:
		items = s
	case []any:
		items = s
	default:
		return false
	}
	for _, want := range sub {
		if !slices.ContainsFunc(items, func(v any) bool { return compare(v, want) == 0 }) {
			return false
		}
	}
	return true
}

func newUUID(c *Evaluation, a []any) (any, error) {
	key := "uuid " + text(a[0])
	if v, ok := c.seeds[key]; ok {
		return v, nil
	}
	var u uuid.UUID
	c.Random(u[:])
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return c.keep(key, u.String()), nil
}

func randomNumber(c *Evaluation, a []any) (any, error) {
	n, err := integer(a[1])
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return number(0), nil
	}
	if n < 0 {
		n = -n
	}
	key := "rand " + text(a[0]) + " " + strconv.FormatInt(n, 10)
	if v, ok := c.seeds[key]; ok {
		return v, nil
	}
	var b [8]byte
	c.Random(b[:])
	v := new(big.Int).Mod(new(big.Int).SetBytes(b[:]), big.NewInt(n))
	return c.keep(key, json.Number(v.String())), nil
}
