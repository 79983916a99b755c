// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
)

// cluster is a fake API that refuses outdated writes, with informers on top.
type cluster struct {
	*testing.T
	client  *fake.Clientset
	inf     informers.SharedInformerFactory
	nodes   map[string]*framework.NodeInfo
	version atomic.Int64
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{T: t, nodes: map[string]*framework.NodeInfo{}}
	for _, o := range objects {
		m, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		m.SetResourceVersion(c.next())
		if n, ok := o.(*corev1.Node); ok {
			c.nodes[n.Name] = framework.NewNodeInfo(n)
		}
	}
	c.client = fake.NewClientset(objects...)
	c.client.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		m, err := meta.Accessor(a.(clienttesting.UpdateAction).GetObject())
		if err != nil {
			return true, nil, err
		}
		stored, err := c.client.Tracker().Get(a.GetResource(), m.GetNamespace(), m.GetName())
		if err != nil {
			return true, nil, err
		}
		was, err := meta.Accessor(stored)
		if err != nil || was.GetResourceVersion() != m.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), m.GetName(), fmt.Errorf("sent %s", m.GetResourceVersion()))
		}
		m.SetResourceVersion(c.next())
		return false, nil, nil
	})
	c.inf = informers.NewSharedInformerFactory(c.client, 0)
	return c
}

func (c *cluster) next() string { return strconv.FormatInt(100+c.version.Add(1), 10) }

// start has the informers of what was asked for run.
func (c *cluster) start() {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	c.inf.Start(ctx.Done())
	c.inf.WaitForCacheSync(ctx.Done())
	c.Cleanup(func() {
		cancel()
		c.inf.Shutdown()
	})
}

func (c *cluster) binding() *claims.Binding {
	c.Helper()
	b := claims.NewBinding(c.client, c.inf, claims.Settings{})
	c.start()
	return b
}

// eventually waits for what a cache has not seen yet.
func (c *cluster) eventually(what string, ok func() bool) {
	c.Helper()
	deadline, tick := time.After(30*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			c.Fatalf("did not come about: %s", what)
		}
	}
}

func class(name, provisioner string, mode storagev1.VolumeBindingMode, topology ...corev1.TopologySelectorTerm) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode,
		AllowedTopologies: topology,
	}
}

func claim(name, class, amount string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)}}
	c.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse(amount)}},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func boundTo(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = volume
		c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	}
}

// volumeOn is an available volume that only one node reaches.
func volumeOn(name, node, class, amount string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("volume-" + name)}}
	pv.Spec.StorageClassName, pv.Spec.Capacity = class, corev1.ResourceList{"storage": resource.MustParse(amount)}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn,
			Values: []string{node},
		}},
	}}}}
	pv.Status.Phase = corev1.VolumeAvailable
	return pv
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{"kubernetes.io/hostname": name, "disk": "disk-of-" + name},
	}}
}

