// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
)

// listen feeds cache and queue from the informers.
func (s *Scheduler) listen() error {
	core := s.cfg.Informers.Core().V1()
	storage := s.cfg.Informers.Storage().V1()
	add := func(inf cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
		reg, err := inf.AddEventHandler(h)
		if err == nil {
			s.synced = append(s.synced, reg.HasSynced)
		}
		return err
	}
	if s.gangs != nil {
		if err := add(s.cfg.Informers.Scheduling().V1beta1().PodGroups().Informer(), nodecache.Handler(s.podGroup)); err != nil {
			return err
		}
	}
	volumes := nodecache.Handler(s.volumes)
	devices := s.cfg.Informers.Resource().V1()
	return errors.Join(
		add(devices.ResourceClaims().Informer(), s.attend(framework.DevicesChanged)),
		add(devices.DeviceClasses().Informer(), s.attend(framework.DeviceClassChanged)),
		add(devices.ResourceSlices().Informer(), s.attend(framework.DevicesChanged)),
		add(devices.DeviceTaintRules().Informer(), s.attend(framework.DevicesChanged)),
		add(core.Nodes().Informer(), nodecache.Handler(s.node)),
		add(core.Pods().Informer(), nodecache.Handler(s.pod)),
		add(core.PersistentVolumes().Informer(), volumes),
		add(core.PersistentVolumeClaims().Informer(), volumes),
		add(storage.StorageClasses().Informer(), volumes),
		add(storage.CSIDrivers().Informer(), volumes),
		add(storage.CSIStorageCapacities().Informer(), volumes),
		add(storage.CSINodes().Informer(), volumes),
		// Nothing waits for these, but no decision may be made before they are there.
		add(s.cfg.Informers.Policy().V1().PodDisruptionBudgets().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(core.Namespaces().Informer(), cache.ResourceEventHandlerFuncs{}),
		// These select pods; a pod whose spread or preference is a default is counted with
		// those that the same ones select.
		add(core.Services().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(core.ReplicationControllers().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(s.cfg.Informers.Apps().V1().ReplicaSets().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(s.cfg.Informers.Apps().V1().StatefulSets().Informer(), cache.ResourceEventHandlerFuncs{}),
	)
}

func (s *Scheduler) node(old, now k8sruntime.Object) {
	if now == nil {
		n := old.(*corev1.Node)
		if e := s.cache.RemoveNode(n.Name); e != 0 {
			s.queue.Happened(e, helpedByRemoval(e, n))
		}
		return
	}
	n := now.(*corev1.Node)
	s.happened(s.cache.SetNode(n), n.Name)
}

func (s *Scheduler) pod(old, now k8sruntime.Object) {
	if now == nil {
		s.gone(old.(*corev1.Pod))
		return
	}
	p := now.(*corev1.Pod)
	if o, ok := old.(*corev1.Pod); ok && o.UID != p.UID {
		s.gone(o) // deleted and made anew between two events
	}
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		s.gone(p)
	case p.Spec.NodeName != "":
		s.gangs.SetPod(p)
		s.queue.Remove(p.UID)
		s.unpromise(p.UID)
		s.happened(s.cache.SetPod(p), p.Spec.NodeName)
		if p.DeletionTimestamp != nil {
			s.removals.Seen(p.UID)
		}
		switch o, ok := old.(*corev1.Pod); {
		case !ok || o.Spec.NodeName == "":
			s.happened(framework.PodBound, p.Spec.NodeName)
		case !maps.Equal(o.Labels, p.Labels): // to those who select pods, one has come and another has gone
			s.happened(framework.PodBound|framework.PodRemoved, p.Spec.NodeName)
		}
	case p.DeletionTimestamp != nil || len(p.Spec.SchedulingGates) > 0:
		s.gangs.RemovePod(p)
		s.queue.Remove(p.UID)
		s.unpromise(p.UID)
		s.waiting.Refuse(p.UID, "the pod is being deleted")
	case s.profile(p.Spec.SchedulerName) != nil && !s.cache.Holds(p.UID):
		before := "" // what is there at first sight was promised before this scheduler began
		if o, ok := old.(*corev1.Pod); ok && o.UID == p.UID {
			before = o.Status.NominatedNodeName
		}
		if free := s.nominated.Heard(p, before, p.Status.NominatedNodeName); free != "" {
			s.happened(framework.PodRemoved, free)
		}
		s.gangs.SetPod(p)
		s.queue.Set(p)
	}
}

func (s *Scheduler) gone(p *corev1.Pod) {
	s.gangs.RemovePod(p)
	s.queue.Remove(p.UID)
	s.unpromise(p.UID)
	s.waiting.Refuse(p.UID, "the pod was deleted")
	if s.cache.RemovePod(p.UID) {
		s.happened(framework.PodRemoved, p.Spec.NodeName)
	}
	s.removals.Seen(p.UID)
}

// happened tells the queue of an event on a node.
func (s *Scheduler) happened(e framework.ClusterEvent, node string) {
	if e != 0 {
		s.queue.Happened(e, s.helps(e, node))
	}
}
