// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
	"github.com/wasmplane/wasmplane/core/kubelet/shutdown"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

// Eviction of the node's pods, as its settings say.
func (n *Node) Eviction() threshold.Settings {
	grace := map[string]time.Duration{}
	for signal, d := range n.EvictionSoftGracePeriod {
		grace[signal] = time.Duration(d)
	}
	return threshold.Settings{
		Hard: n.EvictionHard, Soft: n.EvictionSoft, SoftGracePeriod: grace, MinimumReclaim: n.EvictionMinimumReclaim,
		MaxPodGracePeriod:        time.Duration(n.EvictionMaxPodGracePeriod),
		PressureTransitionPeriod: time.Duration(n.EvictionPressureTransitionPeriod),
	}
}

func (n *Node) checkEviction() error {
	s := n.Eviction()
	_, err := s.Read()
	var wrong *threshold.SettingError
	if errors.As(err, &wrong) {
		return field("node."+wrong.Setting, "%v", wrong.Err)
	}
	return err
}

// Reserve is what is kept of the node, as its settings say, but for what its resource managers keep.
func (n *Node) Reserve() reservation.Settings {
	return reservation.Settings{Kube: n.KubeReserved, System: n.SystemReserved, Enforce: n.EnforceNodeAllocatable}
}

func (n *Node) checkReserved() error {
	s := n.Reserve()
	_, err := s.Read()
	var wrong *reservation.SettingError
	if errors.As(err, &wrong) {
		return field("node."+wrong.Setting, "%v", wrong.Err)
	}
	return err
}

// Shutdown is how long pods may take to end when the machine goes down.
func (n *Node) Shutdown() shutdown.Settings {
	s := shutdown.Settings{Grace: time.Duration(n.ShutdownGracePeriod), Critical: time.Duration(n.ShutdownGracePeriodCriticalPods)}
	for _, p := range n.ShutdownGracePeriodByPodPriority {
		const most = 1 << 30 // that sums of it are times
		grace := time.Duration(min(p.ShutdownGracePeriodSeconds, most)) * time.Second
		s.ByPriority = append(s.ByPriority, shutdown.Period{Priority: p.Priority, Grace: grace})
	}
	return s
}

func (n *Node) checkShutdown() error {
	s := n.Shutdown()
	_, err := s.Read()
	var wrong *shutdown.SettingError
	if errors.As(err, &wrong) {
		return field("node."+wrong.Setting, "%v", wrong.Err)
	}
	return err
}
