// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/builtin/limitranger"
	"github.com/wasmplane/wasmplane/core/admission/builtin/podaccount"
	"github.com/wasmplane/wasmplane/core/admission/eventrate"
	"github.com/wasmplane/wasmplane/core/admission/imagereview"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/defaultclass"
)

// may allows what its function says.
type may func(a authz.Attributes) bool

func (may) Name() string { return "may" }
func (m may) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	if m(a) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

// world is the list of plugins over a cluster that holds some objects.
type world struct {
	client  *fake.Clientset
	plugins map[string]admission.Plugin
	chain   *admission.Chain
}

func newWorld(t *testing.T, allowed may, objects ...runtime.Object) *world {
	t.Helper()
	return newWorldOf(t, Deps{Authorizer: allowed}, objects...)
}

// newWorldOf is newWorld with plugins switched and configured.
func newWorldOf(t *testing.T, d Deps, objects ...runtime.Object) *world {
	t.Helper()
	return newWorldAt(t, d, fake.NewClientset(objects...))
}

// newWorldAt is newWorldOf on a server that the test has prepared.
func newWorldAt(t *testing.T, d Deps, server *fake.Clientset) *world {
	t.Helper()
	w := &world{client: server, plugins: map[string]admission.Plugin{}}
	factory := informers.NewSharedInformerFactory(w.client, 0)
	d.Client, d.Informers, d.Warm = w.client, factory, 100*time.Millisecond
	list, err := Default(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		w.plugins[p.Name()] = p
	}
	if w.chain, err = admission.NewChain(list...); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return w
}

func nobody(authz.Attributes) bool { return false }

func named1(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func inDefault(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "default"}
}

func namespaceOf(name string, phase corev1.NamespacePhase) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: named1(name), Status: corev1.NamespaceStatus{Phase: phase}}
}

func aPod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: inDefault("web"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i:1"}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func creating(resource string, o runtime.Object, opts ...admissiontest.Option) func() *admission.Request {
	return func() *admission.Request { return admissiontest.Creating(resource, o, opts...) }
}

func TestNamespaceLifecycle(t *testing.T) {
	w := newWorld(t, nobody, namespaceOf("default", corev1.NamespaceActive), namespaceOf("going", corev1.NamespaceTerminating))
	in := func(ns string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}}
	}
	admissiontest.Run(t, w.plugins["NamespaceLifecycle"],
		admissiontest.Case{Name: "active", Request: creating("configmaps", in("default"))},
		admissiontest.Case{Name: "absent", Request: creating("configmaps", in("nowhere")), Denied: `namespaces "nowhere" not found`},
		admissiontest.Case{Name: "terminating", Request: creating("configmaps", in("going")), Denied: `configmaps "c" is forbidden: unable to create new content in namespace going because it is being terminated`},
		admissiontest.Case{
			Name:    "deleted from there",
			Request: func() *admission.Request { return admissiontest.Deleting("configmaps", in("going")) },
		},
		admissiontest.Case{Name: "the system's own", Request: func() *admission.Request {
			return admissiontest.Deleting("namespaces", namespaceOf("kube-system", corev1.NamespaceActive))
		}, Denied: `namespaces "kube-system" is forbidden: this namespace may not be deleted`},
	)
	r := admissiontest.Creating("configmaps", in("going"))
	if err := w.chain.Mutate(t.Context(), r); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("controllers do not see why: %v", err)
	}
}

// A namespace is deleted while the informer still shows it active.
func TestNothingSlipsIntoANamespaceThatWasJustDeleted(t *testing.T) {
	w := newWorld(t, nobody, namespaceOf("team", corev1.NamespaceActive))
	p := w.plugins["NamespaceLifecycle"].(*namespaceLifecycle)
	ctx := t.Context()
	del := admissiontest.Deleting("namespaces", namespaceOf("team", corev1.NamespaceActive))
	if err := w.chain.Mutate(ctx, del); err != nil {
		t.Fatal(err)
	}
	if _, err := p.lister.Get("team"); err != nil {
		t.Fatal("the informer was to lag in this test")
	}
	if err := w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("namespaces"),
		namespaceOf("team", corev1.NamespaceTerminating), ""); err != nil {
		t.Fatal(err)
	}
	r := admissiontest.Creating("configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}})
	if err := p.Mutate(ctx, r); err == nil || !strings.Contains(err.Error(), "being terminated") {
		t.Errorf("error %v", err)
	}
}

