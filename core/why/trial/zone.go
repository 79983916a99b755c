// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
)

// elsewhere tries an empty machine where the pod's volumes are, of the shape of one that is in another zone.
func (t *Trial) elsewhere(p *corev1.Pod, d *scheduler.Decision) (Change, bool) {
	labels, where := map[string]string{}, ""
	for _, pv := range t.volumesOf(p) {
		for _, zone := range claims.Zones(pv) {
			labels[zone.Newer] = zone.Values[0]
		}
		if where == "" && len(labels) > 0 {
			where = fmt.Sprintf("in %s, where volume %s is", inWords(labels), pv.Name)
		}
	}
	for _, n := range t.refusedBy(d, claims.ZoneName) {
		there := altered(n, func(node *corev1.Node) {
			for old, newer := range map[string]string{
				corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
			} {
				delete(node.Labels, old)
				if value, ok := labels[newer]; ok {
					node.Labels[newer] = value
				}
			}
		})
		there.Pods, there.Requested, there.NonZero, there.Ports = nil, framework.Resources{}, framework.Resources{}, nil
		if where != "" && t.fits(p, t.altering(there)) {
			return Change{What: fmt.Sprintf("join a machine like %s %s", n.Node.Name, where), Command: "wasmplane token create"}, true
		}
	}
	return Change{}, false
}

// volumesOf are the volumes that the pod's claims are bound to.
func (t *Trial) volumesOf(p *corev1.Pod) (out []*corev1.PersistentVolume) {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		at := slices.IndexFunc(t.Claims, func(c *corev1.PersistentVolumeClaim) bool {
			return c.Namespace == p.Namespace && c.Name == v.PersistentVolumeClaim.ClaimName
		})
		if at < 0 {
			continue
		}
		if i := slices.IndexFunc(t.Volumes, func(pv *corev1.PersistentVolume) bool { return pv.Name == t.Claims[at].Spec.VolumeName }); i >= 0 {
			out = append(out, t.Volumes[i])
		}
	}
	return out
}

func inWords(labels map[string]string) string {
	var words []string
	for _, l := range []struct{ key, word string }{{corev1.LabelTopologyZone, "zone"}, {corev1.LabelTopologyRegion, "region"}} {
		if value, ok := labels[l.key]; ok {
			words = append(words, l.word+" "+value)
		}
	}
	return strings.Join(words, ", ")
}
