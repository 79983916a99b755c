// SPDX-License-Identifier: Apache-2.0

package decodedsize

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/object"
)

// taken is what a decoded value takes, without texts and bytes: what is counted before.
func taken(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n = int64(v.Type().Elem().Size()) + taken(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				n += taken(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 0
		}
		n = int64(v.Len()) * int64(v.Type().Elem().Size())
		for i := range v.Len() {
			n += taken(v.Index(i))
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			n += int64(v.Type().Elem().Size()) + stringSize + perEntry + taken(i.Value())
		}
	default:
	}
	return n
}

const (
	somePod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b","c":"d"},"annotations":{"x":"{[\"y\"]}"},
		"ownerReferences":[{"name":"o"},{}],"managedFields":[{"manager":"m","fieldsV1":{"f:a":{"f:b":{}}}}]},
		"spec":{"nodeSelector":{"a":"b"},"unknown":[{},{},[{}]],"tolerations":[{"key":"a"},{}],
		"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
		{"nodeSelectorTerms":[{"matchExpressions":[{"key":"k","values":["a","b"]}]}]}}},
		"containers":[{"name":"c","command":["a","b"],"env":[{"name":"a"},{"name":"b","valueFrom":{"fieldRef":{"fieldPath":"x"}}}],
		"resources":{"limits":{"cpu":"1","memory":"2"}},"livenessProbe":{"httpGet":{"port":80}}},{}],"volumes":[{"name":"v","secret":{"secretName":"s"}},{}]}}`
	someCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a"},"spec":{"versions":[{"name":"v1",
		"schema":{"openAPIV3Schema":{"properties":{"a":{"type":"string","enum":["a","b"]},"b":{"items":{"type":"object","properties":{"c":{}}}},
		"d":{"items":[{},{"type":"string"}]},"e":{"additionalProperties":{"anyOf":[{},{}]}},"f":{"additionalProperties":true}},
		"dependencies":{"a":["x","y"],"b":{"not":{}}}}}}]}}`
)

