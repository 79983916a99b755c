// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sim(name, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[simulated.Prefix+name] = value }
}

func policy(r corev1.RestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.RestartPolicy = r }
}

// remove deletes a pod as the API does: marked first, gone when its node says so.
func (w *world) remove(name string) {
	w.t.Helper()
	p, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	now, grace := metav1.Now(), int64(1)
	p = p.DeepCopy()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	if _, err := w.client.CoreV1().Pods("default").Update(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	w.within(time.Minute, what, ok)
}

func (w *world) within(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 5*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		return ok(), nil
	})
	if err != nil {
		w.t.Fatalf("never: %s", what)
	}
}

func waiting(reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Waiting != nil && c.State.Waiting.Reason == reason
		})
	}
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Status.Phase == ph }
}

// eventsOf waits for an event and answers its message.
func (w *world) event(pod, reason string) string {
	w.t.Helper()
	msg := ""
	w.eventually("event "+reason+" of "+pod, func() bool {
		list, err := w.client.CoreV1().Events("default").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == pod && e.Reason == reason {
				msg = e.Message
				return true
			}
		}
		return false
	})
	return msg
}

func TestDeletedPodsGo(t *testing.T) {
	w := newWorld(t)
	w.start()
	e := w.engine()
	w.node("n1", e)
	w.create("n1", "a")
	w.until("a", "running", running)
	w.remove("a")
	w.eventually("the pod is gone from the API", func() bool {
		_, err := w.client.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	w.eventually("the runtime is empty", func() bool {
		c, _ := e.ListContainers(t.Context())
		s, _ := e.ListSandboxes(t.Context())
		return len(c)+len(s) == 0
	})
	if msg := w.event("a", "Killing"); msg != "Stopping container web" {
		t.Errorf("event %q", msg)
	}
}

func TestJobsPodsEnd(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	w.create("n1", "good", policy(corev1.RestartPolicyNever), sim("run-time", "10ms"))
	w.create("n1", "bad", policy(corev1.RestartPolicyNever), sim("exit-code", "3"), sim("exit-reason", "OOMKilled"))
	w.create("n1", "plain", policy(corev1.RestartPolicyNever))
	w.create("n1", "retried", policy(corev1.RestartPolicyOnFailure))
	w.until("plain", "succeeded without being told to", phase(corev1.PodSucceeded))
	w.until("retried", "succeeded without being told to", phase(corev1.PodSucceeded))
	good := w.until("good", "succeeded", phase(corev1.PodSucceeded))
	bad := w.until("bad", "failed", phase(corev1.PodFailed))
	if s := good.Status.ContainerStatuses[0].State.Terminated; s == nil || s.Reason != "Completed" || s.ExitCode != 0 {
		t.Errorf("good: %+v", good.Status)
	}
	if s := bad.Status.ContainerStatuses[0].State.Terminated; s == nil || s.Reason != "OOMKilled" || s.ExitCode != 3 {
		t.Errorf("bad: %+v", bad.Status)
	}
	for _, c := range good.Status.Conditions {
		if c.Type == corev1.PodReady && (c.Status != corev1.ConditionFalse || c.Reason != "PodCompleted") {
			t.Errorf("condition %+v", c)
		}
	}
}

func TestCrashLoopsAndBadImagesSayWhy(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	w.create("n1", "crash", sim("exit-code", "1"))
	w.create("n1", "image", sim("pull-error", "registry says no"), func(p *corev1.Pod) { p.Spec.Containers[0].Image = "example.org/other:1" })
	crash := w.until("crash", "in a crash loop", waiting("CrashLoopBackOff"))
	if crash.Status.Phase != corev1.PodRunning || crash.Status.ContainerStatuses[0].LastTerminationState.Terminated == nil {
		t.Errorf("status %+v", crash.Status)
	}
	if msg := w.event("crash", "BackOff"); msg != "Back-off restarting failed container web in pod crash_default(uid-crash)" {
		t.Errorf("event %q", msg)
	}
	w.until("crash", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= 2 })
	image := w.until("image", "backing off", waiting("ImagePullBackOff"))
	if image.Status.Phase != corev1.PodPending || !strings.Contains(image.Status.ContainerStatuses[0].State.Waiting.Message,
		"registry says no") {
		t.Errorf("status %+v", image.Status)
	}
	if msg := w.event("image", "Failed"); !strings.Contains(msg, "registry says no") && !strings.HasPrefix(msg, "Error: ") {
		t.Errorf("event %q", msg)
	}
}

// An ephemeral container waits for the container that it targets, and says so; others of the pod need none.
func TestEphemeralContainersWaitForTheirTargets(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	w.create("n1", "broken", sim("start-error.web", "no such program"), sim("run-time", "1h"))
	p := w.until("broken", "in a crash loop", waiting("CrashLoopBackOff")).DeepCopy()
	common := corev1.EphemeralContainerCommon{Name: "aimed", Image: p.Spec.Containers[0].Image}
	free := common
	free.Name = "free"
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: common, TargetContainerName: "web"}, {EphemeralContainerCommon: free},
	}
	if _, err := w.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := w.until("broken", "with both containers", func(p *corev1.Pod) bool {
		all := p.Status.EphemeralContainerStatuses
		return len(all) == 2 && (all[0].State.Waiting == nil || all[0].State.Waiting.Message != "") && all[1].State.Waiting == nil
	})
	waits := got.Status.EphemeralContainerStatuses[0].State.Waiting
	if waits == nil || waits.Reason != "CreateContainerConfigError" || waits.Message != `target container "web" is not running` {
		t.Errorf("without its target: %+v", got.Status.EphemeralContainerStatuses[0].State)
	}
	if s := got.Status.EphemeralContainerStatuses[1].State; s.Running == nil {
		t.Errorf("without a target: %+v", s)
	}
}

