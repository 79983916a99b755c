// SPDX-License-Identifier: Apache-2.0

package schedwasm

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// session is what the guest of one instance can ask for now, and what it has answered.
type session struct {
	pod, target []byte // protobuf
	node        string
	snapshot    *framework.Snapshot
	filtered    []*framework.NodeInfo
	scores      map[string]int64
	statuses    map[string]int32

	answer answer
}

// answer is what a guest sets besides its status.
type answer struct {
	reason     string
	names      []string
	events     framework.ClusterEvent
	nominated  string
	normalized map[string]int64
}

func sessionOf(in *host.Instance) *session {
	s, _ := in.Data().(*session)
	if s == nil {
		s = &session{}
		in.SetData(s)
	}
	return s
}

// exports are the points at which a guest takes part, with what they answer.
var exports = map[string]string{
	"enqueue": "", "unreserve": "", "postbind": "",
	"prefilter": "i32", "filter": "i32", "prescore": "i32", "normalizescore": "i32", "reserve": "i32",
	"prebind": "i32", "bind": "i32", "addpod": "i32", "removepod": "i32",
	"score": "i64", "postfilter": "i64", "permit": "i64",
}

// ABI is how such modules are run.
func (g *Guest) ABI() *host.ABI {
	return &host.ABI{
		Name: "kube-scheduler-wasm", Imports: g.imports(),
		Start: func(in *host.Instance) error {
			for _, name := range []string{"_start", "_initialize"} {
				if in.Has(name) {
					return in.Start(name)
				}
			}
			return nil
		},
		Check: func(found map[string]host.FuncType) error {
			useful := false
			for name, result := range exports {
				got, ok := found[name]
				if !ok {
					continue
				}
				want := host.NewFuncType(0)
				if result != "" {
					want = host.NewFuncType(0, result)
				}
				if !got.Equal(want) {
					return fmt.Errorf("the exported function %s is %s: expected %s", name, got, want)
				}
				useful = true
			}
			if !useful {
				return errors.New("the module exports no function of a scheduling point (filter, score, ...)")
			}
			return nil
		},
	}
}

const (
	moduleAPI       = "k8s.io/api"
	moduleScheduler = "k8s.io/scheduler"
	moduleKlog      = "k8s.io/klog"
)

// give writes b where it fits, and answers its length; a guest whose buffer is too small asks again.
func give(in *host.Instance, b []byte, at, limit uint32) uint32 {
	if uint64(len(b)) <= uint64(limit) {
		in.Put(at, b)
	}
	return uint32(len(b))
}

