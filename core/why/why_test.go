// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/wasmplane/wasmplane/core/why"
)

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name), Labels: map[string]string{"app": "web"}}
}

func node(name string, tweak ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"),
		"pods": resource.MustParse("10"),
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range tweak {
		f(n)
	}
	return n
}

func pod(name string, tweak ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(name)}
	p.Spec.SchedulerName = corev1.DefaultSchedulerName
	p.Spec.Containers = []corev1.Container{{
		Name: "web", Image: "web:1",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	}}
	for _, f := range tweak {
		f(p)
	}
	return p
}

func cpu(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse(amount) }
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func running(p *corev1.Pod) {
	p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "web", Image: "web:1", Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
}

func waiting(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		running(p)
		p.Status.Conditions[0].Status = corev1.ConditionFalse
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{
			Name: "web", Image: "web:1",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}
	}
}

func unready(p *corev1.Pod) {
	running(p)
	p.Status.Conditions[0].Status, p.Status.ContainerStatuses[0].Ready = corev1.ConditionFalse, false
}

func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name), Controller: &yes}}
	}
}

func event(kind, name, reason, message string) *corev1.Event {
	return &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "shop", Name: name}, Reason: reason, Message: message}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func tainted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "red", Effect: corev1.TaintEffectNoSchedule}}
}

func apart(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: corev1.LabelHostname,
		}}},
	}
}

// deployment with its ReplicaSet, which could not make its pods for that reason.
func deployment(c *why.Cluster, failure string) {
	two, yes := int32(2), true
	d := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: &two}}
	rs := &appsv1.ReplicaSet{ObjectMeta: meta("web-1"), Spec: appsv1.ReplicaSetSpec{Replicas: &two}}
	rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: &yes}}
	if failure != "" {
		rs.Status.Conditions = []appsv1.ReplicaSetCondition{{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			Message: failure,
		}}
	}
	c.Deployments, c.ReplicaSets = []*appsv1.Deployment{d}, []*appsv1.ReplicaSet{rs}
}

func service(tweak func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: meta("web"),
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if tweak != nil {
		tweak(s)
	}
	return s
}

func class(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "disk"}
}

func claim(class string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: meta("data"), Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	c.Spec.StorageClassName = &class
	return c
}

func uses(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{
			Name:         "data",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
		}}
	}
}

// member of the gang g.
func member(p *corev1.Pod) {
	name := "g"
	p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "gang needs 3 pods, 2 fit: 0/2 nodes are available.",
	})
}

func gangOf(c *why.Cluster, least int32) {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: meta("g")}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
	c.Groups = append(c.Groups, g)
}

func autoscaler(c *why.Cluster, t autoscalingv2.HorizontalPodAutoscalerConditionType, reason, message string) {
	h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta("web")}
	h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}
	h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{
		Type: t, Status: corev1.ConditionFalse, Reason: reason,
		Message: message,
	}}
	c.Autoscalers = append(c.Autoscalers, h)
}

func budget(c *why.Cluster, healthy int32) {
	least := intstr.FromInt32(2)
	b := &policyv1.PodDisruptionBudget{ObjectMeta: meta("web")}
	b.Spec = policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &least,
		Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}
	b.Status = policyv1.PodDisruptionBudgetStatus{ExpectedPods: 2, CurrentHealthy: healthy, DesiredHealthy: 2}
	c.Budgets = append(c.Budgets, b)
}

func ingress(c *why.Cluster, backend string) {
	in := &networkingv1.Ingress{ObjectMeta: meta("web")}
	class := "edge"
	in.Spec.IngressClassName = &class
	in.Spec.DefaultBackend = &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: backend,
		Port: networkingv1.ServiceBackendPort{Number: 80},
	}}
	c.Ingresses = append(c.Ingresses, in)
	c.IngressClasses = append(c.IngressClasses, &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/edge"},
	})
}

// endpoints are ready ones of the Service web.
func endpoints() []*discoveryv1.EndpointSlice {
	port := int32(80)
	return []*discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		Ports:      []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{}},
	}}
}

func apiService(name, group string) *apiregistrationv1.APIService {
	a := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name}}
	a.Spec.Group, a.Spec.Service = group, &apiregistrationv1.ServiceReference{Namespace: "shop", Name: "server"}
	return a
}

