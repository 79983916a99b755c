// SPDX-License-Identifier: Apache-2.0

package legacytokens

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// today of these tests.
var today = time.Date(2026, 6, 15, 13, 0, 0, 0, time.UTC)

func ago(days int) time.Time { return today.AddDate(0, 0, -days) }

func secret(created time.Time, labels map[string]string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "builder-token", UID: "s1", CreationTimestamp: metav1.NewTime(created), Labels: labels,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "builder", corev1.ServiceAccountUIDKey: "a1"},
		},
		Type: corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"token": []byte("x")},
	}
}

func TestDecide(t *testing.T) {
	on := func(days int) string { return ago(days).Format(day) }
	for _, c := range []struct {
		name    string
		created int // days ago
		since   int
		labels  map[string]string
		want    verdict
	}{
		{"never used", 800, 800, nil, invalidate},
		{"young", 364, 800, nil, keep},
		{"not tracked for long", 800, 364, nil, keep},
		{"tracked for just long enough", 800, 365, nil, invalidate},
		{"used a year ago", 800, 800, map[string]string{lastUsed: on(365)}, keep},
		{"used before", 800, 800, map[string]string{lastUsed: on(366)}, invalidate},
		{"used on a day that cannot be read", 800, 800, map[string]string{lastUsed: "once"}, keep},
		{"invalid for a year", 800, 800, map[string]string{invalidSince: on(365)}, keep},
		{"invalid for longer", 800, 800, map[string]string{invalidSince: on(366)}, remove},
		{"invalid for longer, tried lately", 800, 800, map[string]string{invalidSince: on(366), lastUsed: on(3)}, keep},
		{"invalid since a day that cannot be read", 800, 800, map[string]string{invalidSince: "x"}, invalidate},
	} {
		t.Run(c.name, func(t *testing.T) {
			since := ago(c.since).Truncate(24 * time.Hour)
			if got := decide(today, since, secret(ago(c.created), c.labels)); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// What is used at least once a year is never touched, and from the last use until the end there are two years. A picture that is some days
// old decides nothing else: a write by it is refused, as the Secret has changed since.
func TestNothingThatIsUsedGoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := secret(ago(0), nil)
		since, used, marked := ago(rapid.IntRange(-50, 50).Draw(rt, "tracked since")), today, time.Time{}
		daily := rapid.IntRange(1, 365).Draw(rt, "used every so many days")
		last := rapid.IntRange(0, 1000).Draw(rt, "last day of use")
		for n := range 2000 {
			now := today.AddDate(0, 0, n)
			if n <= last && n%daily == 0 && s.Labels[invalidSince] == "" {
				used = now
				s.Labels = map[string]string{lastUsed: now.Format(day)}
			}
			switch decide(now, since, s) {
			case invalidate:
				if n <= last || now.Sub(used) < unused {
					rt.Fatalf("invalid on day %d, used until %d", n, last)
				}
				s.Labels, marked = map[string]string{lastUsed: s.Labels[lastUsed], invalidSince: now.Format(day)}, now
			case remove:
				if marked.IsZero() || now.Sub(marked) < unused {
					rt.Fatalf("deleted on day %d, invalid since %s", n, marked)
				}
				return
			case keep:
			}
		}
		rt.Fatalf("an unused token stayed: %v", s.Labels)
	})
}

// cluster with an old token, an account and what else there is.
func cluster(
	t *testing.T, labels map[string]string, change func(*corev1.ServiceAccount), more ...runtime.Object,
) (*controllertest.Cluster, *Controller) {
	t.Helper()
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "builder", UID: "a1"}, Secrets: []corev1.ObjectReference{{Name: "builder-token"}},
	}
	if change != nil {
		change(account)
	}
	tracked := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: tracking},
		Data:       map[string]string{trackedSince: ago(700).Format(day)},
	}
	c := controllertest.New(append(more, secret(ago(900), labels), account, tracked)...)
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	ctl.now = func() time.Time { return today }
	return c, ctl
}