func (g *Guest) imports() []host.Import {
	get := func(module, name string, of func(in *host.Instance, s *session) []byte) host.Import {
		return host.Import{Module: module, Name: name, Params: 2, Result: true, Cost: 100, Run: func(in *host.Instance, p []uint32) uint32 {
			return give(in, of(in, sessionOf(in)), p[0], p[1])
		}}
	}
	named := func(module, name string, of func(s *session, name string) []byte) host.Import {
		return host.Import{Module: module, Name: name, Params: 4, Result: true, Cost: 100, Run: func(in *host.Instance, p []uint32) uint32 {
			return give(in, of(sessionOf(in), string(in.Bytes(p[0], min(p[1], longestName)))), p[2], p[3])
		}}
	}
	set := func(name string, take func(in *host.Instance, a *answer, b []byte)) host.Import {
		return host.Import{Module: moduleScheduler, Name: name, Params: 2, Cost: 100, Run: func(in *host.Instance, p []uint32) uint32 {
			in.Output(p[1])
			take(in, &sessionOf(in).answer, in.Bytes(p[0], p[1]))
			return 0
		}}
	}
	// What concerns waiting pods answers no length, unlike the rest: upstream's contract has it so.
	// What is longer than the guest's buffer is not written, and the guest cannot know.
	waiting := func(name string, of func(uid string) []byte) host.Import {
		return host.Import{Module: moduleScheduler, Name: name, Params: 4, Cost: 100, Run: func(in *host.Instance, p []uint32) uint32 {
			give(in, of(string(in.Bytes(p[0], min(p[1], longestName)))), p[2], p[3])
			return 0
		}}
	}
	return []host.Import{
		named(moduleAPI, "node", func(s *session, name string) []byte {
			if s.snapshot == nil || s.snapshot.Node(name) == nil {
				return nil
			}
			return g.encoded(s.snapshot.Node(name).Node)
		}),
		get(moduleAPI, "nodeList", func(_ *host.Instance, s *session) []byte { return g.nodeList(s.snapshot) }),
		get(moduleScheduler, "get_config", func(*host.Instance, *session) []byte { return g.cfg.Config }),
		get(moduleScheduler, "currentNodeName", func(_ *host.Instance, s *session) []byte { return []byte(s.node) }),
		get(moduleScheduler, "currentPod", func(_ *host.Instance, s *session) []byte { return s.pod }),
		get(moduleScheduler, "targetPod", func(_ *host.Instance, s *session) []byte { return s.target }),
		get(moduleScheduler, "filteredNodeList", func(_ *host.Instance, s *session) []byte { return encode(names(s.filtered)) }),
		get(moduleScheduler, "nodeScoreList", func(_ *host.Instance, s *session) []byte { return encode(s.scores) }),
		get(moduleScheduler, "nodeToStatusMap", func(_ *host.Instance, s *session) []byte { return encode(s.statuses) }),
		named(moduleScheduler, "nodeImageStates", imageStates),
		set("result.status_reason", func(_ *host.Instance, a *answer, b []byte) { a.reason = string(b) }),
		set("result.node_names", func(_ *host.Instance, a *answer, b []byte) { a.names = terminated(b) }),
		set("result.cluster_events", func(_ *host.Instance, a *answer, b []byte) { a.events = clusterEvents(b) }),
		set("result.nominated_node_name", func(_ *host.Instance, a *answer, b []byte) { a.nominated = string(b) }),
		set("result.normalized_score_list", func(in *host.Instance, a *answer, b []byte) {
			a.normalized = nil
			if err := json.Unmarshal(b, &a.normalized); err != nil {
				in.Fail(host.Refused, "result.normalized_score_list: a map of node names to scores was expected: %v", err)
			}
		}),
		set("handle.eventrecorder.eventf", g.event),
		waiting("handle.reject_waiting_pod", func(uid string) []byte {
			var b [8]byte
			if g.reject(uid) {
				b[0] = 1
			}
			return b[:]
		}),
		waiting("handle.get_waiting_pod", func(uid string) []byte {
			if pod := g.waitingPod(uid); pod != nil {
				return pod
			}
			return make([]byte, 8)
		}),
		{Module: moduleKlog, Name: "log", Params: 3, Cost: 100, Run: func(in *host.Instance, p []uint32) uint32 {
			in.Print(severities[min(p[0], 3)] + string(in.Bytes(p[1], min(p[2], longestLog))))
			return 0
		}},
		{Module: moduleKlog, Name: "logs", Params: 5, Cost: 100, Run: func(in *host.Instance, p []uint32) uint32 {
			var text strings.Builder
			text.WriteString(severities[min(p[0], 3)])
			text.Write(in.Bytes(p[1], min(p[2], longestLog)))
			pairs := strings.Split(strings.TrimSuffix(string(in.Bytes(p[3], min(p[4], longestLog))), "\x00"), "\x00")
			in.Charge(int64(16 * len(pairs)))
			for i := 0; i+1 < len(pairs); i += 2 {
				text.WriteString(" " + pairs[i] + "=" + pairs[i+1])
			}
			in.Print(text.String())
			return 0
		}},
		{Module: moduleKlog, Name: "severity", Result: true, Cost: 10, Run: func(*host.Instance, []uint32) uint32 { return 0 }},
	}
}

// Bounds of what a guest passes.
const (
	longestName = 256
	longestLog  = 4 << 10
)

var severities = [...]string{"", "warning: ", "error: ", "fatal: "}

// encode writes what cannot fail to be written: names and numbers.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("null")
	}
	return b
}

func names(nodes []*framework.NodeInfo) []string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = n.Node.Name
	}
	return out
}

// imageStates are sizes of the images on a node, and on how many nodes each is.
func imageStates(s *session, name string) []byte {
	type state struct{ Size, NumNodes int64 }
	out := map[string]state{}
	if s.snapshot != nil {
		if n := s.snapshot.Node(name); n != nil {
			for image, size := range n.ImageSizes {
				out[image] = state{size, int64(s.snapshot.ImageNodes[image])}
			}
		}
	}
	return encode(out)
}