func TestBeforeInformersAreFilledRequestsAreRefusedNotMisjudged(t *testing.T) {
	client := fake.NewClientset(namespaceOf("default", corev1.NamespaceActive))
	list, err := Default(Deps{
		Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Authorizer: may(nobody),
		Warm: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	chain, _ := admission.NewChain(list...)
	if err := chain.Mutate(t.Context(), admissiontest.Creating("pods", aPod())); err == nil || !strings.Contains(err.Error(),
		"not yet ready to handle request") {
		t.Errorf("error %v", err)
	}
}

func TestServiceAccount(t *testing.T) {
	w := newWorld(t, nobody,
		&corev1.ServiceAccount{ObjectMeta: inDefault("default"), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}},
		&corev1.ServiceAccount{ObjectMeta: inDefault("quiet"), AutomountServiceAccountToken: ptr.To(false)},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: "strict", Namespace: "default",
			Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"},
		}, Secrets: []corev1.ObjectReference{{Name: "ok"}}},
	)
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	admissiontest.Run(t, w.plugins["ServiceAccount"],
		admissiontest.Case{Name: "default account, token, pull secrets", Request: creating("pods", aPod(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{
				Name:         "own",
				VolumeMounts: []corev1.VolumeMount{{Name: "x", MountPath: podaccount.TokenPath}},
			}}
		})), Check: func(t *testing.T, o runtime.Object) {
			p := o.(*corev1.Pod)
			if p.Spec.ServiceAccountName != "default" || p.Spec.DeprecatedServiceAccount != "default" || p.Spec.ImagePullSecrets[0].Name != "pull" {
				t.Errorf("spec %+v", p.Spec)
			}
			v, m := p.Spec.Volumes[0], p.Spec.Containers[0].VolumeMounts[0]
			if !strings.HasPrefix(v.Name, "kube-api-access-") || len(v.Name) != len("kube-api-access-xxxxx") || m.Name != v.Name || !m.ReadOnly ||
				m.MountPath != podaccount.TokenPath {
				t.Errorf("volume %+v, mount %+v", v, m)
			}
			if len(p.Spec.InitContainers[0].VolumeMounts) != 1 {
				t.Error("a mount at the same path was added to")
			}
		}},
		admissiontest.Case{
			Name:    "an account that wants no token",
			Request: creating("pods", aPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" })),
		},
		admissiontest.Case{
			Name: "no such account", Request: creating("pods", aPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "gone" })),
			Denied: `pods "web" is forbidden: error looking up service account default/gone: serviceaccount "gone" not found`,
		},
		admissiontest.Case{Name: "a mirror pod is left alone", Request: creating("pods", aPod(mirror))},
		admissiontest.Case{
			Name:    "a mirror pod with an account",
			Request: creating("pods", aPod(mirror, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" })),
			Denied:  "a mirror pod may not reference service accounts",
		},
		admissiontest.Case{Name: "a secret that the account does not list", Request: creating("pods", aPod(func(p *corev1.Pod) {
			p.Spec.ServiceAccountName = "strict"
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "other"}}}}
		})), Denied: `volume with secret.secretName="other" is not allowed because service account strict does not reference that secret`},
	)
}

