// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
)

func with(annotations ...string) *corev1.Namespace {
	ns := namespaceOf("default", corev1.NamespaceActive)
	ns.Annotations = map[string]string{}
	for i := 0; i+1 < len(annotations); i += 2 {
		ns.Annotations[annotations[i]] = annotations[i+1]
	}
	return ns
}

func podSpec(check func(corev1.PodSpec) bool) func(*testing.T, runtime.Object) {
	return func(t *testing.T, o runtime.Object) {
		t.Helper()
		if spec := o.(*corev1.Pod).Spec; !check(spec) {
			t.Errorf("the pod became %+v", spec)
		}
	}
}

func TestImagesAreAlwaysPulled(t *testing.T) {
	w := newWorldOf(t, Deps{Authorizer: may(nobody), On: []string{alwaysPullImagesName}})
	volume := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "d:1", PullPolicy: corev1.PullNever}}}}
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i:2", ImagePullPolicy: corev1.PullIfNotPresent}}
	}
	updating := func(image string) func() *admission.Request {
		return func() *admission.Request {
			return admissiontest.Updating("pods", aPod(), aPod(func(p *corev1.Pod) { p.Spec.Containers[0].Image = image }))
		}
	}
	admissiontest.Run(t, w.plugins[alwaysPullImagesName],
		admissiontest.Case{
			Name: "every container and volume", Request: creating("pods", aPod(volume)),
			Check: podSpec(func(s corev1.PodSpec) bool {
				return s.Containers[0].ImagePullPolicy == corev1.PullAlways && s.InitContainers[0].ImagePullPolicy == corev1.PullAlways &&
					s.Volumes[0].Image.PullPolicy == corev1.PullAlways
			}),
		},
		admissiontest.Case{Name: "no new image", Request: updating("i:1")},
		admissiontest.Case{
			Name: "a new image", Request: updating("i:9"),
			Check: podSpec(func(s corev1.PodSpec) bool { return s.Containers[0].ImagePullPolicy == corev1.PullAlways }),
		},
	)
	r := admissiontest.Creating("pods", aPod(func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever }))
	err := alwaysPullImages{}.Validate(t.Context(), r) // what a later mutator did
	if want := `spec.containers[0].imagePullPolicy: Unsupported value: "Never": supported values: "Always"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v", err)
	}
}

func TestServicesAndTopologies(t *testing.T) {
	w := newWorldOf(t, Deps{Authorizer: may(nobody), On: []string{denyServiceExternalsName, antiAffinityName}})
	svc := func(ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: inDefault("s"), Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	update := func(was, is *corev1.Service) func() *admission.Request {
		return func() *admission.Request { return admissiontest.Updating("services", was, is) }
	}
	admissiontest.Run(t, w.plugins[denyServiceExternalsName],
		admissiontest.Case{Name: "none", Request: creating("services", svc())},
		admissiontest.Case{
			Name: "one", Request: creating("services", svc("10.0.0.1")),
			Denied: "Use of external IPs is denied by admission control",
		},
		admissiontest.Case{Name: "one more", Request: update(svc("10.0.0.1"), svc("10.0.0.1", "10.0.0.2")), Denied: "Use of external IPs"},
		admissiontest.Case{Name: "one fewer", Request: update(svc("10.0.0.1", "10.0.0.2"), svc("10.0.0.2"))},
	)
	apart := func(topology string) *corev1.Pod {
		return aPod(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{TopologyKey: topology},
				}},
			}
		})
	}
	admissiontest.Run(t, w.plugins[antiAffinityName],
		admissiontest.Case{Name: "by node", Request: creating("pods", apart(corev1.LabelHostname))},
		admissiontest.Case{Name: "by zone", Request: creating("pods", apart(corev1.LabelTopologyZone)), Denied: "has TopologyKey topology.kubernetes.io/zone but only key kubernetes.io/hostname is allowed"},
	)
}

func TestNamespacesSayWhereTheirPodsGo(t *testing.T) {
	settings := &pluginconfig.Settings{
		NodeSelectors: map[string]string{"clusterDefaultNodeSelector": "pool=general", "fenced": "pool=general,disk=ssd"},
		Tolerations: pluginconfig.Tolerations{
			Default: []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}},
			Whitelist: []corev1.Toleration{
				{Key: "spot", Operator: corev1.TolerationOpExists},
				{Key: "node.kubernetes.io/memory-pressure", Operator: corev1.TolerationOpExists},
			},
		},
	}
	own := namespaceOf("own", corev1.NamespaceActive)
	own.Annotations = map[string]string{
		nodeSelectorKey: "pool=gpu", defaultTolerationsKey: "",
		tolerationsKey: `[{"key":"gpu","operator":"Exists"}]`,
	}
	broken := namespaceOf("broken", corev1.NamespaceActive)
	broken.Annotations = map[string]string{defaultTolerationsKey: "{"}
	w := newWorldOf(t, Deps{Authorizer: may(nobody), On: []string{podNodeSelectorName, podTolerationsName}, Settings: settings},
		with(), own, broken, namespaceOf("fenced", corev1.NamespaceActive))
	in := func(namespace string, change ...func(*corev1.Pod)) func() *admission.Request {
		return creating("pods", aPod(append(change, func(p *corev1.Pod) { p.Namespace = namespace })...))
	}
	selects := func(k, v string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{k: v} }
	}
	admissiontest.Run(t, w.plugins[podNodeSelectorName],
		admissiontest.Case{Name: "the cluster's", Request: in("default", selects("disk", "ssd")), Check: podSpec(func(s corev1.PodSpec) bool {
			return len(s.NodeSelector) == 2 && s.NodeSelector["pool"] == "general"
		})},
		admissiontest.Case{
			Name: "the namespace's own", Request: in("own"),
			Check: podSpec(func(s corev1.PodSpec) bool { return s.NodeSelector["pool"] == "gpu" }),
		},
		admissiontest.Case{
			Name: "a conflict", Request: in("own", selects("pool", "general")),
			Denied: "pod node label selector conflicts with its namespace node label selector",
		},
		admissiontest.Case{
			Name: "more than the namespace may", Request: in("fenced", selects("disk", "hdd")),
			Denied: "conflict with its namespace whitelist",
		},
		admissiontest.Case{Name: "no namespace", Request: in("nowhere"), Denied: `namespaces "nowhere" not found`},
	)
	tolerates := func(key string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
	}
	asks := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	}
	admissiontest.Run(t, w.plugins[podTolerationsName],
		admissiontest.Case{Name: "the cluster's", Request: in("default"), Check: podSpec(func(s corev1.PodSpec) bool {
			return len(s.Tolerations) == 1 && s.Tolerations[0].Key == "spot"
		})},
		admissiontest.Case{
			Name: "memory pressure", Request: in("default", asks),
			Check: podSpec(func(s corev1.PodSpec) bool { return len(s.Tolerations) == 2 }),
		},
		admissiontest.Case{
			Name: "not on the cluster's list", Request: in("default", tolerates("gpu")),
			Denied: "conflict with its cluster whitelist",
		},
		admissiontest.Case{Name: "on the namespace's list", Request: in("own", tolerates("gpu"))},
		admissiontest.Case{
			Name: "not on the namespace's list", Request: in("own", tolerates("spot")),
			Denied: "conflict with its namespace whitelist",
		},
		admissiontest.Case{
			Name: "an annotation that is no JSON", Request: in("broken"),
			Denied: "annotation scheduler.alpha.kubernetes.io/defaultTolerations of namespace broken",
		},
	)
}

func TestDevicesAreTolerated(t *testing.T) {
	w := newWorldOf(t, Deps{Authorizer: may(nobody), On: []string{extendedTolerationName}})
	asks := func(names ...corev1.ResourceName) *corev1.Pod {
		return aPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{}
			for _, n := range names {
				p.Spec.Containers[0].Resources.Requests[n] = resource.MustParse("1")
			}
		})
	}
	admissiontest.Run(t, w.plugins[extendedTolerationName],
		admissiontest.Case{Name: "no device", Request: creating("pods", asks(corev1.ResourceCPU, "hugepages-2Mi", "kubernetes.io/thing"))},
		admissiontest.Case{
			Name: "two devices", Request: creating("pods", asks("b.com/gpu", "a.com/nic")),
			Check: podSpec(func(s corev1.PodSpec) bool {
				return len(s.Tolerations) == 2 && s.Tolerations[0] == corev1.Toleration{
					Key: "a.com/nic", Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoSchedule,
				}
			}),
		},
	)
}

func TestNamespacesAreMadeWhenTheyAreUsed(t *testing.T) {
	w := newWorldOf(t, Deps{Authorizer: may(nobody), On: []string{autoProvisionName, namespaceExistsName}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "fresh"}})
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "fresh"}}
	gone := func() *admission.Request { return admissiontest.Deleting("configmaps", cm) }
	if err := w.plugins[namespaceExistsName].(admission.Validator).Validate(t.Context(), gone()); !apierrors.IsNotFound(err) {
		t.Errorf("a delete in a namespace that is not there: %v", err)
	}
	dry := admissiontest.Creating("configmaps", cm)
	dry.DryRun = true
	if w.plugins[autoProvisionName].Handles(dry) {
		t.Error("a dry run would make a namespace")
	}
	if err := w.chain.Mutate(t.Context(), admissiontest.Creating("configmaps", cm)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.CoreV1().Namespaces().Get(t.Context(), "fresh", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := w.plugins[namespaceExistsName].(admission.Validator).Validate(t.Context(), gone()); err != nil {
		t.Errorf("a delete in a namespace that is there: %v", err)
	}
}
