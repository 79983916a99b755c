// SPDX-License-Identifier: Apache-2.0

package decodedsize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/object"
)

// held is how many bytes what decode makes keeps in memory.
func held(t *testing.T, decode func() (any, error)) int64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // and what pools have kept until now
	runtime.ReadMemStats(&before)
	v, err := decode()
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(v)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// TestSizesAreThoseOfMemory: what was counted is at least nearly what a decoded text takes, and no large multiple of it for what people
// send.
func TestSizesAreThoseOfMemory(t *testing.T) {
	many := func(n int, unit string) string { return strings.Repeat(unit+",", n) + unit }
	var members strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&members, `"k%d":%d,`, i, i)
	}
	containers := `{"spec":{"containers":[` + many(5000, `{"name":"a","image":"b:1","env":[{"name":"A","value":"B"}]}`) + `]}}`
	for name, c := range map[string]struct {
		text string
		most int64 // times what it takes that may be counted
	}{
		"empty maps":          {`{"x":[` + many(50_000, `{}`) + `]}`, 3},
		"empty lists":         {`{"x":[` + many(50_000, `[]`) + `]}`, 3},
		"numbers":             {`{"x":[` + many(50_000, `1`) + `]}`, 3},
		"texts":               {`{"x":[` + many(50_000, `"a"`) + `]}`, 3},
		"maps of one":         {`{"x":[` + many(25_000, `{"a":1}`) + `]}`, 3},
		"maps of three":       {`{"x":[` + many(12_000, `{"a":1,"b":"x","c":{}}`) + `]}`, 3},
		"a map of many":       {`{"x":{` + members.String() + `"":1}}`, 3},
		"maps in one another": {`{"x":[` + many(250, strings.Repeat(`{"a":`, 50)+`1`+strings.Repeat(`}`, 50)) + `]}`, 3},
		"one text":            {`{"x":"` + strings.Repeat("[{:,", 1<<18) + `"}`, 3},
		"a pod":               {containers, 3},
	} {
		tree := func() (any, error) {
			v := map[string]any{}
			return v, kjson.UnmarshalCaseSensitivePreserveInts([]byte(c.text), &v)
		}
		takes := held(t, tree)
		check := func(what string, counted, takes int64) {
			t.Helper()
			t.Logf("%s, %s: %d KB are counted, %d KB taken", name, what, counted>>10, takes>>10)
			if counted < takes*4/5 {
				t.Errorf("%s, %s: %d bytes were counted, and it takes %d", name, what, counted, takes)
			}
			if counted > takes*c.most+64<<10 {
				t.Errorf("%s, %s: %d bytes were counted, and it takes only %d", name, what, counted, takes)
			}
		}
		check("a tree", TreeSize([]byte(c.text), object.JSON), takes)
		v, err := tree()
		if err != nil {
			t.Fatal(err)
		}
		packed, err := cbor.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if counted := TreeSize(packed, object.CBOR); counted < takes*4/5 {
			t.Errorf("%s: %d bytes were counted of CBOR, and it takes %d", name, counted, takes)
		}
		text, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if counted := TreeSize(text, object.YAML); counted < takes*4/5 {
			t.Errorf("%s: %d bytes were counted of YAML, and it takes %d", name, counted, takes)
		}
		if name != "a pod" {
			continue
		}
		pod := reflect.TypeFor[corev1.Pod]()
		takes = held(t, func() (any, error) { p := &corev1.Pod{}; return p, json.Unmarshal([]byte(c.text), p) })
		check("a struct", Size(pod, []byte(c.text), object.JSON), takes)
		if counted := Size(pod, text, object.YAML); counted < takes*4/5 {
			t.Errorf("%d bytes were counted of YAML, and a pod takes %d", counted, takes)
		}
	}
	if n := Size(reflect.TypeFor[corev1.Pod](), []byte("a: &a [{},{}]\nb: *a\n"), object.YAML); n < Max {
		t.Errorf("%d bytes were counted where aliases may stand for anything", n)
	}
}

type bounded int64

func (b bounded) Need(_ Part, n int64) error {
	if n > int64(b) {
		return errors.New("too much")
	}
	return nil
}

func TestNeed(t *testing.T) {
	if err := Need(t.Context(), Decoded, Max); err != nil {
		t.Errorf("without an account: %v", err)
	}
	ctx, stop := context.WithCancel(With(t.Context(), bounded(10)))
	defer stop()
	if err := Need(ctx, Decoded, 11); err == nil {
		t.Error("more than the account has was allowed")
	}
	if err := Need(ctx, Decoded, 10); err != nil {
		t.Error(err)
	}
}

// FuzzSizes: whatever the bytes are, counting comes to an end within them.
func FuzzSizes(f *testing.F) {
	f.Add([]byte(somePod))
	f.Add([]byte("\xbf\x61a\x9b\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("a: &a\n- *a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, mediaType := range []string{object.JSON, object.YAML, object.CBOR, object.Protobuf} {
			for _, n := range []int64{Size(reflect.TypeFor[corev1.Pod](), data, mediaType), TreeSize(data, mediaType)} {
				if n < int64(len(data)) {
					t.Errorf("%s: %d were counted of %d bytes", mediaType, n, len(data))
				}
			}
		}
	})
}
