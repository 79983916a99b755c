// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/attachment"
)

func aPV(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv"}}
	pv.Spec.AccessModes, pv.Spec.ClaimRef = modes, &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "claim"}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "disk.example", VolumeHandle: "h"}
	return pv
}

func aPod(name, node string, phase corev1.PodPhase) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	p.Spec.NodeName, p.Status.Phase = node, phase
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return p
}

func aNodeWith(name string, ready bool, inUse ...corev1.UniqueVolumeName) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	n.Status.VolumesInUse = inUse
	return n
}

var theVolume = attachment.Volume("disk.example", "h")

// TestTheNodesWordCounts: what it has mounted stays, but where it cannot let go of it.
func TestTheNodesWordCounts(t *testing.T) {
	now := time.Unix(10000, 0)
	tainted := aNodeWith("n", true, theVolume)
	tainted.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	for name, c := range map[string]struct {
		node   *corev1.Node
		idle   time.Duration // -1: not seen yet
		detach bool
		forced bool
		again  time.Duration
	}{
		"not mounted":           {node: aNodeWith("n", true), detach: true},
		"mounted":               {node: aNodeWith("n", true, theVolume), idle: time.Hour},
		"another is mounted":    {node: aNodeWith("n", true, "kubernetes.io/csi/disk.example^other"), detach: true},
		"node not ready, new":   {node: aNodeWith("n", false, theVolume), idle: -1, again: forceAfter},
		"node not ready":        {node: aNodeWith("n", false, theVolume), idle: forceAfter - time.Minute, again: time.Minute},
		"node long not ready":   {node: aNodeWith("n", false, theVolume), idle: forceAfter, detach: true, forced: true},
		"node gone, new":        {idle: -1, again: forceAfter},
		"node gone":             {idle: time.Minute, again: forceAfter - time.Minute},
		"node long gone":        {idle: forceAfter, detach: true, forced: true},
		"node out of service":   {node: tainted, detach: true, forced: true},
		"not ready, not in use": {node: aNodeWith("n", false), detach: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := attachmentOf(aPV(), "n")
			w := &world{
				volume: aPV(), required: true, attachments: []*storagev1.VolumeAttachment{a}, nodes: map[string]*corev1.Node{},
				idle: map[string]time.Time{}, now: now,
			}
			if c.node != nil {
				w.nodes["n"] = c.node
			}
			if c.idle >= 0 {
				w.idle[a.Name] = now.Add(-c.idle)
			}
			p := decide(w)
			if (len(p.detach) == 1) != c.detach || p.forced[a.Name] != c.forced || p.again != c.again || !slices.Equal(p.idle, []string{a.Name}) {
				t.Errorf("detach %v, forced %v, again %s, idle %v", p.detach, p.forced, p.again, p.idle)
			}
			w.pods = []*corev1.Pod{aPod("user", "n", corev1.PodRunning)}
			if p := decide(w); c.node != nil && (len(p.detach) > 0 || len(p.idle) > 0) {
				t.Errorf("with a user, detach %v", p.detach)
			}
		})
	}
}

// TestWhoseAttachmentsAreLeftAlone: others', also where nobody uses the volume.
func TestWhoseAttachmentsAreLeftAlone(t *testing.T) {
	foreign := attachmentOf(aPV(), "n")
	foreign.Name = "by-hand"
	p := decide(&world{
		volume: aPV(), required: true, attachments: []*storagev1.VolumeAttachment{foreign},
		nodes: map[string]*corev1.Node{"n": aNodeWith("n", true)},
	})
	if len(p.detach) > 0 || len(p.idle) > 0 {
		t.Errorf("detach %v", p.detach)
	}
}

// TestDriversThatAttachNothing: no attachment is made for them.
func TestDriversThatAttachNothing(t *testing.T) {
	w := &world{
		volume: aPV(), pods: []*corev1.Pod{aPod("a", "n", corev1.PodPending)},
		nodes: map[string]*corev1.Node{"n": aNodeWith("n", true)},
	}
	if p := decide(w); len(p.attach) > 0 {
		t.Errorf("attach %v", p.attach)
	}
	w.required = true
	if p := decide(w); !slices.Equal(p.attach, []string{"n"}) {
		t.Errorf("attach %v", p.attach)
	}
}

// TestASecondNodeWaits: for a volume that is one node's, and is told who has it.
func TestASecondNodeWaits(t *testing.T) {
	first, second := aPod("first", "a", corev1.PodRunning), aPod("second", "b", corev1.PodPending)
	first.CreationTimestamp, second.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0)
	nodes := map[string]*corev1.Node{"a": aNodeWith("a", true), "b": aNodeWith("b", true)}
	w := &world{volume: aPV(corev1.ReadWriteOnce), required: true, pods: []*corev1.Pod{second, first}, nodes: nodes}
	p := decide(w)
	if want := `Multi-Attach error for volume "pv" Volume is already used by pod(s) ns/first`; !slices.Equal(p.attach, []string{"a"}) || p.blocked[second] != want || len(p.blocked) != 1 {
		t.Errorf("attach %v, blocked %v", p.attach, p.blocked)
	}
	leaving := attachmentOf(w.volume, "a")
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(3, 0)}
	w.pods, w.attachments = []*corev1.Pod{second}, []*storagev1.VolumeAttachment{leaving}
	p = decide(w)
	if want := `Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and can't be attached to another`; len(p.attach) > 0 || p.blocked[second] != want {
		t.Errorf("attach %v, blocked %v", p.attach, p.blocked)
	}
	w.volume = aPV(corev1.ReadWriteMany)
	w.attachments, w.pods = nil, []*corev1.Pod{first, second}
	if p := decide(w); len(p.attach) != 2 || len(p.blocked) > 0 {
		t.Errorf("a volume of many: attach %v, blocked %v", p.attach, p.blocked)
	}
}