// terminated reads texts that each end in a zero byte.
func terminated(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// resources are kinds whose events may help, by the names that guests write.
var resources = map[string]framework.ClusterEvent{
	"Pod": framework.PodRemoved | framework.PodBound | framework.PodShrank | framework.PodChanged,
	"Node": framework.NodeAdded | framework.NodeRemoved | framework.NodeAllocatableGrew |
		framework.NodeLabelsChanged | framework.NodeTaintsChanged,
	"PersistentVolume":            framework.VolumesChanged,
	"PersistentVolumeClaim":       framework.VolumesChanged,
	"StorageClass":                framework.VolumesChanged,
	"storage.k8s.io/StorageClass": framework.VolumesChanged,
}

// clusterEvents reads resources, each a text that ends in a zero byte with four bytes
// of actions behind it. Which action does not matter: to be asked once too often
// is no harm. What is not understood is any event.
func clusterEvents(b []byte) framework.ClusterEvent {
	var all framework.ClusterEvent
	for len(b) > 0 {
		// Nothing is copied: a guest writes as many as its output may be long.
		name, rest, ok := bytes.Cut(b, []byte{0})
		e, known := resources[string(name)]
		if !ok || !known || len(rest) < 4 {
			return framework.AnyEvent
		}
		all |= e
		b = rest[4:]
	}
	if all == 0 {
		return framework.AnyEvent
	}
	return all | framework.PodChanged
}

// event records an event, where the entry grants it.
func (g *Guest) event(in *host.Instance, _ *answer, b []byte) {
	type reference struct{ APIVersion, Kind, Namespace, Name, UID string }
	_, err := in.Ask(func(ctx context.Context, payload []byte) ([]byte, error) {
		var q struct {
			RegardingReference      reference
			Eventtype, Reason, Note string
		}
		if err := json.Unmarshal(payload, &q); err != nil {
			return nil, err
		}
		e := hostfn.EventRequest{Type: q.Eventtype, Reason: q.Reason, Message: q.Note}
		r := q.RegardingReference
		if r.APIVersion == "" {
			r.APIVersion = "v1"
		}
		e.Regarding.APIVersion, e.Regarding.Kind = r.APIVersion, r.Kind
		e.Regarding.Namespace, e.Regarding.Name, e.Regarding.UID = r.Namespace, r.Name, r.UID
		return nil, g.cfg.Caller.RecordEvent(ctx, e)
	}, b)
	if err != nil { // the guest has no way to hear of it
		in.Print("an event could not be recorded: " + err.Error())
	}
}

// encoded is a node as protobuf, encoded once while it does not change.
func (g *Guest) encoded(n *corev1.Node) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e, ok := g.nodes[n.Name]; ok && e.node == n {
		return e.bytes
	}
	b, err := n.Marshal()
	if err != nil {
		return nil
	}
	if g.nodes == nil || len(g.nodes) > mostNodes {
		g.nodes = map[string]encodedNode{}
	}
	g.nodes[n.Name] = encodedNode{n, b}
	return b
}

type encodedNode struct {
	node  *corev1.Node
	bytes []byte
}

// mostNodes bounds the encodings that are kept of nodes, gone ones among them.
const mostNodes = 20_000

// nodeList is all nodes as a NodeList in protobuf: put together from the nodes'
// own encodings, once for each state of the cluster.
func (g *Guest) nodeList(s *framework.Snapshot) []byte {
	if s == nil {
		return nil
	}
	g.listing.Lock()
	defer g.listing.Unlock()
	if g.list != nil && g.listOf == [2]int64{s.Generation, s.NodesGeneration} {
		return g.list
	}
	out := []byte{1<<3 | 2, 0} // metadata, empty
	for _, n := range s.Nodes {
		b := g.encoded(n.Node)
		out = append(out, 2<<3|2)
		out = append(binary.AppendUvarint(out, uint64(len(b))), b...)
	}
	g.list, g.listOf = out, [2]int64{s.Generation, s.NodesGeneration}
	return out
}
