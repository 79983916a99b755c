// SPDX-License-Identifier: Apache-2.0

package regobuiltins

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// calls are calls of built-in functions. What each has to answer, Open Policy
// Agent's own functions say.
var calls = []string{
	`sprintf("%s is %d of %v, %q", ["a", 1, 2.5, "b"])`, `sprintf("%v %v %v %v", [null, true, [1, "x", {"k": {2, 1}}], set()])`,
	`sprintf("%05d|%-6s|%x|%t|%%", [42, "ab", 255, true])`,
	`sprintf("%d", [12345678901234567890])`, `sprintf("%d", ["x"])`, `sprintf("%s", [])`, `sprintf("plain", [1])`, `sprintf(1, [])`,
	`sprintf("%.2f and %e", [3.14159, 100.5])`, `sprintf("%v", [1e3])`,
	`json.patch({"a": {"b": [1, 2]}}, [{"op": "add", "path": "/a/b/-", "value": 3}, {"op": "replace", "path": "/a/b/0", "value": {"x": 1}}, {"op": "remove", "path": "a/b/1"}])`,
	`json.patch({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "move", "from": "a", "path": "c"}, {"op": "test", "path": "/b", "value": 1}])`,
	`json.patch({"a": 1}, [{"op": "test", "path": "/a", "value": 2}])`, `json.patch({"a": 1}, [{"op": "remove", "path": "/b"}])`, `json.patch({"a": 1}, [{"op": "replace", "path": "/b", "value": 1}])`, `json.patch({"a": [1, 2]}, [{"op": "add", "path": ["a", 1], "value": {"x": {3}}}])`,
	`json.patch({"x~y": {"p/q": 1}}, [{"op": "replace", "path": "/x~0y/p~1q", "value": 2}])`, `json.patch([1, 2, 3], [{"op": "add", "path": "/1", "value": 9}, {"op": "remove", "path": "/3"}])`,
	`json.is_valid("{\"a\": 1}")`, `json.is_valid("{a")`, `json.is_valid(1)`, `yaml.is_valid("a: [1]")`, `yaml.is_valid("a: [")`,
	`yaml.unmarshal("a: 1\nb: [x, true, null, 1.5]\n")`, `yaml.unmarshal("- a: b\n- c")`, `yaml.unmarshal(": :\n -")`,
	`yaml.marshal({"a": [1, "x"], "b": {"c": true}})`,
	`hex.encode("héllo")`, `hex.decode("6869")`, `hex.decode("xyz")`, `base64.is_valid("aGk=")`, `base64.is_valid("a")`,
	`base64url.encode_no_pad("hi?>")`,
	`urlquery.encode("a b&c/d")`, `urlquery.decode("a+b%26")`, `urlquery.decode("%zz")`,
	`urlquery.encode_object({"a": "1", "b": ["2", "3"], "c": {"4"}})`, `urlquery.decode_object("a=1&b=2&b=3")`,
	`glob.quote_meta("*.github.com")`, `glob.quote_meta("a?[x]{y}\\")`, `crypto.md5("a")`, `crypto.sha1("a")`, `crypto.sha256("a")`,
	`crypto.hmac.md5("a", "k")`, `crypto.hmac.sha1("a", "k")`, `crypto.hmac.sha256("a", "k")`, `crypto.hmac.sha512("a", "k")`,
	`crypto.hmac.equal("a", "a")`,
	`strings.any_prefix_match(["foo", "bar"], ["ba"])`, `strings.any_prefix_match("foo", {"x", "y"})`,
	`strings.any_suffix_match({"foo"}, "oo")`, `strings.any_prefix_match(1, "x")`, `strings.count("cheese", "e")`, `indexof_n("cheese", "e")`,
	`indexof_n("ünüm", "ü")`, `indexof_n("aaa", "aa")`, `indexof_n("a", "")`,
	`object.subset({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}})`, `object.subset({"a": 1}, {"a": 2})`, `object.subset({1, 2, 3}, {1, 3})`,
	`object.subset([1, 2, 3], [2, 3])`, `object.subset([1, 2, 3], [1, 3])`, `object.subset([1, 2, 3], {1, 3})`,
	`semver.is_valid("1.2.3-rc.1+b5")`, `semver.is_valid("v1.2.3")`, `semver.is_valid("1.2")`, `semver.is_valid(1)`,
	`semver.compare("1.2.3", "1.10.0")`, `semver.compare("1.0.0-alpha.1", "1.0.0-alpha.beta")`, `semver.compare("1.0.0-rc.1", "1.0.0")`,
	`semver.compare("1.0.0", "1.0.0+x")`, `semver.compare("1.0.0-2", "1.0.0-10")`, `semver.compare("1.0.0-a", "1.0.0-a.1")`,
	`semver.compare("x", "1.0.0")`, `semver.compare("v1.0.0", "1.0.0")`, `semver.is_valid("1.0.0-")`, `semver.is_valid("01.0.0")`,
	`semver.is_valid("1.0.0-a..b")`, `semver.is_valid("1.0.0+a+b")`,
	`units.parse("10")`, `units.parse("1.5Ki")`, `units.parse("200m")`, `units.parse("2M")`, `units.parse("3Gi")`, `units.parse("1k")`,
	`units.parse("")`, `units.parse("x")`, `units.parse("1 K")`, `units.parse_bytes("1.5MiB")`, `units.parse_bytes("10kb")`,
	`units.parse_bytes("3GB")`, `units.parse_bytes("7")`, `units.parse_bytes("1q")`,
	`regex.is_valid("a(b")`, `regex.is_valid("ab+")`, `regex.is_valid(1)`, `regex.match("^a+$", "aaa")`, `regex.match("(", "a")`,
	`regex.split("[,;]", "a,b;c")`, `regex.replace("foo bar", "(o+) b", "<$1>")`, `regex.find_n("[a-z]+", "ab 12 cd ef", 2)`,
	`regex.find_n("[a-z]+", "ab cd", -1)`, `regex.find_n("x", "ab", -1)`,
	`regex.find_all_string_submatch_n("([a-z])([0-9])", "a1 b2", -1)`, `regex.find_all_string_submatch_n("x", "y", 1)`,
	`regex.template_match("urn:foo:{.*}", "urn:foo:bar:baz", "{", "}")`, `regex.template_match("a{[0-9]+}b", "axb", "{", "}")`,
	`regex.template_match("a{b", "ab", "{", "}")`,
	`time.parse_rfc3339_ns("2026-03-05T10:20:30.5+02:00")`, `time.parse_rfc3339_ns("yesterday")`,
	`time.parse_rfc3339_ns("3000-01-01T00:00:00Z")`, `time.parse_ns("2006-01-02", "2026-03-05")`,
	`time.parse_ns("RFC1123", "Thu, 05 Mar 2026 10:20:30 UTC")`, `time.parse_duration_ns("1h30m")`, `time.parse_duration_ns("x")`,
	`time.date(1772706030000000000)`, `time.date([1772706030000000000, "Asia/Tokyo"])`, `time.date([1, "No/Where"])`, `time.clock([1772706030000000000, "America/New_York"])`, `time.weekday(1772706030000000000)`, `time.format(1772706030000000000)`, `time.format([1772706030000000000, "Europe/Berlin"])`, `time.format([1772706030000000000, "UTC", "2006/01/02"])`, `time.format([1772706030000000000, "UTC", "RFC822"])`,
	`time.add_date(1772706030000000000, 1, -2, 40)`, `time.diff(1772706030000000000, 1700000000000000000)`,
	`time.diff(1700000000000000000, 1772706030000000000)`, `time.diff([1772706030000000000, "Asia/Tokyo"], 1772600000000000000)`,
	`time.diff(1, 1)`, `time.diff(1709164800000000000, 1711929600000000000)`,
	`trace("x")`,
}

