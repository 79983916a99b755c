// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/wasmplane/wasmplane/core/attachment"
	"github.com/wasmplane/wasmplane/core/controllers"
)

// forceAfter is how long a node that is not ready, or whose object is gone while the machine may
// run on, keeps a volume that it may have mounted, and that none of its pods uses any more:
// upstream's time.
const forceAfter = 6 * time.Minute

// world is all that a plan for one volume depends on.
type world struct {
	volume *corev1.PersistentVolume
	// required: volumes of its driver are attached at all.
	required bool
	// pods that use the volume's claim.
	pods []*corev1.Pod
	// attachments that name the volume.
	attachments []*storagev1.VolumeAttachment
	// nodes by name, of the pods and attachments, as far as they exist.
	nodes map[string]*corev1.Node
	// idle is since when an attachment, by its name, has been seen without a user.
	idle map[string]time.Time
	now  time.Time
}

// plan is what is to be done about one volume.
type plan struct {
	attach []string // nodes
	detach []*storagev1.VolumeAttachment
	// forced are those of detach that the node has not let go of.
	forced map[string]bool
	// idle are the attachments without a user, to be remembered.
	idle []string
	// blocked are pods that cannot have the volume now, and why.
	blocked map[*corev1.Pod]string
	// again is when something changes that no event announces; 0 = never.
	again time.Duration
}

// decide is pure. A volume is attached where pods that may run use it, to one node at a
// time unless it may be used by several; it is detached where no pod uses it, once the
// node has let go of it, or cannot any more.
func decide(w *world) plan {
	p := plan{forced: map[string]bool{}, blocked: map[*corev1.Pod]string{}}
	users := map[string][]*corev1.Pod{}
	if w.required {
		for _, pod := range w.pods {
			if pod.Spec.NodeName != "" && !controllers.PodFinished(pod) {
				users[pod.Spec.NodeName] = append(users[pod.Spec.NodeName], pod)
			}
		}
	}
	attached := map[string]bool{}
	for _, a := range w.attachments {
		if !w.ours(a) {
			continue
		}
		node := a.Spec.NodeName
		attached[node] = true
		if len(users[node]) > 0 && w.nodes[node] != nil || a.DeletionTimestamp != nil {
			continue
		}
		p.idle = append(p.idle, a.Name)
		switch now, forced, wait := w.mayDetach(a); {
		case now:
			p.detach, p.forced[a.Name] = append(p.detach, a), forced
		case wait > 0 && (p.again == 0 || wait < p.again):
			p.again = wait
		}
	}
	w.planAttach(&p, users, attached)
	return p
}

// ours says whether an attachment is the one of the volume and its node; others are
// somebody else's to make and to remove.
func (w *world) ours(a *storagev1.VolumeAttachment) bool {
	c := w.volume.Spec.CSI
	return c != nil && a.Spec.Attacher == c.Driver && a.Name == attachment.Name(c.Driver, c.VolumeHandle, a.Spec.NodeName)
}

// mayDetach says whether a volume without users may leave its node now, and whether
// against the node's word; or after how long to look again.
func (w *world) mayDetach(a *storagev1.VolumeAttachment) (now, forced bool, wait time.Duration) {
	node := w.nodes[a.Spec.NodeName]
	if node != nil && !slices.Contains(node.Status.VolumesInUse, attachment.Volume(w.volume.Spec.CSI.Driver, w.volume.Spec.CSI.VolumeHandle)) {
		return true, false, 0
	}
	switch {
	case node == nil: // nobody speaks for the machine
	case outOfService(node):
		return true, true, 0
	case controllers.NodeReady(node):
		return false, false, 0
	}
	since, known := w.idle[a.Name]
	if !known {
		since = w.now
	}
	if left := forceAfter - w.now.Sub(since); left > 0 {
		return false, false, left
	}
	return true, true, 0
}

// outOfService: somebody who knows says that nothing runs on the node any more.
func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && t.Effect == corev1.TaintEffectNoExecute
	})
}

func (w *world) planAttach(p *plan, users map[string][]*corev1.Pod, attached map[string]bool) {
	var want []string
	for node := range users {
		if !attached[node] && w.nodes[node] != nil {
			want = append(want, node)
		}
	}
	// Who came first has it first.
	slices.SortFunc(want, func(a, b string) int {
		return cmp.Or(oldest(users[a]).Compare(oldest(users[b])), cmp.Compare(a, b))
	})
	taken := len(attached) > 0
	for _, node := range want {
		if w.exclusive() && taken {
			for _, pod := range users[node] {
				p.blocked[pod] = w.multiAttach(users, node)
			}
			continue
		}
		taken = true
		p.attach = append(p.attach, node)
	}
}

func oldest(pods []*corev1.Pod) time.Time {
	at := pods[0].CreationTimestamp.Time
	for _, p := range pods[1:] {
		if p.CreationTimestamp.Time.Before(at) {
			at = p.CreationTimestamp.Time
		}
	}
	return at
}

// exclusive: the volume is one node's at a time. Of a volume that does not say, its
// attacher decides, as upstream.
func (w *world) exclusive() bool {
	modes := w.volume.Spec.AccessModes
	return len(modes) > 0 && !slices.Contains(modes, corev1.ReadWriteMany) && !slices.Contains(modes, corev1.ReadOnlyMany)
}

// multiAttach says in upstream's words why a node's pods have to wait.
func (w *world) multiAttach(users map[string][]*corev1.Pod, node string) string {
	var others []string
	for n, pods := range users {
		for _, pod := range pods {
			if n != node {
				others = append(others, pod.Namespace+"/"+pod.Name)
			}
		}
	}
	slices.Sort(others)
	if len(others) == 0 {
		return fmt.Sprintf("Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be attached to another", w.volume.Name)
	}
	return fmt.Sprintf("Multi-Attach error for volume %q Volume is already used by pod(s) %s", w.volume.Name, strings.Join(others, ", "))
}

// attachedTo is what a node's status is to list: the volumes of attachments that hold,
// and what others have listed.
func attachedTo(node *corev1.Node, attachments []*storagev1.VolumeAttachment,
	volume func(*storagev1.VolumeAttachment) *corev1.PersistentVolume,
) []corev1.AttachedVolume {
	out := []corev1.AttachedVolume{}
	for _, v := range node.Status.VolumesAttached {
		if !attachment.IsVolume(v.Name) {
			out = append(out, v)
		}
	}
	for _, a := range attachments {
		pv := volume(a)
		if !a.Status.Attached || a.DeletionTimestamp != nil || pv == nil || pv.Spec.CSI == nil {
			continue
		}
		out = append(out, corev1.AttachedVolume{Name: attachment.Volume(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)})
	}
	return sorted(out)
}

func sorted(list []corev1.AttachedVolume) []corev1.AttachedVolume {
	out := slices.SortedFunc(slices.Values(list), func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Compact(out)
}
