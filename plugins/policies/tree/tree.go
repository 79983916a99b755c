// SPDX-License-Identifier: Apache-2.0

// Package tree is what the readers of other projects' policies share: strict decoding, and
// parts of an entry's tree.
package tree

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Mapper knows resources by their kinds.
type Mapper interface {
	// Resource is the plural name of a kind; false where the cluster does not serve it.
	Resource(schema.GroupKind) (string, bool)
}

// Metadata is what policies' own metadata say about them.
type Metadata struct {
	Name, Namespace string
	Annotations     map[string]string
}

// UnmarshalJSON implements json.Unmarshaler: all the rest is the API's.
func (m *Metadata) UnmarshalJSON(b []byte) error {
	var all struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations"`
	}
	err := json.Unmarshal(b, &all)
	*m = Metadata(all)
	return err
}

// Decode decodes an object as Strict does.
func Decode(object map[string]any, into any, at string) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return Strict(text, into, at)
}

// Expect fails where an object is not of one of these kinds of the group; there is one at the least.
func Expect(group, apiVersion, kind string, kinds ...string) error {
	if gv, err := schema.ParseGroupVersion(apiVersion); err == nil && gv.Group == group && slices.Contains(kinds, kind) {
		return nil
	}
	expected := "a " + kinds[0]
	if len(kinds) > 1 {
		expected = "one of " + strings.Join(kinds, ", ")
	}
	return fmt.Errorf("expected %s of %s, found a %s of %q", expected, group, kind, apiVersion)
}

// Strict decodes and refuses what is not known. at is where the JSON stands.
func Strict(b []byte, into any, at string) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		return nil
	}
	problem := strings.TrimPrefix(err.Error(), "json: ")
	if field, unknown := strings.CutPrefix(problem, "unknown field "); unknown {
		return fmt.Errorf("%s: the field %s is not known here", at, field)
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("%s: %s: expected another type than %s", at, kind.Field, kind.Value)
	}
	return fmt.Errorf("%s: %s", at, problem)
}

// Documents reads the YAML or JSON documents of a file, but for empty ones.
func Documents(name string, r io.Reader) ([]map[string]any, error) {
	d := yaml.NewDecoder(r)
	var out []map[string]any
	for {
		var tree map[string]any
		switch err := d.Decode(&tree); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if tree != nil {
			out = append(out, tree)
		}
	}
}

// Texts is a list of texts as a tree has it.
func Texts(list []string) []any {
	var out []any
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// Selectors puts those that select something into a match.
func Selectors(match map[string]any, object, namespace *metav1.LabelSelector) error {
	for field, s := range map[string]*metav1.LabelSelector{"objectSelector": object, "namespaceSelector": namespace} {
		if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			continue
		}
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		out := map[string]any{}
		if err := json.Unmarshal(b, &out); err != nil {
			return err
		}
		match[field] = out
	}
	return nil
}

// longest is the longest name of a plugin.
const longest = 63

// PluginName is what the plugin of a policy is called: its kind in lower case, a dot and its
// name, which is cut and made unique by a sum where it is too long.
func PluginName(kind, name string) string {
	full := strings.ToLower(kind) + "." + name
	if len(full) <= longest {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return strings.TrimRight(full[:longest-9], "-.") + "-" + hex.EncodeToString(sum[:4])
}