func TestBuiltinsAnswerAsOpenPolicyAgents(t *testing.T) {
	type call struct {
		Name string
		Args []string
	}
	var asked bytes.Buffer
	var list []call
	for _, one := range calls {
		name, args, _ := strings.Cut(strings.TrimSuffix(one, ")"), "(")
		parsed, err := parse([]byte("[" + args + "]"))
		if err != nil {
			t.Fatalf("%s: %v", one, err)
		}
		c := call{Name: name}
		for _, a := range parsed.([]any) {
			c.Args = append(c.Args, text(a))
		}
		list = append(list, c)
		line, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		asked.Write(append(line, '\n'))
	}
	cmd := exec.CommandContext(t.Context(), plugintest.Regotool(t), "call")
	cmd.Stdin = &asked
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, complaints.String())
	}
	answers := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(answers) != len(list) {
		t.Fatalf("%d answers to %d calls", len(answers), len(list))
	}
	all := functions()
	for i, c := range list {
		var want struct{ Result *string }
		if err := json.Unmarshal([]byte(answers[i]), &want); err != nil {
			t.Fatal(err)
		}
		var args [][]byte
		for _, a := range c.Args {
			args = append(args, []byte(a))
		}
		got, err := all[c.Name].Call(testEvaluation(1<<20), args)
		switch {
		case want.Result == nil && err == nil:
			t.Errorf("%s: %s, should be undefined", calls[i], got)
		case want.Result != nil && err != nil:
			t.Errorf("%s: undefined (%v), want %s", calls[i], err, *want.Result)
		case want.Result != nil && !same(t, string(got), *want.Result):
			t.Errorf("%s: %s, want %s", calls[i], got, *want.Result)
		}
	}
}

