// SPDX-License-Identifier: Apache-2.0

package abi_test

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

var update = flag.Bool("update", false, "write what the host makes of each vector into the vectors")

const vectors = "../../sdk/spec/vectors"

// projectionVector is a document with what a hook sees of it.
type projectionVector struct {
	Name         string                      `json:"name"`
	Kind         string                      `json:"kind"`
	Document     map[string]any              `json:"document"`
	Fields       []string                    `json:"fields,omitempty"`
	Alternatives map[string]abi.Alternatives `json:"alternatives,omitempty"`
	JSON         json.RawMessage             `json:"json,omitempty"`
	Flat         string                      `json:"flat,omitempty"`
	Error        string                      `json:"error,omitempty"`
}

type patchVector struct {
	Name         string                      `json:"name"`
	Kind         string                      `json:"kind"`
	Object       map[string]any              `json:"object"`
	Alternatives map[string]abi.Alternatives `json:"alternatives,omitempty"`
	Patch        []abi.PatchOp               `json:"patch"`
	Result       map[string]any              `json:"result,omitempty"`
	Error        string                      `json:"error,omitempty"`
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectors, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func write(t *testing.T, name string, v any) {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(vectors, name), append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// hook makes a hook by way of a manifest, as a module would.
func hook(t *testing.T, fields []string, alternatives map[string]abi.Alternatives, e abi.Encoding) (*abi.Hook, error) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"abi": 1, "hooks": []any{map[string]any{
		"op": 1, "point": "admission.mutate", "fields": fields, "alternatives": alternatives, "encoding": e,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := abi.ParseManifest(b)
	if err != nil {
		return nil, err
	}
	return &m.Hooks[0], nil
}

func TestProjectionVectors(t *testing.T) {
	var all []projectionVector
	read(t, "projections.json", &all)
	for i := range all {
		v := &all[i]
		t.Run(v.Name, func(t *testing.T) {
			got := map[abi.Encoding][]byte{}
			for _, e := range []abi.Encoding{abi.JSON, abi.Flat} {
				h, err := hook(t, v.Fields, v.Alternatives, e)
				if v.Error != "" {
					if err == nil || !strings.Contains(err.Error(), v.Error) {
						t.Fatalf("error %v, want %q in it", err, v.Error)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				w := &abi.Writer{}
				abi.NewProjection(h).Write(w, abi.Integers(v.Document), v.Kind)
				got[e] = append([]byte(nil), w.Bytes()...)
			}
			if *update {
				v.JSON, v.Flat = got[abi.JSON], hex.EncodeToString(got[abi.Flat])
				return
			}
			var is, want any
			if err := json.Unmarshal(got[abi.JSON], &is); err != nil {
				t.Fatalf("%s is no JSON: %v", got[abi.JSON], err)
			}
			if err := json.Unmarshal(v.JSON, &want); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(is, want) {
				t.Errorf("JSON %s, want %s", got[abi.JSON], v.JSON)
			}
			if flat := hex.EncodeToString(got[abi.Flat]); flat != v.Flat {
				t.Errorf("flat %s, want %s", flat, v.Flat)
			}
		})
	}
	if *update {
		write(t, "projections.json", all)
	}
}

func TestPatchVectors(t *testing.T) {
	var all []patchVector
	read(t, "patches.json", &all)
	for i := range all {
		v := &all[i]
		t.Run(v.Name, func(t *testing.T) {
			h, err := hook(t, nil, v.Alternatives, abi.JSON)
			if err != nil {
				t.Fatal(err)
			}
			got, err := h.Patch(v.Object, v.Kind, v.Patch)
			if v.Error != "" {
				if err == nil || !strings.Contains(err.Error(), v.Error) {
					t.Fatalf("%v, error %v, want %q in it", got, err, v.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if is, want := plain(t, got), plain(t, v.Result); !reflect.DeepEqual(is, want) {
				t.Errorf("got %v, want %v", is, want)
			}
		})
	}
}

// plain is v as JSON has it.
func plain(t *testing.T, v any) (out any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}