func podWith(name string, claims ...string) *framework.PodInfo {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)}}
	for _, c := range claims {
		v := corev1.Volume{Name: c}
		if ephemeral, ok := strings.CutPrefix(c, "ephemeral:"); ok {
			v.Name, v.Ephemeral = ephemeral, &corev1.EphemeralVolumeSource{}
		} else {
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	return framework.NewPodInfo(p)
}

const (
	waits     = storagev1.VolumeBindingWaitForFirstConsumer
	immediate = storagev1.VolumeBindingImmediate
)

// TestWhichNodesReachThePodsVolumes: reasons are upstream's, one for each node.
func TestWhichNodesReachThePodsVolumes(t *testing.T) {
	onlyA := corev1.TopologySelectorTerm{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "disk", Values: []string{"disk-of-a"}}},
	}
	yes := true
	owned := func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "web", UID: "pod-web", Controller: &yes}}
	}
	objects := []runtime.Object{
		node("a"), node("b"),
		class("static", "kubernetes.io/no-provisioner", waits), class("at-once", "example.com/disk", immediate),
		class("made", "example.com/disk", waits), class("made-on-a", "example.com/disk", waits, onlyA),
		class("tracked", "example.com/tracked", waits),
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "example.com/tracked"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &yes}},
		&storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-a"}, StorageClassName: "tracked",
			Capacity:     resource.NewQuantity(5<<30, resource.BinarySI),
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "disk-of-a"}},
		},
		volumeOn("small-on-a", "a", "static", "2Gi"), volumeOn("large-on-a", "a", "static", "10Gi"), volumeOn("on-b", "b", "static", "5Gi"),
		volumeOn("held", "b", "made", "1Gi"),
		claim("bound", "made", "1Gi", boundTo("held")), claim("lost-volume", "made", "1Gi", boundTo("nowhere")),
		claim("unbound", "at-once", "1Gi"),
		claim("one", "static", "1Gi"), claim("two", "static", "1Gi"), claim("largest", "static", "8Gi"), claim("too-large", "static", "11Gi"),
		claim("new", "made", "1Gi"), claim("new-on-a", "made-on-a", "1Gi"),
		claim("elsewhere", "made", "1Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "b"}
		}),
		claim("tracked", "tracked", "5Gi"), claim("tracked-too-large", "tracked", "6Gi"),
		claim("gone", "made", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }),
		claim("lost", "made", "1Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase, c.Spec.VolumeName = corev1.ClaimLost, "v"
		}),
		claim("web-own", "made", "1Gi", owned), claim("web-foreign", "made", "1Gi"),
	}
	const noVolumes = "node(s) didn't find available persistent volumes to bind"
	const affinity = "node(s) didn't match PersistentVolume's node affinity"
	for _, c := range []struct {
		claims string
		whole  string            // why no node at all will do
		nodes  map[string]string // why a node will not
	}{
		{claims: "bound", nodes: map[string]string{"a": affinity}},
		{claims: "lost-volume", nodes: map[string]string{"a": "bound to non-existent pv(s)", "b": "bound to non-existent pv(s)"}},
		{claims: "unbound", whole: "pod has unbound immediate PersistentVolumeClaims"},
		{claims: "bound unbound", whole: "pod has unbound immediate PersistentVolumeClaims"},
		{claims: "absent", whole: `persistentvolumeclaim "absent" not found`},
		{claims: "gone", whole: `persistentvolumeclaim "gone" is being deleted`},
		{claims: "lost", whole: `persistentvolumeclaim "lost" bound to non-existent persistentvolume "v"`},
		{claims: "one"},
		{claims: "one two", nodes: map[string]string{"b": noVolumes}},
		{claims: "one largest", nodes: map[string]string{"b": noVolumes}},
		{claims: "too-large", nodes: map[string]string{"a": noVolumes, "b": noVolumes}},
		{claims: "new"},
		{claims: "new-on-a", nodes: map[string]string{"b": noVolumes}},
		{claims: "elsewhere", nodes: map[string]string{"a": noVolumes}},
		{claims: "tracked", nodes: map[string]string{"b": "did not have enough free storage"}},
		{claims: "tracked-too-large", nodes: map[string]string{"a": "did not have enough free storage", "b": "did not have enough free storage"}},
		{claims: "bound new-on-a", nodes: map[string]string{"a": affinity, "b": noVolumes}},
		{claims: "ephemeral:own"},
		{claims: "ephemeral:foreign", whole: "pod is not owner"},
		{claims: "ephemeral:late", whole: `waiting for ephemeral volume controller to create the persistentvolumeclaim "web-late"`},
	} {
		t.Run(c.claims, func(t *testing.T) {
			cl := newCluster(t, objects...)
			b := cl.binding()
			s, p := framework.NewState(), podWith("web", strings.Fields(c.claims)...)
			_, st := b.PreFilter(t.Context(), s, p, nil)
			if got := reason(st); c.whole == "" && got != "" || !strings.Contains(got, c.whole) {
				t.Fatalf("for all nodes: %q, want %q", got, c.whole)
			}
			if c.whole != "" {
				return
			}
			for name, n := range cl.nodes {
				if got := reason(b.Filter(t.Context(), s, p, n)); (got == "") != (c.nodes[name] == "") || !strings.Contains(got, c.nodes[name]) {
					t.Errorf("node %s: %q, want %q", name, got, c.nodes[name])
				}
			}
		})
	}
}

