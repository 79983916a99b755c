// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"errors"
	"testing"

	"go.yaml.in/yaml/v3"
)

type document struct {
	Name  string   `yaml:"name"`
	Count int      `yaml:"count"`
	Parts []part   `yaml:"parts"`
	Extra *part    `yaml:"extra"`
	Tags  []string `yaml:"tags"`
}

type part struct {
	On bool `yaml:"on"`
}

// TestDecode: every wrong field is told with its line and its path, and what would have been right.
func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		"name: a\ncount: 2\nparts: [{on: true}]\nextra: {on: false}\ntags: [x]\n": "",
		"name: a\nextra:\nparts:\n":          "",
		"name: a\nnmae: b\n":                 "line 2: nmae: unknown field; known here: count, extra, name, parts, tags",
		"name: a\nname: b\n":                 "line 2: name: the field is given twice",
		"count: many\n":                      `line 1: count: expected a whole number, found "many"`,
		"parts: {on: true}\n":                "line 1: parts: expected a list, found a mapping",
		"parts:\n- on: true\n- on: [1]\n":    "line 3: parts[1].on: expected true or false, found a list",
		"extra: {off: true}\n":               "line 1: extra.off: unknown field; known here: on",
		"extra: yes\n":                       `line 1: extra: expected a mapping, found "yes"`,
		"parts: &a [{on: true}]\ntags: *a\n": "line 2: tags: aliases are not allowed here; write the value out",
	} {
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(text), &n); err != nil {
			t.Fatal(err)
		}
		err := Decode(n.Content[0], &document{}, "")
		var wrong *FieldError
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || err.Error() != want || !errors.As(err, &wrong)):
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestASectionKnowsItsPath: errors of a part of a document name the whole path.
func TestASectionKnowsItsPath(t *testing.T) {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte("on: maybe\n"), &n); err != nil {
		t.Fatal(err)
	}
	if err := Decode(n.Content[0], &part{}, "plugins[3].limits"); err == nil || err.Error() != `line 1: plugins[3].limits.on: expected true or false, found "maybe"` {
		t.Errorf("%v", err)
	}
}