func TestPriority(t *testing.T) {
	w := newWorld(t, nobody,
		&schedulingv1.PriorityClass{ObjectMeta: named1("high"), Value: 1000, PreemptionPolicy: ptr.To(corev1.PreemptNever)},
		&schedulingv1.PriorityClass{ObjectMeta: named1("usual"), Value: 7, GlobalDefault: true},
	)
	class := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.PriorityClassName = name } }
	admissiontest.Run(t, w.plugins["Priority"],
		admissiontest.Case{Name: "named", Request: creating("pods", aPod(class("high"))), Check: func(t *testing.T, o runtime.Object) {
			if s := o.(*corev1.Pod).Spec; *s.Priority != 1000 || *s.PreemptionPolicy != corev1.PreemptNever {
				t.Errorf("%d %s", *s.Priority, *s.PreemptionPolicy)
			}
		}},
		admissiontest.Case{Name: "default", Request: creating("pods", aPod()), Check: func(t *testing.T, o runtime.Object) {
			if s := o.(*corev1.Pod).Spec; s.PriorityClassName != "usual" || *s.Priority != 7 {
				t.Errorf("%s", s.PriorityClassName)
			}
		}},
		admissiontest.Case{Name: "unknown", Request: creating("pods", aPod(class("none"))), Denied: "no PriorityClass with name none was found"},
		admissiontest.Case{Name: "a number of one's own", Request: creating("pods", aPod(class("high"), func(p *corev1.Pod) { p.Spec.Priority = ptr.To(int32(5)) })), Denied: "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 1000"},
		admissiontest.Case{
			Name:    "a second default",
			Request: creating("priorityclasses", &schedulingv1.PriorityClass{ObjectMeta: named1("p"), GlobalDefault: true}),
			Denied:  "PriorityClass usual is already marked as default",
		},
	)
}

// A PodGroup gets its priority as a pod does, and a finalizer.
func TestPodGroups(t *testing.T) {
	high := &schedulingv1.PriorityClass{ObjectMeta: named1("high"), Value: 1000, PreemptionPolicy: ptr.To(corev1.PreemptNever)}
	w := newWorld(t, nobody, high)
	group := func(class string, priority *int32) *schedulingv1beta1.PodGroup {
		return &schedulingv1beta1.PodGroup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g"},
			Spec:       schedulingv1beta1.PodGroupSpec{PriorityClassName: class, Priority: priority},
		}
	}
	admissiontest.Run(t, w.plugins["Priority"],
		admissiontest.Case{Name: "named", Request: creating("podgroups", group("high", nil)), Check: func(t *testing.T, o runtime.Object) {
			if s := o.(*schedulingv1beta1.PodGroup).Spec; *s.Priority != 1000 || *s.PreemptionPolicy != schedulingv1beta1.PreemptNever {
				t.Errorf("%d %s", *s.Priority, *s.PreemptionPolicy)
			}
		}},
		admissiontest.Case{Name: "none", Request: creating("podgroups", group("", nil)), Check: func(t *testing.T, o runtime.Object) {
			if s := o.(*schedulingv1beta1.PodGroup).Spec; *s.Priority != 0 {
				t.Errorf("%d", *s.Priority)
			}
		}},
		admissiontest.Case{Name: "unknown", Request: creating("podgroups", group("x", nil)), Denied: "no PriorityClass with name x was found"},
		admissiontest.Case{
			Name: "a number of one's own", Request: creating("podgroups", group("high", ptr.To(int32(5)))),
			Denied: "priority set in the pod group (5) must match the priority computed (1000)",
		},
	)
	admissiontest.Run(t, w.plugins["PodGroupProtection"],
		admissiontest.Case{Name: "finalizer", Request: creating("podgroups", group("", nil)), Check: func(t *testing.T, o runtime.Object) {
			if got := o.(*schedulingv1beta1.PodGroup).Finalizers; !slices.Equal(got, []string{"scheduling.k8s.io/podgroup-protection"}) {
				t.Error(got)
			}
		}})
}

