// SPDX-License-Identifier: Apache-2.0

package celguest_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/foreign/celguest"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// guest makes one of an entry's text.
func guest(t *testing.T, text string) (*celguest.Guest, error) {
	t.Helper()
	e, err := manifest.ParseBytes([]byte("name: p\nabi: gatekeeper\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return celguest.New(&e)
}

// messages are the messages of an answer.
func messages(t *testing.T, out []byte) (texts []string) {
	t.Helper()
	var a struct {
		Allowed bool
		Message string
		Causes  []struct{ Message string }
	}
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatal(err)
	}
	if a.Allowed {
		return nil
	}
	texts = append(texts, a.Message)
	for _, c := range a.Causes {
		texts = append(texts, c.Message)
	}
	return texts
}

const pod = `{"operation":"CREATE","kind":{"kind":"Pod"},"namespace":"red","object":{"metadata":{"labels":{"app":"web"}},"spec":{"replicas":3}}}`

func TestExpressionsDecide(t *testing.T) {
	for _, c := range []struct{ name, entry, request, want string }{
		{"nothing is wrong", `cel: {validations: [{expression: "object.spec.replicas == 3"}]}`, pod, ""},
		{"a message", `cel: {validations: [{expression: "false", message: no}]}`, pod, "no"},
		{"no message", `cel: {validations: [{expression: "1 == 2"}]}`, pod, "failed expression: 1 == 2"},
		{
			"all that is wrong, with what it is about",
			`{settings: {labels: [app, owner], most: 2}, cel: {variables: [{name: missing, expression: "variables.params.labels.filter(l, !(l in variables.anyObject.metadata.labels))"}],
        validations: [{expression: "size(variables.missing) == 0", messageExpression: "'without ' + variables.missing.join(', ')"},
          {expression: "true"},
          {expression: "object.spec.replicas <= variables.params.most", messageExpression: "string(object.spec.replicas) + ' are too many'"}]}}`,
			pod, "without owner|3 are too many",
		},
		{
			"a condition that does not hold", `cel: {matchConditions: [{name: blue, expression: "request.namespace == 'blue'"}], validations: [{expression: "false"}]}`,
			pod, "",
		},
		{
			"what is deleted is the object", `cel: {validations: [{expression: "object == null && oldObject.a == 1 && variables.anyObject.a == 2"}]}`,
			`{"operation":"DELETE","oldObject":{"a":1}}`, "failed expression: object == null && oldObject.a == 1 && variables.anyObject.a == 2",
		},
		{"a request of a kind without a namespace", `cel: {validations: [{expression: "request.namespace == '' && request.subResource == ''"}]}`, `{"operation":"CREATE","object":{}}`, ""},
		{"no settings", `cel: {validations: [{expression: "variables.params == null"}]}`, pod, ""},
		{"an error refuses", `cel: {validations: [{expression: "object.spec.missing == 1"}]}`, pod, "expression 'object.spec.missing == 1' resulted in error: no such key: missing"},
		{"an error of a condition refuses", `cel: {matchConditions: [{name: some, expression: "object.none"}], validations: [{expression: "true"}]}`, pod, "matchConditions some: no such key: none"},
		{
			"an error is ignored where that is said, other violations are not",
			`{failurePolicy: Ignore, cel: {validations: [{expression: "object.spec.missing == 1"}, {expression: "false", message: no}]}}`, pod, "no",
		},
		{
			"expressions that cost too much", `{limits: {deadline: 10m}, cel: {validations: [{expression: "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c, [0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, [0,1,2,3,4,5,6,7,8,9].all(f, [0,1,2,3,4,5,6,7,8,9].all(g, a+b+c+d+e+f+g >= 0)))))))"}]}}`,
			pod, "cost limit exceeded",
		},
	} {
		g, err := guest(t, entryOf(c.entry))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		out, _, err := g.Call(t.Context(), 1, []byte(c.request))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := strings.Join(messages(t, out), "|")
		if got != c.want && !(strings.HasPrefix(c.want, "cost") && strings.Contains(got, c.want)) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// entryOf are the fields of an entry, one on a line.
func entryOf(text string) string {
	if strings.HasPrefix(text, "{") {
		return strings.Replace(strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}"), ", cel:", "\ncel:", 1)
	}
	return text
}

func TestAnEvaluationEndsWithWhoeverAsks(t *testing.T) {
	g, err := guest(t, `cel: {validations: [{expression: "true"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var f *host.Fault
	if _, _, err := g.Call(ctx, 1, []byte(pod)); !errors.As(err, &f) || f.Kind != host.Canceled {
		t.Errorf("%v", err)
	}
	var refused *host.GuestError
	if _, _, err := g.Call(t.Context(), 1, []byte("{")); !errors.As(err, &refused) {
		t.Errorf("a request that is none: %v", err)
	}
}

func TestWhatDoesNotCompileIsNamed(t *testing.T) {
	_, err := guest(t, `cel: {variables: [{name: a, expression: "("}], validations: [{expression: "1"}]}`)
	for _, want := range []string{"cel.variables[0].expression: compilation failed", "cel.validations[0].expression: must evaluate to bool"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
