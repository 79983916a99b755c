// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// samples is how many times, evenly, the cluster is looked at as a whole.
const samples = 240

// meter measures a run.
type meter struct {
	snapshot func() *framework.Snapshot
	interval time.Duration
	next     time.Time // to be sampled

	total, used amounts            // of the nodes, and of the pods on them
	typical     amounts            // the median request
	on          map[string]int     // pods by node
	prices      map[string]float64 // by node
	nodes       int                // with pods on them
	price       float64            // of these, an hour
	pending     int

	r       Result
	busy    amounts // used, times seconds
	seconds float64
	waits   []time.Duration
	refused map[string]*PluginUse
	peak    amounts
	groupOf func(*corev1.Pod) string
	groups  map[string]*group
}

// amounts by resource: cpu in thousandths, the others in units.
type amounts map[corev1.ResourceName]float64

func (a amounts) add(r *framework.Resources, sign float64) {
	a[corev1.ResourceCPU] += sign * float64(r.MilliCPU)
	a[corev1.ResourceMemory] += sign * float64(r.Memory)
	for name, n := range r.Scalar {
		a[name] += sign * float64(n)
	}
}

func newMeter(cfg *Config, snapshot func() *framework.Snapshot) *meter {
	m := &meter{
		snapshot: snapshot, interval: max(cfg.Length/samples, time.Second), next: Begin(),
		total: amounts{}, used: amounts{}, busy: amounts{}, peak: amounts{},
		on: map[string]int{}, prices: cfg.Cluster.Prices, refused: map[string]*PluginUse{},
	}
	m.r.Policy, m.r.Nodes.Total = cfg.Policy.Name, len(cfg.Cluster.Nodes)
	for _, n := range cfg.Cluster.Nodes {
		r := framework.NewNodeInfo(n).Allocatable
		m.total.add(&r, 1)
	}
	m.typical = typical(cfg.Arrivals)
	m.groupOf, m.groups = cfg.GroupOf, map[string]*group{}
	return m
}

// typical is the median of what the pods ask for, of cpu and memory each by itself.
func typical(all []Arrival) amounts {
	var cpu, memory []int64
	for i := range all {
		r := framework.NewPodInfo(all[i].Pod).Requests
		cpu, memory = append(cpu, r.MilliCPU), append(memory, r.Memory)
	}
	if len(all) == 0 {
		return amounts{}
	}
	slices.Sort(cpu)
	slices.Sort(memory)
	return amounts{corev1.ResourceCPU: float64(cpu[len(cpu)/2]), corev1.ResourceMemory: float64(memory[len(memory)/2])}
}

func (m *meter) came(p *corev1.Pod) {
	m.r.Pods.Arrived++
	m.pending++
	m.count(p, func(g *group) { g.Pods.Arrived++ })
}

func (m *meter) finished(p *corev1.Pod) {
	m.r.Pods.Finished++
	m.count(p, func(g *group) { g.Pods.Finished++ })
}

func (m *meter) evicted(p *corev1.Pod) {
	m.r.Pods.Preempted++
	m.count(p, func(g *group) { g.Pods.Preempted++ })
}

// placed is a pod that has its node after a wait.
func (m *meter) placed(p *corev1.Pod, node string, waited time.Duration) {
	m.pending--
	m.r.Pods.Placed++
	m.waits = append(m.waits, waited)
	m.count(p, func(g *group) { g.Pods.Placed++; g.waits = append(g.waits, waited) })
	m.running(p, node)
}

func (m *meter) running(p *corev1.Pod, node string) {
	r := framework.NewPodInfo(p).Requests
	m.used.add(&r, 1)
	m.count(p, func(g *group) { g.take(&r, 1) })
	for name, n := range m.used {
		m.peak[name] = max(m.peak[name], n)
	}
	if m.on[node]++; m.on[node] == 1 {
		m.nodes++
		m.price += m.prices[node]
		m.r.Nodes.Peak = max(m.r.Nodes.Peak, m.nodes)
	}
}

func (m *meter) ended(p *corev1.Pod, node string) {
	if node == "" { // it never had one
		m.pending--
		return
	}
	r := framework.NewPodInfo(p).Requests
	m.used.add(&r, -1)
	m.count(p, func(g *group) { g.take(&r, -1) })
	if m.on[node]--; m.on[node] == 0 {
		m.nodes--
		m.price -= m.prices[node]
	}
}

