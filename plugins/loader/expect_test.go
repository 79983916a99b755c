// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// guarding is an entry that guards the points that it names, as objects of the API do.
func guarding(t *testing.T, source, more string) []manifest.Entry {
	t.Helper()
	list := entries(t, "plugins:\n  - name: guard\n    source: "+source+"\n    settings: {allowed: false, message: never}\n    "+more+"\n")
	list[0].Guards = list[0].Points
	return list
}

// TestWhatPluginsGuardWaitsForThem: a server that starts admitted, until the API's plugins
// were loaded, what they refuse.
func TestWhatPluginsGuardWaitsForThem(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", Namespace: "red"}
	pods, maps := &corev1.Pod{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta}
	for _, c := range []struct {
		name, more string
		pods, maps bool // wait
	}{
		{"everything", "points: [admission.validate]", true, true},
		{"by its rules", "points: [admission.validate]\n    match: {rules: [{resources: [pods]}]}", true, false},
		{"by its conditions", "points: [admission.validate]\n    match: {conditions: [{name: pods, expression: request.kind.kind == 'Pod'}]}", true, false},
		{"it changes", "points: [admission.mutate]", true, true},
		{"a failure does not matter", "points: [admission.validate]\n    failurePolicy: Ignore", false, false},
		{"it only warns", "points: [admission.validate]\n    mode: Warn", false, false},
		{"it schedules", "points: [scheduling.filter]", false, false},
		{"nobody knows for what it is", "isolation: perCall", false, false},
		{"it is disabled", "points: [admission.validate]\n    disabled: true", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoader(t, loader.Config{InProcess: true, Dir: t.TempDir()})
			l.Expect(loader.API, guarding(t, "file:canned.wasm", c.more))
			for resource, o := range map[string]runtime.Object{"pods": pods, "configmaps": maps} {
				err := chain(t, l, admissiontest.Creating(resource, o.DeepCopyObject()))
				if waits := map[string]bool{"pods": c.pods, "configmaps": c.maps}[resource]; (err != nil) != waits {
					t.Errorf("%s: %v", resource, err)
				}
				if err != nil {
					isLater(t, err)
				}
				if err := chain(t, l, admissiontest.Creating(resource, o.DeepCopyObject(),
					admissiontest.By(&user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}))); err != nil {
					t.Errorf("%s by break-glass: %v", resource, err)
				}
			}
		})
	}
}

func isLater(t *testing.T, err error) {
	t.Helper()
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Code != 503 || status.ErrStatus.Details.RetryAfterSeconds != 1 ||
		!strings.Contains(status.Error(), `plugin "guard"`) {
		t.Errorf("%v (%#v): want 503 that names the plugin and says when to try again", err, status)
	}
}

// TestAnExpectedPluginComesIntoForce: loaded, it answers; not loadable, its failure policy
// decides; gone, nobody waits for it.
func TestAnExpectedPluginComesIntoForce(t *testing.T) {
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	for _, c := range []struct{ name, source, more, want string }{
		{"loaded", "file:canned.wasm", "points: [admission.validate]", "denied the request: never"},
		{"not loadable", "file:none.wasm", "points: [admission.validate]", "its failurePolicy is Fail"},
		{"refused", "file:canned.wasm", "points: [admission.validate]", "names no files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoader(t, loader.Config{InProcess: true, Dir: dir})
			list := guarding(t, c.source, c.more)
			if c.name == "refused" {
				list[0].Refused = errors.New("spec.source: an object names no files")
			}
			l.Expect(loader.API, list)
			create := func() error {
				return chain(t, l, admissiontest.Creating("pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "red"}}))
			}
			isLater(t, create())
			_ = l.Apply(t.Context(), loader.API, list)
			if err := create(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err := l.Apply(t.Context(), loader.API, nil); err != nil {
				t.Error(err)
			}
			if err := create(); err != nil {
				t.Errorf("when it is gone: %v", err)
			}
		})
	}
}

// TestANewPluginGuardsFromItsLoadOn the requests that it names: nothing passes while a slow
// registry answers.
func TestANewPluginGuardsFromItsLoadOn(t *testing.T) {
	address, asked, _ := slow(t)
	l := newLoader(t, loader.Config{InProcess: true, Dir: t.TempDir(), Tenants: nearby()})
	list := slowEntries(t, address, "guard", "other")
	list[0].Guards = list[0].Points
	list[0].Namespace, list[1].Namespace = "", ""
	l.Begin(t.Context(), loader.API, list[:1])
	<-asked
	create := func() error {
		return chain(t, l, admissiontest.Creating("pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "red"}}))
	}
	isLater(t, create())
	again := list[0]
	again.Match.Rules = entries(t, "plugins: [{name: guard, source: 'file:x', match: {rules: [{resources: [configmaps]}]}}]")[0].Match.Rules
	l.Begin(t.Context(), loader.API, []manifest.Entry{again})
	if err := create(); err != nil {
		t.Errorf("the entry that came after guards no pods: %v", err)
	}
}

// TestAnAuthorizerThatIsLoadedHoldsRequests, and not the questions that loading asks.
func TestAnAuthorizerThatIsLoadedHoldsRequests(t *testing.T) {
	l := newLoader(t, loader.Config{InProcess: true, Dir: t.TempDir()})
	l.Expect(loader.API, guarding(t, "file:canned.wasm", "points: [authorization]"))
	before, _ := l.Authorizers()
	if len(before) != 1 {
		t.Fatalf("%d authorizers", len(before))
	}
	ask := func(ctx context.Context, groups ...string) (authz.Decision, error) {
		d, _, err := before[0].Authorize(ctx, authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "jane", Groups: groups}, Verb: "list",
			Resource: "pods", ResourceRequest: true,
		})
		return d, err
	}
	d, err := ask(t.Context())
	if d != authz.Deny {
		t.Errorf("decided %v", d)
	}
	isLater(t, err)
	isLater(t, authz.Refused(authorizer.AttributesRecord{}, "closed", err))
	if d, err := ask(t.Context(), user.SystemPrivilegedGroup); d != authz.NoOpinion || err != nil {
		t.Errorf("break-glass: %v (%v)", d, err)
	}
	other := &manifest.Entry{Name: "other", FromAPI: true, Writer: &user.DefaultInfo{Name: "jane"}}
	if err := rights.New(asked(ask)).Act(t.Context(), other, authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}); err != nil {
		t.Errorf("what a writer may do: %v", err)
	}
}

// asked answers what a writer may do by an authorizer.
type asked func(context.Context, ...string) (authz.Decision, error)

// Review implements rights.Access.
func (a asked) Review(ctx context.Context,
	spec authorizationv1.SubjectAccessReviewSpec,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	d, err := a(ctx, spec.Groups...)
	return authorizationv1.SubjectAccessReviewStatus{Allowed: d == authz.NoOpinion}, err
}