func webhook() *admissionv1.ValidatingWebhookConfiguration {
	w := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "guard"}}
	w.Webhooks = []admissionv1.ValidatingWebhook{{
		Name: "guard.example.com", ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "shop", Name: "guard"}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{Resources: []string{"pods"}},
		}},
	}}
	return w
}

func cronJob(c *why.Cluster) *batchv1.CronJob {
	j := &batchv1.CronJob{ObjectMeta: meta("nightly"), Spec: batchv1.CronJobSpec{Schedule: "0 3 * * *"}}
	j.UID = "cron"
	c.CronJobs = append(c.CronJobs, j)
	return j
}

func custom(status map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
	o.SetNamespace("shop")
	o.SetName("w")
	o.SetCreationTimestamp(metav1.Unix(0, 0))
	if status != nil {
		o.Object["status"] = status
	}
	return o
}

// situations are stuck objects, with what the answer has to contain.
var situations = map[string]struct {
	ask      string
	make     func(*why.Cluster)
	cause    string
	commands []string // parts of the commands, in order
}{
	"a pod that asks for too much": {
		"pod/p", func(c *why.Cluster) { c.Pods = append(c.Pods, pod("p", cpu("6"))) },
		"Insufficient cpu on 2 of 2 nodes (NodeResourcesFit)",
		[]string{`--subresource resize -p '{"spec":{"containers":[{"name":"web","resources":{"requests":{"cpu":"3"}}}]}}'`},
	},
	"a Deployment's pod that asks for too much": {"pod/p", func(c *why.Cluster) {
		deployment(c, "")
		c.Pods = append(c.Pods, pod("p", cpu("6"), ownedBy("ReplicaSet", "web-1")))
	}, "Insufficient cpu", []string{"kubectl set resources deployment/web -n shop -c web --requests=cpu=3"}},
	"a pod that its node evicted": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", running, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory. Available: 1Mi."
		}))
	}, "node a evicted it: The node was low on resource: memory", []string{"kubectl replace --force"}},
	"a pod that was preempted": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("high", running))
		c.Events = []*corev1.Event{{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "p"}, Reason: "Preempted",
			Message: "Preempted by pod high on node a",
		}}
	}, "it is gone: pod high of priority 0 got its place (preemption)", nil},
	"a container whose limit is too low": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", waiting("CrashLoopBackOff", ""), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("64Mi")}
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}
		}))
	}, "container web needs more memory than its limit of 64Mi (OOMKilled)", []string{`"memory":"128Mi"`}},
	"a pod that others leave no room": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", cpu("3")), pod("x", on("a"), cpu("2")), pod("y", on("b"), cpu("1500m")), pod("z", on("b"), cpu("1500m")))
	}, "Insufficient cpu", []string{"cpu\":\"1500m", "kubectl delete pod x -n shop", "wasmplane token create"}},
	"a pod of a group that there is not": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", member))
	}, "the pod group g that it names does not exist", []string{"kubectl get podgroups -n shop"}},
	"a gang that is not complete": {"podgroup/g", func(c *why.Cluster) {
		gangOf(c, 3)
		c.Pods = append(c.Pods, pod("p", member), pod("q", member, on("a")))
	}, "its gang g needs 3 pods, and 2 exist", []string{`"minCount":2`}},
	"a gang that does not fit": {"podgroup/g", func(c *why.Cluster) {
		gangOf(c, 3)
		c.Pods = append(c.Pods, pod("p", member, cpu("3")), pod("q", member, cpu("3")), pod("r", member, cpu("3")))
	}, "its gang g does not fit: gang needs 3 pods, 2 fit", []string{`"minCount":2`, "wasmplane token create"}},
	"a gang of which nothing fits": {"pod/p", func(c *why.Cluster) {
		gangOf(c, 2)
		c.Pods = append(c.Pods, pod("p", member, cpu("6")), pod("q", member, cpu("6")))
	}, "its gang g does not fit", []string{`"cpu":"3"`}},
	"a group without pods": {"podgroup/g", func(c *why.Cluster) { gangOf(c, 2) }, "it has no pods", nil},
	"a pod that tolerates no taint": {"pod/p", func(c *why.Cluster) {
		c.Nodes = []*corev1.Node{node("a", tainted), node("b", tainted)}
		c.Pods = append(c.Pods, pod("p"))
	}, "node(s) had untolerated taint {team: red} on 2 of 2 nodes (TaintToleration)", []string{"kubectl taint node a team:NoSchedule-"}},
	"cordoned nodes": {"pod/p", func(c *why.Cluster) {
		c.Nodes = []*corev1.Node{node("a", cordoned), node("b", cordoned)}
		c.Pods = append(c.Pods, pod("p"))
	}, "node(s) were unschedulable", []string{"kubectl uncordon a", "wasmplane token create"}},
	"a node selector": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }))
	}, "node affinity/selector", []string{"kubectl label node a --overwrite disk=ssd"}},
	"anti-affinity": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", apart), pod("x", on("a")), pod("y", on("b")))
	}, "anti-affinity rules on 2 of 2 nodes (InterPodAffinity)", []string{"kubectl delete pod x -n shop", "wasmplane token create"}},
	"a pod that could be more important": {"pod/p", func(c *why.Cluster) {
		c.Nodes = c.Nodes[:1]
		c.Priorities = []*schedulingv1.PriorityClass{
			{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 100},
			{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: -1},
		}
		c.Pods = append(c.Pods, pod("p", cpu("3")), pod("x", on("a"), cpu("3")))
	}, "Insufficient cpu on 1 of 1 nodes", []string{"priorityClassName: high", "token create"}},
	"room that is being made": {
		"pod/p", func(c *why.Cluster) {
			one, now := int32(1), metav1.Now()
			c.Pods = append(c.Pods, pod("p", cpu("3"), func(p *corev1.Pod) { p.Spec.Priority, p.Status.NominatedNodeName = &one, "a" }),
				pod("x", on("a"), cpu("3"), func(p *corev1.Pod) { p.DeletionTimestamp = &now }))
		}, "it gets node a as soon as pods that are less important have left it: shop/x",
		[]string{"kubectl delete pod x -n shop --grace-period=0"},
	},
	"scheduling gates": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}} }))
	}, "scheduling gates example.com/wait", []string{"/spec/schedulingGates"}},
	"a volume in another zone": {"pod/p", func(c *why.Cluster) {
		for i, n := range c.Nodes {
			n.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("z%d", i)
		}
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk-1", Labels: map[string]string{corev1.LabelTopologyZone: "z9"}}}
		bound := claim("fast")
		bound.Spec.VolumeName, bound.Status.Phase = "disk-1", corev1.ClaimBound
		bound.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		c.Volumes, c.Claims = []*corev1.PersistentVolume{pv}, []*corev1.PersistentVolumeClaim{bound}
		c.Pods = append(c.Pods, pod("p", uses("data")))
	}, "node(s) had no available volume zone on 2 of 2 nodes (VolumeZone)", []string{"wasmplane token create"}},
	"a scheduler that there is not": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }))
	}, `asks for the scheduler "mine"`, []string{"kubectl replace --force"}},
	"a claim that there is not": {
		"pod/p", func(c *why.Cluster) { c.Pods = append(c.Pods, pod("p", uses("data"))) },
		"its volume claim data does not exist",
		[]string{`"name":"data"`},
	},
	"a class that there is not": {"pod/p", func(c *why.Cluster) {
		c.Pods, c.Claims, c.Classes = append(c.Pods,
			pod("p", uses("data"))), []*corev1.PersistentVolumeClaim{claim("fast")}, []*storagev1.StorageClass{class("slow")}
	}, `its volume claim data is not bound: its storage class "fast" does not exist`, []string{"storageClassName: slow"}},
	"no nodes": {"pod/p", func(c *why.Cluster) { c.Nodes, c.Pods = nil, append(c.Pods, pod("p")) }, "there is no node", []string{"wasmplane token create"}},
	"a plugin in Wasm": {"pod/p", func(c *why.Cluster) {
		c.Refusals = map[string]string{"it is night": "daylight"}
		c.Pods = append(c.Pods, pod("p", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "0/2 nodes are available: 2 it is night.",
			}}
		}))
	}, "plugin daylight refuses it: it is night", []string{"wasmplane trace pod/p -n shop"}},
	"an image that there is not": {
		"pod/p", func(c *why.Cluster) { c.Pods = append(c.Pods, pod("p", waiting("ImagePullBackOff", "back-off"))) },
		"image web:1 of container web cannot be pulled (ImagePullBackOff)",
		[]string{"kubectl set image pod/p web=IMAGE -n shop"},
	},
	"a registry that does not answer": {
		"pod/p", func(c *why.Cluster) {
			c.Pods = append(c.Pods, pod("p", waiting("ImagePullBackOff", `Back-off pulling image "web:1": ErrImagePull: dial tcp: no such host`)))
			c.Events = []*corev1.Event{event("Pod", "p", "Failed", "Error: ImagePullBackOff")}
		},
		"image web:1 of container web cannot be pulled: node a does not reach its registry",
		[]string{"wasmplane image import FILE"},
	},
	"a registry that wants to know who asks": {
		"pod/p", func(c *why.Cluster) {
			c.Pods = append(c.Pods, pod("p", waiting("ErrImagePull", "pull image: unexpected status: 401 Unauthorized")))
		},
		"image web:1 of container web cannot be pulled: its registry refuses to give it",
		[]string{"kubectl create secret docker-registry NAME -n shop"},
	},
	"an image that must not be pulled": {
		"pod/p", func(c *why.Cluster) {
			c.Pods = append(c.Pods, pod("p", waiting("ErrImageNeverPull", "is not present")))
		},
		"is not on node a, and its pull policy is Never",
		[]string{"wasmplane image import FILE"},
	},
	"a container that ends": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", waiting("CrashLoopBackOff", ""), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].RestartCount = 7
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}
		}))
	}, "ends again and again, 7 times so far, at last with exit code 3 (Error)", []string{"--previous"}},
	"a ConfigMap that there is not": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", waiting("CreateContainerConfigError", `configmap "settings" not found`)))
	}, `configmap "settings" not found`, []string{"kubectl create configmap settings -n shop"}},
	"a Secret that there is not": {"pod/p", func(c *why.Cluster) {
		c.Pods = append(c.Pods, pod("p", waiting("CreateContainerConfigError", `secrets "key" not found`)))
	}, `secrets "key" not found`, []string{"kubectl create secret generic key -n shop"}},
	"a probe that fails": {"pod/p", func(c *why.Cluster) {
		c.Pods, c.Events = append(c.Pods, pod("p", unready)), []*corev1.Event{event("Pod", "p", "Unhealthy", "Readiness probe failed: HTTP 500")}
	}, "its probe fails: Readiness probe failed: HTTP 500", []string{"kubectl logs p"}},
	"a node that is silent": {"pod/p", func(c *why.Cluster) {
		c.Nodes = []*corev1.Node{node("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })}
		c.Pods = append(c.Pods, pod("p", running))
	}, "its node a is not ready: nothing has been heard of it", []string{"wasmplane status"}},
	"a quota": {"deployment/web", func(c *why.Cluster) {
		deployment(c, `pods "web-1-x" is forbidden: exceeded quota: few, requested: cpu=1,pods=1, used: cpu=0,pods=1, limited: cpu=500m,pods=1`)
	}, "quota few leaves no room for its pods", []string{`kubectl patch resourcequota few -n shop --type=merge -p '{"spec":{"hard":{"cpu":"2","pods":"3"}}}'`}},
	"a service account that there is not": {"deployment/web", func(c *why.Cluster) {
		deployment(c, `pods "web-1-" is forbidden: error looking up service account shop/robot: serviceaccount "robot" not found`)
	}, "the API refuses its pods", []string{"kubectl create serviceaccount robot -n shop"}},
	"a Deployment's pod that waits": {"deployment/web", func(c *why.Cluster) {
		deployment(c, "")
		c.Pods = append(c.Pods, pod("p", waiting("ErrImagePull", "not found"), ownedBy("ReplicaSet", "web-1")))
	}, "0 of 2 updated pods are available: pod p: image web:1 of container web cannot be pulled", []string{"kubectl set image deployment/web web=IMAGE -n shop"}},
	"a paused Deployment": {"deploy/web", func(c *why.Cluster) {
		deployment(c, "")
		c.Deployments[0].Spec.Paused = true
	}, "it is paused", []string{"kubectl rollout resume deployment/web -n shop"}},
	"a Service that selects nobody": {"svc/web", func(c *why.Cluster) {
		c.Services = []*corev1.Service{service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "wbe"} })}
		c.Pods = append(c.Pods, pod("p", running))
	}, "no pod in the namespace has the labels app=wbe", []string{"kubectl set selector service/web app=web -n shop"}},
	"a Service whose pods are not ready": {"service/web", func(c *why.Cluster) {
		c.Services, c.Pods = []*corev1.Service{service(nil)}, append(c.Pods, pod("p", waiting("ErrImagePull", "")))
	}, "it has no endpoints that are ready: pod p: image web:1", []string{"kubectl set image"}},
	"a port that there is not": {"service/web", func(c *why.Cluster) {
		c.Services = []*corev1.Service{service(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http") })}
		c.Pods = append(c.Pods, pod("p", running, func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}
		}))
	}, `no container of its pods has a port of the name "http"`, []string{`"path":"/spec/ports/0/targetPort","value":"web"`}},
	"an autoscaler without requests": {
		"hpa/web", func(c *why.Cluster) {
			autoscaler(c, autoscalingv2.ScalingActive, "FailedGetResourceMetric",
				"the HPA was unable to compute the replica count: failed to get cpu utilization: missing request for cpu in container web of Pod web-1")
		}, "it cannot tell how busy deployment/web is: container web requests no cpu",
		[]string{"kubectl set resources deployment/web -n shop -c web --requests=cpu=100m"},
	},
	"an autoscaler without a target": {"hpa/web", func(c *why.Cluster) {
		autoscaler(c, autoscalingv2.AbleToScale, "FailedGetScale", `deployments.apps "web" not found`)
		c.Deployments = []*appsv1.Deployment{{ObjectMeta: meta("shop")}}
	}, `it cannot scale deployment/web: deployments.apps "web" not found`, []string{`"scaleTargetRef":{"name":"shop"}`}},
	"an autoscaler of nothing": {"hpa/web", func(c *why.Cluster) {
		autoscaler(c, autoscalingv2.ScalingActive, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
	}, "it does nothing while deployment/web has 0 replicas", []string{"kubectl scale deployment/web -n shop --replicas=1"}},
	"an autoscaler whose API is away": {"hpa/web", func(c *why.Cluster) {
		autoscaler(c, autoscalingv2.ScalingActive, "FailedGetPodsMetric", "unable to fetch metrics from custom metrics API: the server could not find the requested resource")
		c.APIs = []*apiregistrationv1.APIService{apiService("v1beta1.custom.metrics.k8s.io", "custom.metrics.k8s.io")}
	}, "the API of custom metrics: it is not available: service shop/server does not exist", []string{"kubectl delete apiservice v1beta1.custom.metrics.k8s.io"}},
	"a budget that allows nothing": {
		"pdb/web", func(c *why.Cluster) {
			budget(c, 2)
			c.ReplicaSets = []*appsv1.ReplicaSet{{ObjectMeta: meta("web")}}
			c.Pods = append(c.Pods, pod("p", running, ownedBy("ReplicaSet", "web")), pod("q", running, ownedBy("ReplicaSet", "web")))
		}, "it lets no pod be evicted: 2 are healthy, and 2 have to be (minAvailable: 2)",
		[]string{"kubectl scale replicaset/web -n shop --replicas=3", `"maxUnavailable":1`},
	},
	"a budget whose pod is not ready": {"pdb/web", func(c *why.Cluster) {
		budget(c, 1)
		c.Pods = append(c.Pods, pod("p", running), pod("q", waiting("ErrImagePull", "")))
	}, "it lets no pod be evicted: 1 are healthy, and 2 have to be: pod q: image web:1", []string{"kubectl set image"}},
	"an Ingress without a class": {"ing/web", func(c *why.Cluster) {
		c.Ingresses = []*networkingv1.Ingress{{ObjectMeta: meta("web")}}
		c.IngressClasses = []*networkingv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}}
	}, "it names no class, and there is no default class", []string{`"ingressClassName":"edge"`}},
	"an Ingress without a backend": {
		"ingress/web", func(c *why.Cluster) { ingress(c, "web") }, "its backend, service web, does not exist",
		[]string{"kubectl create service clusterip web -n shop --tcp=80"},
	},
	"an Ingress without a controller": {"ingress/web", func(c *why.Cluster) {
		ingress(c, "web")
		c.Services, c.Slices = []*corev1.Service{service(nil)}, endpoints()
	}, "nobody has taken it on: the controller of its class, example.com/edge, has written no address", []string{"kubectl get pods -A"}},
	"a definition whose names are taken": {"crd/widgets.example.com", func(c *why.Cluster) {
		d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
		d.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{
			Type:   apiextensionsv1.NamesAccepted,
			Status: apiextensionsv1.ConditionFalse, Message: `"widgets" is already in use`,
		}}
		c.Definitions = []*apiextensionsv1.CustomResourceDefinition{d}
	}, `its names are taken: "widgets" is already in use`, []string{"kubectl get crds"}},
	"an API that nobody serves": {"apiservice/v1.example.com", func(c *why.Cluster) {
		c.APIs = []*apiregistrationv1.APIService{apiService("v1.example.com", "example.com")}
	}, "it is not available: service shop/server does not exist", []string{"kubectl delete apiservice v1.example.com"}},
	"a webhook that cannot be asked": {
		"validatingwebhookconfigurations/guard", func(c *why.Cluster) {
			c.Validating = []*admissionv1.ValidatingWebhookConfiguration{webhook()}
		}, "webhook guard.example.com cannot be asked, and so every create of pods is refused (failurePolicy: Fail): service shop/guard does not exist",
		[]string{`"path":"/webhooks/0/failurePolicy","value":"Ignore"`, "kubectl delete validatingwebhookconfiguration guard"},
	},
	"pods that a webhook cannot judge": {
		"deployment/web", func(c *why.Cluster) {
			deployment(c, `Internal error occurred: failed calling webhook "guard.example.com": no endpoints`)
			c.Validating = []*admissionv1.ValidatingWebhookConfiguration{webhook()}
		}, "webhook guard.example.com cannot be asked, and so its pods are refused",
		[]string{"wasmplane why validatingwebhookconfiguration/guard"},
	},
	"pods that a policy refuses": {"deployment/web", func(c *why.Cluster) {
		deployment(c, `pods "web" is forbidden: ValidatingAdmissionPolicy 'owned' with binding 'here' denied request: no owner`)
	}, "policy owned refuses its pods", []string{"kubectl delete validatingadmissionpolicybinding here"}},
	"pods that a plugin refuses": {"deployment/web", func(c *why.Cluster) {
		deployment(c, `pods "web" is forbidden: plugin "no-latest" denied the request: a tag is missing`)
	}, "plugin no-latest refuses its pods", []string{"wasmplane plugin list"}},
	"pods below the level of security": {"deployment/web", func(c *why.Cluster) {
		deployment(c, `pods "web" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`)
	}, "the namespace allows only pods of the Pod Security level restricted:latest", []string{"kubectl label namespace shop pod-security"}},
	"a quota that is used up": {"quota/few", func(c *why.Cluster) {
		q := &corev1.ResourceQuota{ObjectMeta: meta("few")}
		q.Status.Hard, q.Status.Used = corev1.ResourceList{"pods": resource.MustParse("2")}, corev1.ResourceList{"pods": resource.MustParse("2")}
		c.Quotas = []*corev1.ResourceQuota{q}
	}, "it is used up: pods (2 of 2)", []string{`{"hard":{"pods":"4"}}`}},
	"a cron job that is suspended": {
		"cj/nightly", func(c *why.Cluster) { cronJob(c).Spec.Suspend = new(true) }, "it is suspended",
		[]string{`{"spec":{"suspend":false}}`},
	},
	"a cron job at no time": {
		"cronjob/nightly", func(c *why.Cluster) { cronJob(c).Spec.Schedule = "0 0 30 2 *" }, "names no time that will ever come",
		[]string{`"schedule":"*/5 * * * *"`},
	},
	"a cron job that waits for its last job": {"cronjob/nightly", func(c *why.Cluster) {
		j := cronJob(c)
		j.Spec.ConcurrencyPolicy, j.Status.Active = batchv1.ForbidConcurrent, []corev1.ObjectReference{{Name: "nightly-1"}}
		owned := metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("CronJob"))
		c.Jobs = []*batchv1.Job{{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "nightly-1", UID: "j",
			OwnerReferences: []metav1.OwnerReference{*owned},
		}}}
	}, "no job is made while another one is there (concurrencyPolicy: Forbid): job nightly-1: it has not ended", []string{"kubectl delete job nightly-1"}},
	"a job that failed": {"job/once", func(c *why.Cluster) {
		c.Jobs = []*batchv1.Job{{ObjectMeta: meta("once"), Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
			{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded", Message: "Job has reached the specified backoff limit"},
		}}}}
	}, "it has failed for good: BackoffLimitExceeded", []string{"kubectl get job once -n shop -o yaml"}},
	"a set that waits for an ordinal": {"sts/db", func(c *why.Cluster) {
		three := int32(3)
		c.StatefulSets = []*appsv1.StatefulSet{{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Replicas: &three}}}
		c.Pods = append(c.Pods, pod("db-0", running), pod("db-1", waiting("ErrImagePull", "")))
	}, "0 of 3 pods are available, and those after it wait for db-1: pod db-1: image web:1", []string{"kubectl set image"}},
	"a claim that nobody uses": {"resourceclaim/gpu", func(c *why.Cluster) {
		c.DeviceClaims, c.DeviceSlices = []*resourcev1.ResourceClaim{{ObjectMeta: meta("gpu")}}, []*resourcev1.ResourceSlice{{}}
	}, "it gets its devices when a pod uses it, and none does", []string{"kubectl get pods"}},
	"a custom resource whose controller is silent": {why.Other + "/w", func(c *why.Cluster) {
		c.Now, c.Object = time.Unix(1000, 0), custom(nil)
	}, "its controller is silent: nobody has written its status", []string{"kubectl get deployments"}},
	"a custom resource whose controller lags": {why.Other + "/w", func(c *why.Cluster) {
		c.Object = custom(map[string]any{"observedGeneration": int64(1)})
		c.Object.SetGeneration(3)
	}, "its controller has not seen the last change: it is at generation 3, and saw 1", nil},
	"a custom resource that is not ready": {why.Other + "/w", func(c *why.Cluster) {
		c.Object = custom(map[string]any{"conditions": []any{map[string]any{
			"type": "Ready", "status": "False", "reason": "NoDatabase",
			"message": "db is away",
		}}})
	}, "its condition Ready is False: NoDatabase: db is away", nil},
	"a custom resource that is held": {why.Other + "/w", func(c *why.Cluster) {
		now := metav1.Now()
		c.Object = custom(nil)
		c.Object.SetDeletionTimestamp(&now)
		c.Object.SetFinalizers([]string{"example.com/hold"})
	}, "it is being deleted and waits for whoever set its finalizers example.com/hold", []string{"kubectl patch widget w -n shop"}},
	"a node that says what is wrong": {"node/a", func(c *why.Cluster) {
		c.Nodes = []*corev1.Node{node("a", func(n *corev1.Node) {
			n.Status.Conditions[0].Status, n.Status.Conditions[0].Reason, n.Status.Conditions[0].Message = corev1.ConditionFalse, "KubeletNotReady",
				"no network"
		})}
	}, "its agent says that it is not ready: KubeletNotReady: no network", nil},
	"a namespace that stays": {"namespace/shop", func(c *why.Cluster) {
		now := metav1.Now()
		c.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop", DeletionTimestamp: &now}}}
		c.Held = []why.Held{{Resource: "configmaps", Name: "keep", Finalizers: []string{"example.com/hold"}}}
	}, "configmaps keep waits for whoever set its finalizers example.com/hold", []string{"kubectl patch configmaps keep -n shop"}},
	"a cordoned node": {"node/a", func(c *why.Cluster) { c.Nodes = []*corev1.Node{node("a", cordoned)} }, "it is cordoned", []string{"kubectl uncordon a"}},
}