func TestAnUnusedTokenBecomesInvalidAndGoes(t *testing.T) {
	c, ctl := cluster(t, nil, nil)
	c.Start(t, ctl)
	api := c.Client.CoreV1().Secrets("shop")
	controllertest.Eventually(t, func() error {
		s, err := api.Get(t.Context(), "builder-token", metav1.GetOptions{})
		if err == nil && (s.Labels[invalidSince] != today.Format(day) || len(s.Data["token"]) == 0) {
			return fmt.Errorf("labels %v, data %v", s.Labels, s.Data)
		}
		return err
	})
	old, err := api.Get(t.Context(), "builder-token", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old.Labels = map[string]string{invalidSince: ago(400).Format(day)}
	if _, err := api.Update(t.Context(), old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if _, err := api.Get(t.Context(), "builder-token", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %w", err)
		}
		return nil
	})
}

func TestWhatMayBeNeededStays(t *testing.T) {
	pod := func(spec corev1.PodSpec) runtime.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}, Spec: spec}
	}
	of := corev1.SecretVolumeSource{SecretName: "builder-token"}
	ref := corev1.LocalObjectReference{Name: "builder-token"}
	env := []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref}}}
	variable := []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref}}}}
	debug := corev1.EphemeralContainerCommon{EnvFrom: env}
	projected := &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: ref}}},
	}
	volume := func(v corev1.VolumeSource) runtime.Object {
		return pod(corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: v}}})
	}
	for name, c := range map[string]struct {
		change func(*corev1.ServiceAccount)
		pod    runtime.Object
	}{
		"made by somebody":      {change: func(a *corev1.ServiceAccount) { a.Secrets = nil }},
		"of another account":    {change: func(a *corev1.ServiceAccount) { a.UID = "a2" }},
		"without an account":    {change: func(a *corev1.ServiceAccount) { a.Name = "another" }},
		"mounted":               {pod: volume(corev1.VolumeSource{Secret: &of})},
		"pulls images":          {pod: pod(corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{ref}})},
		"in the environment":    {pod: pod(corev1.PodSpec{Containers: []corev1.Container{{EnvFrom: env}}})},
		"in a variable":         {pod: pod(corev1.PodSpec{InitContainers: []corev1.Container{{Env: variable}}})},
		"in a projected volume": {pod: volume(corev1.VolumeSource{Projected: projected})},
		"of a driver's volume":  {pod: volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: &ref}})},
		"of a debug container":  {pod: pod(corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: debug}}})},
	} {
		t.Run(name, func(t *testing.T) {
			var more []runtime.Object
			if c.pod != nil {
				more = append(more, c.pod)
			}
			cl, ctl := cluster(t, nil, c.change, more...)
			cl.Start(t, ctl)
			controllertest.Eventually(t, func() error {
				got, err := ctl.secrets.Secrets("shop").Get("builder-token")
				if err != nil {
					return err
				}
				if needed, err := ctl.needed(got); err != nil || !needed {
					return fmt.Errorf("needed %v: %w", needed, err)
				}
				return nil
			})
		})
	}
}

// A token that is used while its Secret's old picture is looked at stays valid.
func TestAnOldPictureInvalidatesNothing(t *testing.T) {
	c, ctl := cluster(t, nil, nil)
	var tried atomic.Int32
	c.Client.PrependReactor("patch", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		tried.Add(1)
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "builder-token", errors.New("it has changed"))
	})
	c.Start(t, ctl)
	controllertest.Eventually(t, func() error {
		if tried.Load() == 0 {
			return errors.New("nothing was tried")
		}
		return nil
	})
	for _, a := range c.Client.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok && !strings.Contains(string(p.GetPatch()), `"resourceVersion":"`) {
			t.Errorf("a patch without a version: %s", p.GetPatch())
		}
	}
	s, err := c.Client.CoreV1().Secrets("shop").Get(t.Context(), "builder-token", metav1.GetOptions{})
	if err != nil || s.Labels[invalidSince] != "" {
		t.Errorf("%v, %v", s.Labels, err)
	}
}