// pass: everything stays as it is from one moment to another.
func (m *meter) pass(from, to, end time.Time) {
	if to.After(end) {
		to = end
	}
	for ; !m.next.After(to); m.next = m.next.Add(m.interval) {
		m.sample(m.next.Sub(Begin()))
	}
	s := to.Sub(from).Seconds()
	if s <= 0 {
		return
	}
	m.seconds += s
	for name, n := range m.used {
		m.busy[name] += n * s
	}
	for _, g := range m.groups {
		g.pass(s)
	}
	m.r.Nodes.Hours += float64(m.nodes) * s / 3600
	m.r.Nodes.Cost += m.price * s / 3600
}

// decided counts who refused what, and whose scores decided.
func (m *meter) decided(d *scheduler.Decision) {
	m.r.Tries++
	if d.Nomination != nil && d.Nomination.Node != "" {
		m.r.Preemptions++
	}
	pods := map[string]bool{}
	if d.Whole != nil && d.Whole.Plugin != "" {
		pods[d.Whole.Plugin] = true
	}
	for _, r := range d.Refusals() {
		if d.Standing == "" {
			m.plugin(r.Plugin).RefusedNodes += r.Nodes
		}
		pods[r.Plugin] = true
	}
	if d.Node == "" {
		for name := range pods {
			m.plugin(name).RefusedTries++
		}
		return
	}
	m.swayed(d)
}

// swayed counts the plugins without whose scores another node would have been better.
func (m *meter) swayed(d *scheduler.Decision) {
	chosen := slices.IndexFunc(d.Feasible, func(n *framework.NodeInfo) bool { return n.Node.Name == d.Node })
	totals := make([]int64, len(d.Feasible))
	for _, scores := range d.Scores {
		for i, n := range scores {
			totals[i] += n
		}
	}
	for name, scores := range d.Scores {
		for i := range totals {
			if totals[i]-scores[i] > totals[chosen]-scores[chosen] {
				m.plugin(name).Decided++
				break
			}
		}
	}
}

func (m *meter) plugin(name string) *PluginUse {
	if m.refused[name] == nil {
		m.refused[name] = &PluginUse{Name: name}
	}
	return m.refused[name]
}

// sample looks at all nodes.
func (m *meter) sample(at time.Duration) {
	var free, stranded float64
	var shares []float64
	for _, g := range m.groups {
		g.sample(len(m.r.Series), m.total)
	}
	for _, n := range m.snapshot().Nodes {
		cpu := float64(n.Allocatable.MilliCPU - n.Requested.MilliCPU)
		memory := float64(n.Allocatable.Memory - n.Requested.Memory)
		free += max(cpu, 0)
		if cpu < m.typical[corev1.ResourceCPU] || memory < m.typical[corev1.ResourceMemory] || int64(len(n.Pods)) >= n.Allocatable.Pods {
			stranded += max(cpu, 0)
		}
		if n.Allocatable.MilliCPU > 0 {
			shares = append(shares, float64(n.Requested.MilliCPU)/float64(n.Allocatable.MilliCPU))
		}
	}
	m.r.Series = append(m.r.Series, Sample{
		Hours: round(at.Hours()), CPU: round(share(m.used[corev1.ResourceCPU], m.total[corev1.ResourceCPU])),
		Memory: round(share(m.used[corev1.ResourceMemory], m.total[corev1.ResourceMemory])),
		Nodes:  m.nodes, Pending: m.pending, Stranded: round(share(stranded, free)), Uneven: round(deviation(shares)),
	})
}

