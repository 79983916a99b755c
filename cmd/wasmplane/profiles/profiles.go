// SPDX-License-Identifier: Apache-2.0

// Package profiles makes the scheduler's profiles of a configuration: for the scheduler that
// runs, and for one that is simulated.
package profiles

import (
	"cmp"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/configfile"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
)

// Policy is what a configuration says of scheduling.
type Policy = scheduler.Settings

// File is the one that a configuration names in the place of fields of its own; "" = none.
func File(c *config.Configuration) string {
	if c.Scheduler.ConfigFile == "" {
		return ""
	}
	return c.Path(c.Scheduler.ConfigFile)
}

// Of a configuration. What the native plugins need is in with, and how extenders are reached in reach.
func Of(c *config.Configuration, wasm []scheduler.Weighted, with native.Config, reach extender.Reach) (Policy, error) {
	if with.Devices == nil {
		with.Devices = devices.NewLedger(with.Informers)
	}
	path := File(c)
	if path == "" {
		return Policy{Profiles: own(&c.Scheduler, wasm, with)}, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Policy{}, fmt.Errorf("scheduler.configFile: %w", err)
	}
	f, err := configfile.Parse(path, data)
	if err != nil {
		return Policy{}, err
	}
	list, err := f.Profiles(wasm, with, reach)
	return Policy{Profiles: list, Queue: f.Queue(), Workers: f.Workers()}, err
}

// own are the profiles of our own fields: every native plugin, then every Wasm plugin, less what a profile
// leaves out, with the weights that it gives.
func own(c *config.Scheduler, wasm []scheduler.Weighted, with native.Config) []scheduler.Profile {
	with.VolumeTimeout = time.Duration(c.VolumeBindingTimeout)
	// Every profile has plugins of its own: what they remember is of their profile.
	every := func(spread *config.TopologySpread) []scheduler.Weighted {
		with.Spread = defaultSpread(spread)
		return append(native.Default(with), wasm...)
	}
	usual := &c.TopologySpread
	if len(c.Profiles) == 0 {
		return []scheduler.Profile{{Name: corev1.DefaultSchedulerName, Plugins: every(usual)}}
	}
	var out []scheduler.Profile
	for _, p := range c.Profiles {
		profile := scheduler.Profile{Name: p.Name, Plugins: every(cmp.Or(p.TopologySpread, usual))}.Without(p.Disable)
		for i, w := range profile.Plugins {
			if weight, ok := p.Weights[w.Name()]; ok {
				profile.Plugins[i].Weight = weight
			}
		}
		out = append(out, profile)
	}
	return out
}

// defaultSpread are the constraints of pods that have none; nil = upstream's.
func defaultSpread(t *config.TopologySpread) []corev1.TopologySpreadConstraint {
	if t.DefaultingType != "List" {
		return nil
	}
	out := []corev1.TopologySpreadConstraint{}
	for _, c := range t.DefaultConstraints {
		out = append(out, corev1.TopologySpreadConstraint{
			MaxSkew: c.MaxSkew, TopologyKey: c.TopologyKey, WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(c.WhenUnsatisfiable),
		})
	}
	return out
}
