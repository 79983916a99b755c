// SPDX-License-Identifier: Apache-2.0

package static

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Is tells the pods of files. What comes from the API must not have the annotation.
func Is(p *corev1.Pod) bool {
	return p.Annotations[SourceAnnotation] == FileSource && !IsMirror(p)
}

// IsMirror tells the API's mirrors of static pods.
func IsMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// Key of a pod, by which it and its mirror find each other.
func Key(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Mirror of a static pod, as it is to be created: its Node owns it.
func Mirror(p *corev1.Pod, node types.UID) *corev1.Pod {
	m := p.DeepCopy()
	m.UID = ""
	m.Annotations[corev1.MirrorPodAnnotationKey] = string(p.UID)
	m.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: p.Spec.NodeName, UID: node, Controller: ptr.To(true),
	}}
	return m
}

// Reflects tells whether a mirror is that of the pod as it is now.
func Reflects(mirror, p *corev1.Pod) bool {
	return mirror.DeletionTimestamp == nil && mirror.Annotations[corev1.MirrorPodAnnotationKey] == string(p.UID)
}

// Plan is what is to be done about mirrors: those to delete, and the pods whose mirrors are to be created.
type Plan struct{ Delete, Create []*corev1.Pod }

// PlanMirrors compares the static pods of a node with the mirrors in the API, by their
// keys. A mirror that is to be replaced is deleted first; the next plan creates the other.
func PlanMirrors(pods, mirrors map[types.NamespacedName]*corev1.Pod) Plan {
	var out Plan
	for _, key := range slices.SortedFunc(maps.Keys(mirrors), order) {
		if p := pods[key]; p == nil || !Reflects(mirrors[key], p) {
			out.Delete = append(out.Delete, mirrors[key])
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(pods), order) {
		if mirrors[key] == nil {
			out.Create = append(out.Create, pods[key])
		}
	}
	return out
}

func order(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
