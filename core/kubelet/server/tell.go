// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sort"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return // the reader went away
	}
}

func (s *Server) all() []Node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		out = append(out, n)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].NodeName() < out[j].NodeName() })
	return out
}

func (s *Server) chosen(r *http.Request) []Node {
	if r.URL.Query().Get("node") == "" {
		return s.all()
	}
	if n := s.about(r); n != nil {
		return []Node{n}
	}
	return nil
}

func (s *Server) podList(r *http.Request, keep func(*corev1.Pod) bool) *corev1.PodList {
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{}}
	for _, n := range s.chosen(r) {
		for _, p := range n.Pods() {
			if keep(p) {
				list.Items = append(list.Items, *p)
			}
		}
	}
	return list
}

func (s *Server) pods(w http.ResponseWriter, r *http.Request) {
	reply(w, s.podList(r, func(*corev1.Pod) bool { return true }))
}

func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	reply(w, s.podList(r, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }))
}

func (s *Server) configz(w http.ResponseWriter, r *http.Request) {
	n := s.about(r)
	if n == nil {
		http.NotFound(w, r)
		return
	}
	reply(w, map[string]any{"kubeletconfig": n.Config()})
}

func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	for _, n := range s.chosen(r) {
		err := n.Runtime().Ready(r.Context())
		s.health.Checked("container-runtime", "healthz", err)
		if err != nil {
			http.Error(w, fmt.Sprintf("node %s: container runtime is not ready: %v", n.NodeName(), err), http.StatusInternalServerError)
			return
		}
	}
	_, _ = w.Write([]byte("ok"))
}

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(s))
}

// Probed is an optional power of a Node: the metrics of its pods' probes.
type Probed interface{ ProbeMetrics() prometheus.Gatherer }

// probeMetrics of the pods' probes.
func (s *Server) probeMetrics(w http.ResponseWriter, r *http.Request) {
	var all prometheus.Gatherers
	for _, n := range s.chosen(r) {
		if p, ok := n.(Probed); ok {
			all = append(all, p.ProbeMetrics())
		}
	}
	promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// writeGathered writes the metrics that the kubelets share.
func (s *Server) writeGathered(b *strings.Builder) error {
	if s.cfg.Metrics == nil {
		return nil
	}
	families, err := s.cfg.Metrics.Gather()
	if err != nil {
		return fmt.Errorf("gather the metrics of the kubelets: %w", err)
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(b, f); err != nil {
			return fmt.Errorf("write the metrics of the kubelets: %w", err)
		}
	}
	return nil
}

// metrics of the kubelets themselves.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	b.WriteString("# HELP kubelet_running_pods Number of pods that have a running pod sandbox\n# TYPE kubelet_running_pods gauge\n")
	var containers, names strings.Builder
	var volumes []claimed
	for _, n := range s.chosen(r) {
		volumes = append(volumes, claims(r.Context(), n)...)
		pods := 0
		byState := map[string]int{"created": 0, "running": 0, "exited": 0}
		for _, p := range n.Pods() {
			if p.Status.Phase == corev1.PodRunning {
				pods++
			}
			for _, st := range p.Status.ContainerStatuses {
				switch {
				case st.State.Running != nil:
					byState["running"]++
				case st.State.Terminated != nil:
					byState["exited"]++
				default:
					byState["created"]++
				}
			}
		}
		fmt.Fprintf(&b, "kubelet_running_pods{node=%q} %d\n", n.NodeName(), pods)
		fmt.Fprintf(&names, "kubelet_node_name{node=%q} 1\n", n.NodeName())
		for _, st := range []string{"created", "exited", "running"} {
			fmt.Fprintf(&containers, "kubelet_running_containers{container_state=%q,node=%q} %d\n", st, n.NodeName(), byState[st])
		}
	}
	b.WriteString("# HELP kubelet_running_containers Number of containers by state\n# TYPE kubelet_running_containers gauge\n" + containers.String())
	b.WriteString("# HELP kubelet_node_name The node's name. The count is always 1.\n# TYPE kubelet_node_name gauge\n" + names.String())
	writeVolumes(&b, volumes)
	if err := s.writeGathered(&b); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	text(w, b.String())
}
