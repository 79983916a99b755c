// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// canned loads a plugin that answers with settings, with more lines for its entry.
func canned(tb testing.TB, settings string, more ...string) *loader.Loader {
	tb.Helper()
	dir := tb.TempDir()
	replaceFile(tb, filepath.Join(dir, "canned.wasm"), plugintest.Canned(tb))
	text := "plugins:\n  - name: canned\n    source: file:canned.wasm\n    settings: " + settings + "\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	namespaces := func(_ context.Context, name string) (map[string]string, bool) {
		return map[string]string{"env": name}, name != "gone"
	}
	l := newLoader(tb, loader.Config{InProcess: true, Dir: dir, Entries: entries(tb, text), Namespaces: namespaces})
	if err := l.Load(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return l
}

// chain runs a request through the plugins as an apiserver does.
func chain(tb testing.TB, l *loader.Loader, r *admission.Request) error {
	tb.Helper()
	c, err := admission.NewChain(l.AdmissionPlugins()...)
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.Mutate(tb.Context(), r); err != nil {
		return err
	}
	return c.Validate(tb.Context(), r)
}

func labels(tb testing.TB, r *admission.Request) map[string]string {
	tb.Helper()
	m, err := r.Object.Meta()
	if err != nil {
		tb.Fatal(err)
	}
	return m.GetLabels()
}

const (
	mutates   = "points: [admission.mutate]"
	validates = "points: [admission.validate]"
	refuses   = `{allowed: false, message: too big, field: "spec.containers[0]", code: 422, warnings: [look out], auditAnnotations: {k: v}}`
	labelling = `{patch: [{op: add, path: /metadata/labels/a, value: b}]}`
)

func TestARefusalIsAnAPIStatus(t *testing.T) {
	r := creating(pod("a:1", nil))()
	err := chain(t, canned(t, refuses, validates), r)
	status, ok := err.(apierrors.APIStatus)
	if !ok {
		t.Fatalf("error %v", err)
	}
	s := status.Status()
	if s.Code != 422 || s.Reason != metav1.StatusReasonInvalid || !strings.Contains(s.Message,
		`plugin "canned" denied the request: spec.containers[0]: too big`) ||
		s.Details.Kind != "pods" || s.Details.Causes[0].Field != "spec.containers[0]" {
		t.Errorf("status %+v", s)
	}
	if !reflect.DeepEqual(r.Warnings(), []string{"look out"}) || r.Annotations()["canned/k"] != "v" {
		t.Errorf("warnings %q, annotations %q", r.Warnings(), r.Annotations())
	}
}

func TestModesThatDoNotEnforce(t *testing.T) {
	for mode, want := range map[string]struct {
		warnings    string
		annotations string
	}{
		"Warn":   {warnings: `plugin "canned" would refuse this: pods "web" is forbidden`},
		"Audit":  {annotations: "canned/would-refuse"},
		"Shadow": {},
	} {
		t.Run(mode, func(t *testing.T) {
			r := creating(pod("a:1", nil))()
			if err := chain(t, canned(t, refuses, validates, "mode: "+mode), r); err != nil {
				t.Errorf("refused: %v", err)
			}
			if all := strings.Join(r.Warnings(), "\n"); !strings.Contains(all, want.warnings) || mode == "Shadow" && all != "" {
				t.Errorf("warnings %q", all)
			}
			if want.annotations != "" && r.Annotations()[want.annotations] == "" || mode == "Shadow" && len(r.Annotations()) > 0 {
				t.Errorf("annotations %q", r.Annotations())
			}
			r = creating(pod("a:1", nil))()
			l := canned(t, labelling, mutates, "mode: "+mode)
			if err := chain(t, l, r); err != nil || len(labels(t, r)) > 0 {
				t.Errorf("changed to %v, %v", labels(t, r), err)
			}
			if mode == "Audit" && !strings.Contains(r.Annotations()["canned/would-patch"], "/metadata/labels/a") {
				t.Errorf("annotations %q", r.Annotations())
			}
			if s := l.Status()[0]; s.Calls != 1 {
				t.Errorf("%d calls were counted", s.Calls)
			}
		})
	}
}

