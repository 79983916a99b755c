// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/loader"
)

// TestWhatCannotBeLoadedFailsClosed: an entry that names no points guards all the same.
// It did nothing, although its failurePolicy is Fail.
func TestWhatCannotBeLoadedFailsClosed(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", Namespace: "red"}
	pods, maps := &corev1.Pod{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta}
	const narrow = `{"op":1,"point":"admission.validate","match":[{"operations":["CREATE"],"apiGroups":[""],"resources":["pods"]}]}`
	for _, c := range []struct {
		name, file, more string
		pods, maps       bool // are refused
	}{
		{"nothing is there", "", "", true, true},
		{"nothing is there, and the entry has rules", "", "match: {rules: [{resources: [pods]}]}", true, false},
		{"nothing is there, and a point is named", "", "points: [admission.validate]", true, true},
		{"it does not matter", "", "failurePolicy: Ignore", false, false},
		{"it only warns", "", "mode: Warn", false, false},
		{"it schedules", "", "points: [scheduling.filter]", false, false},
		{"it weighs nodes", "", "scheduling: {weight: 3}", false, false},
		{"the module tells its rules, and its settings are refused", narrow, "settings: {a: b}", true, false},
		{"a module with another ABI than its entry says", narrow, "abi: gatekeeper", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.file != "" {
				replaceFile(t, filepath.Join(dir, "guard.wasm"), counting(t, c.file))
			}
			l := newLoader(t,
				loader.Config{
					InProcess: true, Dir: dir,
					Entries: entries(t, "plugins:\n  - name: guard\n    source: file:guard.wasm\n    "+c.more+"\n"),
				})
			if err := l.Load(t.Context()); err == nil || c.pods && !strings.Contains(err.Error(), "is refused: its failurePolicy is Fail") {
				t.Errorf("loading says: %v", err)
			}
			for resource, o := range map[string]runtime.Object{"pods": pods, "configmaps": maps} {
				err := chain(t, l, admissiontest.Creating(resource, o.DeepCopyObject()))
				if want := map[string]bool{"pods": c.pods, "configmaps": c.maps}[resource]; (err != nil) != want {
					t.Errorf("%s: %v", resource, err)
				}
				if err := chain(t, l, admissiontest.Creating(resource, o.DeepCopyObject(),
					admissiontest.By(&user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}))); err != nil {
					t.Errorf("%s by break-glass: %v", resource, err)
				}
			}
		})
	}
}

// TestARuleThatNothingMeetsIsAnError: rules of an entry narrow those of a module, so
// that a resource that the module does not ask for would pass unseen.
func TestARuleThatNothingMeetsIsAnError(t *testing.T) {
	for rules, problem := range map[string]string{
		`[{apiGroups: [""], resources: [pods]}]`:                                          "",
		`[{operations: [CREATE], resources: ["*"]}]`:                                      "",
		`[{apiGroups: ["", networking.k8s.io], resources: [pods]}]`:                       `no rule of the module is about * of pods in API group "networking.k8s.io"`,
		`[{resources: [pods]}, {apiGroups: [networking.k8s.io], resources: [ingresses]}]`: `match.rules[1]: no rule of the module is about * of ingresses`,
		`[{resources: [pods, services]}]`:                                                 `about * of services`,
		`[{operations: [CREATE, DELETE], resources: [pods]}]`:                             `about DELETE of pods`,
		`[{resources: [pods/exec]}]`:                                                      `about * of pods/exec`,
		`[{apiVersions: [v2], resources: [pods]}]`:                                        `no rule of the module is about`,
	} {
		dir := t.TempDir()
		replaceFile(t, filepath.Join(dir, "guard.wasm"), counting(t, `{"op":1,"point":"admission.validate","match":[{"operations":["CREATE","UPDATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}]}`))
		l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, fmt.Sprintf("plugins:\n  - name: guard\n    source: file:guard.wasm\n    match: {rules: %s}\n", rules))})
		if err := l.Load(t.Context()); (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", rules, err, problem)
		}
	}
}

// TestAPolicyOnEverythingLetsAClusterStart: what the server, its components and the
// break-glass identity need is out of every plugin's reach; Pods of controllers are not.
func TestAPolicyOnEverythingLetsAClusterStart(t *testing.T) {
	l := canned(t, `{allowed: false, message: never}`, validates, `match: {rules: [{resources: ["*", "*/*"]}]}`)
	component := func(name string, groups ...string) user.Info { return &user.DefaultInfo{Name: name, Groups: groups} }
	server := component(user.APIServerUser, user.SystemPrivilegedGroup)
	node := component("system:node:a", user.NodesGroup)
	controller := component("system:serviceaccount:kube-system:x", "system:serviceaccounts:kube-system")
	in := func(namespace string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: "x", Namespace: namespace} }
	for _, c := range []struct {
		resource, sub string
		o             runtime.Object
		who           user.Info
		asked         bool
	}{
		{"namespaces", "", &corev1.Namespace{ObjectMeta: in("")}, server, false},
		{"configmaps", "", &corev1.ConfigMap{ObjectMeta: in("red")}, server, false},
		{"nodes", "", &corev1.Node{ObjectMeta: in("")}, node, false},
		{"nodes", "status", &corev1.Node{ObjectMeta: in("")}, node, false},
		{"pods", "status", &corev1.Pod{ObjectMeta: in("red")}, node, false},
		{"events", "", &corev1.Event{ObjectMeta: in("red")}, node, false},
		{"serviceaccounts", "", &corev1.ServiceAccount{ObjectMeta: in("kube-system")}, controller, false},
		{"configmaps", "", &corev1.ConfigMap{ObjectMeta: in("kube-public")}, controller, false},
		{"configmaps", "", &corev1.ConfigMap{ObjectMeta: in("red")}, component("root", user.SystemPrivilegedGroup), false},
		{"pods", "", &corev1.Pod{ObjectMeta: in("red")}, controller, true},
		{"pods", "", &corev1.Pod{ObjectMeta: in("kube-system")}, controller, true},
		{"namespaces", "", &corev1.Namespace{ObjectMeta: in("")}, component("jane"), true},
		{"nodes", "", &corev1.Node{ObjectMeta: in("")}, component("ann", "wasmplane:cluster-admins"), true},
		{"serviceaccounts", "", &corev1.ServiceAccount{ObjectMeta: in("kube-system")}, component("system:serviceaccount:red:x", "system:serviceaccounts:red"), true},
	} {
		err := chain(t, l, admissiontest.Creating(c.resource, c.o, admissiontest.By(c.who), admissiontest.Subresource(c.sub)))
		if (err != nil) != c.asked {
			t.Errorf("%s/%s in %q by %s: %v", c.resource, c.sub, c.o.(metav1.Object).GetNamespace(), c.who.GetName(), err)
		}
	}
}
