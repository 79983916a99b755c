// SPDX-License-Identifier: Apache-2.0

// Package plugins tests that every configuration in these pages is one.
package plugins

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// TestEveryMetricInThesePagesExists: alerts are copied from here, and one on a metric
// that does not exist never fires.
func TestEveryMetricInThesePagesExists(t *testing.T) {
	declared := map[string]bool{}
	sources, err := filepath.Glob("../../plugins/*/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatal(len(sources), err)
	}
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(wasmplane_plugin_[a-z_]+)"`).FindAllStringSubmatch(string(text), -1) {
			declared[m[1]] = true
		}
	}
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`wasmplane_plugin_[a-z_]*[a-z]`).FindAllString(string(text), -1) {
			if named++; !declared[name] && !declared[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s: there is no metric %s", page, name)
			}
		}
	}
	if named < 20 {
		t.Errorf("the pages name %d metrics", named)
	}
}

func TestEveryEntryInThesePagesLoads(t *testing.T) {
	for page, least := range map[string]int{"loading.md": 7, "hostcalls.md": 1, "points.md": 1} {
		text, err := os.ReadFile(filepath.Join(".", page))
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) < least {
			t.Errorf("%s: found %d blocks", page, len(blocks))
		}
		for _, b := range blocks {
			if strings.HasPrefix(b[1], "apiVersion:") {
				var tree map[string]any
				if err := yaml.Unmarshal([]byte(b[1]), &tree); err != nil {
					t.Errorf("%s: %v\n%s", page, err, b[1])
					continue
				}
				if _, err := (apiobject.Rules{}).Entry(&unstructured.Unstructured{Object: tree}); err != nil {
					t.Errorf("%s: %v\n%s", page, err, b[1])
				}
				continue
			}
			var doc struct {
				Plugins []yaml.Node `yaml:"plugins"`
			}
			if err := yaml.Unmarshal([]byte(b[1]), &doc); err != nil || len(doc.Plugins) == 0 {
				t.Errorf("%s: no plugins in\n%s%v", page, b[1], err)
				continue
			}
			if _, err := manifest.ParseAll(doc.Plugins); err != nil {
				t.Errorf("%s: %v\n%s", page, err, b[1])
			}
		}
	}
}