func share(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

func deviation(all []float64) float64 {
	var sum, squares float64
	for _, x := range all {
		sum += x
	}
	mean := share(sum, float64(len(all)))
	for _, x := range all {
		squares += (x - mean) * (x - mean)
	}
	return math.Sqrt(share(squares, float64(len(all))))
}

// round to four digits: what lies beyond depends on the order of additions.
func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// result sums up.
func (m *meter) result(pods map[types.UID]*life, end time.Time) *Result {
	r := &m.r
	r.Resources = map[corev1.ResourceName]Use{}
	for name, total := range m.total {
		if total > 0 && (name == corev1.ResourceCPU || name == corev1.ResourceMemory || m.peak[name] > 0) {
			r.Resources[name] = Use{Mean: round(share(m.busy[name], m.seconds*total)), Peak: round(share(m.peak[name], total))}
		}
	}
	for _, s := range r.Series {
		r.Stranded += s.Stranded / float64(len(r.Series))
		r.Uneven += s.Uneven / float64(len(r.Series))
	}
	r.Stranded, r.Uneven = round(r.Stranded), round(r.Uneven)
	r.Nodes.Mean, r.Nodes.Hours, r.Nodes.Cost = round(share(r.Nodes.Hours*3600, m.seconds)), round(r.Nodes.Hours), round(r.Nodes.Cost)
	r.Waiting = waited(m.waits)
	for _, name := range slices.Sorted(maps.Keys(m.refused)) {
		r.Plugins = append(r.Plugins, *m.refused[name])
	}
	r.Zones = zones(m.snapshot())
	m.waiting(pods, end)
	m.sumUpGroups()
	return r
}

// waited sums up how long pods waited.
func waited(all []time.Duration) Waiting {
	slices.Sort(all)
	return Waiting{P50: percentile(all, 50), P90: percentile(all, 90), P99: percentile(all, 99), Longest: percentile(all, 100)}
}

// percentile of sorted durations, in seconds: the smallest one that p of a hundred do not exceed.
func percentile(sorted []time.Duration, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := (len(sorted)*p + 99) / 100
	return round(sorted[max(at, 1)-1].Seconds())
}

// zones is how many pods there are in the fullest zone for each one of a zone's fair share, at the end.
func zones(snap *framework.Snapshot) map[string]int {
	out := map[string]int{}
	for _, n := range snap.Nodes {
		if zone := n.Node.Labels[corev1.LabelTopologyZone]; zone != "" {
			out[zone] += len(n.Pods)
		}
	}
	return out
}

// waiting groups the pods that have no node at the end by what keeps them.
func (m *meter) waiting(pods map[types.UID]*life, end time.Time) {
	count := map[Reason]int{}
	for _, l := range pods {
		if l.gone || !l.bound.IsZero() {
			continue
		}
		m.r.Pods.Pending++
		m.count(l.pod, func(g *group) {
			g.Pods.Pending++
			g.Waiting.Pending = max(g.Waiting.Pending, round(end.Sub(l.arrived).Seconds()))
		})
		m.r.Waiting.Pending = max(m.r.Waiting.Pending, round(end.Sub(l.arrived).Seconds()))
		count[l.reason()]++
	}
	for reason, n := range count {
		reason.Pods = n
		m.r.Pending = append(m.r.Pending, reason)
	}
	slices.SortFunc(m.r.Pending, func(a, b Reason) int {
		return cmp.Or(b.Pods-a.Pods, strings.Compare(a.Plugin, b.Plugin), strings.Compare(a.Reason, b.Reason))
	})
}

// reason why a pod has no node: what most nodes were refused for.
func (l *life) reason() Reason {
	switch {
	case len(l.pod.Spec.SchedulingGates) > 0:
		return Reason{Plugin: "SchedulingGates", Reason: "it has scheduling gates"}
	case l.why.Reason == "":
		return Reason{Reason: "it was not tried: no profile has its schedulerName, or its turn did not come"}
	}
	return l.why
}

// whyNot is the reason of most nodes that a decision left out.
func whyNot(d *scheduler.Decision) Reason {
	if d.Whole != nil {
		return Reason{Plugin: d.Whole.Plugin, Reason: strings.Join(d.Whole.Reasons, ", ")}
	}
	count := map[Reason]int{}
	for _, r := range d.Refusals() {
		count[Reason{Plugin: r.Plugin, Reason: strings.Join(r.Reasons, ", ")}] += r.Nodes
	}
	var most Reason
	for r, n := range count {
		if n > count[most] || n == count[most] && cmp.Or(strings.Compare(r.Plugin, most.Plugin), strings.Compare(r.Reason, most.Reason)) < 0 {
			most = r
		}
	}
	return most
}
