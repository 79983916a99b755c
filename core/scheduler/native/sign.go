// SPDX-License-Identifier: Apache-2.0

package native

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Sign implements framework.Signed.
func (NodeName) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	s.Text(p.Pod.Spec.NodeName)
	return true
}

// IsLocal implements framework.Local.
func (NodeName) IsLocal() bool { return true }

// Sign implements framework.Signed.
func (Unschedulable) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	return signTolerations(p.Pod, s)
}

// IsLocal implements framework.Local.
func (Unschedulable) IsLocal() bool { return true }

// Sign implements framework.Signed.
func (Taints) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	return signTolerations(p.Pod, s)
}

// IsLocal implements framework.Local.
func (Taints) IsLocal() bool { return true }

func signTolerations(p *corev1.Pod, s *framework.Signature) bool {
	s.Number(int64(len(p.Spec.Tolerations)))
	for i := range p.Spec.Tolerations {
		// How long a taint is tolerated is nothing to a scheduler.
		t := &p.Spec.Tolerations[i]
		s.Text(t.Key, string(t.Operator), t.Value, string(t.Effect))
	}
	return true
}

// Sign implements framework.Signed.
func (Affinity) Sign(p *framework.PodInfo, s *framework.Signature) bool { return signNodes(p.Pod, s) }

// IsLocal implements framework.Local.
func (Affinity) IsLocal() bool { return true }

func signNodes(p *corev1.Pod, s *framework.Signature) bool {
	s.Texts(p.Spec.NodeSelector)
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		s.Number(0)
		return true
	}
	s.Number(1)
	return s.Object(a.NodeAffinity)
}

// Sign implements framework.Signed.
func (Ports) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	s.Number(int64(len(p.Ports)))
	for _, port := range p.Ports {
		s.Text(port.IP, string(port.Protocol))
		s.Number(int64(port.Port))
	}
	return true
}

// IsLocal implements framework.Local.
func (Ports) IsLocal() bool { return true }

// Sign implements framework.Signed.
func (f Fit) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	for _, name := range sortedNames(p.Requests.Scalar) {
		if f.ofDevices(name) {
			s.Text("devices", string(name))
		}
	}
	s.Resources(p.Requests)
	s.Resources(p.NonZero)
	return true
}

// IsLocal implements framework.Local.
func (Fit) IsLocal() bool { return true }

// Sign implements framework.Signed.
func (Balance) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	s.Resources(p.Requests)
	return true
}

// IsLocal implements framework.Local.
func (Balance) IsLocal() bool { return true }

// Sign implements framework.Signed.
func (ImageLocality) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	names := imageNames(p.Pod)
	s.Number(int64(len(names)))
	s.Text(names...)
	return true
}

// Sign implements framework.Signed.
func (Spread) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	s.Text(p.Pod.Namespace)
	s.Texts(p.Pod.Labels)
	if owner := metav1.GetControllerOfNoCopy(p.Pod); owner != nil {
		s.Text(owner.APIVersion, owner.Kind, owner.Name)
	} else {
		s.Text("")
	}
	constraints := p.Pod.Spec.TopologySpreadConstraints
	s.Number(int64(len(constraints)))
	for i := range constraints {
		if !s.Object(&constraints[i]) {
			return false
		}
	}
	return signTolerations(p.Pod, s) && signNodes(p.Pod, s)
}

// Sign implements framework.Signed.
func (PodAffinity) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	s.Text(p.Pod.Namespace)
	s.Texts(p.Pod.Labels)
	a := p.Pod.Spec.Affinity
	if a == nil {
		s.Number(0)
		return true
	}
	s.Number(1)
	return s.Object(&corev1.Affinity{PodAffinity: a.PodAffinity, PodAntiAffinity: a.PodAntiAffinity})
}

// Sign implements framework.Signed. A pod that was promised a node is in a case of its own.
func (Preemption) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	s.Number(int64(corev1helpers.PodPriority(p.Pod)))
	if policy := p.Pod.Spec.PreemptionPolicy; policy != nil {
		s.Text(string(*policy))
	} else {
		s.Text("")
	}
	return p.Pod.Status.NominatedNodeName == ""
}
