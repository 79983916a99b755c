// SPDX-License-Identifier: Apache-2.0

package hostfn_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

func TestTheVectorsOfTheSpecification(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "sdk", "spec", "vectors", "hostcalls.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Call, Refused, Failed string
		Grants, Input               json.RawMessage
		Reply                       any
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) < 10 {
		t.Fatal(len(vectors), err)
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			f := hostfn.New(hostfn.Backend{
				Objects: someObjects(), Access: &allowing{}, Events: &noted{}, State: &drawer{values: map[string]map[string][]byte{}},
				Images: hostfn.NewImages(nil, nil),
			})
			call := f.Set(entry(t, string(v.Grants)))[v.Call]
			if call == nil {
				t.Fatalf("%s is not granted by %s", v.Call, v.Grants)
			}
			out, err := call(t.Context(), v.Input)
			var refused *host.RefusedError
			if errors.As(err, &refused) != (v.Refused != "") || (err != nil) != (v.Refused+v.Failed != "") ||
				err != nil && err.Error() != v.Refused+v.Failed {
				t.Fatalf("error %v, want %q", err, v.Refused+v.Failed)
			}
			var reply any
			if len(out) > 0 && json.Unmarshal(out, &reply) != nil {
				t.Fatalf("the reply %s is no JSON", out)
			}
			if err == nil && !reflect.DeepEqual(reply, v.Reply) {
				t.Errorf("reply %s, want %v", out, v.Reply)
			}
		})
	}
}

func FuzzCalls(f *testing.F) {
	for _, name := range hostfn.Names() {
		f.Add(name, []byte(`{"apiVersion":"v1","kind":"Pod","namespace":"blue","name":"a","fields":["a.b"],"key":"k","url":"https://a","image":"a","host":"b","certificate":"x"}`))
	}
	f.Fuzz(func(t *testing.T, name string, input []byte) {
		e := entry(t, `{log: true, read: [{resources: [pods], fields: [metadata]}], accessReview: true, events: true, state: {size: 1Ki}, certificates: true,
			images: {registries: [none.invalid]}, http: [{hosts: [none.invalid]}], dns: [none.invalid]}`)
		set := hostfn.New(hostfn.Backend{
			Objects: someObjects(), Access: &allowing{}, Events: &noted{},
			State: &drawer{values: map[string]map[string][]byte{}},
		}).Set(e)
		if call := set[name]; call != nil && name != hostfn.Fetch && name != hostfn.Lookup {
			if out, err := call(t.Context(), input); err == nil && len(out) > 0 && !json.Valid(out) {
				t.Errorf("%s answers %q", name, out)
			}
		}
	})
}