func same(t *testing.T, a, b string) bool {
	t.Helper()
	x, err1 := parse([]byte(a))
	y, err2 := parse([]byte(b))
	if err := errors.Join(err1, err2); err != nil {
		t.Errorf("%s and %s: %v", a, b, err)
	}
	return compare(x, y) == 0
}

type spent int64

func testEvaluation(limit int) *Evaluation {
	return &Evaluation{
		Charge: func(int64) {}, Print: func(string) {}, Limit: limit, Patterns: &Patterns{},
		Now: func() time.Time { return time.Unix(0, 7) }, Random: func(b []byte) { clear(b) },
	}
}

// What a few bytes could blow up is refused, or paid for.
func TestBuiltinsAreBounded(t *testing.T) {
	long := strings.Repeat("a", 100000)
	doubling := `[{"op":"add","path":"/a","value":["` + strings.Repeat("x", 1000) + `"]}`
	for range 30 {
		doubling += `,{"op":"copy","from":"/a","path":"/b"},{"op":"add","path":"/a","value":[]},{"op":"copy","from":"/b","path":"/a/-"},{"op":"copy","from":"/b","path":"/a/-"}`
	}
	nested := strings.Repeat("[", 100000)
	for name, c := range map[string]struct {
		args []string
		fits bool
	}{
		"sprintf":        {args: []string{`"%1000000d"`, `[1]`}},
		"sprintf*":       {args: []string{`"%*d"`, `[1000000, 1]`}},
		"sprintf many":   {args: []string{`"` + strings.Repeat("%60000d", 1000) + `"`, `[1]`}},
		"json.patch":     {args: []string{`{}`, doubling + "]"}},
		"regex.match":    {args: []string{`"` + strings.Repeat("(a{500}){2}", 500) + `"`, `"a"`}},
		"regex.replace":  {args: []string{`"` + long + `"`, `"a"`, `"` + strings.Repeat("b", 1000) + `"`}},
		"yaml.unmarshal": {args: []string{`"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n"`}},
		"units.parse":    {args: []string{`"1e999999999"`}},
		"trace":          {args: []string{nested}},
		"json.is_valid":  {args: []string{`"` + nested + `"`}, fits: true},
	} {
		all := functions()
		b, ok := all[strings.TrimSuffix(strings.TrimSuffix(name, "*"), " many")]
		if !ok {
			t.Fatalf("no %s", name)
		}
		var args [][]byte
		for _, a := range c.args {
			args = append(args, []byte(a))
		}
		var paid spent
		e := testEvaluation(1 << 20)
		e.Charge = func(n int64) { paid += spent(n) }
		out, err := b.Call(e, args)
		if (err == nil) != c.fits {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
		if paid == 0 {
			t.Errorf("%s cost nothing", name)
		}
	}
}

func FuzzValue(f *testing.F) {
	for _, s := range []string{`{"a": {1, 2}, [1]: set()}`, `[null, true, -1.5e3, "x\n"]`, `{{}: {}}`, `{1: 2, 1: 3}`, `"\u00`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := parse(b)
		if err != nil {
			return
		}
		again, err := parse([]byte(text(v)))
		if err != nil || compare(v, again) != 0 {
			t.Errorf("%q was written as %q, which is another value: %v", b, text(v), err)
		}
	})
}
