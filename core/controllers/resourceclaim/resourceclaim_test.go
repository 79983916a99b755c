// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func pod(name string, tweak ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one-gpu")}}
	for _, f := range tweak {
		f(p)
	}
	return p
}

func template() *resourcev1.ResourceClaimTemplate {
	t := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one-gpu"}}
	t.Spec.Labels, t.Spec.Annotations = map[string]string{"team": "red"}, map[string]string{"a": "b"}
	t.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}
	return t
}

func start(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	ctl, err := New(c.Env(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
}

func read(t *testing.T, c *controllertest.Cluster, pod string) *corev1.Pod {
	t.Helper()
	p, err := c.Client.CoreV1().Pods("default").Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func claimsIn(t *testing.T, c *controllertest.Cluster) []resourcev1.ResourceClaim {
	t.Helper()
	all, err := c.Client.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return all.Items
}

// made reports whether the pod's status names its claim, which there is once.
func made(t *testing.T, c *controllertest.Cluster, name string) func() error {
	t.Helper()
	return func() error {
		p := read(t, c, name)
		if len(p.Status.ResourceClaimStatuses) != 1 || p.Status.ResourceClaimStatuses[0].ResourceClaimName == nil {
			return fmt.Errorf("pod %s has claims %v", name, p.Status.ResourceClaimStatuses)
		}
		var mine []string
		for _, claim := range claimsIn(t, c) {
			if metav1.IsControlledBy(&claim, p) {
				mine = append(mine, claim.Name)
			}
		}
		if len(mine) != 1 || mine[0] != *p.Status.ResourceClaimStatuses[0].ResourceClaimName {
			return fmt.Errorf("pod %s owns %q and names %s", name, mine, *p.Status.ResourceClaimStatuses[0].ResourceClaimName)
		}
		return nil
	}
}

// TestClaimsAreMadeFromTemplates once, as the template says, also where the template comes late.
func TestClaimsAreMadeFromTemplates(t *testing.T) {
	c := controllertest.New(pod("web"))
	start(t, c)
	controllertest.Eventually(t, func() error {
		select {
		case e := <-c.Events.Events:
			if strings.HasPrefix(e, `Warning FailedResourceClaimCreation PodResourceClaim gpu: resource claim template "one-gpu":`) {
				return nil
			}
			return fmt.Errorf("an event says %q", e)
		default:
			return fmt.Errorf("no event")
		}
	})
	if _, err := c.Client.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), template(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, made(t, c, "web"))
	claim := claimsIn(t, c)[0]
	if claim.Labels["team"] != "red" || claim.Annotations["a"] != "b" || claim.Annotations[resourcev1.PodResourceClaimAnnotation] != "gpu" ||
		!strings.HasPrefix(claim.Name, "web-gpu-") || claim.Spec.Devices.Requests[0].Exactly.DeviceClassName != "gpu" {
		t.Errorf("the claim is %+v", claim)
	}
	if err := c.Client.ResourceV1().ResourceClaims("default").Delete(t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if all := claimsIn(t, c); len(all) != 1 || all[0].Name == claim.Name {
			return fmt.Errorf("claims %v", len(all))
		}
		return made(t, c, "web")()
	})
}

// TestAClaimThatNobodyUsesLetsGo of its devices and its finalizer, and goes with its pod.
func TestAClaimThatNobodyUsesLetsGo(t *testing.T) {
	ended := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "a", corev1.PodSucceeded
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: new("generated")}}
	}
	running := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning
		p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: new("shared")}
	}
	generated, shared := used("generated", "ended"), used("shared", "running", "gone")
	generated.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Pod", Name: "ended", UID: "pod-ended",
		Controller: new(true),
	}}
	c := controllertest.New(pod("ended", ended), pod("running", running), generated, shared, used("left", "gone"))
	start(t, c)
	get := func(name string) (*resourcev1.ResourceClaim, error) {
		return c.Client.ResourceV1().ResourceClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	}
	controllertest.Eventually(t, func() error {
		if _, err := get("generated"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the claim of the pod that ended: %s", fmt.Sprint(err))
		}
		return nil
	})
	controllertest.Eventually(t, func() error {
		s, err := get("shared")
		if err != nil || len(s.Status.ReservedFor) != 1 || s.Status.ReservedFor[0].Name != "running" || s.Status.Allocation == nil {
			return fmt.Errorf("the shared claim: %+v (%s)", s.Status, fmt.Sprint(err))
		}
		l, err := get("left")
		if err != nil || l.Status.Allocation != nil || len(l.Status.ReservedFor) != 0 || len(l.Finalizers) != 0 {
			return fmt.Errorf("the claim of a pod that is gone: %+v %q (%s)", l.Status, l.Finalizers, fmt.Sprint(err))
		}
		return nil
	})
}

