// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
)

func profileNamed(name string, c *cluster) scheduler.Profile {
	return scheduler.Profile{
		Name: name, Plugins: native.Default(native.Config{Client: c.client, Informers: informers.NewSharedInformerFactory(c.client, 0)}),
	}
}

// A profile that comes takes on the pods that waited for it; one that is wrong changes nothing.
func TestAProfileThatComesTakesOnItsPods(t *testing.T) {
	c := start(t)
	c.node("a", "4")
	early := pod("early", "1")
	early.Spec.SchedulerName = "second"
	c.create(early)
	c.create(pod("other", "1"))
	c.await("other", bound)
	usual, second := profileNamed(corev1.DefaultSchedulerName, c), profileNamed("second", c)
	twice := second
	twice.Plugins = append(twice.Plugins, twice.Plugins[0])
	if err := c.s.Apply(scheduler.Settings{Profiles: []scheduler.Profile{usual, twice}, Workers: 1}); err == nil ||
		!strings.Contains(err.Error(), "is listed twice") {
		t.Fatalf("error %v", err)
	}
	c.create(pod("still", "1"))
	c.await("still", bound)
	if err := c.s.Apply(scheduler.Settings{Profiles: []scheduler.Profile{usual, second}, Workers: 2}); err != nil {
		t.Fatal(err)
	}
	c.await("early", bound)
}

// Whether the configuration in force is the one of the file can be seen from outside.
func TestAConfigurationThatIsRefusedCounts(t *testing.T) {
	c := start(t)
	value := func(name string) (sum float64) {
		all, err := c.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range all {
			for _, m := range family.GetMetric() {
				if family.GetName() == name {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		return sum
	}
	for _, step := range []struct {
		err            error
		stale, reloads float64
	}{{nil, 0, 1}, {errors.New("wrong"), 1, 2}, {nil, 0, 3}} {
		c.s.Reloaded(step.err)
		stale, reloads := value("wasmplane_scheduler_config_stale"), value("wasmplane_scheduler_config_reloads_total")
		if stale != step.stale || reloads != step.reloads {
			t.Errorf("stale %v after %v changes, want %v after %v", stale, reloads, step.stale, step.reloads)
		}
	}
}
