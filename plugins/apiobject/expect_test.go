// SPDX-License-Identifier: Apache-2.0

package apiobject_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// given records what a loader is given.
type given struct{ expected map[string]manifest.Entry }

func (g *given) Begin(context.Context, loader.Origin, []manifest.Entry) *loader.Pending {
	return &loader.Pending{}
}
func (g *given) Status() []loader.Status             { return nil }
func (g *given) Entry(string) (manifest.Entry, bool) { return manifest.Entry{}, false }

func (g *given) Expect(_ loader.Origin, entries []manifest.Entry) {
	g.expected = map[string]manifest.Entry{}
	for _, e := range entries {
		g.expected[e.Name] = e
	}
}

// expecting is what a controller expects of the objects that a server finds when it starts,
// or of a list that fails.
func expecting(t *testing.T, failure error, objects ...runtime.Object) (map[string]manifest.Entry, error) {
	t.Helper()
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{plugindefinition.Resource(): "PluginList"}, objects...)
	if failure != nil {
		client.PrependReactor("list", "plugins", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, failure })
	}
	g := &given{}
	c, err := apiobject.New(apiobject.Config{
		Client: client, Loader: g,
		Rules: apiobject.Rules{Taken: func(name string) bool { return name == "taken" }},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Expect(t.Context())
	return g.expected, err
}

// TestWhatAServerExpectsOfPlugins: the points that are guarded from the first request on.
func TestWhatAServerExpectsOfPlugins(t *testing.T) {
	const far = "source: oci://a.example/b:1\ndigest: " + digest
	was := func(o *unstructured.Unstructured, points ...any) *unstructured.Unstructured {
		status := map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False"}}}
		if points != nil {
			status["points"] = points
		}
		o.Object["status"] = status
		return o
	}
	shown := plugin(t, "shown", "{}")
	shown.SetLabels(map[string]string{apiobject.OriginLabel: apiobject.FromFile})
	got, err := expecting(t, nil,
		plugin(t, "names", far+"\npoints: [admission.mutate]"),
		was(plugin(t, "was", far), "authorization"),
		was(plugin(t, "failed", far)),
		plugin(t, "new", far),
		plugin(t, "taken", far+"\npoints: [admission.mutate]"),
		plugin(t, "files", "source: file:a.wasm\npoints: [admission.mutate]\nfailurePolicy: Ignore"),
		plugin(t, "unreadable", "source: 7\nunknown: {}"),
		shown,
	)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"names": "admission.mutate", "was": "authorization", "failed": "admission.validate", "new": "",
		"files": "admission.mutate", "unreadable": "admission.validate",
	}
	for name, points := range want {
		e, is := got[name]
		if joined := strings.Join(e.Guards, " "); !is || joined != points || e.Mode != manifest.Enforce || !e.FromAPI {
			t.Errorf("%s: %+v, want points %q", name, e, points)
		}
		if refused := slices.Contains([]string{"files", "unreadable"}, name); refused != (e.Refused != nil) {
			t.Errorf("%s is refused: %v", name, e.Refused)
		}
	}
	if len(got) != len(want) {
		t.Errorf("expected: %v", got)
	}
	if got["files"].FailurePolicy != manifest.Ignore {
		t.Error("the failure policy of what is refused is another")
	}
}

// TestPluginsThatCannotBeReadGuardEverything that plugins may see: nobody knows what they guard.
func TestPluginsThatCannotBeReadGuardEverything(t *testing.T) {
	got, err := expecting(t, errors.New("damaged"))
	if err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Error(err)
	}
	if e, is := got[":plugins"]; !is || len(got) != 1 || e.FailurePolicy != manifest.Fail || !slices.Contains(e.Guards, "admission.validate") || len(e.Match.Rules) > 0 {
		t.Errorf("%+v", got)
	}
	if got, err := expecting(t, apierrors.NewNotFound(plugindefinition.Resource().GroupResource(), "")); err != nil || len(got) > 0 {
		t.Errorf("a new cluster: %v, %v", got, err)
	}
}