func reason(st *framework.Status) string {
	if st.IsSuccess() {
		return ""
	}
	return strings.Join(st.Reasons, ", ")
}

// TestPodsWithoutClaimsAreNotLookedAt: most pods.
func TestPodsWithoutClaimsAreNotLookedAt(t *testing.T) {
	if _, st := newCluster(t).binding().PreFilter(t.Context(), framework.NewState(), podWith("web"), nil); st == nil ||
		st.Code != framework.Skip {
		t.Errorf("answered %v, want Skip", st)
	}
}

// TestTwoPodsNeverChooseOneVolume: what one has chosen is not there for the other,
// though the API does not know of it yet, until the one gives it back.
func TestTwoPodsNeverChooseOneVolume(t *testing.T) {
	c := newCluster(t, node("a"), class("static", "kubernetes.io/no-provisioner", waits), volumeOn("only", "a", "static", "2Gi"),
		claim("one", "static", "1Gi"), claim("two", "static", "1Gi"))
	b := c.binding()
	try := func(p *framework.PodInfo) (*framework.State, *framework.Status) {
		s := framework.NewState()
		if _, st := b.PreFilter(t.Context(), s, p, nil); st != nil {
			return s, st
		}
		if st := b.Filter(t.Context(), s, p, c.nodes["a"]); st != nil {
			return s, st
		}
		return s, b.Reserve(t.Context(), s, p, "a")
	}
	first, second := podWith("first", "one"), podWith("second", "two")
	// Both were filtered before either has chosen.
	s2 := framework.NewState()
	if _, st := b.PreFilter(t.Context(), s2, second, nil); st != nil {
		t.Fatal(st)
	}
	s1, st := try(first)
	if st != nil {
		t.Fatal(st)
	}
	if st := b.Reserve(t.Context(), s2, second, "a"); reason(st) == "" {
		t.Error("the second pod was given the volume of the first")
	}
	if _, st := try(second); reason(st) == "" {
		t.Error("the second pod, tried again, was given the volume of the first")
	}
	b.Unreserve(t.Context(), s1, first, "a")
	if _, st := try(second); st != nil {
		t.Errorf("the volume was given back, and the second pod does not get it: %s", reason(st))
	}
}

// Profiles choose among the same volumes: what a pod of one was given no pod of another gets, also where
// the configuration was changed in between.
func TestProfilesShareWhatIsChosen(t *testing.T) {
	c := newCluster(t, node("a"), class("static", "kubernetes.io/no-provisioner", waits), volumeOn("only", "a", "static", "2Gi"),
		claim("one", "static", "1Gi"), claim("two", "static", "1Gi"))
	shared := &claims.Assumed{}
	settings := claims.Settings{Assumed: shared}
	before, after := claims.NewBinding(c.client, c.inf, settings), claims.NewBinding(c.client, c.inf, settings)
	c.start()
	try := func(b *claims.Binding, p *framework.PodInfo) (*framework.State, *framework.Status) {
		s := framework.NewState()
		if _, st := b.PreFilter(t.Context(), s, p, nil); st != nil {
			return s, st
		}
		if st := b.Filter(t.Context(), s, p, c.nodes["a"]); st != nil {
			return s, st
		}
		return s, b.Reserve(t.Context(), s, p, "a")
	}
	first, second := podWith("first", "one"), podWith("second", "two")
	s, st := try(before, first)
	if st != nil {
		t.Fatal(st)
	}
	if _, st := try(after, second); reason(st) == "" {
		t.Error("a pod of the other profile was given the same volume")
	}
	before.Unreserve(t.Context(), s, first, "a")
	if _, st := try(after, second); st != nil {
		t.Errorf("the volume was given back, and the second pod does not get it: %s", reason(st))
	}
}

