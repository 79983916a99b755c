// SPDX-License-Identifier: Apache-2.0

package native

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
	"github.com/wasmplane/wasmplane/core/scheduler/native/nodefeatures"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
)

// Config of the native plugins.
type Config struct {
	// Client writes what is decided before a pod is bound: its volumes.
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// Spread are the constraints of pods that have none, without labelSelectors; nil:
	// SystemSpread.
	Spread []corev1.TopologySpreadConstraint
	// VolumeTimeout is how long a pod that has its node waits for its volumes; 0 =
	// 10 minutes.
	VolumeTimeout time.Duration
	// VolumeShape is how VolumeBinding rates nodes by the share of their storage that a pod would use;
	// nil = the emptiest is the best.
	VolumeShape shape.Shape
	// Volumes is which volumes pods have chosen, for all profiles of a scheduler and for as long as it
	// runs; nil = what one profile chooses.
	Volumes *claims.Assumed
	// Devices is what is known of who has which device, for all profiles of a scheduler and for
	// as long as it runs; nil = what one profile learns.
	Devices *devices.Ledger
	// DeviceSettings are those of DynamicResources.
	DeviceSettings devices.Settings
	// These plugins have settings; the zero values are upstream's defaults.
	Fit         Fit
	Balance     Balance
	Affinity    Affinity
	PodAffinity PodAffinity
	Preemption  Preemption
}

// Default lists the native plugins in the order in which they are asked: those
// that are cheap and refuse often come first. The weights are upstream's.
func Default(cfg Config) []scheduler.Weighted {
	inf := cfg.Informers
	core, apps := inf.Core().V1(), inf.Apps().V1()
	if cfg.Devices == nil {
		cfg.Devices = devices.NewLedger(inf)
	}
	cfg.Fit.ClassOf = cfg.Devices.ClassOf
	preemption := cfg.Preemption
	preemption.Budgets = inf.Policy().V1().PodDisruptionBudgets().Lister()
	cfg.PodAffinity.Namespaces = core.Namespaces().Lister()
	return []scheduler.Weighted{
		{Plugin: Unschedulable{}},
		{Plugin: NodeName{}},
		{Plugin: Taints{}, Weight: 3},
		{Plugin: cfg.Affinity, Weight: 2},
		{Plugin: Ports{}},
		{Plugin: cfg.Fit, Weight: 1},
		{Plugin: claims.NewBinding(cfg.Client, inf, claims.Settings{
			Timeout: cfg.VolumeTimeout, Assumed: cfg.Volumes, Shape: cfg.VolumeShape,
		}), Weight: 1},
		{Plugin: claims.NewRestrictions(inf)},
		{Plugin: claims.NewLimits(inf)},
		{Plugin: claims.NewZone(inf)},
		{Plugin: nodefeatures.Plugin{}},
		{Plugin: Spread{Defaults: &SpreadDefaults{
			Constraints: cfg.Spread,
			Services:    core.Services().Lister(), Controllers: core.ReplicationControllers().Lister(),
			ReplicaSets: apps.ReplicaSets().Lister(), StatefulSets: apps.StatefulSets().Lister(),
		}}, Weight: 2},
		{Plugin: cfg.PodAffinity, Weight: 2},
		{Plugin: cfg.Balance, Weight: 1},
		{Plugin: ImageLocality{}, Weight: 1},
		{Plugin: devices.New(cfg.Client, cfg.Devices, cfg.DeviceSettings), Weight: 2},
		{Plugin: preemption},
	}
}