func TestTolerationsAndTaints(t *testing.T) {
	w := newWorld(t, nobody)
	admissiontest.Run(t, w.plugins["DefaultTolerationSeconds"],
		admissiontest.Case{Name: "both", Request: creating("pods", aPod()), Check: func(t *testing.T, o runtime.Object) {
			if ts := o.(*corev1.Pod).Spec.Tolerations; len(ts) != 2 || *ts[1].TolerationSeconds != 300 {
				t.Errorf("%+v", ts)
			}
		}},
		admissiontest.Case{
			Name: "tolerates everything",
			Request: creating("pods",
				aPod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })),
		},
	)
	admissiontest.Run(t, w.plugins["TaintNodesByCondition"],
		admissiontest.Case{
			Name: "new node", Request: creating("nodes", &corev1.Node{ObjectMeta: named1("n")}),
			Check: func(t *testing.T, o runtime.Object) {
				if ts := o.(*corev1.Node).Spec.Taints; len(ts) != 1 || ts[0].Key != corev1.TaintNodeNotReady {
					t.Errorf("%+v", ts)
				}
			},
		},
	)
}

func TestLimitRanger(t *testing.T) {
	quantities := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	w := newWorld(t, nobody, &corev1.LimitRange{ObjectMeta: inDefault("l"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: quantities("500m"), DefaultRequest: quantities("100m"), Max: quantities("1"),
	}}}})
	admissiontest.Run(t, w.plugins["LimitRanger"],
		admissiontest.Case{Name: "defaults", Request: creating("pods", aPod()), Check: func(t *testing.T, o runtime.Object) {
			p := o.(*corev1.Pod)
			if got := p.Annotations["kubernetes.io/limit-ranger"]; got !=
				"LimitRanger plugin set: cpu request for container c; cpu limit for container c" {
				t.Error(got)
			}
			if cpu := p.Spec.Containers[0].Resources.Limits.Cpu().String(); cpu != "500m" {
				t.Error(cpu)
			}
		}},
		admissiontest.Case{Name: "too much", Request: creating("pods", aPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: quantities("2"), Requests: quantities("2")}
		})), Denied: "maximum cpu usage per Container is 1, but limit is 2"},
	)
}

