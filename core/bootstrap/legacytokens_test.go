// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestTheFirstDayOfKnownUsesStays, is made again where it is missing, and put right where it is no day.
func TestTheFirstDayOfKnownUsesStays(t *testing.T) {
	b := &Bootstrap{cfg: Config{Client: fake.NewClientset()}}
	api := b.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	since := func() string {
		t.Helper()
		if err := b.legacyTokenTracking(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, err := api.Get(t.Context(), LegacyTokenTracking, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m.Data["since"]
	}
	set := func(day string) {
		t.Helper()
		m, err := api.Get(t.Context(), LegacyTokenTracking, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.Data = map[string]string{"since": day}
		if _, err := api.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	isToday := func(day string) bool {
		at, err := time.Parse(time.DateOnly, day)
		return err == nil && time.Since(at) < 48*time.Hour
	}
	if got := since(); !isToday(got) {
		t.Errorf("at first %q", got)
	}
	set("2024-02-03")
	if got := since(); got != "2024-02-03" {
		t.Errorf("a day that is there became %q", got)
	}
	set("yesterday")
	if got := since(); !isToday(got) {
		t.Errorf("no day became %q", got)
	}
}
