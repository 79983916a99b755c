// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/kubelet/objects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func aPod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	ref := func(n string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: n} }
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{ref("pull")}
	p.Spec.InitContainers = []corev1.Container{
		{EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("envfrom")}}}},
	}
	p.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("env")}}}}}}
	p.Spec.Volumes = []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("envfrom")}}},
		{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: ref("projected")}}}}}},
	}
	return p
}

func TestReferences(t *testing.T) {
	got := objects.References(aPod())
	want := []objects.Key{
		{Kind: objects.Secret, Namespace: "ns", Name: "pull"},
		{Kind: objects.ConfigMap, Namespace: "ns", Name: "envfrom"},
		{Kind: objects.Secret, Namespace: "ns", Name: "env"},
		{Kind: objects.Secret, Namespace: "ns", Name: "projected"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// A node that mounts no volumes holds nothing for them.
func TestUnmounted(t *testing.T) {
	client := fake.NewSimpleClientset()
	s := objects.NewUnmounted(client, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	s.Follow(aPod())
	watched := func() (names []string) {
		for _, a := range client.Actions() {
			if w, ok := a.(clienttesting.WatchActionImpl); ok {
				name, _ := w.GetWatchRestrictions().Fields.RequiresExactMatch("metadata.name")
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	want := []string{"env", "envfrom", "pull"}
	for end := time.Now().Add(time.Minute); !slices.Equal(watched(), want) && time.Now().Before(end); {
		runtime.Gosched()
	}
	if got := watched(); !slices.Equal(got, want) {
		t.Errorf("watched are %v, want %v", got, want)
	}
	cancel()
	<-done
}

func TestObjectsAreWatchedWhileAPodNeedsThem(t *testing.T) {
	client := fake.NewSimpleClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "envfrom", ResourceVersion: "1"},
		Data:       map[string]string{"a": "1"},
	}) // managed fields are of no interest here
	s := objects.New(client, nil)
	changed := make(chan types.UID, 16)
	s.Changed(func(uid types.UID) { changed <- uid })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	defer func() { cancel(); <-done }()

	// Before anybody watches, an object is asked for.
	if cm, err := s.ConfigMap(ctx, "ns", "envfrom"); err != nil || cm.Data["a"] != "1" {
		t.Errorf("%v %v", cm, err)
	}
	if _, err := s.Secret(ctx, "ns", "none"); !apierrors.IsNotFound(err) || err.Error() != `secret "none" not found` {
		t.Errorf("%v", err)
	}
	if _, err := s.ConfigMap(ctx, "ns", "none"); !apierrors.IsNotFound(err) || err.Error() != `configmap "none" not found` {
		t.Errorf("%v", err)
	}
	s.Follow(aPod())
	wait(t, changed)
	// A watch asks for one object by its name, as a node's rights are.
	for _, a := range client.Actions() {
		switch a := a.(type) {
		case clienttesting.ListActionImpl:
			if name, ok := a.GetListRestrictions().Fields.RequiresExactMatch("metadata.name"); !ok || name == "" {
				t.Errorf("a list of more than one: %v", a)
			}
		case clienttesting.WatchActionImpl:
			if name, ok := a.GetWatchRestrictions().Fields.RequiresExactMatch("metadata.name"); !ok || name == "" {
				t.Errorf("a watch of more than one: %v", a)
			}
		}
	}
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "envfrom", ResourceVersion: "2"},
		Data:       map[string]string{"a": "2"},
	}
	for end := time.Now().Add(time.Minute); ; {
		if _, err := client.CoreV1().ConfigMaps("ns").Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		wait(t, changed)
		if got, err := s.ConfigMap(ctx, "ns", "envfrom"); err == nil && got.Data["a"] == "2" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the change does not come through")
		}
	}
	s.Unfollow("u")
	if err := client.CoreV1().ConfigMaps("ns").Delete(ctx, "envfrom", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ConfigMap(ctx, "ns", "envfrom"); !apierrors.IsNotFound(err) {
		t.Errorf("what nobody watches is remembered: %v", err)
	}
}

func wait(t *testing.T, ch <-chan types.UID) {
	t.Helper()
	select {
	case uid := <-ch:
		if uid != "u" {
			t.Errorf("told of %s", uid)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was told")
	}
}
