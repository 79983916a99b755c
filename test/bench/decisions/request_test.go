// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
)

// reviewBytes is about how long the review of the request is, as JSON.
const reviewBytes = 4700

// world makes requests as the API server does: over the contract's codec.
type world struct{ codec object.Codec }

func newWorld(tb testing.TB) *world {
	tb.Helper()
	c, err := api.New()
	if err != nil {
		tb.Fatal(err)
	}
	_, codec, ok := c.Lookup(corev1.SchemeGroupVersion.WithResource("pods"))
	if !ok {
		tb.Fatal("pods are not served")
	}
	return &world{codec}
}

// creating is a request for the creation of a pod, which nobody changes. A carrier
// of its own sees to it that nothing encoded for one plugin is there for the next.
func (w *world) creating(p *corev1.Pod) *admission.Request {
	return &admission.Request{
		UID: "705ab4f5-6393-11e8-b7cc-42010a800002", Operation: admission.Create,
		Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Resource: corev1.SchemeGroupVersion.WithResource("pods"),
		Namespace: p.Namespace, Name: p.Name, User: admissiontest.Someone(), Options: createOptions,
		Object: object.FromVersioned(w.codec, p),
	}
}

var createOptions runtime.Object = &metav1.CreateOptions{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "CreateOptions"}}

// review is what a webhook would be sent for a pod.
func review(tb testing.TB, p *corev1.Pod) []byte {
	tb.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		tb.Fatal(err)
	}
	gvk := metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
	gvr := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	r := &admissionv1.AdmissionRequest{
		UID: "705ab4f5-6393-11e8-b7cc-42010a800002", Kind: gvk, Resource: gvr, RequestKind: &gvk, RequestResource: &gvr,
		Name: p.Name, Namespace: p.Namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}, DryRun: ptr.To(false),
		Options: runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)},
	}
	r.UserInfo.Username, r.UserInfo.Groups = admissiontest.Someone().GetName(), admissiontest.Someone().GetGroups()
	out, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{
		APIVersion: "admission.k8s.io/v1",
		Kind:       "AdmissionReview",
	}, Request: r})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// ordinary is a pod as a Deployment makes them, whose review has the size that
// is asked for.
func ordinary(tb testing.TB) *corev1.Pod {
	tb.Helper()
	p := webPod()
	p.Annotations["example.com/filler"] = ""
	missing := reviewBytes - len(review(tb, p))
	if missing < 0 {
		tb.Fatalf("the review is %d bytes too long", -missing)
	}
	p.Annotations["example.com/filler"] = strings.Repeat("x", missing)
	return p
}

func webPod() *corev1.Pod {
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("256Mi")}
	container := func(name, image string, port int32) corev1.Container {
		c := corev1.Container{
			Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
			Ports:           []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: corev1.ProtocolTCP}},
			Resources:       corev1.ResourceRequirements{Limits: limits, Requests: limits},
			SecurityContext: &corev1.SecurityContext{RunAsNonRoot: ptr.To(true), Privileged: ptr.To(false), AllowPrivilegeEscalation: ptr.To(false)},
			VolumeMounts:    []corev1.VolumeMount{{Name: "config", MountPath: "/etc/" + name, ReadOnly: true}},
			LivenessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
					Path: "/healthz", Port: intstr.FromString("http"),
					Scheme: corev1.URISchemeHTTP,
				}},
				TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
			},
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}
		for i := range 4 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("v", 20)})
		}
		return c
	}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-6d4cf56db6-x7k2p", GenerateName: "web-6d4cf56db6-", Namespace: "shop",
			Labels: map[string]string{
				"app.kubernetes.io/name": "web", "app.kubernetes.io/part-of": "shop",
				"pod-template-hash": "6d4cf56db6", "team": "blue",
			},
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6d4cf56db6",
				UID: "0d0c4a1e-6393-11e8-b7cc-42010a800002", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{container("migrate", "registry.example.com/shop/migrate:1.4.2", 8081)},
			Containers:     []corev1.Container{container("web", "registry.example.com/shop/web:1.4.2", 8080), container("proxy", "registry.example.com/mesh/proxy@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", 9090)},
			Volumes:        []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}}},
			RestartPolicy:  corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](30), DNSPolicy: corev1.DNSClusterFirst,
			ServiceAccountName: "web", SecurityContext: &corev1.PodSecurityContext{}, SchedulerName: "default-scheduler",
		},
	}
}

// refused are pods that the policy refuses.
func refused(tb testing.TB) map[string]*corev1.Pod {
	tb.Helper()
	change := func(f func(*corev1.Pod)) *corev1.Pod {
		p := ordinary(tb)
		f(p)
		return p
	}
	return map[string]*corev1.Pod{
		"latest":          change(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example.com:5000/web:latest" }),
		"no tag":          change(func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "registry.example.com:5000/migrate" }),
		"privileged":      change(func(p *corev1.Pod) { p.Spec.Containers[1].SecurityContext.Privileged = ptr.To(true) }),
		"privileged init": change(func(p *corev1.Pod) { p.Spec.InitContainers[0].SecurityContext.Privileged = ptr.To(true) }),
	}
}
