// SPDX-License-Identifier: Apache-2.0

package regobuiltins

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // time zones on hosts that have none
)

// Patterns keeps compiled expressions: a policy uses the same few for every request.
type Patterns struct {
	mu   sync.Mutex
	made map[string]*regexp.Regexp
}

// Bounds of expressions.
const (
	mostPatterns   = 128
	longestPattern = 4 << 10
)

func (p *Patterns) compile(c *Evaluation, pattern string) (*regexp.Regexp, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if re := p.made[pattern]; re != nil {
		return re, nil
	}
	if len(pattern) > longestPattern {
		return nil, errTooLarge
	}
	c.Charge(int64(len(pattern)) * 500)
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	if p.made == nil || len(p.made) >= mostPatterns {
		p.made = map[string]*regexp.Regexp{}
	}
	p.made[pattern] = re
	return re, nil
}

// with compiles a pattern and charges for running it over a text: the engine's
// time is bounded by their product.
func with(c *Evaluation, pattern, over any) (*regexp.Regexp, string, error) {
	p, ok1 := pattern.(string)
	s, ok2 := over.(string)
	if !ok1 || !ok2 {
		return nil, "", errType
	}
	re, err := c.Patterns.compile(c, p)
	if err != nil {
		return nil, "", err
	}
	c.Charge(100 + int64(len(s))*int64(4+len(p)/4))
	return re, s, nil
}

func regexBuiltins() map[string]Function {
	on := func(args, over int, f func(c *Evaluation, re *regexp.Regexp, s string, a []any) (any, error)) Function {
		return Function{args: args, run: func(c *Evaluation, a []any) (any, error) {
			pattern := 0
			if over == 0 {
				pattern = 1
			}
			re, s, err := with(c, a[pattern], a[over])
			if err != nil {
				return nil, err
			}
			return f(c, re, s, a)
		}}
	}
	match := on(2, 1, func(_ *Evaluation, re *regexp.Regexp, s string, _ []any) (any, error) { return re.MatchString(s), nil })
	return map[string]Function{
		"regex.is_valid": {args: 1, run: func(c *Evaluation, a []any) (any, error) {
			s, ok := a[0].(string)
			if !ok {
				return false, nil
			}
			_, err := c.Patterns.compile(c, s)
			return err == nil, nil
		}},
		"regex.match": match,
		"re_match":    match,
		"regex.split": on(2, 1, func(_ *Evaluation, re *regexp.Regexp, s string, _ []any) (any, error) {
			return fromPlain(re.Split(s, -1))
		}),
		"regex.replace": on(3, 0, func(c *Evaluation, re *regexp.Regexp, s string, a []any) (any, error) {
			with, ok := a[2].(string)
			if !ok {
				return nil, errType
			}
			if n := len(re.FindAllStringIndex(s, -1)); len(s)+n*(len(with)+strings.Count(with, "$")*len(s)) > 16*c.Limit {
				return nil, errTooLarge
			}
			return bounded(c, re.ReplaceAllString(s, with), nil)
		}),
		"regex.find_n": on(3, 1, func(_ *Evaluation, re *regexp.Regexp, s string, a []any) (any, error) {
			n, err := integer(a[2])
			if err != nil {
				return nil, err
			}
			found := re.FindAllString(s, int(n))
			if found == nil {
				found = []string{}
			}
			return fromPlain(found)
		}),
		"regex.find_all_string_submatch_n": on(3, 1, func(_ *Evaluation, re *regexp.Regexp, s string, a []any) (any, error) {
			n, err := integer(a[2])
			if err != nil {
				return nil, err
			}
			out := []any{}
			for _, groups := range re.FindAllStringSubmatch(s, int(n)) {
				list, err := fromPlain(groups)
				if err != nil {
					return nil, err
				}
				out = append(out, list)
			}
			return out, nil
		}),
		"regex.template_match": {args: 4, run: matchTemplate},
	}
}

// matchTemplate matches text between delimiters as expressions, the rest as it is.
func matchTemplate(c *Evaluation, a []any) (any, error) {
	var s [4]string
	for i := range s {
		var ok bool
		if s[i], ok = a[i].(string); !ok {
			return nil, errType
		}
	}
	template, value, start, end := s[0], s[1], s[2], s[3]
	if len(start) != 1 || len(end) != 1 {
		return nil, errors.New("delimiters are single characters")
	}
	var pattern strings.Builder
	pattern.WriteByte('^')
	for {
		before, rest, found := strings.Cut(template, start)
		pattern.WriteString(regexp.QuoteMeta(before))
		if !found {
			break
		}
		inner, after, closed := strings.Cut(rest, end)
		if !closed || strings.Contains(inner, start) {
			return nil, errors.New("unbalanced delimiters")
		}
		pattern.WriteString("(" + inner + ")")
		template = after
	}
	pattern.WriteByte('$')
	re, _, err := with(c, pattern.String(), value)
	if err != nil {
		return nil, err
	}
	return re.MatchString(value), nil
}

