// SPDX-License-Identifier: Apache-2.0

package mutation_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
)

// mutator is one for pods, of a location and its parameters.
func mutator(kind, name, location, parameters string) string {
	version, apply := "v1", "  applyTo: [{groups: [''], versions: [v1], kinds: [Pod]}]\n"
	switch kind {
	case mutation.AssignImage:
		version = "v1alpha1"
	case mutation.AssignMetadata:
		apply = ""
	}
	return fmt.Sprintf("apiVersion: mutations.gatekeeper.sh/%s\nkind: %s\nmetadata: {name: %s}\nspec:\n%s  location: '%s'\n  parameters: %s\n",
		version, kind, name, apply, location, parameters)
}

func read(t *testing.T, texts ...string) (out []*mutation.Mutator) {
	t.Helper()
	for _, text := range texts {
		m, err := mutation.Read(plugintest.Object(t, text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		out = append(out, m)
	}
	return out
}

func target(o map[string]any) *gatekeeper.Target {
	u := unstructured.Unstructured{Object: o}
	return &gatekeeper.Target{
		Object: o, Kind: u.GroupVersionKind(), Namespace: u.GetNamespace(), Source: gatekeeper.Original,
		Labels: func(namespace string) (map[string]string, error) { return map[string]string{"name": namespace}, nil },
	}
}

const pod = `{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, labels: {team: x}}, spec: %s}`

func TestMutatorsChangeObjects(t *testing.T) {
	for name, c := range map[string]struct {
		mutators []string
		spec     string
		want     string // the spec, or the labels
		labels   bool
	}{
		"a value in all items": {
			[]string{mutator("Assign", "a", "spec.containers[name: *].imagePullPolicy", "{assign: {value: Always}}")},
			"{containers: [{name: a}, {name: b, imagePullPolicy: Never}]}",
			"{containers: [{name: a, imagePullPolicy: Always}, {name: b, imagePullPolicy: Always}]}", false,
		},
		"no list is made for all items": {
			[]string{mutator("Assign", "a", "spec.initContainers[name: *].imagePullPolicy", "{assign: {value: Always}}")}, "{}", "{}", false,
		},
		"an item by key is made": {
			[]string{mutator("Assign", "a", "spec.containers[name: side].image", "{assign: {value: sidecar}}")},
			"{containers: [{name: a}]}", "{containers: [{name: a}, {name: side, image: sidecar}]}", false,
		},
		"an item as a whole": {
			[]string{mutator("Assign", "a", "spec.containers[name: side]", "{assign: {value: {name: side, image: x}}}")},
			"{containers: [{name: side, image: old}]}", "{containers: [{name: side, image: x}]}", false,
		},
		"items by a number": {
			[]string{mutator("Assign", "a", "spec.ports[port: 80].name", "{assign: {value: http}}")},
			"{ports: [{port: 443}, {port: 80}]}", "{ports: [{port: 443}, {port: 80, name: http}]}", false,
		},
		"a quoted key, of the mutator's own name": {
			[]string{mutator("Assign", "a", `spec.nodeSelector."example.com/pool"`, "{assign: {fromMetadata: {field: namespace}}}")},
			"{}", "{nodeSelector: {example.com/pool: shop}}", false,
		},
		"what must not exist": {
			[]string{mutator("Assign", "a", "spec.securityContext.runAsUser",
				"{pathTests: [{subPath: spec.securityContext, condition: MustNotExist}], assign: {value: 5}}")},
			"{securityContext: {}}", "{securityContext: {}}", false,
		},
		"what must exist": {
			[]string{mutator("Assign", "a", "spec.securityContext.runAsUser",
				"{pathTests: [{subPath: spec.securityContext, condition: MustExist}], assign: {value: 5}}")},
			"{}", "{}", false,
		},
		"what must exist does": {
			[]string{mutator("Assign", "a", "spec.securityContext.runAsUser",
				"{pathTests: [{subPath: spec.securityContext, condition: MustExist}], assign: {value: 5}}")},
			"{securityContext: {}}", "{securityContext: {runAsUser: 5}}", false,
		},
		"a set is merged": {
			[]string{mutator("ModifySet", "a", "spec.containers[name: *].args", "{operation: merge, values: {fromList: [-v, -x]}}")},
			"{containers: [{name: a, args: [-x]}, {name: b}]}", "{containers: [{name: a, args: [-x, -v]}, {name: b, args: [-v, -x]}]}", false,
		},
		"a set is pruned": {
			[]string{mutator("ModifySet", "a", "spec.containers[name: *].args", "{operation: prune, values: {fromList: [-v]}}")},
			"{containers: [{name: a, args: [-x, -v, -y]}, {name: b}]}", "{containers: [{name: a, args: [-x, -y]}, {name: b}]}", false,
		},
		"an image's host": {
			[]string{mutator("AssignImage", "a", "spec.containers[name: *].image", "{assignDomain: mirror.example.com:5000}")},
			"{containers: [{name: a, image: 'nginx:1'}, {name: b, image: 'docker.io/library/x@sha256:00'}, {name: c, image: 'localhost/y'}]}",
			"{containers: [{name: a, image: 'mirror.example.com:5000/nginx:1'}, {name: b, image: 'mirror.example.com:5000/library/x@sha256:00'}, {name: c, image: 'mirror.example.com:5000/y'}]}",
			false,
		},
		"an image's tag": {
			[]string{mutator("AssignImage", "a", "spec.containers[name: *].image", "{assignTag: ':v2'}")},
			"{containers: [{name: a, image: 'reg.example.com:5000/a/nginx'}]}",
			"{containers: [{name: a, image: 'reg.example.com:5000/a/nginx:v2'}]}", false,
		},
		"one builds on another that comes later": {
			[]string{
				mutator("Assign", "a", "spec.containers[name: side].tty",
					"{pathTests: [{subPath: 'spec.containers[name: side]', condition: MustExist}], assign: {value: true}}"),
				mutator("Assign", "b", "spec.containers[name: side].image", "{assign: {value: s}}"),
			},
			"{}", "{containers: [{name: side, image: s, tty: true}]}", false,
		},
		"the last of two that want one field": {
			[]string{
				mutator("Assign", "b", "spec.priority", "{assign: {value: 2}}"), mutator("Assign", "a", "spec.priority", "{assign: {value: 1}}"),
			},
			"{}", "{priority: 2}", false,
		},
		"a label": {
			[]string{mutator("AssignMetadata", "a", "metadata.labels.owner", "{assign: {fromMetadata: {field: name}}}")},
			"{}",
			"{team: x, owner: a}", true,
		},
		"a label that is there": {
			[]string{mutator("AssignMetadata", "a", "metadata.labels.team", "{assign: {value: z}}")}, "{}", "{team: x}", true,
		},
		"those that contradict each other are left out": {
			[]string{
				mutator("Assign", "a", "spec.containers[name: *].image", "{assign: {value: x}}"),
				mutator("Assign", "b", "spec.containers.image", "{assign: {value: x}}"),
				mutator("Assign", "c", "spec.priority", "{assign: {value: 1}}"),
			},
			"{containers: [{name: a}]}", "{containers: [{name: a}], priority: 1}", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := plugintest.Object(t, fmt.Sprintf(pod, c.spec))
			set := mutation.NewSet(read(t, c.mutators...))
			if _, err := set.Mutate(target(o)); err != nil {
				t.Fatal(err)
			}
			got, want := o["spec"], any(plugintest.Object(t, c.want))
			if c.labels {
				got, _, _ = unstructured.NestedMap(o, "metadata", "labels")
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %v\nwant %v", got, want)
			}
			applied, err := set.Mutate(target(o))
			if err != nil || len(applied) > 0 {
				t.Errorf("a second time it is changed by %d mutators (error %v)", len(applied), err)
			}
		})
	}
}

func TestMutatorsMatch(t *testing.T) {
	const location, value = "spec.priority", "{assign: {value: 7}}"
	for match, want := range map[string]bool{
		"{}": true,
		"{kinds: [{apiGroups: ['*'], kinds: [Pod]}]}":            true,
		"{kinds: [{apiGroups: [apps], kinds: ['*']}]}":           false,
		"{scope: Namespaced}":                                    true,
		"{scope: Cluster}":                                       false,
		"{namespaces: ['sh*']}":                                  true,
		"{namespaces: [other]}":                                  false,
		"{excludedNamespaces: ['*op']}":                          false,
		"{labelSelector: {matchLabels: {team: x}}}":              true,
		"{labelSelector: {matchLabels: {team: z}}}":              false,
		"{namespaceSelector: {matchLabels: {name: shop}}}":       true,
		"{namespaceSelector: {matchLabels: {name: production}}}": false,
		"{name: a}":                  true,
		"{name: 'b*'}":               false,
		"{source: Original}":         true,
		"{source: Generated}":        false,
		"{source: All, name: '*a*'}": true,
	} {
		text := mutator("Assign", "m", location, value) + "  match: " + match + "\n"
		o := plugintest.Object(t, fmt.Sprintf(pod, "{}"))
		applied, err := mutation.NewSet(read(t, text)).Mutate(target(o))
		if err != nil || (len(applied) == 1) != want {
			t.Errorf("%s: changed by %d mutators, error %v; want a change: %t", match, len(applied), err, want)
		}
	}
}

func TestKindsThatNoMutatorChanges(t *testing.T) {
	const value = "{assign: {value: x}}"
	match := func(text, kinds string) string {
		return text + "  match: {kinds: [{apiGroups: [apps], kinds: " + kinds + "}]}\n"
	}
	pods, deployments := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, schema.GroupVersionKind{
		Group: "apps", Version: "v1",
		Kind: "Deployment",
	}
	for name, c := range map[string]struct {
		text              string
		pods, deployments bool
	}{
		"of applyTo":               {mutator("Assign", "a", "spec.priority", value), true, false},
		"of applyTo and the match": {match(mutator("Assign", "a", "spec.priority", value), "['*']"), false, false},
		"all":                      {mutator("AssignMetadata", "a", "metadata.labels.owner", value), true, true},
		"of the match":             {match(mutator("AssignMetadata", "a", "metadata.labels.owner", value), "[Deployment]"), false, true},
	} {
		set := mutation.NewSet(read(t, c.text))
		if set.Changes(pods) != c.pods || set.Changes(deployments) != c.deployments {
			t.Errorf("%s: pods %t, deployments %t", name, set.Changes(pods), set.Changes(deployments))
		}
	}
	if mutation.NewSet(nil).Changes(pods) {
		t.Error("without a mutator pods are changed")
	}
}

func TestConflictsNameAllOfThem(t *testing.T) {
	for name, c := range map[string]struct {
		texts []string
		want  int // mutators in conflict
	}{
		"an object and a list": {[]string{
			mutator("Assign", "a", "spec.containers[name: *].image", "{assign: {value: x}}"),
			mutator("Assign", "b", "spec.containers.image", "{assign: {value: x}}"),
		}, 2},
		"two keys of one list": {[]string{
			mutator("Assign", "a", "spec.containers[name: *].image", "{assign: {value: x}}"),
			mutator("Assign", "b", "spec.containers[image: x].tty", "{assign: {value: x}}"),
		}, 2},
		"a set and a list by key": {[]string{
			mutator("ModifySet", "a", "spec.containers", "{values: {fromList: [x]}}"),
			mutator("Assign", "b", "spec.containers[image: x].tty", "{assign: {value: x}}"),
		}, 2},
		"below an image": {[]string{
			mutator("AssignImage", "a", "spec.image", "{assignTag: ':x'}"),
			mutator("Assign", "b", "spec.image.tty", "{assign: {value: x}}"),
		}, 2},
		"one kind's list is another's object": {[]string{
			mutator("Assign", "a", "spec.containers[name: *].image", "{assign: {value: x}}"),
			strings.ReplaceAll(mutator("Assign", "b", "spec.containers.image", "{assign: {value: x}}"), "[Pod]", "[Job]"),
		}, 0},
		"one field twice": {[]string{
			mutator("Assign", "a", "spec.containers[name: *].image", "{assign: {value: x}}"),
			mutator("Assign", "b", "spec.containers[name: a].image", "{assign: {value: x}}"),
		}, 0},
	} {
		list := read(t, c.texts...)
		set := mutation.NewSet(list)
		n := 0
		for _, m := range list {
			if in := set.Conflicts(m); len(in) > 0 {
				n++
				if len(in) != c.want {
					t.Errorf("%s: %s conflicts with %q", name, m.ID(), in)
				}
			}
		}
		if n != c.want {
			t.Errorf("%s: %d mutators are in conflict, want %d", name, n, c.want)
		}
	}
}

func TestWhatIsWrongWithAMutatorIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		mutator("Assign", "a", "", "{assign: {value: x}}"):                                   "spec.location: it is missing",
		mutator("Assign", "a", "spec.containers[name: x", "{assign: {value: x}}"):            "spec.location",
		mutator("Assign", "a", "spec.x.", "{assign: {value: x}}"):                            "spec.location",
		mutator("Assign", "a", strings.Repeat("x", 2000), "{assign: {value: x}}"):            "1024 are the most",
		mutator("Assign", "a", "kind", "{assign: {value: x}}"):                               "it says what the object is",
		mutator("Assign", "a", "metadata.labels.x", "{assign: {value: x}}"):                  "AssignMetadata adds labels",
		mutator("Assign", "a", "spec.containers[name: x].name", "{assign: {value: x}}"):      "the key \"name\"",
		mutator("Assign", "a", "spec.containers[name: '*']", "{assign: {value: {name: x}}}"): "",
		mutator("Assign", "a", "spec.containers[name: *]", "{assign: {value: {name: x}}}"):   "all items of a list",
		mutator("Assign", "a", "spec.containers[name: x]",
			"{assign: {value: {name: y}}}"): "spec.parameters.assign.value.name: expected x",
		mutator("Assign", "a", "spec.containers[name: x]", "{assign: {fromMetadata: {field: name}}}"):                  "an object, as value",
		mutator("Assign", "a", "spec.x", "{assign: {}}"):                                                               "one of value, fromMetadata and externalData",
		mutator("Assign", "a", "spec.x", "{assign: {value: 1, fromMetadata: {field: name}}}"):                          "one of value, fromMetadata and externalData",
		mutator("Assign", "a", "spec.x", "{assign: {fromMetadata: {field: uid}}}"):                                     "expected name or namespace",
		mutator("Assign", "a", "spec.x", "{assignIf: 1}"):                                                              `the field "assignIf" is not known here`,
		mutator("Assign", "a", "spec.x", "{operation: merge, assign: {value: 1}}"):                                     "spec.parameters.operation: Assign has no such",
		mutator("Assign", "a", "spec.x", "{pathTests: [{subPath: spec.y, condition: MustExist}], assign: {value: 1}}"): "not the beginning of spec.location",
		mutator("Assign", "a", "spec.x", "{pathTests: [{subPath: spec, condition: Exists}], assign: {value: 1}}"):      "expected MustExist or MustNotExist",
		mutator("AssignMetadata", "a", "metadata.name", "{assign: {value: x}}"):                                        "one label or annotation",
		mutator("AssignMetadata", "a", "metadata.labels.x", "{assign: {value: 5}}"):                                    "expected a text",
		mutator("AssignImage", "a", "spec.image", "{}"):                                                                "one of assignDomain, assignPath and assignTag",
		mutator("AssignImage", "a", "spec.image", "{assignTag: latest}"):                                               "spec.parameters.assignTag",
		mutator("AssignImage", "a", "spec.image", "{assignPath: gcr.io/x}"):                                            "say it as assignDomain",
		mutator("ModifySet", "a", "spec.containers[name: x]", "{values: {fromList: [1]}}"):                             "changes the list itself",
		mutator("ModifySet", "a", "spec.x", "{operation: replace}"):                                                    "expected merge or prune",
		mutator("Assign", strings.Repeat("a", 64), "spec.x", "{assign: {value: 1}}"):                                   "metadata.name",
		strings.Replace(mutator("Assign", "a", "spec.x", "{assign: {value: 1}}"), "versions: [v1], ", "", 1):           "spec.applyTo[0]",
		mutator("Assign", "a", "spec.x", "{assign: {value: 1}}") + "  match: {scope: Clusters}\n":                      "spec.match.scope",
		mutator("Assign", "a", "spec.x", "{assign: {value: 1}}") + "  match: {source: Elsewhere}\n":                    "spec.match.source",
		mutator("Assign", "a", "spec.x", "{assign: {value: 1}}") +
			"  match: {names: [x]}\n": `spec.match: the field "names"`,
	} {
		if want == "" {
			continue
		}
		_, err := mutation.Read(plugintest.Object(t, text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q for\n%s", err, want, text)
		}
	}
}

