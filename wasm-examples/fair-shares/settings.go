// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

// queue is a team's part of the cluster.
type queue struct {
	name   string
	weight float64 // of its share, relative to the others; 0 with quotas
	quota  []int64 // by resource; nil with weights
	limit  []int64 // that it can have with what it borrows; -1 = none
}

// resource that is shared: its name in pods' requests, and the one in documents of the scheduler.
type resource struct {
	name, field string
	scalar      bool // it stands among the extended resources
}

var (
	queues     []queue
	byName     = map[string]int{}
	members    = map[string]string{} // queues by namespace or label value
	resources  []resource
	weights    float64 // the sum; 0 with quotas
	label      string  // "" = namespaces name the queue
	defaultsTo string  // the queue of pods that name none; "" = they are refused
)

const (
	mostQueues    = 200
	mostResources = 16
	milliCPU      = "milliCPU"
)

func settings(s wasmplane.Value) error {
	label, defaultsTo = s.Get("label").String(), s.Get("default").String()
	list := s.Get("queues")
	if n := list.Len(); n < 1 || n > mostQueues {
		return fmt.Errorf("queues: found %d, expected 1 to %d", n, mostQueues)
	}
	if err := shared(s); err != nil {
		return err
	}
	for i := range list.Len() {
		if err := addQueue(list.At(i)); err != nil {
			return fmt.Errorf("queues[%d]: %w", i, err)
		}
	}
	for i := range queues {
		if (queues[i].quota == nil) != (queues[0].quota == nil) {
			return fmt.Errorf("queues[%d]: all queues have a quota, or all have a weight", i)
		}
		weights += queues[i].weight
	}
	if _, there := byName[defaultsTo]; defaultsTo != "" && !there {
		return fmt.Errorf("default: no queue is named %q; there are %s", defaultsTo, known())
	}
	return nil
}

// shared finds out which resources are shared: those of the setting, else all that a quota or a limit
// names, else cpu and memory.
func shared(s wasmplane.Value) error {
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			resources = append(resources, resourceOf(name))
		}
	}
	for i := range s.Get("resources").Len() {
		add(s.Get("resources").At(i).String())
	}
	if len(resources) == 0 {
		for i := range s.Get("queues").Len() {
			for _, of := range []string{"quota", "limit"} {
				amounts := s.Get("queues").At(i).Get(of)
				for j := range amounts.Len() {
					name, _ := amounts.Entry(j)
					add(name)
				}
			}
		}
		if weighed(s) {
			add("cpu")
			add("memory")
		}
	}
	if n := len(resources); n < 1 || n > mostResources {
		return fmt.Errorf("resources: found %d, expected 1 to %d", n, mostResources)
	}
	return nil
}

func weighed(s wasmplane.Value) bool { return !s.Get("queues").At(0).Get("quota").Exists() }

func resourceOf(name string) resource {
	switch name {
	case "cpu":
		return resource{name, milliCPU, false}
	case "memory", "pods":
		return resource{name, name, false}
	case "ephemeral-storage":
		return resource{name, "ephemeralStorage", false}
	}
	return resource{name, name, true}
}

func addQueue(v wasmplane.Value) error {
	q := queue{name: v.Get("name").String()}
	if q.name == "" {
		return errors.New("name: a queue needs one")
	}
	if _, twice := byName[q.name]; twice {
		return fmt.Errorf("name: two queues are named %q", q.name)
	}
	var err error
	if quota := v.Get("quota"); quota.Exists() {
		if v.Get("weight").Exists() {
			return errors.New("it has a quota and a weight; expected one of them")
		}
		if q.quota, err = amounts(quota, 0); err != nil {
			return fmt.Errorf("quota: %w", err)
		}
	} else if q.weight = v.Get("weight").Float(); !v.Get("weight").Exists() {
		q.weight = 1
	} else if !(q.weight > 0 && q.weight <= 1e6) {
		return errors.New("weight: expected a number above 0, up to a million; weights are relative to each other")
	}
	if q.limit, err = amounts(v.Get("limit"), -1); err != nil {
		return fmt.Errorf("limit: %w", err)
	}
	for i, r := range resources {
		if q.quota != nil && q.limit[i] >= 0 && q.limit[i] < q.quota[i] {
			return fmt.Errorf("limit: %s of %s is less than the quota, %s", r.text(q.limit[i]), r.name, r.text(q.quota[i]))
		}
	}
	who := v.Get("members").Strings()
	if len(who) == 0 {
		who = []string{q.name}
	}
	for _, m := range who {
		if other, taken := members[m]; taken {
			return fmt.Errorf("members: %q belongs to queue %s", m, other)
		}
		members[m] = q.name
	}
	byName[q.name] = len(queues)
	queues = append(queues, q)
	return nil
}

// amounts by resource; absent is that of what is not named.
func amounts(v wasmplane.Value, absent int64) ([]int64, error) {
	out := make([]int64, len(resources))
	for i := range out {
		out[i] = absent
	}
	for j := range v.Len() {
		name, value := v.Entry(j)
		at := -1
		for i, r := range resources {
			if r.name == name {
				at = i
			}
		}
		if at < 0 {
			return nil, fmt.Errorf("%s is not among the shared resources, which the setting resources names", name)
		}
		n, err := quantity(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if resources[at].field == milliCPU {
			n *= 1000
		}
		out[at] = int64(n)
	}
	return out, nil
}

var suffixes = map[string]float64{
	"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// quantity reads a number, or a quantity as in a pod's requests.
func quantity(v wasmplane.Value) (float64, error) {
	text := v.String()
	if text == "" {
		text = strconv.FormatFloat(v.Float(), 'f', -1, 64)
	}
	number := strings.TrimRight(text, "mkMGTi")
	f, err := strconv.ParseFloat(number, 64)
	unit, known := suffixes[text[len(number):]]
	if err != nil || !known || !(f >= 0 && f*unit <= 1<<50) {
		return 0, fmt.Errorf("found %q, expected a quantity such as 8, 500m or 64Gi", text)
	}
	return f * unit, nil
}

// known names the queues, for people.
func known() string {
	const shown = 8
	var names []string
	for i := range queues {
		if i == shown {
			names = append(names, fmt.Sprintf("%d more", len(queues)-shown))
			break
		}
		names = append(names, queues[i].name)
	}
	return strings.Join(names, ", ")
}

// groups is how the host tells the queues' pods apart.
func groups() *wasmplane.Groups {
	if len(queues) == 0 {
		return nil
	}
	of := "pod.metadata.namespace"
	if label != "" {
		of = "pod.metadata.labels[" + strconv.Quote(label) + "]"
	}
	return &wasmplane.Groups{Of: of, Names: members, Other: defaultsTo}
}