// prepare brings a pod to where PreBind is called.
func prepare(t *testing.T, b *claims.Binding, p *framework.PodInfo, node string) *framework.State {
	t.Helper()
	s := framework.NewState()
	if _, st := b.PreFilter(t.Context(), s, p, nil); st != nil {
		t.Fatal(reason(st))
	}
	if st := b.Reserve(t.Context(), s, p, node); st != nil {
		t.Fatal(reason(st))
	}
	return s
}

// TestPreBindWaitsUntilAllIsBound: it writes the volume's claimRef and the claim's node,
// and returns when the volume controller and the provisioner have done their parts.
func TestPreBindWaitsUntilAllIsBound(t *testing.T) {
	c := newCluster(t, node("a"), class("static", "kubernetes.io/no-provisioner", waits), class("made", "example.com/disk", waits),
		volumeOn("there", "a", "static", "2Gi"), claim("one", "static", "1Gi"), claim("two", "made", "1Gi"))
	b := c.binding()
	p := podWith("web", "one", "two")
	s := prepare(t, b, p, "a")
	done := make(chan *framework.Status, 1)
	go func() { done <- b.PreBind(t.Context(), s, p, "a") }()
	volumes, all := c.client.CoreV1().PersistentVolumes(), c.client.CoreV1().PersistentVolumeClaims("default")
	c.eventually("the volume names its claim", func() bool {
		pv, err := volumes.Get(t.Context(), "there", metav1.GetOptions{})
		return err == nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == "claim-one" &&
			pv.Annotations["pv.kubernetes.io/bound-by-controller"] == "yes"
	})
	c.eventually("the claim names the node", func() bool {
		pvc, err := all.Get(t.Context(), "two", metav1.GetOptions{})
		return err == nil && pvc.Annotations["volume.kubernetes.io/selected-node"] == "a"
	})
	finish := func(name, volume string) {
		pvc, err := all.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pvc.Spec.VolumeName = volume
		metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		if _, err := all.Update(t.Context(), pvc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	finish("one", "there")
	select {
	case st := <-done:
		t.Fatalf("it returned (%s) before the second claim was bound", reason(st))
	default:
	}
	made := volumeOn("made", "a", "made", "1Gi")
	made.ResourceVersion = c.next()
	if _, err := volumes.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	finish("two", "made")
	if st := <-done; st != nil {
		t.Fatal(reason(st))
	}
}

// TestPreBindEndsWhenItCannotSucceed: each with a reason, and none waits for the timeout.
func TestPreBindEndsWhenItCannotSucceed(t *testing.T) {
	for what, c := range map[string]struct {
		meanwhile func(ctx context.Context, c *cluster) error // once the claim names the node
		want      string
	}{
		"the provisioner gives the node up": {func(ctx context.Context, c *cluster) error {
			pvc, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(ctx, "one", metav1.GetOptions{})
			if err != nil {
				return err
			}
			delete(pvc.Annotations, "volume.kubernetes.io/selected-node")
			_, err = c.client.CoreV1().PersistentVolumeClaims("default").Update(ctx, pvc, metav1.UpdateOptions{})
			return err
		}, `provisioning failed for PVC "one"`},
		"the claim goes": {func(ctx context.Context, c *cluster) error {
			return c.client.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "one", metav1.DeleteOptions{})
		}, "claim one has gone"},
		"the node goes": {func(ctx context.Context, c *cluster) error {
			return c.client.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{})
		}, "node a has gone"},
	} {
		t.Run(what, func(t *testing.T) {
			cl := newCluster(t, node("a"), class("made", "example.com/disk", waits), claim("one", "made", "1Gi"))
			b := cl.binding()
			p := podWith("web", "one")
			s := prepare(t, b, p, "a")
			done := make(chan *framework.Status, 1)
			go func() { done <- b.PreBind(t.Context(), s, p, "a") }()
			cl.eventually("the claim names the node", func() bool {
				pvc, err := cl.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "one", metav1.GetOptions{})
				return err == nil && pvc.Annotations["volume.kubernetes.io/selected-node"] == "a"
			})
			if err := c.meanwhile(t.Context(), cl); err != nil {
				t.Fatal(err)
			}
			st := <-done
			if !strings.Contains(reason(st), c.want) {
				t.Errorf("it answered %q, want %q", reason(st), c.want)
			}
			if apierrors.IsNotFound(st.Err) {
				t.Error("the scheduler would take the pod for deleted")
			}
		})
	}
}

