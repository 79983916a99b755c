// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// compared is what comparison finds between two texts.
func compared(from, to []byte) (out []Change, differs, ok bool) {
	a, read := parse(from)
	defer a.release()
	b, also := parse(to)
	defer b.release()
	if !read || !also {
		return nil, false, false
	}
	c := comparison{from: a, to: b}
	c.diff(0, 0)
	return c.out, c.differs, true
}

// same holds a comparison of two texts against that of the values that they say.
func same(t interface{ Fatalf(string, ...any) }, from, to []byte) {
	out, differs, ok := compared(from, to)
	valid := json.Valid(from) && json.Valid(to)
	if ok != valid {
		t.Fatalf("%s and %s: read %v, valid %v", clip(from), clip(to), ok, valid)
	}
	if !ok {
		return
	}
	var a, b any
	if unmarshal(from, &a) != nil || unmarshal(to, &b) != nil {
		return // a number that is none to encoding/json either
	}
	if differs == reflect.DeepEqual(a, b) {
		t.Fatalf("%s and %s: differ %v", from, to, differs)
	}
	want, err := json.Marshal(Diff(a, b))
	if err != nil {
		t.Fatalf("%v", err)
	}
	got, err := json.Marshal(out)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if !bytes.Equal(normal(got), normal(want)) {
		t.Fatalf("from %s to %s:\n%s, expected\n%s", from, to, got, want)
	}
}

// normal is JSON as encoding/json writes it: with sorted names, and without names that come twice.
func normal(text []byte) []byte {
	var v any
	if unmarshal(text, &v) != nil {
		return text
	}
	out, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return out
}

// TestTextsAreComparedAsTheirValues: whatever two texts say, what is found between them undecoded is what is found between
// the values.
func TestTextsAreComparedAsTheirValues(t *testing.T) {
	for _, pair := range [][2]string{
		{`{}`, `{"a":null}`},
		{`{"a":null}`, `{}`},
		{`{"a":1,"a":2}`, `{"a":2}`},
		{`{"a":1}`, `{"a":2,"a":1}`},
		{`{"a":"x"}`, `{"\u0061":"\u0078"}`},
		{`{"a/b~":1}`, `{"a/b~":2}`},
		{`[1,2,3]`, `[1]`},
		{`[1]`, `[1,[2],{"a":3}]`},
		{`{"a":{"b":{"c":1,"d":2}}}`, ` { "a" : { "b" : { "d" : 2 , "c" : 1 } } } `},
		{`1.0`, `1.00`},
		{`null`, `{}`},
		{"\"\xff\"", `"�"`},
		{`{"a":tru}`, `{}`},
		{`{"a":1,}`, `{}`},
		{`[01]`, `[]`},
		{`[1e]`, `[-]`},
		{"\"\n\"", `"\x"`},
		{``, ` `},
		{strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), `1`},
	} {
		same(t, []byte(pair[0]), []byte(pair[1]))
	}
	value := rapid.Deferred(func() *rapid.Generator[any] { return values(3) })
	rapid.Check(t, func(t *rapid.T) {
		from, err := json.Marshal(value.Draw(t, "from"))
		if err != nil {
			t.Fatal(err)
		}
		to, err := json.Marshal(value.Draw(t, "to"))
		if err != nil {
			t.Fatal(err)
		}
		same(t, from, to)
	})
}

// values are JSON values that are much alike.
func values(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.SampledFrom([]any{nil, true, false, 1, 2.5, "", "a", "b/~", "\u2028<\"\\\n", "\U0001F600"}),
	}
	if depth > 0 {
		name := rapid.SampledFrom([]string{"a", "b", "c/d", "e~f", "", "\u00e9\""})
		kinds = append(kinds,
			rapid.Custom(func(t *rapid.T) any { return rapid.MapOfN(name, values(depth-1), 0, 4).Draw(t, "object") }),
			rapid.Custom(func(t *rapid.T) any { return rapid.SliceOfN(values(depth-1), 0, 4).Draw(t, "array") }))
	}
	return rapid.OneOf(kinds...)
}

