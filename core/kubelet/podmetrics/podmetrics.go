// SPDX-License-Identifier: Apache-2.0

// Package podmetrics measures what kubelets do with pods, under upstream's names. The kubelets of one process share one set:
// a process may have thousands of simulated nodes.
package podmetrics

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-api/pkg/errors"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// Metrics of kubelets.
type Metrics struct {
	registry *prometheus.Registry

	podsStarted, podErrors              prometheus.Counter
	containersStarted, containerErrors  *prometheus.CounterVec
	terminated                          *prometheus.CounterVec
	operations, operationErrors         *prometheus.CounterVec
	operationSeconds                    *prometheus.HistogramVec
	startSeconds, sinceCreation, purely prometheus.Histogram
	evictions                           *prometheus.CounterVec
	attempts                            *prometheus.CounterVec

	imagesAsked, imagesMounted, imageErrors prometheus.Counter // of volumes
}

// New makes a set in which nothing has been measured.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	// As upstream's: what counts for the goals of pods' start is to be read exactly.
	starts := []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	start := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: starts})
		m.registry.MustRegister(h)
		return h
	}
	m.podsStarted = counter("started_pods_total", "Sandboxes of pods that were started.").WithLabelValues()
	m.podErrors = counter("started_pods_errors_total", "Sandboxes of pods that could not be started.").WithLabelValues()
	m.containersStarted = counter("started_containers_total", "Containers that were to be started.", "container_type")
	m.containerErrors = counter("started_containers_errors_total", "Containers that could not be made or started.", "container_type", "code")
	m.terminated = counter("terminated_containers_total", "Containers that have ended.", "container_type", "exit_code", "reason")
	m.operations = counter("runtime_operations_total", "What the runtime was asked to do.", "operation_type")
	m.operationErrors = counter("runtime_operations_errors_total", "What the runtime was asked to do, and did not.", "operation_type")
	m.operationSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Subsystem: "kubelet", Name: "runtime_operations_duration_seconds", Help: "How long the runtime took.",
		Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
	}, []string{"operation_type"})
	m.registry.MustRegister(m.operationSeconds)
	m.startSeconds = start("pod_start_duration_seconds", "From when the kubelet saw a pod until it was running.")
	m.sinceCreation = start("pod_start_total_duration_seconds", "From a pod's creation until it was running.")
	m.purely = start("pod_start_sli_duration_seconds",
		"From a pod's creation until it was running, without the time in which its images were pulled. Pods with init containers are not counted.")
	m.evictions = counter("evictions", "Pods that were evicted for the node's sake, by what it was short of.", "eviction_signal")
	m.attempts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: attempts.Metric, Help: attempts.Help}, []string{"kind", "reason"})
	m.registry.MustRegister(m.attempts)
	m.imagesAsked = counter("image_volume_requested_total", "Mounts of images that containers asked for.").WithLabelValues()
	m.imagesMounted = counter("image_volume_mounted_succeed_total", "Mounts of images that containers were made with.").WithLabelValues()
	m.imageErrors = counter("image_volume_mounted_errors_total", "Mounts of images that kept containers from being made.").WithLabelValues()
	return m
}

// Gatherer of what was measured.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// operation is upstream's name of what the runtime does in an action; empty if it does nothing.
func operation(a pod.Action) string {
	switch a.(type) {
	case pod.StartSandbox:
		return "run_podsandbox"
	case pod.StopSandbox:
		return "stop_podsandbox"
	case pod.RemoveSandbox:
		return "remove_podsandbox"
	case pod.Pull:
		return "pull_image"
	case pod.Create:
		return "create_container"
	case pod.Start:
		return "start_container"
	case pod.Kill:
		return "stop_container"
	case pod.RemoveContainer:
		return "remove_container"
	}
	return ""
}

// Types of containers, by upstream's names.
const (
	initContainer      = "init_container"
	regularContainer   = "container"
	ephemeralContainer = "ephemeral_container"
)

func containerType(p *corev1.Pod, name string) string {
	switch _, kind := pod.Find(p, name); kind {
	case pod.Init, pod.Sidecar:
		return initContainer
	case pod.Ephemeral:
		return ephemeralContainer
	case pod.Regular:
	}
	return regularContainer
}

// Evicted counts a pod that had to go because of a signal.
func (m *Metrics) Evicted(signal string) {
	if m != nil {
		m.evictions.WithLabelValues(signal).Inc()
	}
}