// TestWhatIsCountedIsWhatIsTaken: in each media type, of objects with everything that types of the API are made of.
func TestWhatIsCountedIsWhatIsTaken(t *testing.T) {
	for _, text := range []string{somePod, someCRD} {
		var into runtime.Object = &corev1.Pod{}
		if text == someCRD {
			into = &apiextensionsv1.CustomResourceDefinition{}
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
		want := taken(reflect.ValueOf(into).Elem())
		s := Of(reflect.TypeOf(into).Elem())
		r := &textOf{data: []byte(text)}
		r.value(s, 0)
		if r.size != want {
			t.Errorf("%T: %d were counted in JSON, and it takes %d", into, r.size, want)
		}
		var tree map[string]any
		if err := json.Unmarshal([]byte(text), &tree); err != nil {
			t.Fatal(err)
		}
		c := &count{}
		if c.tree(s, tree); c.size != want {
			t.Errorf("%T: %d were counted in a tree, and it takes %d", into, c.size, want)
		}
		message, err := into.(interface{ Marshal() ([]byte, error) }).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		c = &count{}
		if c.message(s, message, 0); c.size < want || c.size > want*5/4 { // it has what JSON leaves out
			t.Errorf("%T: %d were counted in protobuf, and it takes %d", into, c.size, want)
		}
	}
}

// TestEntriesAreBoundedBeforeTheyAreDecoded: two bytes each, and a struct of hundreds.
func TestEntriesAreBoundedBeforeTheyAreDecoded(t *testing.T) {
	const body = 3 << 20 // what a request may have
	many := func(unit string) string { return strings.Repeat(unit+",", body/(len(unit)+1)-1) + unit }
	pod, crd := reflect.TypeFor[corev1.Pod](), reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]()
	schema := func(s string) string { return `{"spec":{"versions":[{"schema":{"openAPIV3Schema":` + s + `}}]}}` }
	nested := strings.Repeat(`{"items":`, 200) + `{"description":"` + strings.Repeat("x", body/2) + `"}` + strings.Repeat("}", 200)
	message := func(path []byte, entry string) string { // fields that are in one another, and the entries in the last
		data := strings.Repeat(entry, body/len(entry))
		for _, number := range path {
			data = string(append([]byte{number<<3 | 2}, lengthOf(data)...)) + data
		}
		return envelope.Prefix + data
	}
	for name, c := range map[string]struct {
		t     reflect.Type
		media string
		data  string
		fits  bool
	}{
		"containers":                {pod, object.JSON, `{"spec":{"containers":[` + many("{}") + `]}}`, false},
		"containers of null":        {pod, object.JSON, `{"spec":{"containers":[` + many("null") + `]}}`, false},
		"containers that are none":  {pod, object.JSON, `{"spec":{"containers":[` + many("1") + `]}}`, false},
		"behind an escaped name":    {pod, object.JSON, `{"spec":{"\u0063ontainers":[` + many("{}") + `]}}`, false},
		"in a text":                 {pod, object.JSON, `{"metadata":{"annotations":{"a":"` + many("{}") + `"}}}`, true},
		"unknown to the type":       {pod, object.JSON, `{"spec":{"x":[` + many("{}") + `]}}`, true},
		"managed fields":            {pod, object.JSON, `{"metadata":{"managedFields":[{"fieldsV1":{"x":[` + many("{}") + `]}}]}}`, true},
		"a part of what may be":     {pod, object.JSON, `{"spec":{"containers":[` + many("{}")[:149_997] + `{}]}}`, true},
		"YAML":                      {pod, object.YAML, "spec:\n  containers: [" + many("{}") + "]", false},
		"YAML, unknown":             {pod, object.YAML, "spec:\n  x: [" + many("{}") + "]", true},
		"YAML, aliases":             {pod, object.YAML, "a: &a [" + strings.Repeat("{},", 15000) + "{}]\nspec:\n  containers: *a\n  initContainers: *a\n  volumes: *a\n  ephemeralContainers: *a\n  tolerations: *a\n  hostAliases: *a", true},
		"schemas":                   {crd, object.JSON, schema(`{"anyOf":[` + many("{}") + `]}`), false},
		"schemas of entries":        {crd, object.JSON, schema(`{"items":[` + many("{}") + `]}`), false},
		"schemas that nest":         {crd, object.JSON, schema(nested), false},
		"containers in protobuf":    {pod, object.Protobuf, message([]byte{2, 2}, "\x12\x00"), false},
		"in two messages":           {pod, object.Protobuf, message([]byte{2, 2}, "\x12\x00")[:4] + "\x12\x00" + message([]byte{2, 2}, "\x12\x00")[4:], false},
		"behind what is no message": {pod, object.Protobuf, message([]byte{2, 2}, "\x12\x00")[:4] + "\x28\x01" + message([]byte{2, 2}, "\x12\x00")[4:], false},
		"unknown in protobuf":       {pod, object.Protobuf, message([]byte{15, 2}, "\x12\x00"), true},
	} {
		err := Check(c.t, []byte(c.data), c.media)
		if (err == nil) != c.fits || err != nil && !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s: %v", name, err)
		}
		if c.media != object.JSON {
			continue
		}
		var tree map[string]any
		if err := json.Unmarshal([]byte(c.data), &tree); err != nil {
			t.Fatal(name, err)
		}
		if err := Of(c.t).Tree(tree); (err == nil) != c.fits && name != "schemas that nest" { // which is read once to make the tree
			t.Errorf("%s, as a tree: %v", name, err)
		}
	}
}

// lengthOf is a length as protobuf writes it.
func lengthOf(data string) (out []byte) {
	n := len(data)
	for ; n >= 0x80; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(out, byte(n))
}

// TestACountCostsLittle: it makes nothing of what it looks at.
func TestACountCostsLittle(t *testing.T) {
	data := []byte(`{"spec":{"x":[` + strings.Repeat("{},", 1<<20) + `{}]}}`)
	if n := testing.AllocsPerRun(1, func() { _ = Check(reflect.TypeFor[corev1.Pod](), data, object.JSON) }); n > 100 {
		t.Errorf("%.0f allocations for three MiB", n)
	}
}

// FuzzCount: whatever the text is, a count comes to an end, and counts at least what decoding makes of it.
func FuzzCount(f *testing.F) {
	f.Add([]byte(somePod))
	f.Add([]byte(someCRD))
	f.Add([]byte(`{"spec":{"containers":[{"env":[`))
	s := Of(reflect.TypeFor[corev1.Pod]())
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &textOf{data: data}
		r.value(s, 0)
		pod := &corev1.Pod{}
		if err := json.Unmarshal(data, pod); err != nil {
			return
		}
		// encoding/json takes names in any case, which the API's decoder does not.
		if clean, err := json.Marshal(pod); err == nil {
			r = &textOf{data: clean}
			r.value(s, 0)
			if want := taken(reflect.ValueOf(pod).Elem()); r.size < want {
				t.Errorf("%d were counted, and it takes %d: %s", r.size, want, clean)
			}
		}
		(&count{}).message(s, data, 0)
	})
}