func timeBuiltins() map[string]Function {
	at := func(f func(t time.Time) any) func(*Evaluation, []any) (any, error) {
		return func(_ *Evaluation, a []any) (any, error) {
			t, err := moment(a[0])
			if err != nil {
				return nil, err
			}
			return f(t), nil
		}
	}
	three := func(a, b, c int) any { return []any{number(int64(a)), number(int64(b)), number(int64(c))} }
	return map[string]Function{
		"time.now_ns": {args: 0, Grant: "clock", run: func(c *Evaluation, _ []any) (any, error) { return number(c.Now().UnixNano()), nil }},
		"time.parse_rfc3339_ns": {args: 1, run: texts(func(s string) (any, error) {
			t, err := time.Parse(time.RFC3339, s)
			return nanoseconds(t, err)
		})},
		"time.parse_ns": {args: 2, run: func(_ *Evaluation, a []any) (any, error) {
			return onStrings(a, func(layout, s string) (any, error) {
				if named, ok := layouts[layout]; ok {
					layout = named
				}
				t, err := time.Parse(layout, s)
				return nanoseconds(t, err)
			})
		}},
		"time.parse_duration_ns": {args: 1, run: texts(func(s string) (any, error) {
			d, err := time.ParseDuration(s)
			return number(int64(d)), err
		})},
		"time.date":    {args: 1, run: at(func(t time.Time) any { y, m, d := t.Date(); return three(y, int(m), d) })},
		"time.clock":   {args: 1, run: at(func(t time.Time) any { h, m, s := t.Clock(); return three(h, m, s) })},
		"time.weekday": {args: 1, run: at(func(t time.Time) any { return t.Weekday().String() })},
		"time.format": {args: 1, run: func(_ *Evaluation, a []any) (any, error) {
			t, err := moment(a[0])
			if err != nil {
				return nil, err
			}
			layout := time.RFC3339Nano
			if list, ok := a[0].([]any); ok && len(list) == 3 {
				if layout, ok = list[2].(string); !ok {
					return nil, errType
				}
				if named, ok := layouts[layout]; ok {
					layout = named
				}
			}
			return t.Format(layout), nil
		}},
		"time.add_date": {args: 4, run: func(_ *Evaluation, a []any) (any, error) {
			t, err := moment(a[0])
			y, err1 := integer(a[1])
			m, err2 := integer(a[2])
			d, err3 := integer(a[3])
			if err := errors.Join(err, err1, err2, err3); err != nil {
				return nil, err
			}
			return nanoseconds(t.AddDate(int(y), int(m), int(d)), nil)
		}},
		"time.diff": {args: 2, run: func(_ *Evaluation, a []any) (any, error) {
			x, err := moment(a[0])
			y, err2 := moment(a[1])
			if err := errors.Join(err, err2); err != nil {
				return nil, err
			}
			return difference(x, y), nil
		}},
	}
}

var layouts = map[string]string{
	"ANSIC": time.ANSIC, "UnixDate": time.UnixDate, "RubyDate": time.RubyDate, "RFC822": time.RFC822, "RFC822Z": time.RFC822Z,
	"RFC850": time.RFC850, "RFC1123": time.RFC1123, "RFC1123Z": time.RFC1123Z, "RFC3339": time.RFC3339, "RFC3339Nano": time.RFC3339Nano,
}

// nanoseconds since 1970, where they fit 64 bits.
func nanoseconds(t time.Time, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if y := t.Year(); y < 1678 || y > 2261 {
		return nil, errors.New("the time is outside of what nanoseconds can count")
	}
	return number(t.UnixNano()), nil
}

// moment reads ns, [ns, zone] or [ns, zone, layout].
func moment(v any) (time.Time, error) {
	zone := ""
	if list, ok := v.([]any); ok {
		if len(list) < 2 || len(list) > 3 {
			return time.Time{}, errType
		}
		if zone, ok = list[1].(string); !ok {
			return time.Time{}, errType
		}
		v = list[0]
	}
	ns, err := integer(v)
	if err != nil {
		return time.Time{}, err
	}
	loc := time.UTC
	if zone != "" && zone != "Local" { // this machine's zone is none of a policy's business
		if loc, err = time.LoadLocation(zone); err != nil {
			return time.Time{}, err
		}
	}
	return time.Unix(0, ns).In(loc), nil
}