// refusedPort counts a host port that a pod may not have. Its pod has an event of it.
func (m *Metrics) refusedPort(d pod.Done) {
	if m == nil {
		return
	}
	reason := ""
	switch {
	case d.Refused && d.Reason == portReserved:
		reason = "reserved"
	case d.Err != nil && strings.Contains(d.Err.Error(), portTaken):
		reason = "taken"
	default:
		return
	}
	m.attempts.WithLabelValues(string(attempts.HostPort), reason).Inc()
}

// How a host port is refused: the reason of the node's own checks, and the words of the network
// plugin (wasmplane-cni), which looks for listeners.
const (
	portReserved = "HostPortReserved"
	portTaken    = "is taken: a process of the node listens at"
)

// Pod is one of those that are measured. Its methods may be called at any time by anybody.
type Pod struct {
	// Metrics to which it counts; nil: none.
	Metrics *Metrics

	mu              sync.Mutex
	pulling, pulled time.Time // its images were pulled between these, if at all
}

// Done counts an action that began at a time, and has ended now.
func (c *Pod) Done(a pod.Action, p *corev1.Pod, began time.Time, d pod.Done) {
	m, name, now := c.Metrics, operation(a), time.Now()
	m.refusedPort(d)
	if m == nil || name == "" {
		return
	}
	m.operations.WithLabelValues(name).Inc()
	m.operationSeconds.WithLabelValues(name).Observe(now.Sub(began).Seconds())
	if d.Err != nil {
		m.operationErrors.WithLabelValues(name).Inc()
	}
	switch a := a.(type) {
	case pod.StartSandbox:
		m.podsStarted.Inc()
		if d.Err != nil {
			m.podErrors.Inc()
		}
	case pod.Pull:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.pulling.IsZero() || began.Before(c.pulling) {
			c.pulling = began
		}
		c.pulled = now
	case pod.Create:
		m.containersStarted.WithLabelValues(containerType(p, a.Container)).Inc()
		m.containerError(containerType(p, a.Container), d)
		m.imageVolumes(float64(imageMounts(p, a.Container)), d)
	case pod.Start:
		m.containerError(containerType(p, a.Container), d)
	}
}

func (m *Metrics) containerError(kind string, d pod.Done) {
	if d.Err != nil {
		m.containerErrors.WithLabelValues(kind, d.Reason).Inc()
	}
}

// imageMounts are how many images a container mounts.
func imageMounts(p *corev1.Pod, name string) (n int) {
	c, _ := pod.Find(p, name)
	if c == nil {
		return 0
	}
	for _, m := range c.VolumeMounts {
		if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.Image != nil }) {
			n++
		}
	}
	return n
}

// imageVolumes counts what became of the images that a container mounts. A container that could not be made for another
// reason says nothing of them.
func (m *Metrics) imageVolumes(n float64, d pod.Done) {
	m.imagesAsked.Add(n)
	switch {
	case d.Err == nil:
		m.imagesMounted.Add(n)
	case strings.Contains(d.Err.Error(), errors.ErrImageVolumeMountFailed.Error()):
		m.imageErrors.Add(n)
	}
}

// Terminated counts the containers that have ended since a status was made.
func (c *Pod) Terminated(before, now *corev1.PodStatus) {
	if m := c.Metrics; m != nil {
		m.ended(before.InitContainerStatuses, now.InitContainerStatuses, initContainer)
		m.ended(before.ContainerStatuses, now.ContainerStatuses, regularContainer)
		m.ended(before.EphemeralContainerStatuses, now.EphemeralContainerStatuses, ephemeralContainer)
	}
}

func (m *Metrics) ended(before, now []corev1.ContainerStatus, kind string) {
	for i := range now {
		end := now[i].State.Terminated
		if end == nil {
			continue
		}
		known := slices.ContainsFunc(before, func(b corev1.ContainerStatus) bool {
			return b.Name == now[i].Name && b.State.Terminated != nil
		})
		if !known {
			m.terminated.WithLabelValues(kind, strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
		}
	}
}

// Running counts that the pod runs now, for the first time; seen is when the kubelet saw it.
func (c *Pod) Running(p *corev1.Pod, seen time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, now := c.Metrics, time.Now()
	if m == nil {
		return
	}
	m.startSeconds.Observe(now.Sub(seen).Seconds())
	age := max(now.Sub(p.CreationTimestamp.Time), 0)
	m.sinceCreation.Observe(age.Seconds())
	if len(p.Spec.InitContainers) == 0 {
		m.purely.Observe(max(age-c.pulled.Sub(c.pulling), 0).Seconds())
	}
}
