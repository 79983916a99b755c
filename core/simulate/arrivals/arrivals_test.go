// SPDX-License-Identifier: Apache-2.0

package arrivals_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/simulate/arrivals"
	"github.com/wasmplane/wasmplane/core/simulate/input"
)

// cluster shows a recorder what happens to its pods, at a time that the test moves on.
type cluster struct {
	t   *testing.T
	r   *arrivals.Recorder
	now time.Time
}

func (c *cluster) clock() time.Time     { return c.now }
func (c *cluster) pass(d time.Duration) { c.now = c.now.Add(d) }

func (c *cluster) observe(p *corev1.Pod) {
	c.t.Helper()
	short, err := arrivals.Shorten(p.DeepCopy())
	if err != nil {
		c.t.Fatal(err)
	}
	c.r.Handler().OnAdd(short, false)
}

func (c *cluster) delete(p *corev1.Pod) { c.r.Handler().OnDelete(p) }

func (c *cluster) pod(name string) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "shop", UID: types.UID(name), CreationTimestamp: metav1.NewTime(c.now), Labels: map[string]string{"app": "secret-app"},
		Annotations: map[string]string{"note": "secret-note"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "secret-set", UID: "secret-uid",
			Controller: &yes,
		}},
	}}
	p.Spec.SchedulerName = corev1.DefaultSchedulerName
	p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	p.Spec.Containers = []corev1.Container{{
		Name: "secret-container", Image: "secret-image", Command: []string{"secret-command"},
		Env:       []corev1.EnvVar{{Name: "PASSWORD", Value: "secret-env"}},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")}},
	}}
	like := &metav1.LabelSelector{MatchLabels: p.Labels}
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: like}},
	}}
	return p
}

func (c *cluster) on(p *corev1.Pod, node string) *corev1.Pod {
	p = p.DeepCopy()
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(c.now),
	}}
	return p
}

// record lets a day pass in a small cluster and returns what is written of it.
func record(t *testing.T, names *arrivals.Names) (string, arrivals.Summary) {
	t.Helper()
	c := &cluster{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	before := c.on(c.pod("before"), "n1")
	old := c.on(c.pod("old"), "n1")
	old.Status.Phase = corev1.PodSucceeded
	c.pass(time.Hour)
	var out bytes.Buffer
	c.r = arrivals.New(&out, names, c.clock)
	c.observe(before)
	c.observe(old) // it was over before the recording

	c.pass(10 * time.Minute)
	job := c.pod("job")
	c.observe(job)
	never := c.pod("never")
	c.observe(never)
	c.pass(time.Minute)
	job = c.on(job, "n1")
	c.observe(job)
	c.observe(job) // observed twice
	c.delete(never)
	c.pass(30 * time.Minute)
	job.Status.Phase = corev1.PodSucceeded
	job.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(c.now)},
	}}}
	c.pass(time.Minute) // the kubelet reports it later
	c.observe(job)
	if got := strings.Count(out.String(), "---"); got != 1 {
		t.Errorf("%d pods are written, want the one that has ended", got)
	}
	c.delete(job)
	c.delete(before)

	again := c.pod("before") // of the same name
	again.UID = "again"
	c.observe(again)
	daemon := c.pod("daemon")
	daemon.OwnerReferences[0].Kind = "DaemonSet"
	c.observe(daemon)
	sum, err := c.r.Finish()
	if err != nil {
		t.Error(err)
	}
	return out.String(), sum
}

// A recording is a workload: each pod comes when it came, and runs for as long as it ran.
func TestARecordingIsReplayed(t *testing.T) {
	for _, names := range []*arrivals.Names{nil, arrivals.NewNames()} {
		text, sum := record(t, names)
		if want := (arrivals.Summary{Pods: 3, NeverRan: 1, OfNodes: 1}); sum != want {
			t.Errorf("recorded %+v, want %+v", sum, want)
		}
		file := filepath.Join(t.TempDir(), "day.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := input.Read(t.Context(), input.Request{Nodes: 1, Files: []string{file}, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range in.Arrivals {
			got = append(got, fmt.Sprintf("at %s for %s, %s", a.At, a.Lasts, a.Pod.Spec.Containers[0].Resources.Requests.Cpu()))
			if a.Comeback != simulate.GoesOn || a.Pod.Spec.NodeSelector["disk"] != "ssd" || a.Pod.Spec.NodeName != "" {
				t.Errorf("%s comes back %v, nodes %v, node %q", a.Pod.Name, a.Comeback, a.Pod.Spec.NodeSelector, a.Pod.Spec.NodeName)
			}
			term := a.Pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
			selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
			if err != nil || !selector.Matches(labelled(a.Pod.Labels)) {
				t.Errorf("%s no longer selects its like: %v, %v", a.Pod.Name, selector, a.Pod.Labels)
			}
		}
		want := "[at 0s for 42m0s, 250m at 10m0s for 30m0s, 250m at 42m0s for 0s, 250m]"
		if fmt.Sprint(got) != want {
			t.Errorf("replayed is %v, want %s", got, want)
		}
	}
}

type labelled map[string]string

func (l labelled) Has(key string) bool              { _, ok := l[key]; return ok }
func (l labelled) Get(key string) string            { return l[key] }
func (l labelled) Lookup(key string) (string, bool) { v, ok := l[key]; return v, ok }

// Nothing that people have named is in an anonymous recording, and what may be secret is in none.
func TestWhatIsRecordedOfAPod(t *testing.T) {
	plain, _ := record(t, nil)
	for _, word := range []string{"secret-command", "secret-env", "PASSWORD", "secret-note"} {
		if strings.Contains(plain, word) {
			t.Errorf("the recording has %s", word)
		}
	}
	hidden, _ := record(t, arrivals.NewNames())
	for _, word := range []string{"secret", "shop", "before", "job", `"app"`} {
		if strings.Contains(hidden, word) {
			t.Errorf("the anonymous recording has %s", word)
		}
	}
	if other, _ := record(t, arrivals.NewNames()); other == hidden {
		t.Error("two recordings have the same other names: they can be found by trying")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// A recording that cannot be written ends, with the reason.
func TestARecordingThatCannotBeWritten(t *testing.T) {
	c := &cluster{t: t}
	c.r = arrivals.New(full{}, nil, c.clock)
	p := c.on(c.pod("p"), "n1")
	c.observe(p)
	c.delete(p)
	c.observe(c.pod("q"))
	if _, err := c.r.Finish(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("it ended with %v", err)
	}
}