// used is an allocated claim that pods use.
func used(name string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID("claim-" + name), Finalizers: []string{resourcev1.Finalizer},
	}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: p,
			UID: types.UID("pod-" + p),
		})
	}
	return c
}

// TestAPodWithANodeReservesItsClaim: the scheduler has not seen it.
func TestAPodWithANodeReservesItsClaim(t *testing.T) {
	c := controllertest.New(used("mine", "other"), pod("other", func(p *corev1.Pod) { p.Spec.NodeName = "a" }),
		pod("placed", func(p *corev1.Pod) {
			p.Spec.NodeName = "a"
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: new("mine")}
		}))
	start(t, c)
	controllertest.Eventually(t, func() error {
		claim, err := c.Client.ResourceV1().ResourceClaims("default").Get(t.Context(), "mine", metav1.GetOptions{})
		if err != nil || len(claim.Status.ReservedFor) != 2 {
			return fmt.Errorf("reserved for %v (%s)", claim.Status.ReservedFor, fmt.Sprint(err))
		}
		return nil
	})
}

// TestDevicesStayWithThoseThatUseThem: over random claims, a claim with a user keeps its devices
// and its protection, and what was carried out needs nothing more.
func TestDevicesStayWithThoseThatUseThem(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := used("c")
		alive := map[types.UID]bool{}
		for i := range rapid.IntRange(0, 4).Draw(r, "users") {
			name := fmt.Sprint("p", i)
			c.Status.ReservedFor = append(c.Status.ReservedFor, used("x", name).Status.ReservedFor...)
			alive[types.UID("pod-"+name)] = rapid.Bool().Draw(r, "alive")
		}
		if rapid.Bool().Draw(r, "unallocated") {
			c.Status.Allocation = nil
		}
		if rapid.Bool().Draw(r, "deleted") {
			c.DeletionTimestamp = &metav1.Time{}
		}
		var owner *corev1.Pod
		if rapid.Bool().Draw(r, "generated") {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p0", UID: "pod-p0", Controller: new(true)}}
			owner = pod("p0", func(p *corev1.Pod) {
				p.Spec.NodeName = "a"
				if !alive["pod-p0"] {
					p.Status.Phase = corev1.PodFailed
				}
			})
		}
		gone := func(u resourcev1.ResourceClaimConsumerReference) bool { return !alive[u.UID] }
		plan := planClaim(c, gone, owner)
		if used := slices.ContainsFunc(c.Status.ReservedFor,
			func(u resourcev1.ResourceClaimConsumerReference) bool { return alive[u.UID] }); used {
			if plan.deallocate || plan.unprotect || plan.delete {
				r.Fatalf("a claim that is used: %+v", plan)
			}
		}
		if plan.unprotect && c.Status.Allocation != nil && !plan.deallocate {
			r.Fatalf("a claim with devices loses its protection: %+v", plan)
		}
		next := c.DeepCopy()
		next.Status.ReservedFor = plan.users
		if plan.deallocate {
			next.Status.Allocation = nil
		}
		if plan.unprotect {
			next.Finalizers = nil
		}
		if again := planClaim(next, gone, owner); again.remove || again.deallocate || again.unprotect {
			r.Fatalf("after %+v it wants %+v", plan, again)
		}
	})
}

// TestNamesOfClaimsFit in 63 characters.
func TestNamesOfClaimsFit(t *testing.T) {
	for _, pod := range []string{"a", strings.Repeat("p", 63), strings.Repeat("p", 253)} {
		for _, ref := range []string{"a", strings.Repeat("r", 63)} {
			if name := baseName(pod, ref); len(name) > 58 || !strings.Contains(name, "-") {
				t.Errorf("%q, %q: %q", pod, ref, name)
			}
		}
	}
}
