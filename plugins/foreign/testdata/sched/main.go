// A plugin of kube-scheduler-wasm-extension, written against its contract alone.
// What it does is said by its configuration. Each answer tells what the guest saw,
// so that a test can look at it.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"unsafe"
)

//go:wasmimport k8s.io/api node
func apiNode(name unsafe.Pointer, n uint32, buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/api nodeList
func apiNodeList(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler get_config
func getConfig(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler currentNodeName
func currentNodeName(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler currentPod
func currentPod(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler targetPod
func targetPod(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler filteredNodeList
func filteredNodeList(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler nodeScoreList
func nodeScoreList(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler nodeToStatusMap
func nodeToStatusMap(buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler nodeImageStates
func nodeImageStates(name unsafe.Pointer, n uint32, buf unsafe.Pointer, limit uint32) uint32

//go:wasmimport k8s.io/scheduler result.status_reason
func setReason(p unsafe.Pointer, n uint32)

//go:wasmimport k8s.io/scheduler result.node_names
func setNodeNames(p unsafe.Pointer, n uint32)

//go:wasmimport k8s.io/scheduler result.cluster_events
func setClusterEvents(p unsafe.Pointer, n uint32)

//go:wasmimport k8s.io/scheduler result.nominated_node_name
func setNominated(p unsafe.Pointer, n uint32)

//go:wasmimport k8s.io/scheduler result.normalized_score_list
func setNormalized(p unsafe.Pointer, n uint32)

//go:wasmimport k8s.io/scheduler handle.eventrecorder.eventf
func eventf(p unsafe.Pointer, n uint32)

//go:wasmimport k8s.io/scheduler handle.reject_waiting_pod
func rejectWaitingPod(uid unsafe.Pointer, n uint32, buf unsafe.Pointer, limit uint32)

//go:wasmimport k8s.io/scheduler handle.get_waiting_pod
func getWaitingPod(uid unsafe.Pointer, n uint32, buf unsafe.Pointer, limit uint32)

//go:wasmimport k8s.io/klog log
func klog(severity uint32, p unsafe.Pointer, n uint32)

//go:wasmimport k8s.io/klog logs
func klogs(severity uint32, msg unsafe.Pointer, n uint32, kvs unsafe.Pointer, m uint32)

//go:wasmimport k8s.io/klog severity
func klogSeverity() uint32

const (
	success = iota
	fault
	unschedulable
	unresolvable
	wait
	skip
)

type config struct {
	Narrow    []string
	Avoid     string // nodes with this in their object
	Prefer    string
	Normalize bool
	Nominate  string
	WaitMS    uint32
	Reject    string // UID of a waiting pod
	RejectBy  string // UID of the pod during whose permit it is rejected
	Refuse    string // export that refuses
	Trap      string // export that ends badly
	Loop      string // export that does not end
}

var (
	cfg   config
	trace []string // of this instance
)

func at(s string) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.StringData(s)), uint32(len(s))
}

// read asks with a buffer that is too small first.
func read(of func(buf unsafe.Pointer, limit uint32) uint32) []byte {
	small := make([]byte, 4)
	n := of(unsafe.Pointer(&small[0]), 4)
	if n <= 4 {
		return small[:n]
	}
	if !bytes.Equal(small, make([]byte, 4)) {
		panic("something was written where it did not fit")
	}
	b := make([]byte, n)
	if of(unsafe.Pointer(&b[0]), n) != n {
		panic("the length has changed")
	}
	return b
}

func reason(format string, args ...any) { setReason(at(fmt.Sprintf(format, args...))) }

func main() {}

func init() {
	if text := read(getConfig); len(text) > 0 {
		if err := json.Unmarshal(text, &cfg); err != nil {
			panic(err)
		}
	}
	klog(klogSeverity(), unsafe.Pointer(unsafe.StringData("hello")), 5)
}

func nodeOf(name string) []byte {
	p, n := at(name)
	return read(func(buf unsafe.Pointer, limit uint32) uint32 { return apiNode(p, n, buf, limit) })
}

// enter is what every export does first.
func enter(export string) uint32 {
	trace = append(trace, export)
	switch export {
	case cfg.Trap:
		panic("as configured")
	case cfg.Loop:
		for {
		}
	case cfg.Refuse:
		reason("refused at %s after %s", export, strings.Join(trace, ","))
		return unschedulable
	}
	return success
}

//go:wasmexport enqueue
func enqueue() {
	p, n := at("Node\x00\x01\x00\x00\x00")
	setClusterEvents(p, n)
}

//go:wasmexport prefilter
func prefilter() uint32 {
	trace = nil // guests forget the pod before
	if len(cfg.Narrow) > 0 {
		setNodeNames(at(strings.Join(cfg.Narrow, "\x00") + "\x00"))
	}
	if !bytes.Contains(read(currentPod), []byte("web")) {
		reason("no pod")
		return fault
	}
	return enter("prefilter")
}

//go:wasmexport addpod
func addpod() uint32 { reason("added %d bytes", len(read(targetPod))); return unschedulable }

//go:wasmexport removepod
func removepod() uint32 { return enter("removepod") }

//go:wasmexport filter
func filter() uint32 {
	name := string(read(currentNodeName))
	node := nodeOf(name)
	if cfg.Avoid != "" && bytes.Contains(node, []byte(cfg.Avoid)) {
		reason("node %s has %s, seen after %s", name, cfg.Avoid, strings.Join(trace, ","))
		return unschedulable
	}
	if nodes := read(apiNodeList); !bytes.Contains(nodes, node) || nodes[0] != 10 {
		reason("the list of nodes lacks %s", name)
		return fault
	}
	return enter("filter")
}

//go:wasmexport postfilter
func postfilter() uint64 {
	if cfg.Nominate == "" {
		return uint64(unschedulable)
	}
	statuses := read(nodeToStatusMap)
	if !bytes.Contains(statuses, []byte(`"n1":2`)) {
		reason("statuses %s", statuses)
		return fault
	}
	setNominated(at(cfg.Nominate))
	return 1<<32 | success
}

//go:wasmexport prescore
func prescore() uint32 {
	if list := string(read(filteredNodeList)); list != `["n1","n2"]` {
		reason("filtered %s", list)
		return fault
	}
	return enter("prescore")
}

//go:wasmexport score
func score() uint64 {
	name := string(read(currentNodeName))
	p, n := at(name)
	images := read(func(buf unsafe.Pointer, limit uint32) uint32 { return nodeImageStates(p, n, buf, limit) })
	if name == cfg.Prefer && bytes.Contains(images, []byte(`"NumNodes":1`)) {
		return 70<<32 | success
	}
	return 10<<32 | uint64(enter("score"))
}

//go:wasmexport normalizescore
func normalizescore() uint32 {
	if cfg.Normalize {
		scores := map[string]int64{}
		if err := json.Unmarshal(read(nodeScoreList), &scores); err != nil {
			panic(err)
		}
		for k := range scores {
			scores[k] = 100 - scores[k]
		}
		b, _ := json.Marshal(scores)
		setNormalized(at(string(b)))
	}
	return enter("normalizescore")
}

//go:wasmexport reserve
func reserve() uint32 { return enter("reserve") }

//go:wasmexport unreserve
func unreserve() { enter("unreserve") }

//go:wasmexport permit
func permit() uint64 {
	code := enter("permit")
	if cfg.Reject != "" && bytes.Contains(read(currentPod), []byte(cfg.RejectBy)) {
		p, n := at(cfg.Reject)
		var small [8]byte
		pod, done := make([]byte, 4096), make([]byte, 8)
		getWaitingPod(p, n, unsafe.Pointer(&small[0]), 8)
		getWaitingPod(p, n, unsafe.Pointer(&pod[0]), 4096)
		rejectWaitingPod(p, n, unsafe.Pointer(&done[0]), 8)
		reason("rejected %v, found %v, %v written where it did not fit",
			binary.LittleEndian.Uint64(done) == 1, bytes.Contains(pod, []byte("web")), small != [8]byte{})
		return uint64(unschedulable) << 32
	}
	if cfg.WaitMS > 0 {
		return uint64(wait)<<32 | uint64(cfg.WaitMS)
	}
	return uint64(code) << 32
}

//go:wasmexport prebind
func prebind() uint32 { return enter("prebind") }

//go:wasmexport bind
func bind() uint32 {
	if enter("bind") != success {
		return unschedulable
	}
	return skip
}

//go:wasmexport postbind
func postbind() {
	p, n := at("bound\x00at last")
	klogs(0, p, 5, p, n)
	eventf(at(`{"regardingReference":{"apiVersion":"v1","kind":"Pod","namespace":"default","name":"web"},"eventtype":"Normal","reason":"Bound","action":"Bind","note":"after ` + strings.Join(trace, ",") + `"}`))
}
