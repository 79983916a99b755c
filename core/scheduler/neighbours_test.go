// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func inZone(zone string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels["zone"] = zone }
}

func apps(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

func affinityTerm(app, key string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{LabelSelector: apps(app), TopologyKey: key}
}

// labelled makes a pod of an app that asks for next to nothing.
func labelled(name, app string, change func(*corev1.PodSpec)) *corev1.Pod {
	p := pod(name, "10m")
	p.Labels = map[string]string{"app": app}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func away(app, key string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{affinityTerm(app, key)},
		}}
	}
}

func near(app, key string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{affinityTerm(app, key)},
		}}
	}
}

// TestPodsKeepAwayFromEachOther: one each node, also where only the other one asks for it.
func TestPodsKeepAwayFromEachOther(t *testing.T) {
	c := start(t)
	c.node("a", "4")
	c.node("b", "4")
	on := map[string]bool{}
	for i := range 2 {
		name := fmt.Sprintf("db-%d", i)
		c.create(labelled(name, "db", away("db", "kubernetes.io/hostname")))
		on[c.await(name, bound).Spec.NodeName] = true
	}
	if len(on) != 2 {
		t.Fatalf("they share a node: %v", on)
	}
	c.create(labelled("db-2", "db", away("db", "kubernetes.io/hostname")))
	if got, want := message(c.await("db-2", refused)), "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	c.create(labelled("plain", "db", nil))
	if got, want := message(c.await("plain", refused)), "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// TestPodsStayTogether: the first of a group goes where it likes, the others to the same
// zone; and somebody who wants to be near to what is nowhere waits.
func TestPodsStayTogether(t *testing.T) {
	c := start(t)
	for i, zone := range []string{"x", "x", "y", "y"} {
		c.node(fmt.Sprintf("n%d", i), "4", inZone(zone))
	}
	zones := map[string]string{"n0": "x", "n1": "x", "n2": "y", "n3": "y"}
	c.create(labelled("first", "group", near("group", "zone")))
	zone := zones[c.await("first", bound).Spec.NodeName]
	for i := range 3 {
		name := fmt.Sprintf("next-%d", i)
		c.create(labelled(name, "group", near("group", "zone")))
		if got := zones[c.await(name, bound).Spec.NodeName]; got != zone {
			t.Errorf("%s is in zone %s, the first in %s", name, got, zone)
		}
	}
	c.create(labelled("lonely", "other", near("nobody", "zone")))
	if got, want := message(c.await("lonely", refused)), "0/4 nodes are available: 4 node(s) didn't match pod affinity rules. preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	c.create(labelled("friend", "nobody", nil))
	c.await("friend", bound)
	c.await("lonely", bound)
}

// TestAPreferenceDecidesAmongEquals: near by choice, in the place with more of them.
func TestAPreferenceDecidesAmongEquals(t *testing.T) {
	c := start(t)
	c.node("a", "4")
	c.node("b", "4")
	web := labelled("web", "web", nil)
	web.Spec.NodeName = "b"
	c.create(web)
	c.settled("web")
	c.create(labelled("cache", "cache", func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{Weight: 100, PodAffinityTerm: affinityTerm("web", "kubernetes.io/hostname")},
			}},
		}
	}))
	if p := c.await("cache", bound); p.Spec.NodeName != "b" {
		t.Errorf("it runs on %s", p.Spec.NodeName)
	}
}

// TestPodsAreSpreadOverZones: no zone has two more than another; a node without the
// label is no place at all; and where the constraint only should hold, it still does while it can.
func TestPodsAreSpreadOverZones(t *testing.T) {
	for _, when := range []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway} {
		t.Run(string(when), func(t *testing.T) {
			c := start(t)
			zones := map[string]string{"n0": "x", "n1": "y", "n2": "z"}
			for name, zone := range zones {
				c.node(name, "4", inZone(zone))
			}
			c.node("nowhere", "4")
			count := map[string]int{}
			for i := range 6 {
				name := fmt.Sprintf("web-%d", i)
				c.create(labelled(name, "web", func(s *corev1.PodSpec) {
					s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: when,
						LabelSelector: apps("web"),
					}}
				}))
				count[zones[c.await(name, bound).Spec.NodeName]]++
			}
			if when == corev1.DoNotSchedule && (count["x"] != 2 || count["y"] != 2 || count["z"] != 2) {
				t.Errorf("pods by zone: %v", count)
			}
			if when == corev1.ScheduleAnyway && (count["x"] == 0 || count["y"] == 0 || count["z"] == 0) {
				t.Errorf("pods by zone: %v", count)
			}
		})
	}
}
