// SPDX-License-Identifier: Apache-2.0

package podmetrics_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
)

func ended(name string, code int32, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason},
	}}
}

func TestWhatIsCounted(t *testing.T) {
	m := podmetrics.New()
	c := podmetrics.Pod{Metrics: m}
	p := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "side"}}, Containers: []corev1.Container{{
		Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: "model"}, {Name: "model"}, {Name: "scratch"}},
	}}, Volumes: []corev1.Volume{
		{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "example.org/model:1"}}}, {Name: "scratch"},
	}}}
	failed := pod.Done{Err: errors.New("it does not work"), Reason: "RunContainerError"}
	c.Done(pod.StartSandbox{}, p, time.Now(), pod.Done{})
	c.Done(pod.StartSandbox{}, p, time.Now(), failed)
	c.Done(pod.StartSandbox{}, p, time.Now(), pod.Done{
		Err: errors.New("hostPort 53/udp is taken: a process of the node listens at 127.0.0.53:53; choose another one"),
	})
	c.Done(pod.Create{Container: "side"}, p, time.Now(), pod.Done{})
	c.Done(pod.Create{Container: "main"}, p, time.Now(), pod.Done{})
	c.Done(pod.Create{Container: "main"}, p, time.Now(), failed)
	c.Done(pod.Create{Container: "main"}, p, time.Now(), pod.Done{
		Err: fmt.Errorf("rpc error: %w: no room", crierrors.ErrImageVolumeMountFailed), Reason: "CreateContainerError",
	})
	c.Done(pod.Start{Container: "main"}, p, time.Now(), failed)
	c.Done(pod.Mount{}, p, time.Now(), failed) // nothing of the runtime's
	before := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{ended("old", 1, "Error"), {Name: "new"}}}
	now := &corev1.PodStatus{
		InitContainerStatuses: []corev1.ContainerStatus{ended("init", 0, "Completed")},
		ContainerStatuses:     []corev1.ContainerStatus{ended("old", 1, "Error"), ended("new", 139, "Error"), {Name: "runs"}},
	}
	c.Done(pod.Admit{}, p, time.Now(), pod.Done{Refused: true, Reason: "HostPortReserved"})
	c.Done(pod.Admit{}, p, time.Now(), pod.Done{Refused: true, Reason: "OutOfcpu"}) // nobody's attempt
	c.Terminated(before, now)
	c.Terminated(now, now)
	m.Evicted("nodefs.available")
	want := `
# HELP kubelet_evictions Pods that were evicted for the node's sake, by what it was short of.
# TYPE kubelet_evictions counter
kubelet_evictions{eviction_signal="nodefs.available"} 1
# HELP kubelet_image_volume_mounted_errors_total Mounts of images that kept containers from being made.
# TYPE kubelet_image_volume_mounted_errors_total counter
kubelet_image_volume_mounted_errors_total 2
# HELP kubelet_image_volume_mounted_succeed_total Mounts of images that containers were made with.
# TYPE kubelet_image_volume_mounted_succeed_total counter
kubelet_image_volume_mounted_succeed_total 2
# HELP kubelet_image_volume_requested_total Mounts of images that containers asked for.
# TYPE kubelet_image_volume_requested_total counter
kubelet_image_volume_requested_total 6
# HELP kubelet_runtime_operations_errors_total What the runtime was asked to do, and did not.
# TYPE kubelet_runtime_operations_errors_total counter
kubelet_runtime_operations_errors_total{operation_type="create_container"} 2
kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"} 2
kubelet_runtime_operations_errors_total{operation_type="start_container"} 1
# HELP kubelet_runtime_operations_total What the runtime was asked to do.
# TYPE kubelet_runtime_operations_total counter
kubelet_runtime_operations_total{operation_type="create_container"} 4
kubelet_runtime_operations_total{operation_type="run_podsandbox"} 3
kubelet_runtime_operations_total{operation_type="start_container"} 1
# HELP kubelet_started_containers_errors_total Containers that could not be made or started.
# TYPE kubelet_started_containers_errors_total counter
kubelet_started_containers_errors_total{code="CreateContainerError",container_type="container"} 1
kubelet_started_containers_errors_total{code="RunContainerError",container_type="container"} 2
# HELP kubelet_started_containers_total Containers that were to be started.
# TYPE kubelet_started_containers_total counter
kubelet_started_containers_total{container_type="container"} 3
kubelet_started_containers_total{container_type="init_container"} 1
# HELP kubelet_started_pods_errors_total Sandboxes of pods that could not be started.
# TYPE kubelet_started_pods_errors_total counter
kubelet_started_pods_errors_total 2
# HELP kubelet_started_pods_total Sandboxes of pods that were started.
# TYPE kubelet_started_pods_total counter
kubelet_started_pods_total 3
# HELP kubelet_terminated_containers_total Containers that have ended.
# TYPE kubelet_terminated_containers_total counter
kubelet_terminated_containers_total{container_type="container",exit_code="139",reason="Error"} 1
kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="Completed"} 1
# HELP wasmplane_refused_attempts_total What was attempted beyond somebody's rights or limits and refused, by kind and reason.
# TYPE wasmplane_refused_attempts_total counter
wasmplane_refused_attempts_total{kind="hostPort",reason="reserved"} 1
wasmplane_refused_attempts_total{kind="hostPort",reason="taken"} 1
`
	var names []string
	for l := range strings.Lines(want) {
		if f := strings.Fields(l); len(f) > 2 && f[1] == "TYPE" {
			names = append(names, f[2])
		}
	}
	if err := testutil.GatherAndCompare(m.Gatherer(), strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// Of the three durations of a start, one begins when the kubelet saw the pod, and one leaves out the pulls.
func TestStartsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := podmetrics.New()
		for _, init := range []bool{false, true} {
			c := podmetrics.Pod{Metrics: m}
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()}}
			if init {
				p.Spec.InitContainers = []corev1.Container{{Name: "init"}}
			}
			time.Sleep(10 * time.Second)
			seen := time.Now()
			time.Sleep(5 * time.Second)
			pulling := time.Now()
			time.Sleep(25 * time.Second) // two pulls, one within the other
			c.Done(pod.Pull{Container: "b"}, p, pulling.Add(10*time.Second), pod.Done{})
			c.Done(pod.Pull{Container: "a"}, p, pulling, pod.Done{})
			c.Running(p, seen)
		}
		families, err := m.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			if h := f.GetMetric()[0].GetHistogram(); h != nil {
				got[f.GetName()] = h.GetSampleSum()
			}
		}
		for name, want := range map[string]float64{
			"kubelet_pod_start_duration_seconds": 60, "kubelet_pod_start_total_duration_seconds": 80, "kubelet_pod_start_sli_duration_seconds": 15,
		} {
			if got[name] != want {
				t.Errorf("%s: %v, want %v", name, got[name], want)
			}
		}
	})
}

func TestNobodyMeasures(*testing.T) {
	var c podmetrics.Pod
	c.Done(pod.Start{}, &corev1.Pod{}, time.Now(), pod.Done{})
	c.Terminated(&corev1.PodStatus{}, &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{ended("c", 0, "")}})
	c.Running(&corev1.Pod{}, time.Now())
	var m *podmetrics.Metrics
	m.Evicted("memory.available")
}