// The informer never hears of the range, and the server was asked before there was one.
func TestALimitRangeCountsFromTheWriteOn(t *testing.T) {
	server := fake.NewClientset()
	server.PrependWatchReactor("limitranges", clienttesting.DefaultWatchReactor(watch.NewFake(), nil))
	w := newWorldAt(t, Deps{Authorizer: may(nobody)}, server)
	ranger := w.plugins["LimitRanger"].(*limitranger.Plugin)
	create := func() error {
		r := admissiontest.Creating("pods", aPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		}))
		if err := ranger.Mutate(t.Context(), r); err != nil {
			return err
		}
		return ranger.Validate(t.Context(), r)
	}
	write := func(r *admission.Request) {
		t.Helper()
		if !ranger.Handles(r) {
			t.Fatalf("%s of a range is not looked at", r.Operation)
		}
		if err := ranger.Validate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	bound := func(cpu string) *corev1.LimitRange {
		return &corev1.LimitRange{ObjectMeta: inDefault("l"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}}
	}
	ranges := server.CoreV1().LimitRanges("default")
	write(admissiontest.Creating("limitranges", bound("1")))
	if _, err := ranges.Create(t.Context(), bound("1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create(); !apierrors.IsForbidden(err) {
		t.Errorf("after the create: %v", err)
	}
	write(admissiontest.Updating("limitranges", bound("1"), bound("3")))
	if _, err := ranges.Update(t.Context(), bound("3"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create(); err == nil || strings.Contains(err.Error(), "maximum cpu usage per Container is 1") {
		t.Errorf("after the update: %v", err)
	}
	write(admissiontest.Deleting("limitranges", bound("3")))
	if err := ranges.Delete(t.Context(), "l", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create(); err != nil {
		t.Errorf("after the delete: %v", err)
	}
}

func TestStorage(t *testing.T) {
	w := newWorld(t, nobody,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
			Name:        "fast",
			Annotations: map[string]string{defaultclass.StorageAnnotation: "true"},
		}, AllowVolumeExpansion: ptr.To(true)},
	)
	claim := func(size string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: inDefault("c"), Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("fast"),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	plain := claim("1Gi", "")
	plain.Spec.StorageClassName = nil
	admissiontest.Run(t, w.plugins["DefaultStorageClass"],
		admissiontest.Case{Name: "default", Request: creating("persistentvolumeclaims", plain), Check: func(t *testing.T, o runtime.Object) {
			if got := *o.(*corev1.PersistentVolumeClaim).Spec.StorageClassName; got != "fast" {
				t.Error(got)
			}
		}})
	admissiontest.Run(t, w.plugins["StorageObjectInUseProtection"],
		admissiontest.Case{Name: "claim", Request: creating("persistentvolumeclaims", plain), Check: func(t *testing.T, o runtime.Object) {
			if got := o.(*corev1.PersistentVolumeClaim).Finalizers; !slices.Equal(got, []string{"kubernetes.io/pvc-protection"}) {
				t.Error(got)
			}
		}})
	grow := func(phase corev1.PersistentVolumeClaimPhase) func() *admission.Request {
		return func() *admission.Request {
			return admissiontest.Updating("persistentvolumeclaims", claim("1Gi", phase), claim("2Gi", phase))
		}
	}
	admissiontest.Run(t, w.plugins["PersistentVolumeClaimResize"],
		admissiontest.Case{Name: "bound", Request: grow(corev1.ClaimBound)},
		admissiontest.Case{Name: "pending", Request: grow(corev1.ClaimPending), Denied: "Only bound persistent volume claims can be expanded"},
	)
}

func TestPodSecurity(t *testing.T) {
	w := newWorld(t, nobody, namespaceOf("default", corev1.NamespaceActive),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   "safe",
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
		}})
	privileged := func(ns string) *corev1.Pod {
		return aPod(func(p *corev1.Pod) {
			p.Namespace = ns
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		})
	}
	admissiontest.Run(t, w.plugins["PodSecurity"],
		admissiontest.Case{Name: "privileged where nobody minds", Request: creating("pods", privileged("default"))},
		admissiontest.Case{
			Name: "privileged in a baseline namespace", Request: creating("pods", privileged("safe")),
			Denied: `pods "web" is forbidden: violates PodSecurity "baseline:latest": privileged`,
		},
	)
}

func TestNodeRestriction(t *testing.T) {
	mine := aPod(func(p *corev1.Pod) { p.Name, p.UID, p.Spec.NodeName = "mine", "u-1", "n1" })
	theirs := aPod(func(p *corev1.Pod) { p.Name, p.Spec.NodeName = "theirs", "n2" })
	w := newWorld(t, nobody, mine, theirs, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}})
	n1 := admissiontest.By(&user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}})
	node := func(labels map[string]string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	mirror := func(change ...func(*corev1.Pod)) *corev1.Pod {
		return aPod(append([]func(*corev1.Pod){func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			p.Spec.NodeName = "n1"
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "node-uid", Controller: ptr.To(true)}}
		}}, change...)...)
	}
	token := func(pod string, _ string, auds ...string) func() *admission.Request {
		return func() *admission.Request {
			o := &authenticationv1.TokenRequest{ObjectMeta: inDefault("default"), Spec: authenticationv1.TokenRequestSpec{Audiences: auds}}
			if pod != "" {
				o.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: mine.UID}
			}
			r := admissiontest.Creating("serviceaccounts", o, n1, admissiontest.Subresource("token"))
			r.Resource = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
			return r
		}
	}
	csr := func(cn string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{
			ObjectMeta: named1("r"),
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificatesv1.KubeletServingSignerName,
				Request:    requestFor(t, pkix.Name{CommonName: cn}),
			},
		}
	}
	update := func(old, is *corev1.Node) func() *admission.Request {
		return func() *admission.Request { return admissiontest.Updating("nodes", old, is, n1) }
	}
	directory := func(of string, change func(*corev1.PersistentVolume)) func() *admission.Request {
		old := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
			Name: "v", DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}, Finalizers: []string{"local.wasmplane.io/directory"},
			Labels:      map[string]string{"local.wasmplane.io/node": of},
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "local.wasmplane.io"},
		}}
		old.Spec.Local = &corev1.LocalVolumeSource{Path: "/v"}
		is := old.DeepCopy()
		change(is)
		return func() *admission.Request { return admissiontest.Updating("persistentvolumes", old, is, n1) }
	}
	status := func(p *corev1.Pod, change func(*corev1.Pod)) func() *admission.Request {
		changed := p.DeepCopy()
		change(changed)
		return func() *admission.Request {
			return admissiontest.Updating("pods", p, changed, n1, admissiontest.Subresource("status"))
		}
	}
	admissiontest.Run(t, w.plugins["NodeRestriction"],
		admissiontest.Case{Name: "anyone else", Request: creating("pods", aPod())},
		admissiontest.Case{Name: "an ordinary pod", Request: creating("pods", aPod(), n1), Denied: "can only create mirror pods"},
		admissiontest.Case{Name: "a mirror pod", Request: creating("pods", mirror(), n1)},
		admissiontest.Case{
			Name:    "a mirror pod of another node",
			Request: creating("pods", mirror(func(p *corev1.Pod) { p.Spec.NodeName = "n2" }), n1),
			Denied:  "can only create pods with spec.nodeName set to itself",
		},
		admissiontest.Case{Name: "a mirror pod with a secret", Request: creating("pods", mirror(func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}
		}), n1), Denied: "can not create pods that reference secrets"},
		admissiontest.Case{Name: "a mirror pod with a token", Request: creating("pods", mirror(func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
			}}
		}), n1), Denied: "serviceaccounts (via projected volumes)"},
		// CVE-2025-4563: what is checked in a status was not when the pod was made.
		admissiontest.Case{Name: "a mirror pod with a resource claim", Request: creating("pods", mirror(func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("theirs")}}
		}), n1), Denied: "can not create pods that reference resourceclaims"},
		admissiontest.Case{Name: "deletes its pod", Request: func() *admission.Request { return admissiontest.Deleting("pods", mine, n1) }},
		admissiontest.Case{
			Name:    "deletes another's pod",
			Request: func() *admission.Request { return admissiontest.Deleting("pods", theirs, n1) },
			Denied:  "can only delete pods with spec.nodeName set to itself",
		},
		admissiontest.Case{
			Name: "status", Request: status(mine, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }),
			Check: func(*testing.T, runtime.Object) {},
		},
		admissiontest.Case{
			Name: "labels by status", Request: status(mine, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }),
			Denied: "cannot update labels through pod status",
		},
		admissiontest.Case{
			Name: "status of another's", Request: status(theirs, func(*corev1.Pod) {}),
			Denied: "can only update pod status for pods with spec.nodeName set to itself",
		},
		admissiontest.Case{Name: "registers", Request: creating("nodes", node(map[string]string{"kubernetes.io/hostname": "n1", "mine": "x"}),
			n1)},
		admissiontest.Case{
			Name: "registers another", Request: creating("nodes", &corev1.Node{ObjectMeta: named1("n2")}, n1),
			Denied: `node "n1" is not allowed to modify node "n2"`,
		},
		admissiontest.Case{
			Name:    "a label that draws workloads",
			Request: creating("nodes", node(map[string]string{"node-restriction.kubernetes.io/x": "y"}), n1),
			Denied:  "is not allowed to set the following labels: node-restriction.kubernetes.io/x",
		},
		admissiontest.Case{
			Name: "takes a taint off", Request: update(node(nil, corev1.Taint{Key: "t"}), node(nil)),
			Denied: "is not allowed to modify taints",
		},
		// CVE-2025-5187: what it is owned by takes it away, and it comes back without its taints.
		admissiontest.Case{Name: "is owned by what does not exist", Request: func() *admission.Request {
			owned := node(nil)
			owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "gone", UID: "u"}}
			return admissiontest.Updating("nodes", node(nil), owned, n1)
		}, Denied: "is not allowed to modify ownerReferences"},
		admissiontest.Case{
			Name:    "becomes a control plane",
			Request: update(node(nil), node(map[string]string{"node-role.kubernetes.io/control-plane": ""})),
			Denied:  "is not allowed to modify labels: node-role.kubernetes.io/control-plane",
		},
		admissiontest.Case{
			Name:    "registers with a pod range",
			Request: creating("nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.1.2.0/24"}}, n1),
			Denied:  "is not allowed to choose its own podCIDR",
		},
		admissiontest.Case{
			Name: "takes a pod range",
			Request: update(node(nil), &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n1"},
				Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.1.2.0/24"}},
			}), Denied: "is not allowed to choose its own podCIDR",
		},
		admissiontest.Case{
			Name: "its directory is gone", Request: directory("n1", func(pv *corev1.PersistentVolume) { pv.Finalizers = nil }),
			Check: func(*testing.T, runtime.Object) {},
		},
		admissiontest.Case{Name: "another's directory is gone", Request: directory("n2", func(pv *corev1.PersistentVolume) { pv.Finalizers = nil }), Denied: "may only update volumes of class provisioner local.wasmplane.io that are on itself"},
		admissiontest.Case{
			Name:    "its directory is elsewhere",
			Request: directory("n1", func(pv *corev1.PersistentVolume) { pv.Finalizers, pv.Spec.Local.Path = nil, "/etc" }),
			Denied:  "may only take off the finalizer",
		},
		admissiontest.Case{
			Name: "a volume", Request: creating("persistentvolumes", &corev1.PersistentVolume{ObjectMeta: named1("v")}, n1),
			Denied: "unexpected operation",
		},
		admissiontest.Case{
			Name:    "its lease",
			Request: creating("leases", &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "n1"}}, n1),
		},
		admissiontest.Case{
			Name:    "another's lease",
			Request: creating("leases", &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "n2"}}, n1),
			Denied:  "can only access node lease with the same name as the requesting node",
		},
		admissiontest.Case{
			Name:    "the scheduler's lease",
			Request: creating("leases", &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "n1"}}, n1),
			Denied:  `can only access leases in the "kube-node-lease" system namespace`,
		},
		admissiontest.Case{Name: "a token for no pod", Request: token("", ""), Denied: "node requested token not bound to a pod"},
		admissiontest.Case{
			Name: "a token for an audience that no volume asks for", Request: token("mine", "u-1", "vault"),
			Denied: `is not authorized to request tokens for audience "vault"`,
		},
		admissiontest.Case{Name: "a token for another's pod", Request: token("theirs", "u-1"), Denied: "does not match the UID in record"},
		admissiontest.Case{Name: "a certificate", Request: creating("certificatesigningrequests", csr("system:node:n1"), n1)},
		admissiontest.Case{
			Name: "another's certificate", Request: creating("certificatesigningrequests", csr("system:node:n2"), n1),
			Denied: "can only create a node CSR with CN=system:node:n1",
		},
	)
}

