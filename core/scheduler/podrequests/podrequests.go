// SPDX-License-Identifier: Apache-2.0

// Package podrequests serves what the pods of a cluster ask for, as the scheduler counts it: the metrics that upstream's
// scheduler has at /metrics/resources.
package podrequests

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// Path at which upstream's scheduler serves them.
const Path = "/metrics/resources"

var (
	labels   = []string{"namespace", "pod", "node", "scheduler", "priority", "resource", "unit"}
	requests = prometheus.NewDesc("kube_pod_resource_request", "What a pod asks for, with its overhead.", labels, nil)
	limits   = prometheus.NewDesc("kube_pod_resource_limit", "What a pod may use at most, with its overhead.", labels, nil)
)

// Handler answers for the pods that list returns. They are not changed.
func Handler(list func() []*corev1.Pod) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector(list))
	// Answers grow with the cluster, so few are made at the same time.
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 2})
}

type collector func() []*corev1.Pod

// Describe implements prometheus.Collector.
func (collector) Describe(to chan<- *prometheus.Desc) {
	to <- requests
	to <- limits
}

// Collect implements prometheus.Collector.
func (list collector) Collect(to chan<- prometheus.Metric) {
	for _, p := range list() {
		if p.Spec.NodeName != "" && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed) {
			continue // it uses nothing any more
		}
		collect(to, requests, p, resource.PodRequests(p, resource.PodResourcesOptions{}))
		collect(to, limits, p, resource.PodLimits(p, resource.PodResourcesOptions{}))
	}
}

func collect(to chan<- prometheus.Metric, d *prometheus.Desc, p *corev1.Pod, amounts corev1.ResourceList) {
	priority := ""
	if p.Spec.Priority != nil {
		priority = strconv.Itoa(int(*p.Spec.Priority))
	}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		amount := amounts[name]
		if amount.IsZero() {
			continue
		}
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, amount.AsApproximateFloat64(),
			p.Namespace, p.Name, p.Spec.NodeName, p.Spec.SchedulerName, priority, string(name), unit(name))
	}
}

// unit is what a resource is counted in; empty where that is its own.
func unit(name corev1.ResourceName) string {
	switch {
	case name == corev1.ResourceCPU:
		return "cores"
	case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return "bytes"
	case strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix):
		return "integer"
	}
	return ""
}
