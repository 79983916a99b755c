// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"runtime"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// Settings are what a configuration says, and may say otherwise while the scheduler runs.
type Settings struct {
	Profiles []Profile
	Queue    queue.Backoff
	Workers  int // 0 = one per processor
}

// Apply takes settings on, between two cycles. On an error those in force stay in force.
func (s *Scheduler) Apply(n Settings) error {
	if err := s.SetProfiles(n.Profiles); err != nil {
		return err
	}
	s.queue.SetBackoff(n.Queue)
	s.setWorkers(n.Workers)
	return nil
}

// Reloaded counts that the configuration has changed and was taken on; with an error, that it was not.
func (s *Scheduler) Reloaded(err error) { s.metrics.Reloaded(err) }

func (s *Scheduler) setWorkers(n int) {
	if n == 0 {
		n = runtime.GOMAXPROCS(0)
	}
	s.workers.Store(int64(n))
}

// adopt takes the pods into the queue that were nobody's before there were these profiles.
func (s *Scheduler) adopt(added func(profile string) bool) {
	pods := s.cfg.Informers.Core().V1().Pods().Lister()
	all, err := pods.List(labels.Everything())
	if err != nil { // an informer's lister has no errors
		return
	}
	for _, p := range all {
		if p.Spec.NodeName != "" || !added(p.Spec.SchedulerName) {
			continue
		}
		s.pod(nil, p)
		// What has happened to it meanwhile may have been told before it was there.
		if now, err := pods.Pods(p.Namespace).Get(p.Name); err != nil || now.UID != p.UID || now.Spec.NodeName != "" {
			s.queue.Remove(p.UID)
		}
	}
}