func TestChangesOfAnObject(t *testing.T) {
	for _, c := range []struct{ name, settings, refusal string }{
		{"a patch", labelling, ""},
		{"the whole object", `{object: {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: default, labels: {a: b}}, spec: {containers: [{name: c, image: "a:1"}]}}}`, ""},
		{"a patch by way of a tree", `{patch: [{op: add, path: /metadata/labels/x, value: b}, {op: move, from: /metadata/labels/x, path: /metadata/labels/a}]}`, ""},
		{"another name", `{patch: [{op: replace, path: /metadata/name, value: x}]}`, `it changed metadata.name from "web" to "x"`},
		{"another namespace", `{patch: [{op: replace, path: /metadata/namespace, value: kube-system}]}`, "it changed metadata.namespace"},
		{"a uid", `{patch: [{op: add, path: /metadata/uid, value: x}]}`, "it changed metadata.uid"},
		{"another kind", `{patch: [{op: replace, path: /kind, value: Node}]}`, "failurePolicy is Fail"},
		{"another object altogether", `{object: {apiVersion: v1, kind: Node, metadata: {name: web}}}`, "failurePolicy is Fail"},
		{"another object of the kind", `{object: {apiVersion: v1, kind: Pod, metadata: {name: other, namespace: default}}}`, `it changed metadata.name from "web" to "other"`},
		{"a resource version", `{patch: [{op: add, path: /metadata/resourceVersion, value: "1"}]}`, "it changed metadata.resourceVersion"},
		{"a path that leads nowhere", `{patch: [{op: replace, path: /spec/containers/7/image, value: x}]}`, "patch[0] (replace /spec/containers/7/image)"},
		{"a path that is none", `{patch: [{op: add, path: spec, value: {}}]}`, "patch[0]"},
		{"an operation that is none", `{patch: [{op: smash, path: /spec}]}`, "unknown operation"},
		{"a test that fails, behind a change", `{patch: [{op: add, path: /metadata/labels/a, value: b}, {op: test, path: /metadata/name, value: other}]}`, "the test failed"},
		{"the whole object removed", `{patch: [{op: remove, path: ""}]}`, "failurePolicy is Fail"},
		{"copies of copies", `{patch: [` + strings.Repeat(`{op: copy, from: /spec/containers, path: /spec/containers/-},`, 40) + `]}`, "the patch copies more than"},
		{"a move into itself", `{patch: [{op: move, from: /spec, path: /spec/x}]}`, "failurePolicy is Fail"},
		{"more operations than there may be", `{patch: [` + strings.Repeat(`{op: remove, path: /x},`, 1001) + `]}`, "at most 1000 are allowed"},
		{"a patch with a value that is deep", `{patch: [{op: add, path: /metadata/labels, value: ` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}]}`, "failurePolicy is Fail"},
		{"an unknown field", `{patch: [{op: add, path: /spec/contianers, value: []}]}`, `a PodSpec has no field "contianers"`},
		{"a wrong type", `{patch: [{op: add, path: /spec/hostNetwork, value: "yes"}]}`, "the value does not fit"},
		{"both", `{object: {}, patch: [{op: remove, path: /spec}]}`, "an object and a patch"},
		{"a code of success", `{allowed: false, code: 200}`, "code 200 is no HTTP status of a refusal"},
		{"no answer at all", `[1, 2]`, "the answer is no admission answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := creating(pod("a:1", nil))()
			err := chain(t, canned(t, c.settings, mutates), r)
			if c.refusal == "" {
				if err != nil || labels(t, r)["a"] != "b" {
					t.Errorf("labels %v, error %v", labels(t, r), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.refusal) || !strings.Contains(err.Error(), "failurePolicy is Fail") {
				t.Errorf("error %v, want %q in it", err, c.refusal)
			}
			if len(labels(t, r)) > 0 || r.Namespace != "default" {
				t.Error("the object was changed all the same")
			}
		})
	}
	err := chain(t, canned(t, labelling, validates), creating(pod("a:1", nil))())
	if err == nil || !strings.Contains(err.Error(), "only admission.mutate may change an object") {
		t.Errorf("a validating hook changed an object: %v", err)
	}
	err = chain(t, canned(t, labelling, mutates), admissiontest.Deleting("pods", pod("a:1", nil)))
	if err == nil || !strings.Contains(err.Error(), "no object to change") {
		t.Errorf("a deletion was patched: %v", err)
	}
}

func TestAnEntryNarrowsWhatAPluginSees(t *testing.T) {
	labelled := func(l map[string]string) *corev1.Pod { return pod("a:1", l) }
	in := func(namespace string) *corev1.Pod {
		p := pod("a:1", nil)
		p.Namespace = namespace
		return p
	}
	create := func(p *corev1.Pod, opts ...admissiontest.Option) *admission.Request {
		return admissiontest.Creating("pods", p, opts...)
	}
	for _, c := range []struct {
		name, match string
		yes, no     *admission.Request
	}{
		{"operations", `{rules: [{operations: [DELETE], resources: [pods]}]}`, admissiontest.Deleting("pods", in("a")), create(in("a"))},
		{"resources", `{rules: [{resources: [pods]}]}`, create(in("a")), admissiontest.Creating("configmaps", &corev1.ConfigMap{})},
		{"groups", `{rules: [{apiGroups: [apps], resources: ["*"]}, {apiGroups: [""], resources: [pods]}]}`, create(in("a")), admissiontest.Creating("configmaps", &corev1.ConfigMap{})},
		{"a subresource", `{rules: [{resources: [pods/status]}]}`, create(in("a"), admissiontest.Subresource("status")), create(in("a"))},
		{"no subresource", `{rules: [{resources: [pods]}]}`, create(in("a")), create(in("a"), admissiontest.Subresource("status"))},
		{"labels", `{objectSelector: {matchLabels: {x: y}}}`, create(labelled(map[string]string{"x": "y"})), create(labelled(nil))},
		{"labels that were taken off", `{objectSelector: {matchLabels: {x: y}}}`, admissiontest.Updating("pods", labelled(map[string]string{"x": "y"}), labelled(nil)), create(labelled(nil))},
		{"namespaces", `{namespaceSelector: {matchExpressions: [{key: env, operator: In, values: [prod]}]}}`, create(in("prod")), create(in("dev"))},
		{
			"conditions", `{conditions: [{name: a, expression: "object.metadata.name == 'web'"}, {name: b, expression: "request.userInfo.username == 'jane' && oldObject == null"}]}`,
			create(in("a")), admissiontest.Updating("pods", in("a"), in("a")),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := canned(t, refuses, validates, "match: "+c.match)
			if err := chain(t, l, c.yes); err == nil {
				t.Error("the plugin did not see what it is for")
			}
			if err := chain(t, l, c.no); err != nil {
				t.Errorf("the plugin saw what it is not for: %v", err)
			}
		})
	}
	l := canned(t, refuses, validates, `match: {namespaceSelector: {matchLabels: {env: x}}}`)
	if err := chain(t, l, create(in("gone"))); err == nil || !strings.Contains(err.Error(), `namespace "gone" was not found`) {
		t.Errorf("a namespace that is not there: %v", err)
	}
	l = canned(t, refuses, validates, `match: {conditions: [{name: deep, expression: "object.spec.nothing.here == 1"}]}`)
	if err := chain(t, l, create(in("a"))); err == nil || !strings.Contains(err.Error(), `match.conditions "deep": no such key`) {
		t.Errorf("a condition that fails: %v", err)
	}
}

func TestEveryCallIsTraced(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	ctx, span := tracer.Start(t.Context(), "request")
	l := canned(t, labelling, mutates)
	c, err := admission.NewChain(l.AdmissionPlugins()...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Mutate(ctx, creating(pod("a:1", nil))()); err != nil {
		t.Fatal(err)
	}
	span.End()
	attrs := map[attribute.Key]attribute.Value{}
	for _, s := range recorder.Ended() {
		if s.Name() == trace.AdmissionMutate {
			for _, kv := range s.Attributes() {
				attrs[kv.Key] = kv.Value
			}
			break
		}
	}
	if attrs[trace.PluginKey].AsString() != "canned" || attrs[trace.DigestKey].AsString() != l.Status()[0].Digest ||
		attrs[trace.FuelKey].AsInt64() == 0 ||
		attrs[trace.DecisionKey].AsString() != "patch" || !strings.Contains(attrs[trace.PatchKey].AsString(), "/metadata/labels") {
		t.Errorf("attributes %v", attrs)
	}
}