// difference is years, months, days, hours, minutes and seconds between two times.
func difference(a, b time.Time) any {
	if a.Location() != b.Location() {
		b = b.In(a.Location())
	}
	if a.After(b) {
		a, b = b, a
	}
	y1, mo1, d1 := a.Date()
	y2, mo2, d2 := b.Date()
	h1, mi1, s1 := a.Clock()
	h2, mi2, s2 := b.Clock()
	y, mo, d, h, mi, s := y2-y1, int(mo2-mo1), d2-d1, h2-h1, mi2-mi1, s2-s1
	if s < 0 {
		s, mi = s+60, mi-1
	}
	if mi < 0 {
		mi, h = mi+60, h-1
	}
	if h < 0 {
		h, d = h+24, d-1
	}
	if d < 0 { // the days of the month before
		t := time.Date(y1, mo1, 32, 0, 0, 0, 0, time.UTC)
		d, mo = d+32-t.Day(), mo-1
	}
	if mo < 0 {
		mo, y = mo+12, y-1
	}
	out := []any{}
	for _, n := range []int{y, mo, d, h, mi, s} {
		out = append(out, number(int64(n)))
	}
	return out
}

// semver is major, minor and patch, and the parts of a pre-release.
type semver struct {
	numbers [3]int64
	pre     []string
}

var semverForm = regexp.MustCompile(`^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?$`)

func parseSemver(s string) (v semver, err error) {
	m := semverForm.FindStringSubmatch(s)
	if m == nil || strings.Contains(m[4]+".", "..") || strings.HasPrefix(m[4], ".") {
		return v, errors.New("no semantic version")
	}
	for i := range v.numbers {
		if v.numbers[i], err = strconv.ParseInt(m[i+1], 10, 64); err != nil {
			return v, err
		}
	}
	if m[4] != "" {
		v.pre = strings.Split(m[4], ".")
	}
	return v, nil
}

func compareSemver(x, y string) (any, error) {
	a, err := parseSemver(x)
	b, err2 := parseSemver(y)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	for i := range a.numbers {
		if c := cmp.Compare(a.numbers[i], b.numbers[i]); c != 0 {
			return number(int64(c)), nil
		}
	}
	return number(int64(comparePre(a.pre, b.pre))), nil
}

func comparePre(a, b []string) int {
	if len(a) == 0 || len(b) == 0 {
		return cmp.Compare(min(len(b), 1), min(len(a), 1)) // a release is above its pre-releases
	}
	for i := range min(len(a), len(b)) {
		n, err1 := strconv.ParseInt(a[i], 10, 64)
		m, err2 := strconv.ParseInt(b[i], 10, 64)
		c := strings.Compare(a[i], b[i])
		switch {
		case err1 == nil && err2 == nil:
			c = cmp.Compare(n, m)
		case err1 == nil:
			c = -1
		case err2 == nil:
			c = 1
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// parseUnits reads "10K", "1.5Mi", "200m" as numbers.
func parseUnits(s string) (any, error) {
	s = strings.ReplaceAll(s, `"`, "")
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := s[len(digits):]
	if lower := strings.ToLower(unit); unit != "m" && unit != "E" && unit != "e" {
		unit = lower
	}
	factors := map[string]*big.Rat{"": big.NewRat(1, 1), "m": big.NewRat(1, 1000), "e": big.NewRat(1e18, 1), "E": big.NewRat(1e18, 1)}
	for i, name := range []string{"k", "m", "g", "t", "p", "e"} {
		decimal := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(1000), big.NewInt(int64(i+1)), nil))
		if name != "m" {
			factors[name] = decimal
		}
		factors[name+"i"] = new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(10*(i+1))))
	}
	factors["M"] = big.NewRat(1e6, 1)
	if len(s) > 0 && strings.HasSuffix(s, "M") {
		unit = "M"
	}
	return scaled(digits, factors[unit], false)
}

// parseBytes reads "10KB", "1.5Mi", "1GiB" as whole numbers of bytes.
func parseBytes(s string) (any, error) {
	s = strings.ToLower(strings.ReplaceAll(s, `"`, ""))
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	unit := strings.TrimSuffix(s[len(digits):], "b")
	factors := map[string]*big.Rat{"": big.NewRat(1, 1)}
	for i, name := range []string{"k", "m", "g", "t", "p", "e"} {
		factors[name] = new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(1000), big.NewInt(int64(i+1)), nil))
		factors[name+"i"] = new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(10*(i+1))))
	}
	return scaled(digits, factors[unit], true)
}

func scaled(digits string, factor *big.Rat, whole bool) (any, error) {
	if factor == nil || len(digits) > 100 || digits == "" || strings.ContainsAny(digits, " eE/_") {
		return nil, errors.New("no amount")
	}
	n, ok := new(big.Rat).SetString(digits)
	if !ok {
		return nil, errors.New("no amount")
	}
	n.Mul(n, factor)
	if n.IsInt() || whole {
		return json.Number(new(big.Int).Quo(n.Num(), n.Denom()).String()), nil
	}
	f := new(big.Float).SetRat(n)
	return json.Number(f.Text('g', 10)), nil
}
