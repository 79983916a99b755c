// SPDX-License-Identifier: Apache-2.0

// The fair-shares plugin divides a cluster among queues, one for each team. A queue has a
// share of the cluster, borrows what others leave unused, and gives it back when they need it: pods
// beyond their queue's share then make room, the least important first and gangs whole. The queue that
// has the least of its share, by its dominant resource, goes first (Ghodsi et al., "Dominant Resource
// Fairness", NSDI 2011).
//
// This file decides; settings.go reads the settings.
package main

import (
	"fmt"
	"sort"
	"strconv"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

// amount reads one of the shared resources of an object of amounts, such as requests.
func amount(v wasmplane.Value, r resource) int64 {
	if r.scalar {
		return v.Get("scalar").Get(r.field).Int()
	}
	return v.Get(r.field).Int()
}

// cluster is what there is to be shared, by resource: what pods of no queue have is not.
type cluster struct {
	there []int64
	// parts of what the quotas promise that there is, at most 1: where they promise more, all are
	// reduced in proportion. Nil with weights.
	parts []float64
}

func look(in wasmplane.Input) cluster {
	total, others := in.Get("total"), in.Get("others").Get("requested")
	c := cluster{there: make([]int64, len(resources))}
	for i, r := range resources {
		c.there[i] = max(amount(total, r)-amount(others, r), 0)
	}
	if weights > 0 {
		return c
	}
	c.parts = make([]float64, len(resources))
	for i := range resources {
		var promised int64
		for q := range queues {
			promised += queues[q].quota[i]
		}
		if c.parts[i] = 1; promised > c.there[i] {
			c.parts[i] = float64(c.there[i]) / float64(promised)
		}
	}
	return c
}

// share of a queue, of one resource.
func (c *cluster) share(q *queue, i int) int64 {
	if weights > 0 {
		return int64(float64(c.there[i]) * q.weight / weights)
	}
	return int64(float64(q.quota[i]) * c.parts[i])
}

// most is what a queue can have of a resource at all.
func (c *cluster) most(q *queue, i int) int64 {
	if q.limit[i] >= 0 {
		return min(q.limit[i], c.there[i])
	}
	return c.there[i]
}

// has is what a queue has of a resource, with what it was promised.
func has(usage wasmplane.Value, r resource) int64 {
	return amount(usage.Get("requested"), r) + amount(usage.Get("promised"), r)
}

// whole is what a pod asks for, or its gang as far as it has no nodes.
func whole(in wasmplane.Input) (what string, requests wasmplane.Value) {
	if gang := in.Get("gang"); gang.Get("name").String() != "" {
		return "gang " + gang.Get("name").String(), gang.Get("requests")
	}
	return "the pod", in.Get("requests")
}

func queueOf(in wasmplane.Input) *queue {
	if at, known := byName[in.Get("group").String()]; known {
		return &queues[at]
	}
	return nil
}

// admit refuses what no queue takes, what its queue can never have, and what is beyond its limit.
func admit(in wasmplane.Input, out *wasmplane.Selection) {
	q := queueOf(in)
	if q == nil {
		out.Never(nobodys(in))
		return
	}
	c := look(in)
	what, all := whole(in)
	for i, r := range resources {
		most := c.most(q, i)
		if asks := amount(all, r); asks > most {
			out.Never(fmt.Sprintf("%s needs %s %s, and queue %s can never have more than %s", what, r.text(asks), r.name, q.name, r.text(most)))
			return
		}
	}
	usage, requests := in.Get("usage"), in.Get("requests")
	for i, r := range resources {
		had, asks := has(usage, r), amount(requests, r)
		if most := c.most(q, i); q.limit[i] >= 0 && asks > 0 && had+asks > most {
			out.Refuse(fmt.Sprintf("queue %s has %s of at most %s %s", q.name, r.text(had), r.text(most), r.name))
			return
		}
	}
}

// nobodys says why a pod is in no queue.
func nobodys(in wasmplane.Input) string {
	if label == "" {
		return fmt.Sprintf(
			"namespace %s belongs to no queue (the settings of fair-shares have %s)",
			in.Get("pod.metadata.namespace").String(),
			known(),
		)
	}
	value := in.Get("pod.metadata.labels").Get(label)
	if !value.Exists() {
		return fmt.Sprintf("the pod has no label %s, which names its queue (the settings of fair-shares have %s)", label, known())
	}
	return fmt.Sprintf("label %s=%s names no queue (the settings of fair-shares have %s)", label, value.String(), known())
}

// rank of a queue: the one that has the least of its share goes first.
func rank(in wasmplane.Input) int64 {
	q := queueOf(in)
	if q == nil {
		return 0 // it is refused, and takes nobody's time
	}
	c := look(in)
	return -int64(dominant(q, &c, in.Get("usage").Get("requested")) * scale)
}

const scale = 1e6

// dominant is what a queue has of its share, of the resource of which that is the most; 1 is all of it.
func dominant(q *queue, c *cluster, requested wasmplane.Value) (most float64) {
	for i, r := range resources {
		used, share := amount(requested, r), c.share(q, i)
		switch {
		case used <= 0:
		case share <= 0:
			most = max(most, scale)
		default:
			most = max(most, min(float64(used)/float64(share), scale))
		}
	}
	return most
}

// makeRoom says who makes room: for what fits into its queue's share, what other queues have beyond
// theirs; for anything, what is less important in its own queue.
func makeRoom(in wasmplane.Input, out *wasmplane.Nomination) {
	q := queueOf(in)
	if q == nil {
		return
	}
	c := look(in)
	_, asked := whole(in)
	out.ReclaimBelow(q.name, in.Get("pod.spec.priority").Int())
	for i, r := range resources {
		asks := amount(asked, r)
		if had := has(in.Get("usage"), r); asks > 0 && had+asks > c.share(q, i) {
			return // it would borrow: nobody makes room for that
		}
	}
	for _, lender := range borrowers(in, q, &c) {
		keep := wasmplane.Amounts{}
		for i, r := range resources {
			keep[r.field] = c.share(lender, i)
		}
		out.Reclaim(lender.name, keep)
	}
}

// borrowers are the other queues that have more than their share, those with the most of it last.
func borrowers(in wasmplane.Input, but *queue, c *cluster) []*queue {
	type one struct {
		q    *queue
		have float64
	}
	var found []one
	groups := in.Get("groups")
	for at := range queues {
		q := &queues[at]
		if have := dominant(q, c, groups.Get(q.name).Get("requested")); q != but && have > 1 {
			found = append(found, one{q, have})
		}
	}
	sort.SliceStable(found, func(i, j int) bool { return found[i].have < found[j].have })
	out := make([]*queue, len(found))
	for i := range found {
		out[i] = found[i].q
	}
	return out
}

// text of an amount, in the unit that people write.
func (r resource) text(n int64) string {
	switch r.field {
	case milliCPU:
		return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	case "memory", "ephemeralStorage":
		return strconv.FormatFloat(float64(n*10>>30)/10, 'f', -1, 64) + "Gi"
	}
	return strconv.FormatInt(n, 10)
}

var counted = []string{"group", "usage", "others", "total"}

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "fair-shares", Version: "1.0.0", Settings: settings, Groups: groups,
	QueueSort: &wasmplane.QueueSort{Fields: counted, Rank: rank},
	PreFilter: &wasmplane.PreFilter{
		Fields: append([]string{"pod.metadata.namespace", "pod.metadata.labels", "requests", "gang"}, counted...),
		Events: []wasmplane.Event{"podRemoved", "nodeAdded", "nodeAllocatableGrew"}, Pure: true, Decide: admit,
	},
	PostFilter: &wasmplane.PostFilter{
		Fields: append([]string{"pod.spec.priority", "requests", "gang", "groups"}, counted...), Pure: true, Decide: makeRoom,
	},
})

func main() {}