func TestTheFirstLineNamesTheCause(t *testing.T) {
	for name, s := range situations {
		t.Run(name, func(t *testing.T) {
			c := &why.Cluster{
				Now: time.Unix(0, 0), Nodes: []*corev1.Node{node("a"), node("b")},
				Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
			}
			s.make(c)
			a := ask(t, c, s.ask)
			var out bytes.Buffer
			a.Write(&out)
			first, _, _ := strings.Cut(out.String(), "\n")
			if a.Well || !strings.Contains(first, s.cause) {
				t.Errorf("want %q in the first line of\n%s", s.cause, &out)
			}
			at := 0
			for _, ch := range a.Changes {
				if at < len(s.commands) && strings.Contains(ch.Command, s.commands[at]) {
					at++
				}
			}
			if at < len(s.commands) {
				t.Errorf("want the command %q in\n%s", s.commands[at], &out)
			}
			if _, err := json.Marshal(a); err != nil {
				t.Error(err)
			}
		})
	}
}

func ask(t *testing.T, c *why.Cluster, object string) *why.Answer {
	t.Helper()
	word, name, _ := strings.Cut(object, "/")
	kind, err := why.Kind(word)
	if word == why.Other {
		kind, err = word, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := why.Explain(t.Context(), c, kind, "shop", name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// What is in order is called so, and nothing is suggested about it.
func TestWhatIsWellIsLeftAlone(t *testing.T) {
	c := &why.Cluster{Nodes: []*corev1.Node{node("a")}, Pods: []*corev1.Pod{pod("p", running)}, Services: []*corev1.Service{service(nil)}, Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}}
	c.Slices = endpoints()
	for _, object := range []string{"pod/p", "service/web", "node/a", "namespace/shop"} {
		if a := ask(t, c, object); !a.Well || len(a.Changes) > 0 {
			t.Errorf("%s: %+v", object, a)
		}
	}
}

// Where no single change helps, that is said; what may not be read is said too.
func TestWhatIsNotKnownIsSaid(t *testing.T) {
	c := &why.Cluster{
		Nodes: []*corev1.Node{node("a", tainted)}, Pods: []*corev1.Pod{pod("p", cpu("3000"))},
		Unread: []string{"what volumes there are"},
	}
	a := ask(t, c, "pod/p")
	if len(a.Changes) != 0 || len(a.Unknown) != 2 {
		t.Errorf("a pod that nothing helps: changes %v, unknown %v", a.Changes, a.Unknown)
	}
	if _, err := why.Explain(t.Context(), c, "pod", "shop", "nobody"); err == nil {
		t.Error("a pod that there is not was explained")
	}
	if _, err := why.Kind("frobs"); err == nil {
		t.Error("a kind that there is not was taken")
	}
}

// A tenant who may not see other people's pods, or the nodes, is told what the scheduler said.
func TestATenantIsToldWhatTheSchedulerSaid(t *testing.T) {
	c := &why.Cluster{Partial: true, Unread: []string{"what nodes there are"}, Pods: []*corev1.Pod{pod("p", func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Message: "0/2 nodes are available: 2 Insufficient cpu.",
		}}
	})}}
	a := ask(t, c, "pod/p")
	if !strings.Contains(a.Cause, "0/2 nodes are available: 2 Insufficient cpu") || len(a.Changes) > 0 || len(a.Unknown) != 2 {
		t.Errorf("%+v", a)
	}
}

// An answer changes nothing that it was given, and a pod whose first suggestion is followed has a node.
func TestTheClusterIsOnlyRead(t *testing.T) {
	c := &why.Cluster{
		Nodes: []*corev1.Node{node("a", tainted, cordoned), node("b", tainted)},
		Pods:  []*corev1.Pod{pod("p"), pod("x", on("b"))},
	}
	before := fmt.Sprint(c.Nodes, c.Pods)
	a := ask(t, c, "pod/p")
	if fmt.Sprint(c.Nodes, c.Pods) != before {
		t.Error("the question changed the cluster")
	}
	if len(a.Changes) == 0 || a.Changes[0].Command != "kubectl taint node b team:NoSchedule-" {
		t.Fatalf("changes: %+v", a.Changes)
	}
	c.Nodes[1].Spec.Taints = nil
	if a := ask(t, c, "pod/p"); !strings.Contains(a.Cause, "node b would take it") {
		t.Errorf("after what was suggested: %s", a.Cause)
	}
}