func TestAnObjectOfAnotherShapeIsAnErrorThatNamesTheMutator(t *testing.T) {
	set := mutation.NewSet(read(t, mutator("Assign", "a", "spec.containers[name: *].image", "{assign: {value: x}}")))
	_, err := set.Mutate(target(plugintest.Object(t, fmt.Sprintf(pod, "{containers: {name: x}}"))))
	if want := "Assign a: spec.containers: expected a list"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}

// A value that is put into each of many items is bounded as a whole, before it is.
func TestWhatIsPutIntoAnObjectIsBounded(t *testing.T) {
	items := strings.Repeat("{name: x}, ", 2000)
	o := plugintest.Object(t, fmt.Sprintf(pod, "{containers: ["+items+"]}"))
	set := mutation.NewSet(read(t, mutator("Assign", "a", "spec.containers[name: *].image",
		"{assign: {value: "+strings.Repeat("x", 100_000)+"}}")))
	if _, err := set.Mutate(target(o)); err == nil || !strings.Contains(err.Error(), "bytes are put into the object") {
		t.Errorf("%v", err)
	}
	// Many mutators that are at work on long lists.
	var texts []string
	for i := range 100 {
		texts = append(texts, mutator("Assign", fmt.Sprintf("a%d", i), fmt.Sprintf("spec.containers[name: *].f%d", i), "{assign: {value: 1}}"))
	}
	o = plugintest.Object(t, fmt.Sprintf(pod, "{containers: ["+strings.Repeat(items, 5)+"]}"))
	if _, err := mutation.NewSet(read(t, texts...)).Mutate(target(o)); err == nil || !strings.Contains(err.Error(), "steps") {
		t.Errorf("%v", err)
	}
}