// TestPlansAreSafeAndGetThere: whatever pods and nodes do, a volume of one node is never
// attached to two, what a node that is well has mounted is not detached, nor what is
// used; and once nothing changes any more, what is attached is what is used.
func TestPlansAreSafeAndGetThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		once := rapid.Bool().Draw(t, "once")
		pv := aPV(corev1.ReadWriteMany)
		if once {
			pv = aPV(corev1.ReadWriteOnce)
		}
		w := &world{volume: pv, required: true, nodes: map[string]*corev1.Node{}, idle: map[string]time.Time{}, now: time.Unix(100000, 0)}
		names := []string{"a", "b", "c"}
		for _, n := range names {
			w.nodes[n] = aNodeWith(n, true)
		}
		serial := 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			happen(t, w, names, &serial)
			check(t, w, once)
		}
		// Nodes let go of what no pod uses, attachers do their part, and time passes, until nothing changes.
		for range 10 {
			for _, n := range names {
				if w.nodes[n] == nil {
					continue
				}
				w.nodes[n] = aNodeWith(n, true)
			}
			check(t, w, once)
			carry(w)
			w.now = w.now.Add(forceAfter)
		}
		p := decide(w)
		used := map[string]bool{}
		for _, pod := range w.pods {
			if pod.Status.Phase == corev1.PodRunning && w.nodes[pod.Spec.NodeName] != nil {
				used[pod.Spec.NodeName] = true
			}
		}
		if len(p.attach)+len(p.detach) > 0 {
			t.Fatalf("never done: attach %v, detach %v", p.attach, p.detach)
		}
		for _, a := range w.attachments {
			if !used[a.Spec.NodeName] {
				t.Fatalf("attached to %s, where nobody uses it", a.Spec.NodeName)
			}
		}
		if want := len(used); !once && len(w.attachments) != want || once && len(w.attachments) != min(want, 1) {
			t.Fatalf("attached to %d nodes, used on %d", len(w.attachments), want)
		}
	})
}

// happen changes something in the world.
func happen(t *rapid.T, w *world, names []string, serial *int) {
	node := rapid.SampledFrom(names).Draw(t, "node")
	switch rapid.IntRange(0, 6).Draw(t, "what") {
	case 0:
		*serial++
		p := aPod(fmt.Sprint("pod-", *serial), node, corev1.PodRunning)
		p.CreationTimestamp = metav1.Unix(int64(*serial), 0)
		w.pods = append(w.pods, p)
	case 1:
		if len(w.pods) > 0 {
			w.pods = w.pods[1:]
		}
	case 2:
		if len(w.pods) > 0 {
			done := w.pods[0].DeepCopy()
			done.Status.Phase = corev1.PodSucceeded
			w.pods = append([]*corev1.Pod{done}, w.pods[1:]...)
		}
	case 3:
		w.nodes[node] = aNodeWith(node, rapid.Bool().Draw(t, "ready"), theVolume)
	case 4:
		w.nodes[node] = aNodeWith(node, true)
	case 5:
		delete(w.nodes, node)
	case 6:
		carry(w)
	}
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
}

// check holds what a plan must never do.
func check(t *rapid.T, w *world, once bool) {
	p := decide(w)
	if n := len(w.attachments) + len(p.attach); once && n > 1 {
		t.Fatalf("attached to %d nodes", n)
	}
	for _, a := range p.detach {
		node := w.nodes[a.Spec.NodeName]
		for _, pod := range w.pods {
			if node != nil && pod.Spec.NodeName == node.Name && pod.Status.Phase == corev1.PodRunning {
				t.Fatalf("detached from %s, where %s uses it", node.Name, pod.Name)
			}
		}
		if node == nil && w.now.Sub(w.idle[a.Name]) < forceAfter {
			t.Fatalf("detached from a node that has just gone, whose machine may run on")
		}
		if node != nil && slices.Contains(node.Status.VolumesInUse, theVolume) &&
			(slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Status == corev1.ConditionTrue
			}) || w.now.Sub(w.idle[a.Name]) < forceAfter) {
			t.Fatalf("detached from %s, which has it mounted", node.Name)
		}
	}
	for _, name := range p.idle {
		if _, known := w.idle[name]; !known {
			w.idle[name] = w.now
		}
	}
	for name := range w.idle {
		if !slices.Contains(p.idle, name) {
			delete(w.idle, name)
		}
	}
}

// carry does what a plan says, as controller and attacher would: detaching takes a while.
func carry(w *world) {
	w.attachments = slices.DeleteFunc(w.attachments, func(a *storagev1.VolumeAttachment) bool { return a.DeletionTimestamp != nil })
	p := decide(w)
	for i, a := range w.attachments {
		if slices.Contains(p.detach, a) {
			w.attachments[i] = a.DeepCopy()
			w.attachments[i].DeletionTimestamp = &metav1.Time{Time: w.now}
		}
	}
	for _, n := range p.attach {
		w.attachments = append(w.attachments, attachmentOf(w.volume, n))
	}
}