func requestFor(t *testing.T, subject pkix.Name) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestCertificates(t *testing.T) {
	w := newWorld(t, func(a authz.Attributes) bool {
		return a.GetResource() == "signers" &&
			(a.GetVerb() == "approve" && a.GetName() == "example.com/*" || a.GetVerb() == "sign" && a.GetName() == "example.com/web")
	})
	csr := func(signer string, groups ...string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{
			ObjectMeta: named1("r"),
			Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Request: requestFor(t, pkix.Name{Organization: groups})},
		}
	}
	update := func(sub, signer string, change func(*certificatesv1.CertificateSigningRequest)) func() *admission.Request {
		old := csr(signer)
		is := old.DeepCopy()
		change(is)
		return func() *admission.Request {
			return admissiontest.Updating("certificatesigningrequests", old, is, admissiontest.Subresource(sub))
		}
	}
	nothing := func(*certificatesv1.CertificateSigningRequest) {}
	signed := func(c *certificatesv1.CertificateSigningRequest) { c.Status.Certificate = []byte("x") }
	admissiontest.Run(t, w.plugins["CertificateApproval"],
		admissiontest.Case{Name: "domain", Request: update("approval", "example.com/any", nothing)},
		admissiontest.Case{
			Name: "other", Request: update("approval", "other.com/any", nothing),
			Denied: `user not permitted to approve requests with signerName "other.com/any"`,
		},
	)
	admissiontest.Run(t, w.plugins["CertificateSigning"],
		admissiontest.Case{Name: "granted", Request: update("status", "example.com/web", signed), Check: func(*testing.T, runtime.Object) {}},
		admissiontest.Case{
			Name: "other", Request: update("status", "example.com/db", signed),
			Denied: `user not permitted to sign requests with signerName "example.com/db"`,
		},
		admissiontest.Case{Name: "nothing signed", Request: update("status", "example.com/db", nothing)},
	)
	admissiontest.Run(t, w.plugins["CertificateSubjectRestriction"],
		admissiontest.Case{
			Name:    "ordinary",
			Request: creating("certificatesigningrequests", csr(certificatesv1.KubeAPIServerClientSignerName, "dev")),
		},
		admissiontest.Case{
			Name:    "masters",
			Request: creating("certificatesigningrequests", csr(certificatesv1.KubeAPIServerClientSignerName, "system:masters")),
			Denied:  "with system:masters group is not allowed",
		},
	)
}