func TestProbesDecideOnReadiness(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	w.create("n1", "unready", sim("probe-readiness", "failure"), func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}
	})
	w.create("n1", "ready", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}
		p.Spec.Containers[0].StartupProbe = p.Spec.Containers[0].ReadinessProbe
	})
	w.until("ready", "ready", running)
	p := w.until("unready", "running", phase(corev1.PodRunning))
	if ready(p) {
		t.Error("it is ready though its probe fails")
	}
	if msg := w.event("unready", "Unhealthy"); !strings.HasPrefix(msg, "Readiness probe failed: ") {
		t.Errorf("event %q", msg)
	}
}

func TestPodsThatDoNotFitAreRefused(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	ask := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
	}
	w.create("n1", "small", ask("6"))
	w.until("small", "running", running)
	w.create("n1", "large", ask("4"))
	p := w.until("large", "failed", phase(corev1.PodFailed))
	if n := len(p.Status.ContainerStatuses); n != 0 {
		t.Errorf("%d containers are listed of a pod that has none: the first would be shown as its state", n)
	}
	if p.Status.Reason != "OutOfcpu" || p.Status.Message != "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 6000, capacity: 8000" {
		t.Errorf("%q %q", p.Status.Reason, p.Status.Message)
	}
	w.remove("small")
	w.eventually("the small one is gone", func() bool {
		_, err := w.client.CoreV1().Pods("default").Get(t.Context(), "small", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	w.create("n1", "next", ask("4"))
	w.until("next", "running", running)
}

// TestAPodDeletedByForceLeavesItsPlace: the scheduler counts it no more, so the node must not
// either, though the pod is still ending. The pod that takes its place was refused.
func TestAPodDeletedByForceLeavesItsPlace(t *testing.T) {
	w := newWorld(t)
	w.start()
	e := w.engine()
	w.node("n1", e)
	all := func(p *corev1.Pod) {
		hour := int64(3600)
		p.Spec.TerminationGracePeriodSeconds = &hour
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	}
	uid := w.create("n1", "stubborn", all, sim("stop-time", "1h")).UID
	w.until("stubborn", "running", running)
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "stubborn", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create("n1", "next", all)
	if p := w.until("next", "decided", func(p *corev1.Pod) bool { return running(p) || failed(p) }); failed(p) {
		t.Errorf("the next pod is %s", describe(p))
	}
	containers, err := e.ListContainers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(containers, func(c *cri.Container) bool {
		return c.GetLabels()[pod.UIDLabel] == string(uid) && c.GetState() == cri.ContainerState_CONTAINER_RUNNING
	}) {
		t.Error("the pod that was deleted has ended already: this test shows nothing")
	}
}

// judge is an Admitter that refuses pods by their label.
type judge struct{}

func (judge) Name() string { return "judge" }

func (judge) Admit(_ context.Context, p *corev1.Pod, _ *corev1.Node) (admitted bool, reason, message string, err error) {
	if p.Labels["bad"] != "" {
		return false, "BadLabel", "the label says it", nil
	}
	return true, "", "", nil
}

func TestPluginsAreAsked(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine(), func(c *kubelet.Config) { c.Admitters = []kubelet.Admitter{judge{}} })
	w.create("n1", "good")
	w.create("n1", "bad", func(p *corev1.Pod) { p.Labels = map[string]string{"bad": "yes"} })
	w.until("good", "running", running)
	if p := w.until("bad", "failed", phase(corev1.PodFailed)); p.Status.Reason != "BadLabel" ||
		p.Status.Message != "Pod was rejected: the label says it" {
		t.Errorf("%q %q", p.Status.Reason, p.Status.Message)
	}
}

func TestAKubeletAdoptsWhatRunsAndRemovesWhatIsUnknown(t *testing.T) {
	w := newWorld(t)
	w.start()
	e := w.engine()
	stop := w.node("n1", e)
	w.create("n1", "stays")
	w.create("n1", "goes")
	before := w.until("stays", "running", running)
	w.until("goes", "running", running)
	stop()
	list, _ := e.ListContainers(t.Context())
	if len(list) != 2 || !slices.ContainsFunc(list, func(c *cri.Container) bool { return c.State == cri.ContainerState_CONTAINER_RUNNING }) {
		t.Fatalf("pods do not outlive their kubelet: %v", list)
	}
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the feed knows", func() bool { return len(w.feeds.Pods("n1")) == 1 })
	w.node("n1", e)
	w.eventually("the unknown pod is gone from the runtime", func() bool {
		list, _ := e.ListContainers(t.Context())
		return len(list) == 1
	})
	after := w.until("stays", "running", running)
	if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("restarted: %+v, then %+v", a, b)
	}
}

func TestASandboxThatDiesIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.start()
	e := w.engine()
	w.node("n1", e)
	w.create("n1", "a")
	before := w.until("a", "running", running)
	list, _ := e.ListSandboxes(t.Context())
	if err := e.StopSandbox(t.Context(), list[0].Id); err != nil {
		t.Fatal(err)
	}
	after := w.until("a", "running anew", func(p *corev1.Pod) bool {
		return running(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	if before.Status.PodIP == after.Status.PodIP {
		t.Errorf("the address %s stayed", after.Status.PodIP)
	}
}

// tight is a machine that is short of memory when told so, for as long as two containers run on it.
type tight struct {
	*simulated.Host
	engine *simulated.Engine
	mu     sync.Mutex
	short  []node.Short
}

func (g *tight) set(s ...node.Short) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.short = s
}

func (g *tight) Facts(ctx context.Context) (*node.Facts, error) {
	f, err := g.Host.Facts(ctx)
	if err != nil {
		return nil, err
	}
	containers, err := g.engine.ListContainers(ctx)
	if err != nil {
		return nil, err
	}
	ended := slices.ContainsFunc(containers, func(c *cri.Container) bool { return c.State == cri.ContainerState_CONTAINER_EXITED })
	g.mu.Lock()
	defer g.mu.Unlock()
	c := *f
	if !ended && len(containers) == 2 {
		c.Short = g.short
	}
	return &c, nil
}

func TestPodsAreEvictedOneByOne(t *testing.T) {
	w := newWorld(t)
	w.start()
	g := &tight{Host: simulated.NewHost(simulated.HostConfig{Name: "n1", Address: "127.0.0.1"}), engine: w.engine()}
	measured := podmetrics.New()
	w.node("n1", g.engine, func(c *kubelet.Config) { c.Host, c.Upkeep, c.Metrics = g, 20*time.Millisecond, measured })
	high := int32(100)
	w.create("n1", "low")
	w.create("n1", "high", func(p *corev1.Pod) { p.Spec.Priority = &high })
	w.until("low", "running", running)
	w.until("high", "running", running)
	g.set(node.Short{Resource: corev1.ResourceMemory, Threshold: resource.MustParse("100Mi"), Available: resource.MustParse("50Mi")})
	low := w.until("low", "evicted", phase(corev1.PodFailed))
	if low.Status.Reason != "Evicted" || !strings.HasPrefix(low.Status.Message, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi.") ||
		!slices.ContainsFunc(low.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Reason == "TerminationByKubelet"
		}) {
		t.Errorf("%+v", low.Status)
	}
	if msg := w.event("low", "Evicted"); msg != low.Status.Message {
		t.Errorf("event %q", msg)
	}
	// Whoever watches the node sees what it did.
	if err := testutil.GatherAndCompare(measured.Gatherer(), strings.NewReader(`
# HELP kubelet_evictions Pods that were evicted for the node's sake, by what it was short of.
# TYPE kubelet_evictions counter
kubelet_evictions{eviction_signal="memory.available"} 1
# HELP kubelet_started_containers_total Containers that were to be started.
# TYPE kubelet_started_containers_total counter
kubelet_started_containers_total{container_type="container"} 2
# HELP kubelet_started_pods_total Sandboxes of pods that were started.
# TYPE kubelet_started_pods_total counter
kubelet_started_pods_total 2
`), "kubelet_evictions", "kubelet_started_containers_total", "kubelet_started_pods_total"); err != nil {
		t.Error(err)
	}
	if n := starts(t, measured); n != 2 {
		t.Errorf("%d starts of pods were measured, want 2", n)
	}
}

// starts of pods that were measured.
func starts(t *testing.T, m *podmetrics.Metrics) uint64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kubelet_pod_start_sli_duration_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatal("starts of pods are not measured")
	return 0
}

func TestForbiddenSysctls(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	w.create("n1", "bad", func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}}
	})
	if p := w.until("bad", "failed", phase(corev1.PodFailed)); p.Status.Reason != "SysctlForbidden" ||
		p.Status.Message != `Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted` {
		t.Errorf("%q %q", p.Status.Reason, p.Status.Message)
	}
}
