// SPDX-License-Identifier: Apache-2.0

package mutation_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
)

// external is a mutator's parameters that ask the provider p.
func external(rest string) string {
	return "{assign: {externalData: {provider: p" + rest + "}}}"
}

// mirror knows every image but those that are called unknown.
func mirror(t *testing.T, asked *[]string) func(mutator, provider string, keys []string) gatekeeper.Answers {
	t.Helper()
	return func(_, provider string, keys []string) gatekeeper.Answers {
		if provider != "p" {
			t.Errorf("provider %q was asked", provider)
		}
		*asked = append(*asked, keys...)
		return func(key string) (string, error) {
			if !slices.Contains(keys, key) {
				t.Errorf("an answer about %q, which nobody asked", key)
			}
			if strings.HasPrefix(key, "unknown") {
				return "", errors.New("never heard of it")
			}
			return "mirror/" + key, nil
		}
	}
}

// TestProvidersAreAskedOnce, about the values that are there or about the user, and what their silence means is the mutator's choice.
func TestProvidersAreAskedOnce(t *testing.T) {
	const images = "spec.containers[name: *].image"
	for name, c := range map[string]struct {
		mutators   []string
		spec, want string
		asked      []string
		err        string
	}{
		"values": {
			mutators: []string{mutator("Assign", "a", images, external(""))},
			spec:     "{containers: [{name: a, image: x}, {name: b, image: z}, {name: c, image: x}]}",
			want:     "{containers: [{name: a, image: mirror/x}, {name: b, image: mirror/z}, {name: c, image: mirror/x}]}", asked: []string{"x", "z"},
		},
		"the user": {
			mutators: []string{mutator("Assign", "a", "spec.owner", external(", dataSource: Username"))},
			spec:     "{}", want: "{owner: mirror/ann}", asked: []string{"ann"},
		},
		"failing": {
			mutators: []string{mutator("Assign", "a", images, external(""))},
			spec:     "{containers: [{name: a, image: unknown}]}", err: "Assign a: never heard of it", asked: []string{"unknown"},
		},
		"ignored": {
			mutators: []string{mutator("Assign", "a", images, external(", failurePolicy: Ignore"))},
			spec:     "{containers: [{name: a, image: unknown}, {name: b, image: x}]}",
			want:     "{containers: [{name: a, image: unknown}, {name: b, image: mirror/x}]}", asked: []string{"unknown", "x"},
		},
		"a default": {
			mutators: []string{mutator("Assign", "a", images, external(", failurePolicy: UseDefault, default: safe"))},
			spec:     "{containers: [{name: a, image: unknown}]}", want: "{containers: [{name: a, image: safe}]}", asked: []string{"unknown"},
		},
		"about what another one puts there": {
			mutators: []string{
				mutator("Assign", "a", "spec.image", "{pathTests: [{subPath: spec.image, condition: MustNotExist}], assign: {value: x}}"),
				mutator("Assign", "b", "spec.image", external("")),
			},
			spec: "{}", want: "{image: mirror/x}", asked: []string{"x"},
		},
		"two of one field": {
			mutators: []string{mutator("Assign", "a", "spec.image", external("")), mutator("Assign", "b", "spec.image", external(""))},
			spec:     "{image: x}", want: "{image: mirror/x}", asked: []string{"x"},
		},
		"not a text": {
			mutators: []string{mutator("Assign", "a", "spec.priority", external(""))},
			spec:     "{priority: 7}", err: "found a number",
		},
		"changed by another one": {
			mutators: []string{mutator("Assign", "a", images, external("")), mutator("AssignImage", "b", images, "{assignDomain: example.com}")},
			spec:     "{containers: [{name: a, image: x}]}", err: "change each other's results without an end",
		},
		"what looks like a token": {
			mutators: []string{mutator("Assign", "a", "spec.image", external(""))},
			spec:     `{image: x, other: "\0AAAA:0\0"}`, want: `{image: mirror/x, other: "\0AAAA:0\0"}`, asked: []string{"x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := target(plugintest.Object(t, fmt.Sprintf(pod, c.spec)))
			var asked []string
			o.User, o.External = "ann", mirror(t, &asked)
			_, err := mutation.NewSet(read(t, c.mutators...)).Mutate(o)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want %q", err, c.err)
				}
			} else if want := any(plugintest.Object(t, c.want)); err != nil || !reflect.DeepEqual(o.Object["spec"], want) {
				t.Fatalf("got %v, error %v\nwant %v", o.Object["spec"], err, want)
			}
			if slices.Sort(asked); !slices.Equal(asked, c.asked) {
				t.Errorf("asked about %q, want %q", asked, c.asked)
			}
		})
	}
}

// TestNobodyIsAsked in the background: what is there stays.
func TestNobodyIsAsked(t *testing.T) {
	o := target(plugintest.Object(t, fmt.Sprintf(pod, "{image: x}")))
	set := mutation.NewSet(read(t, mutator("Assign", "a", "spec.image", external("")),
		mutator("Assign", "b", "spec.owner", external(", dataSource: Username"))))
	if _, err := set.Mutate(o); err != nil || !reflect.DeepEqual(o.Object["spec"], map[string]any{"image": "x"}) {
		t.Errorf("%v, error %v", o.Object["spec"], err)
	}
}

// TestBadExternalData is refused when it is written.
func TestBadExternalData(t *testing.T) {
	for rest, want := range map[string]string{
		", provider: ''":              "provider",
		", dataSource: Everything":    "dataSource: expected ValueAtLocation or Username",
		", failurePolicy: Shrug":      "failurePolicy: expected Fail, Ignore or UseDefault",
		", failurePolicy: UseDefault": "default: failurePolicy UseDefault needs it",
		", cache: 5":                  "cache",
	} {
		text := mutator("Assign", "a", "spec.image", external(rest))
		if rest == ", provider: ''" {
			text = strings.Replace(text, "provider: p, ", "", 1)
		}
		if _, err := mutation.Read(plugintest.Object(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", rest, err, want)
		}
	}
	for _, text := range []string{
		mutator("AssignMetadata", "a", "metadata.labels.owner", external("")),
		mutator("Assign", "a", "spec.containers[name: side]", external("")),
	} {
		if _, err := mutation.Read(plugintest.Object(t, text)); err == nil {
			t.Errorf("it is taken:\n%s", text)
		}
	}
	if m, err := mutation.Read(plugintest.Object(t, mutator("AssignMetadata", "a", "metadata.labels.owner",
		external(", dataSource: Username")))); err != nil || m.Provider() != "p" {
		t.Errorf("%v", err)
	}
}
