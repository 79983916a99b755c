// SPDX-License-Identifier: Apache-2.0

package wasmplane

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

type vector struct {
	Name   string   `json:"name"`
	Fields []string `json:"fields"`
	JSON   any      `json:"json"`
	Flat   string   `json:"flat"`
	Error  string   `json:"error"`
}

func projections(t *testing.T) []vector {
	t.Helper()
	b, err := os.ReadFile("../spec/vectors/projections.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestVectors: what the SDK reads of a flat input is what the JSON form says.
func TestVectors(t *testing.T) {
	for _, v := range projections(t) {
		if v.Error != "" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			flat, err := hex.DecodeString(v.Flat)
			if err != nil {
				t.Fatal(err)
			}
			in := newInput(&v.Fields, flat)
			if len(v.Fields) == 0 {
				same(t, "the document", appendTree(nil, in.Root()), v.JSON)
				return
			}
			if in.root.Len() != len(v.Fields) {
				t.Fatalf("%d fields of %d", in.root.Len(), len(v.Fields))
			}
			for i, f := range v.Fields {
				if got := in.Get(f); got.cell != in.root.At(i).cell {
					t.Errorf("%s is not the field with index %d", f, i)
				}
			}
		})
	}
}

func same(t *testing.T, what string, got []byte, want any) {
	t.Helper()
	var is any
	if err := json.Unmarshal(got, &is); err != nil {
		t.Fatalf("%s: %q is no JSON: %v", what, got, err)
	}
	if !reflect.DeepEqual(is, want) {
		t.Errorf("%s: %s, want %v", what, got, want)
	}
}

func flatOf(t *testing.T, name string) (fields []string, data []byte) {
	t.Helper()
	for _, v := range projections(t) {
		if v.Name == name {
			b, err := hex.DecodeString(v.Flat)
			if err != nil {
				t.Fatal(err)
			}
			return v.Fields, b
		}
	}
	t.Fatalf("no vector is named %q", name)
	return nil, nil
}

func TestValues(t *testing.T) {
	fields, data := flatOf(t, "types of values")
	in := newInput(&fields, data)
	if in.Get("object.spec.replicas").Int() != 3 || in.Get("object.spec.ratio").Float() != 0.5 ||
		!in.Get("object.spec.hostNetwork").Bool() || in.Get("object.metadata.name").String() != "web" {
		t.Error("values are read wrong")
	}
	fields, data = flatOf(t, "absent and null differ")
	in = newInput(&fields, data)
	if in.Get(fields[0]).Exists() || !in.Get(fields[1]).Exists() || !in.Get(fields[1]).IsNull() || in.Get(fields[2]).Exists() {
		t.Error("absent and null are mixed up")
	}
	fields, data = flatOf(t, "items of an array keep their index")
	if got := newInput(&fields, data).Get(fields[0]).Strings(); !reflect.DeepEqual(got, []string{"a:1", "", "c:3"}) {
		t.Errorf("items %q", got)
	}
	var none Value
	if none.Exists() || none.IsNull() || none.Len() != 0 || none.Get("x").Exists() || none.At(0).Exists() || none.String() != "" ||
		none.Int() != 0 {
		t.Error("the zero value is not absent")
	}
}

func TestAPluginDecides(t *testing.T) {
	fields, data := flatOf(t, "several values share their way")
	level := ""
	Register(Plugin{
		Name: "test", Version: "1", SettingsSchema: `{"required": ["level"]}`,
		Settings: func(s Value) error {
			if level = s.Get("level").String(); level == "" {
				return errors.New("level is missing")
			}
			return nil
		},
		Mutate: &Admission{Fields: fields, Decide: func(in Input, out *Decision) {
			out.Add("/metadata/labels/"+Token("example.com/x"), in.Get("object.metadata.labels"))
			out.Remove("/spec/hostNetwork")
			out.Warn("careful \"now\"\n")
			out.Audit("k", level)
		}},
		Validate: &Admission{Fields: fields, Decide: func(in Input, out *Decision) {
			if in.Get("operation").String() == "CREATE" {
				out.DenyField("metadata.name", "not "+in.Get("object.metadata.name").String())
				out.Code(422)
			}
		}},
	})
	t.Cleanup(func() { registered = nil })
	if about := string(describe()); !strings.Contains(about, `"settingsSchema":{"required": ["level"]}`) {
		t.Errorf("its schema is not in what it says of itself: %s", about)
	}
	if _, err := Try(opSettings, []byte(`{}`)); err == nil {
		t.Error("wrong settings were taken")
	}
	if _, err := Try(opSettings, []byte(`{"level":"h\u00efgh"}`)); err != nil || level != "hïgh" {
		t.Errorf("level %q, error %v", level, err)
	}
	got, err := Try(opMutate, data)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "mutation", got, map[string]any{
		"allowed": true, "warnings": []any{"careful \"now\"\n"}, "auditAnnotations": map[string]any{"k": "hïgh"},
		"patch": []any{
			map[string]any{"op": "add", "path": "/metadata/labels/example.com~1x", "value": map[string]any{"app": "web", "team": "blue"}},
			map[string]any{"op": "remove", "path": "/spec/hostNetwork"},
		},
	})
	if got, err = Try(opValidate, data); err != nil {
		t.Fatal(err)
	}
	same(t, "refusal", got, map[string]any{"allowed": false, "message": "not web", "field": "metadata.name", "code": 422.0})
	if _, err = Try(opAuthorize, data); err == nil {
		t.Error("a hook that is not there answered")
	}
	var manifest struct {
		ABI   int
		Hooks []struct {
			Op    int
			Point string
		}
	}
	if err := json.Unmarshal(Describe(), &manifest); err != nil || manifest.ABI != 1 || len(manifest.Hooks) != 2 {
		t.Errorf("manifest %+v, error %v", manifest, err)
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e3,"x\u00e9\ud83d\ude00\n",true,false,null,{}]}`, `"`, `[`, `{"a"`, `\u12`, `[[[[`, `"\ud800"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseJSON(b)
		var want any
		if jsonErr := json.Unmarshal(b, &want); jsonErr == nil && err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if err == nil {
			_ = appendTree(nil, v)
		}
	})
}
