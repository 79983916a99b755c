// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
)

// running is a scheduler with two profiles on a fake API that refuses outdated writes.
type running struct {
	*testing.T
	client  *fake.Clientset
	version atomic.Int64
	mu      sync.Mutex
	// twice are devices that two claims had at a time.
	twice []string
	taken map[string]string // by device, the claim
}

func start(t *testing.T, objects ...runtime.Object) *running {
	t.Helper()
	r := &running{T: t, taken: map[string]string{}}
	r.version.Store(100)
	for _, o := range objects {
		if m, err := meta.Accessor(o); err == nil {
			m.SetResourceVersion(r.next())
		}
	}
	r.client = fake.NewClientset(objects...)
	r.client.PrependReactor("create", "pods/binding", r.bind)
	r.client.PrependReactor("update", "resourceclaims", r.update)
	r.client.PrependReactor("create", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c := a.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceClaim)
		if c.ResourceVersion = r.next(); c.Name == "" {
			c.Name = c.GenerateName + c.ResourceVersion
		}
		if c.UID == "" {
			c.UID = types.UID("made-" + c.Name)
		}
		return false, nil, nil
	})
	inf := informers.NewSharedInformerFactory(r.client, 0)
	with := native.Config{Client: r.client, Informers: inf, Devices: devices.NewLedger(inf)}
	s, err := scheduler.New(scheduler.Config{
		Client: r.client, Informers: inf, Logger: slog.New(slog.DiscardHandler),
		Profiles: []scheduler.Profile{
			{Name: corev1.DefaultSchedulerName, Plugins: native.Default(with)}, {Name: "other", Plugins: native.Default(with)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	inf.Start(ctx.Done())
	stopped := run.Go("scheduler", func() error { return s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		inf.Shutdown()
	})
	<-s.Ready()
	return r
}

func (r *running) next() string { return strconv.FormatInt(r.version.Add(1), 10) }

func (r *running) bind(a clienttesting.Action) (bool, runtime.Object, error) {
	b := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	o, err := r.client.Tracker().Get(pods, b.Namespace, b.Name)
	if err != nil {
		return true, nil, err
	}
	p := o.(*corev1.Pod).DeepCopy()
	p.Spec.NodeName = b.Target.Name
	return true, nil, r.client.Tracker().Update(pods, p, b.Namespace)
}

// update refuses outdated writes, and keeps account of who has which device.
func (r *running) update(a clienttesting.Action) (bool, runtime.Object, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := a.(clienttesting.UpdateAction).GetObject().(*resourcev1.ResourceClaim)
	stored, err := r.client.Tracker().Get(a.GetResource(), c.Namespace, c.Name)
	if err != nil {
		return true, nil, err
	}
	was := stored.(*resourcev1.ResourceClaim)
	if was.ResourceVersion != c.ResourceVersion {
		return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), c.Name, fmt.Errorf("sent %s", c.ResourceVersion))
	}
	if was.Status.Allocation != nil && c.Status.Allocation == nil {
		for _, d := range was.Status.Allocation.Devices.Results {
			delete(r.taken, d.Pool+"/"+d.Device)
		}
	}
	if a.GetSubresource() == "status" && was.Status.Allocation == nil && c.Status.Allocation != nil {
		for _, d := range c.Status.Allocation.Devices.Results {
			if other, ok := r.taken[d.Pool+"/"+d.Device]; ok {
				r.twice = append(r.twice, fmt.Sprintf("%s/%s: %s and %s", d.Pool, d.Device, other, c.Name))
			}
			r.taken[d.Pool+"/"+d.Device] = c.Name
		}
	}
	c.ResourceVersion = r.next()
	return false, nil, nil
}

func (r *running) create(p *corev1.Pod) {
	r.Helper()
	p.Spec.SchedulerName = cmp.Or(p.Spec.SchedulerName, corev1.DefaultSchedulerName)
	p.Status.Phase = corev1.PodPending
	if _, err := r.client.CoreV1().Pods(p.Namespace).Create(r.Context(), p, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
}

func (r *running) eventually(what string, ok func() bool) {
	r.Helper()
	err := wait.PollUntilContextTimeout(r.Context(), 2*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		r.Fatalf("did not come about: %s", what)
	}
}

func (r *running) pod(name string) *corev1.Pod {
	r.Helper()
	p, err := r.client.CoreV1().Pods("default").Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return p
}

func (r *running) claim(name string) *resourcev1.ResourceClaim {
	r.Helper()
	c, err := r.client.ResourceV1().ResourceClaims("default").Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return c
}

// waits until a pod is refused with a message.
func (r *running) waits(name, message string) {
	r.Helper()
	r.eventually(name+" waits: "+message, func() bool {
		return slices.ContainsFunc(r.pod(name).Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && strings.HasPrefix(c.Message, message)
		})
	})
}

func machine(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("1000"),
		}},
	}
}

