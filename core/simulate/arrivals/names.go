// SPDX-License-Identifier: Apache-2.0

package arrivals

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Names replaces the names of a recording by others, the same one by the same one. It keeps no table: the key
// of the recording decides, and nobody has it afterwards, so that names cannot be found by trying.
type Names struct{ key []byte }

// NewNames draws a key.
func NewNames() *Names {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return &Names{key}
}

// of is the other name of a word; kind tells apart what is called alike.
func (n *Names) of(kind, word string) string {
	if word == "" {
		return ""
	}
	h := hmac.New(sha256.New, n.key)
	h.Write([]byte(kind + "\x00" + word))
	return kind + "-" + hex.EncodeToString(h.Sum(nil)[:8])
}

// hide replaces what people have named: namespaces, pods, owners, containers, images, the labels of pods and what selects
// these. What refers to nodes (their labels, taints, extended resources) and the names of schedulers stay, or the
// recording would not fit any cluster.
func (n *Names) hide(p *corev1.Pod) {
	p.Name, p.Namespace = n.of("pod", p.Name), n.of("ns", p.Namespace)
	p.Labels = n.labels(p.Labels)
	for i := range p.OwnerReferences {
		o := &p.OwnerReferences[i]
		o.Name, o.UID = n.of("owner", o.Name), types.UID(n.of("uid", string(o.UID)))
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			list[i].Name, list[i].Image = n.of("container", list[i].Name), n.of("image", list[i].Image)
		}
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		n.selector(c.LabelSelector)
		n.keys(c.MatchLabelKeys)
	}
	n.affinity(p.Spec.Affinity)
}

func (n *Names) affinity(a *corev1.Affinity) {
	if a == nil {
		return
	}
	if near := a.PodAffinity; near != nil {
		n.terms(near.RequiredDuringSchedulingIgnoredDuringExecution, near.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if apart := a.PodAntiAffinity; apart != nil {
		n.terms(apart.RequiredDuringSchedulingIgnoredDuringExecution, apart.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (n *Names) terms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
	for i := range required {
		n.term(&required[i])
	}
	for i := range preferred {
		n.term(&preferred[i].PodAffinityTerm)
	}
}

func (n *Names) term(t *corev1.PodAffinityTerm) {
	n.selector(t.LabelSelector)
	n.selector(t.NamespaceSelector)
	n.keys(t.MatchLabelKeys)
	n.keys(t.MismatchLabelKeys)
	for i := range t.Namespaces {
		t.Namespaces[i] = n.of("ns", t.Namespaces[i])
	}
}

func (n *Names) selector(s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	s.MatchLabels = n.labels(s.MatchLabels)
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		e.Key = n.of("key", e.Key)
		for j := range e.Values {
			e.Values[j] = n.of("value", e.Values[j])
		}
	}
}

func (n *Names) labels(of map[string]string) map[string]string {
	if of == nil {
		return nil
	}
	out := make(map[string]string, len(of))
	for key, value := range of {
		out[n.of("key", key)] = n.of("value", value)
	}
	return out
}

func (n *Names) keys(list []string) {
	for i := range list {
		list[i] = n.of("key", list[i])
	}
}