// TestPreBindIsBounded: nobody provisions.
func TestPreBindIsBounded(t *testing.T) {
	c := newCluster(t, node("a"), class("made", "example.com/disk", waits), claim("one", "made", "1Gi"))
	b := claims.NewBinding(c.client, c.inf, claims.Settings{Timeout: 100 * time.Millisecond})
	c.start()
	p := podWith("web", "one")
	if st := b.PreBind(t.Context(), prepare(t, b, p, "a"), p, "a"); !strings.Contains(reason(st), "not bound in time") {
		t.Errorf("it answered %q", reason(st))
	}
}

// TestAVolumeThatChangedMeanwhileIsChosenAnew: the write is bound to what was looked at.
func TestAVolumeThatChangedMeanwhileIsChosenAnew(t *testing.T) {
	c := newCluster(t, node("a"), class("static", "kubernetes.io/no-provisioner", waits), volumeOn("there", "a", "static", "2Gi"),
		claim("one", "static", "1Gi"))
	b := c.binding()
	p := podWith("web", "one")
	s := prepare(t, b, p, "a")
	pv, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), "there", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "other", Name: "theirs", UID: "theirs"}
	if _, err := c.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if st := b.PreBind(t.Context(), s, p, "a"); st == nil || st.Code != framework.Unschedulable {
		t.Errorf("it answered %v, want a refusal that an event takes back", st)
	}
	if pv, err = c.client.CoreV1().PersistentVolumes().Get(t.Context(), "there", metav1.GetOptions{}); err != nil ||
		pv.Spec.ClaimRef.Name != "theirs" {
		t.Errorf("the volume is claimed by %v (%v)", pv.Spec.ClaimRef, err)
	}
}

// TestAClaimOfOnePod: a ReadWriteOncePod claim that a pod uses is refused to a second
// on every node, and free once the first is thought away.
func TestAClaimOfOnePod(t *testing.T) {
	once := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	c := newCluster(t, claim("alone", "made", "1Gi", once), claim("shared", "made", "1Gi"))
	r := claims.NewRestrictions(c.inf)
	c.start()
	user := podWith("user", "alone", "shared")
	user.Pod.Spec.NodeName = "a"
	a, b := framework.NewNodeInfo(node("a")).WithPod(user), framework.NewNodeInfo(node("b"))
	snap := &framework.Snapshot{Nodes: []*framework.NodeInfo{a, b}}
	if _, st := r.PreFilter(t.Context(), framework.NewState(), podWith("web", "shared"), snap); st == nil || st.Code != framework.Skip {
		t.Errorf("a claim that many may use: %v, want Skip", st)
	}
	s, second := framework.NewState(), podWith("second", "alone")
	if _, st := r.PreFilter(t.Context(), s, second, snap); st != nil {
		t.Fatal(reason(st))
	}
	for _, n := range snap.Nodes {
		if st := r.Filter(t.Context(), s, second, n); st == nil || st.Code != framework.Unschedulable {
			t.Errorf("node %s: %v, want that preemption may help", n.Node.Name, st)
		}
	}
	without := s.Clone()
	r.RemovePod(t.Context(), without, second, user, a)
	if st := r.Filter(t.Context(), without, second, a); st != nil {
		t.Errorf("without the first pod: %s", reason(st))
	}
	if st := r.Filter(t.Context(), s, second, a); st == nil {
		t.Error("the simulation changed the cycle's own state")
	}
	other := podWith("second", "alone")
	other.Pod.Namespace = "other"
	if _, st := r.PreFilter(t.Context(), framework.NewState(), other, snap); !strings.Contains(reason(st), "not found") {
		t.Errorf("a claim of another namespace: %q", reason(st))
	}
}
