// SPDX-License-Identifier: Apache-2.0

// The gpu-fragmentation plugin keeps GPUs usable: it prefers the node on which a pod adds the
// least to the GPUs that the workloads of the cluster, a mix that the settings name, could
// not use. The idea is that of fragmentation gradient descent (Weng et al., "Beware of
// Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
// USENIX ATC 2023), for whole GPUs.
package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

// workload is one kind of pod that the cluster has to expect.
type workload struct {
	gpus, milliCPU, memory int64
	share                  float64 // of all pods with GPUs; they add up to 1
}

// room is what a node has left.
type room struct{ gpus, milliCPU, memory int64 }

const mostWorkloads = 32

var (
	resource = "nvidia.com/gpu"
	mix      = []workload{{gpus: 1, share: 0.25}, {gpus: 2, share: 0.25}, {gpus: 4, share: 0.25}, {gpus: 8, share: 0.25}}
)

func settings(s wasmplane.Value) error {
	if r := s.Get("resource"); r.Exists() {
		if resource = r.String(); resource == "" {
			return errors.New("resource: expected the name of an extended resource, such as nvidia.com/gpu")
		}
	}
	list := s.Get("workloads")
	if !list.Exists() {
		return nil
	}
	if n := list.Len(); n < 1 || n > mostWorkloads {
		return fmt.Errorf("workloads: found %d, expected 1 to %d", n, mostWorkloads)
	}
	mix = nil
	sum := 0.0
	for i := range list.Len() {
		w, err := parseWorkload(list.At(i))
		if err != nil {
			return fmt.Errorf("workloads[%d].%w", i, err)
		}
		sum += w.share
		mix = append(mix, w)
	}
	for i := range mix {
		mix[i].share /= sum
	}
	return nil
}

func parseWorkload(v wasmplane.Value) (w workload, err error) {
	if w.gpus = v.Get("gpus").Int(); w.gpus < 1 || w.gpus > 1024 || float64(w.gpus) != v.Get("gpus").Float() {
		return w, errors.New("gpus: expected a whole number from 1 to 1024")
	}
	w.share = 1
	if share := v.Get("share"); share.Exists() {
		if w.share = share.Float(); !(w.share > 0 && w.share <= 1e6) {
			return w, errors.New("share: expected a number above 0, up to a million; shares are relative to each other")
		}
	}
	cpu, err := quantity(v.Get("cpu"))
	if err != nil {
		return w, fmt.Errorf("cpu: %w", err)
	}
	memory, err := quantity(v.Get("memory"))
	if err != nil {
		return w, fmt.Errorf("memory: %w", err)
	}
	w.milliCPU, w.memory = int64(math.Ceil(cpu*1000)), int64(math.Ceil(memory))
	return w, nil
}

var suffixes = map[string]float64{
	"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// quantity reads a number, or a quantity as in a pod's requests; 0 where there is none.
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

// fragmentation is how many of a node's free GPUs a pod of the mix could not use, as it is to be
// expected: those that are left when as many pods of a workload are there as there is room for.
// Where it does not fit at all these are all of them.
func (r room) fragmentation() (expected float64) {
	for i := range mix {
		w := &mix[i]
		fit := r.gpus / w.gpus
		if w.milliCPU > 0 {
			fit = min(fit, r.milliCPU/w.milliCPU)
		}
		if w.memory > 0 {
			fit = min(fit, r.memory/w.memory)
		}
		expected += w.share * float64(r.gpus-fit*w.gpus)
	}
	return expected
}

func columns() (nodes, pod []wasmplane.Column) {
	scalar := "scalar[" + strconv.Quote(resource) + "]"
	for _, of := range []string{scalar, "milliCPU", "memory"} {
		nodes = append(nodes, wasmplane.Column{Path: "allocatable." + of, Type: wasmplane.Int},
			wasmplane.Column{Path: "requested." + of, Type: wasmplane.Int})
		pod = append(pod, wasmplane.Column{Path: "requests." + of, Type: wasmplane.Int})
	}
	return nodes, pod
}

const width = 6

// judgeAll scores by what the pod adds: 100 where that is the least of all nodes with room, 0 where it is
// the most. Filtering is the scheduler's own.
func judgeAll(pod, nodes []int64, out []wasmplane.Judgement) {
	added := make([]float64, len(out))
	least, most := math.Inf(1), math.Inf(-1)
	for i := range out {
		n := nodes[i*width : (i+1)*width]
		free := room{max(n[0]-n[1], 0), max(n[2]-n[3], 0), max(n[4]-n[5], 0)}
		if pod[0] > free.gpus || pod[1] > free.milliCPU || pod[2] > free.memory {
			added[i] = math.NaN() // no room
			continue
		}
		after := room{free.gpus - pod[0], free.milliCPU - pod[1], free.memory - pod[2]}
		added[i] = after.fragmentation() - free.fragmentation()
		least, most = min(least, added[i]), max(most, added[i])
	}
	for i, a := range added {
		switch {
		case math.IsNaN(a):
			out[i] = wasmplane.Fits(0)
		case most-least < 1e-9:
			out[i] = wasmplane.Fits(100)
		default:
			out[i] = wasmplane.Fits(int64(100*(most-a)/(most-least) + 0.5))
		}
	}
}

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "gpu-fragmentation", Version: "1.0.0", Settings: settings,
	Table: &wasmplane.Table{ColumnsFunc: columns, JudgeAll: judgeAll},
})

func main() {}