// FuzzTexts: the same for any two texts.
func FuzzTexts(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":null}]}`), []byte(`{"a":[1,{"b":"\ud83d\ude00"}],"c":-0.1e+9}`))
	f.Fuzz(func(t *testing.T, from, to []byte) { same(t, from, to) })
}

// TestAnObjectInAnAnswerIsReadOnlyWhereItDiffers: what a policy hands back as it was is no change, wherever its names stand.
func TestAnObjectInAnAnswerIsReadOnlyWhereItDiffers(t *testing.T) {
	const request = `{"operation":"CREATE","object":{"kind":"Pod","metadata":{"name":"a","labels":{"x":"1"}}}}`
	for answer, want := range map[string]string{
		`{"accepted":true,"mutated_object":{"kind":"Pod","metadata":{"name":"a","labels":{"x":"1"}}}}`: `{"allowed":true}`,
		`{"mutated_object":{"metadata":{"labels":{"x":"1"},"name":"a"},"kind":"Pod"},"accepted":true}`: `{"allowed":true}`,
		`{"accepted":true,"mutated_object":null}`:                                                      `{"allowed":true}`,
		`{"Mutated_Object":{"kind":"Pod","metadata":{"name":"a","labels":{"x":"2","y/z":"3"}}},"accepted":true,"warnings":["w"]}`: `{"allowed":true,"patch":[` +
			`{"op":"replace","path":"/metadata/labels/x","value":"2"},{"op":"add","path":"/metadata/labels/y~1z","value":"3"}],"warnings":["w"]}`,
		`{"accepted":false,"message":"no","mutated_object":{"kind":"Pod"}}`: `{"allowed":false,"message":"no"}`,
	} {
		got, err := Reply("p", []byte(answer), []byte(request), abi.AdmissionMutate)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; expected %s", answer, got, err, want)
		}
	}
	for answer, want := range map[string]string{
		`{"accepted":true,"mutated_object":[]}`:  "mutated_object is no object: []",
		`{"accepted":true,"mutated_object":tru}`: "invalid character",
	} {
		if _, err := Reply("p", []byte(answer), []byte(request), abi.AdmissionMutate); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %s", answer, err, want)
		}
	}
}

// BenchmarkAnswer is what reading an answer with a whole object of 4.7 KB costs that has one label more.
func BenchmarkAnswer(b *testing.B) {
	request := []byte(`{"operation":"CREATE","object":` + large + `}`)
	for name, answer := range map[string]string{
		"as it was written": `{"accepted":true,"mutated_object":` + strings.Replace(large, `"labels":{`, `"labels":{"checked":"yes",`, 1) + `}`,
		"in another order": `{"accepted":true,"mutated_object":` +
			string(normal([]byte(strings.Replace(large, `"labels":{`, `"labels":{"checked":"yes",`, 1)))) + `}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if a, err := Answer([]byte(answer), request, abi.AdmissionMutate); err != nil || len(a.Patch) != 1 {
					b.Fatal(a, err)
				}
			}
		})
	}
}

var large = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop","labels":{"team":"blue"}},"spec":{"restartPolicy":"Always","containers":[` +
	strings.TrimSuffix(strings.Repeat(`{"name":"web","image":"registry.example.com/shop/web:1.4.2","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],`+
		`"env":[{"name":"SETTING_0","value":"vvvvvvvvvvvvvvvvvvvv"},{"name":"SETTING_1","value":"vvvvvvvvvvvvvvvvvvvv"}],"resources":{"requests":{"memory":"256Mi","cpu":"500m"},"limits":{"cpu":"500m"}},`+
		`"livenessProbe":{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10},"imagePullPolicy":"IfNotPresent"},`, 9), ",") + `]}}`
