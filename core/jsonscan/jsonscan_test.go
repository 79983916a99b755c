// SPDX-License-Identifier: Apache-2.0

package jsonscan

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestDeeper(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 300) + strings.Repeat(`]}`, 300)
	if !Deeper([]byte(deep), 599) || Deeper([]byte(deep), 600) {
		t.Error("600 levels were not counted as such")
	}
	quoted, err := json.Marshal(map[string]string{"text": strings.Repeat(`[\"`, 2000)})
	if err != nil {
		t.Fatal(err)
	}
	if Deeper(quoted, 1) {
		t.Error("brackets in a text were counted")
	}
	if Deeper([]byte(strings.Repeat(`{},`, 2000)), 1) {
		t.Error("what stands side by side was counted as nested")
	}
}

func TestMembersAreFoundWithoutDecoding(t *testing.T) {
	for data, want := range map[string]string{
		`{}`:                           "",
		`{"a":1}`:                      "",
		`{"metadata":{"a":"}"},"b":[}`: `{"a":"}"}`, // nothing behind it is read
		` { "a" : [1,{"metadata":2}] , "metadata" : null }`: "null",
		`{"x":-1e3,"metadata":true}`:                        "true",
		`{"a":"\\","metadata":"\"}"}`:                       `"\"}"`,
		`{"a":{"metadata":1},"b":"metadata"}`:               "",
	} {
		begin, end, err := Member([]byte(data), "metadata")
		if err != nil || data[begin:end] != want {
			t.Errorf("%s: found %q, %v; want %q", data, data[begin:end], err, want)
		}
	}
	for _, data := range []string{``, `[]`, `{"metadata"`, `{"metadata":`, `{"a":1 "metadata":2}`, `{metadata:1}`, `{"metadata":"a`} {
		if begin, end, err := Member([]byte(data), "metadata"); err == nil && end > begin {
			t.Errorf("%s: found %q", data, data[begin:end])
		}
	}
}

func FuzzMember(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"metadata":{"a":"}"}}`, ` { "a" : [1,{"b":"\\\""}] , "metadata" : null }`,
		`{"x":-1e3,"metadata":true}`, `{"metadata"`, `[]`, `{"a":"\\","metadata":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		begin, end, err := Member(data, "metadata")
		var got []byte
		if err == nil && end > 0 {
			got = data[begin:end]
		}
		var all map[string]json.RawMessage
		if json.Unmarshal(data, &all) != nil || all == nil {
			return // only valid objects have to be read well; others must not hurt
		}
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if got != nil && !json.Valid(got) {
			t.Fatalf("%q: member %q", data, got)
		}
		if want, ok := all["metadata"]; !ok && got != nil && bytes.Contains(data, []byte(`"metadata"`)) {
			t.Fatalf("%q: member %q, want %q", data, got, want)
		}
	})
}

func TestLongerName(t *testing.T) {
	for text, want := range map[string]bool{
		`{"abcd":1}`: true, `{"abc":1}`: false, `{"a":"bcdef"}`: false, `{"a":["bcdef","ghijk"]}`: false, `{"a":{"bcde" : 1}}`: true,
		`{"ab\"":1}`: true, `{"a":"\":bcdef"}`: false, `["abcdef`: false, `{"abcdef"`: false, ``: false,
	} {
		if got := LongerName([]byte(text), 3); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestLongestList(t *testing.T) {
	for text, want := range map[string]int{
		`{}`:                          0,
		`[1,2,3]`:                     0, // the outermost one
		`{"a":[1,2,3],"b":[4]}`:       3,
		`[{"value":[[1,2],[3,4,5]]}]`: 3,
		`{"a":["x,y,z,[,","\"],,"]}`:  2,
		`{"a":{"b":1,"c":2,"d":3}}`:   3, // members count like entries
		`{"a":[1,2`:                   0, // not JSON: it ends
		`]},,{"a":[1,2]}`:             2,
	} {
		if got := LongestList([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

func TestCommas(t *testing.T) {
	for text, want := range map[string]int{``: 0, `[1,2,[3,4]]`: 3, `{"a,b":1,"c":"\\",",d":"\",\""}`: 2, `{"a":"b,`: 0} {
		if got := Commas([]byte(text)); got != want {
			t.Errorf("%s: %d commas, want %d", text, got, want)
		}
	}
}