// TestAPodGetsItsDeviceAndAnotherWaitsForIt is the whole way: allocation, reservation and
// finalizer are written before the pod is bound; the next pod says what it waits for, and goes
// on when the device is free.
func TestAPodGetsItsDeviceAndAnotherWaitsForIt(t *testing.T) {
	r := start(t, machine("a"), machine("b"), class("gpu"), slice("b", device("0")), claim("c", exactly("r", "gpu")))
	r.create(podWith("first", "c").Pod)
	r.eventually("the first pod is bound", func() bool { return r.pod("first").Spec.NodeName == "b" })
	c := r.claim("c")
	if c.Status.Allocation == nil || len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].UID != "first" ||
		!slices.Contains(c.Finalizers, resourcev1.Finalizer) {
		t.Fatalf("the claim is %+v, finalizers %q", c.Status, c.Finalizers)
	}
	r.create(podWith("second", "d").Pod)
	r.waits("second", `could not find ResourceClaim "default/d"`)
	if _, err := r.client.ResourceV1().ResourceClaims("default").Create(t.Context(), claim("d", exactly("r", "gpu")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.waits("second", "0/2 nodes are available: 2 cannot allocate all claims")
	r.release("c")
	r.eventually("the second pod is bound", func() bool { return r.pod("second").Spec.NodeName == "b" })
}

// release takes a claim's devices away, as its controller does when nobody uses them any more.
func (r *running) release(name string) {
	r.Helper()
	r.eventually("claim "+name+" is released", func() bool {
		c := r.claim(name)
		c.Status = resourcev1.ResourceClaimStatus{}
		_, err := r.client.ResourceV1().ResourceClaims("default").UpdateStatus(r.Context(), c, metav1.UpdateOptions{})
		return err == nil
	})
}

// TestADeviceOnTheWrongNodeIsGivenUp: the pod may not run where its claim has a device that
// nobody uses; it gets another one.
func TestADeviceOnTheWrongNodeIsGivenUp(t *testing.T) {
	r := start(t, machine("a"), class("gpu"), slice("a", device("0")), given(claim("c", exactly("r", "gpu")), "gone", "0"))
	r.create(podWith("p", "c").Pod)
	r.eventually("the pod is bound", func() bool { return r.pod("p").Spec.NodeName == "a" })
}

// TestAnExtendedResourceGetsAClaim which is written to the pod's status.
func TestAnExtendedResourceGetsAClaim(t *testing.T) {
	r := start(t, machine("a"), slice("a", device("0")))
	p := podWith("p").Pod
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	r.create(p)
	r.waits("p", "0/1 nodes are available: 1 Insufficient example.com/gpu")
	gives := class("gpu", func(c *resourcev1.DeviceClass) { c.Spec.ExtendedResourceName = new("example.com/gpu") })
	if _, err := r.client.ResourceV1().DeviceClasses().Create(t.Context(), gives, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the pod is bound", func() bool { return r.pod("p").Spec.NodeName == "a" })
	st := r.pod("p").Status.ExtendedResourceClaimStatus
	if st == nil || len(st.RequestMappings) != 1 || st.RequestMappings[0].RequestName != "container-0-request-0" {
		t.Fatalf("its status says %+v", st)
	}
	if c := r.claim(st.ResourceClaimName); c.Status.Allocation == nil || c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		t.Errorf("its claim is %+v", c)
	}
}

// TestManyPodsOfTwoProfilesNeverShareADevice: forty pods want six devices, and as each gets one
// another is released.
func TestManyPodsOfTwoProfilesNeverShareADevice(t *testing.T) {
	const pods = 40
	objects := []runtime.Object{class("gpu")}
	for _, name := range []string{"a", "b", "c"} {
		objects = append(objects, machine(name), slice(name, device("0"), device("1")))
	}
	for i := range pods {
		objects = append(objects, claim(fmt.Sprint("c", i), exactly("r", "gpu")))
	}
	r := start(t, objects...)
	for i := range pods {
		p := podWith(fmt.Sprint("p", i), fmt.Sprint("c", i)).Pod
		if i%2 == 1 {
			p.Spec.SchedulerName = "other"
		}
		r.create(p)
	}
	done := map[int]bool{}
	for len(done) < pods {
		r.eventually("one more pod is bound", func() bool {
			for i := range pods {
				if !done[i] && r.pod(fmt.Sprint("p", i)).Spec.NodeName != "" {
					done[i] = true
					r.release(fmt.Sprint("c", i))
					return true
				}
			}
			return false
		})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.twice) > 0 {
		t.Errorf("devices with two claims: %q", r.twice)
	}
}