func TestPluginsAreSwitchedByName(t *testing.T) {
	client := fake.NewClientset()
	deps := Deps{
		Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Authorizer: may(nobody),
		Off: []string{"LimitRanger"},
	}
	list, err := Default(deps)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name() == "LimitRanger" || p.Name() == ownerReferencesName {
			t.Errorf("%s is on", p.Name())
		}
	}
	for want, off := range map[string]string{
		`"LimitRangr" does not exist`:                         "LimitRangr",
		"NodeRestriction cannot be disabled: a kubelet could": "NodeRestriction",
	} {
		deps.Off = []string{off}
		if _, err := Default(deps); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	deps.Off, deps.On = []string{"AlwaysPullImages"}, []string{"AlwaysPullImages"}
	if _, err := Default(deps); err == nil || !strings.Contains(err.Error(), "both enabled and disabled") {
		t.Errorf("error %v", err)
	}
	deps.Off = nil
	for _, name := range []string{eventrate.Name, imagereview.Name} {
		deps.On = []string{name}
		if _, err := Default(deps); err == nil || !strings.Contains(err.Error(), "apiserver.admissionConfigFile") {
			t.Errorf("%s without settings: error %v", name, err)
		}
	}
}

// A whole pod creation through the whole list, as the server runs it.
func TestAPodThroughTheWholeList(t *testing.T) {
	w := newWorld(t, nobody, namespaceOf("default", corev1.NamespaceActive), &corev1.ServiceAccount{ObjectMeta: inDefault("default")})
	r := admissiontest.Creating("pods", aPod())
	if err := w.chain.Mutate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := w.chain.Validate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	v, err := r.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	p := v.(*corev1.Pod)
	if p.Spec.ServiceAccountName == "" || p.Spec.Priority == nil || len(p.Spec.Tolerations) != 2 || len(p.Spec.Volumes) != 1 {
		t.Errorf("spec %+v", p.Spec)
	}
}

func BenchmarkPodCreate(b *testing.B) {
	client := fake.NewClientset(namespaceOf("default", corev1.NamespaceActive), &corev1.ServiceAccount{ObjectMeta: inDefault("default")})
	factory := informers.NewSharedInformerFactory(client, 0)
	list, err := Default(Deps{Client: client, Informers: factory, Authorizer: may(nobody)})
	if err != nil {
		b.Fatal(err)
	}
	chain, _ := admission.NewChain(list...)
	factory.Start(b.Context().Done())
	factory.WaitForCacheSync(b.Context().Done())
	for b.Loop() {
		r := admissiontest.Creating("pods", aPod())
		if err := chain.Mutate(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		if err := chain.Validate(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