func FuzzMutators(f *testing.F) {
	for _, location := range []string{
		"spec.containers[name: *].image", `metadata.labels."x/y"`, "spec.containers[name: side]",
		"spec.ports[port: 80].name",
	} {
		f.Add(mutator("Assign", "a", location, "{pathTests: [{subPath: spec, condition: MustExist}], assign: {value: {name: side}}}"), fmt.Sprintf(pod, "{containers: [{name: a}]}"))
	}
	f.Add(mutator("AssignImage", "a", "spec.containers[name: *].image", "{assignDomain: a.b, assignPath: c, assignTag: ':d'}"),
		fmt.Sprintf(pod, "{containers: [{image: x}]}"))
	f.Add(mutator("ModifySet", "a", "spec.x", "{operation: prune, values: {fromList: [1, {a: b}]}}"), fmt.Sprintf(pod, "{x: [1, 2]}"))
	f.Fuzz(func(t *testing.T, text, about string) {
		var trees [2]map[string]any
		for i, s := range []string{text, about} {
			b, err := yaml.YAMLToJSON([]byte(s))
			if err != nil || utiljson.Unmarshal(b, &trees[i]) != nil || trees[i] == nil {
				return
			}
		}
		m, err := mutation.Read(trees[0])
		if err != nil {
			return
		}
		set := mutation.NewSet([]*mutation.Mutator{m})
		_, first := set.Mutate(target(trees[1]))
		if first != nil {
			return
		}
		if applied, err := set.Mutate(target(trees[1])); err != nil || len(applied) > 0 {
			t.Errorf("a second time: changed by %d mutators, error %v", len(applied), err)
		}
	})
}
