// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// untraced is ctx without its span.
func untraced(ctx context.Context) context.Context {
	return oteltrace.ContextWithSpanContext(ctx, oteltrace.SpanContext{})
}

// judge is framework.Judge over a plugin with a node table.
type judge struct {
	plugin *point.Plugin

	mu    sync.Mutex // one cycle at a time has the table
	table *table     // nil until the first cycle, and after a fault

	shadow shadow // the candidate's
}

// table is the state of the instance that holds the nodes.
type table struct {
	version  *point.Version
	hook     *point.Hook
	instance *host.Instance
	at       uint32 // address of the rows in the guest's memory
	rows     int
	seen     []int64 // generation of each row
	nodes    int64   // NodesGeneration that the rows belong to
	snapshot int64   // Generation that the rows are up to date with
	strings  abi.Interner
	input    []byte
	// Of a component, which is passed all of it at each call: the host keeps the nodes.
	columns [][]int64
	pod     []int64
}

// Name implements framework.Plugin.
func (j *judge) Name() string { return j.plugin.Name() }

// Close gives the instances back. The next cycle takes others.
func (j *judge) Close() {
	j.shadow.close()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.drop()
}

func (j *judge) drop() {
	if j.table != nil {
		j.table.version.Module.Discard(j.table.instance)
		j.table = nil
	}
}

// Judge implements framework.Judge.
func (j *judge) Judge(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot) ([]framework.Verdict, *framework.Status) {
	c := &point.Call{Plugin: j.plugin}
	start := time.Now()
	verdicts, outcome := j.ask(ctx, c, p, snap)
	if errors.Is(c.Err, host.ErrClosed) { // swapped in between: the new version answers
		c = &point.Call{Plugin: j.plugin}
		verdicts, outcome = j.ask(ctx, c, p, snap)
	}
	c.Usage.Duration = time.Since(start)
	if outcome.Decision == "" && c.Err == nil {
		return make([]framework.Verdict, len(snap.Nodes)), nil // the plugin takes no part any more
	}
	outcome.Span = string(abi.SchedulingTable)
	c.Record(ctx, abi.SchedulingTable, outcome)
	if !host.Aside(ctx) {
		j.shadow.compare(ctx, j.plugin, p, snap, c.Err, verdicts)
	}
	if c.Err != nil && c.Mode() == manifest.Enforce {
		if st := failed(c, manifest.Fail); st != nil {
			return nil, st
		}
	}
	if c.Err != nil || c.Mode() != manifest.Enforce {
		return make([]framework.Verdict, len(snap.Nodes)), nil
	}
	return verdicts, nil
}

// ask brings the table up to date and calls the plugin.
func (j *judge) ask(ctx context.Context, c *point.Call, p *framework.PodInfo,
	snap *framework.Snapshot,
) ([]framework.Verdict, point.Outcome) {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := j.plugin.Current()
	if v == nil {
		c.Err = point.ErrNotLoaded
		return nil, point.Outcome{}
	}
	c.Version, c.Hook = v, v.Hook(abi.SchedulingTable)
	if v.Err != nil {
		c.Fail(v.Err)
		return nil, point.Outcome{}
	}
	if c.Hook == nil {
		j.drop()
		return nil, point.Outcome{}
	}
	var verdicts []framework.Verdict
	outcome := point.Outcome{Decision: "score"}
	c.Err = v.Module.Guard(ctx, func() error {
		err := j.prepare(ctx, v, c.Hook, snap)
		if err != nil {
			return err
		}
		if c.Answer, c.Usage, err = j.table.call(ctx, p); err != nil {
			return err
		}
		verdicts, outcome.Message, err = verdictsOf(c.Hook, j.Name(), c.Answer, len(snap.Nodes))
		return err
	})
	var answered *host.GuestError
	if c.Err != nil && !errors.As(c.Err, &answered) {
		j.drop()
	}
	return verdicts, outcome
}

// prepare leases an instance where there is none of this version, and writes the
// rows of nodes that changed.
func (j *judge) prepare(ctx context.Context, v *point.Version, h *point.Hook, snap *framework.Snapshot) error {
	if j.table != nil && (j.table.version != v || j.table.strings.Full()) {
		j.drop()
	}
	if j.table == nil {
		t, err := newTable(ctx, v, h)
		if err != nil {
			return err
		}
		j.table = t
	}
	return j.table.follow(ctx, snap)
}

func newTable(ctx context.Context, v *point.Version, h *point.Hook) (*table, error) {
	in, err := v.Module.Lease(ctx)
	if err != nil {
		return nil, err
	}
	return &table{version: v, hook: h, instance: in, nodes: -1}, nil
}

// follow brings the rows up to date.
func (t *table) follow(ctx context.Context, snap *framework.Snapshot) error {
	if t.nodes != snap.NodesGeneration || t.rows != len(snap.Nodes) {
		if err := t.reserve(ctx, snap); err != nil {
			return err
		}
	} else if t.snapshot == snap.Generation {
		return nil
	}
	return t.update(snap)
}

// reserve makes the guest have room for every node; all rows are to be written.
func (t *table) reserve(ctx context.Context, snap *framework.Snapshot) error {
	n := len(snap.Nodes)
	if t.version.Module.Judges() {
		t.columns = make([][]int64, len(t.hook.Columns))
		for c := range t.columns {
			t.columns[c] = make([]int64, n)
		}
	} else {
		at, err := t.instance.Invoke(ctx, "reserve", uint64(n))
		if err != nil {
			return err
		}
		if uint32(at) == 0 && n > 0 {
			return &host.Fault{
				Plugin: t.version.Entry.Name, Kind: host.Refused,
				Detail: fmt.Sprintf("it has no room for %d nodes (limits.memory)", n),
			}
		}
		t.at = uint32(at)
	}
	t.rows, t.nodes = n, snap.NodesGeneration
	t.seen = make([]int64, n)
	for i := range t.seen {
		t.seen[i] = -1
	}
	return nil
}

const cellSize = 8

func (t *table) update(snap *framework.Snapshot) error {
	put, err := t.writer()
	if err != nil {
		return err
	}
	paths := t.hook.NodePaths()
	for i, n := range snap.Nodes {
		if t.seen[i] == n.Generation {
			continue
		}
		doc := &nodeDocument{
			Node: nodeObject(n.Node), Allocatable: resources(&n.Allocatable), Requested: resources(&n.Requested),
			NonZero: resources(&n.NonZero), Pods: len(n.Pods), ImageSizes: n.ImageSizes,
		}
		for c := range t.hook.Columns {
			put(i, c, t.hook.Columns[c].Cell(doc, paths[c], &t.strings))
		}
		t.seen[i] = n.Generation
	}
	t.snapshot = snap.Generation
	return nil
}

// writer returns what puts a node's cell where the plugin finds it.
func (t *table) writer() (put func(row, column int, cell int64), err error) {
	if t.columns != nil {
		return func(row, column int, cell int64) { t.columns[column][row] = cell }, nil
	}
	stride := len(t.hook.Columns) * cellSize
	rows, ok := t.instance.View(t.at, uint32(t.rows*stride))
	if !ok || t.at%cellSize != 0 {
		return nil, &host.Fault{Plugin: t.version.Entry.Name, Kind: host.BadPointer, Detail: fmt.Sprintf("reserve answered %#x for %d rows of %d bytes, which is not aligned or outside of its memory", t.at, t.rows, stride)}
	}
	return func(row, column int, cell int64) {
		binary.LittleEndian.PutUint64(rows[row*stride+column*cellSize:], uint64(cell))
	}, nil
}

// call passes the number of rows and the pod's cells, and gets a byte for each row.
func (t *table) call(ctx context.Context, p *framework.PodInfo) ([]byte, host.Usage, error) {
	t.ask(p)
	return t.run(ctx)
}

// run passes the question that was written last.
func (t *table) run(ctx context.Context) ([]byte, host.Usage, error) {
	if t.columns != nil {
		return t.instance.Judge(ctx, t.pod, t.columns)
	}
	return t.instance.Call(ctx, t.hook.Op, t.input)
}

// ask writes the question.
func (t *table) ask(p *framework.PodInfo) {
	t.pod = t.pod[:0]
	doc := &podDocument{Pod: podObject(p.Pod), Requests: resources(&p.Requests), NonZero: resources(&p.NonZero)}
	paths := t.hook.PodPaths()
	for c := range t.hook.Pod {
		t.pod = append(t.pod, t.hook.Pod[c].Cell(doc, paths[c], &t.strings))
	}
	if t.columns != nil {
		return
	}
	t.input = binary.LittleEndian.AppendUint64(t.input[:0], uint64(t.rows))
	for _, cell := range t.pod {
		t.input = binary.LittleEndian.AppendUint64(t.input, uint64(cell))
	}
}

// verdictsOf reads the answer; statuses of one kind are shared, as they are not changed.
func verdictsOf(h *point.Hook, plugin string, answer []byte, n int) ([]framework.Verdict, string, error) {
	if len(answer) != n {
		return nil, "", bad(plugin, fmt.Sprintf("it judged %d of %d nodes", len(answer), n))
	}
	var statuses [256]*framework.Status
	fitting := 0
	out := make([]framework.Verdict, n)
	for i, b := range answer {
		if b >= abi.VerdictScore && b <= abi.VerdictScore+100 {
			out[i].Score = int64(b - abi.VerdictScore)
			fitting++
			continue
		}
		if statuses[b] == nil {
			v, err := h.ParseVerdict(b)
			if err != nil {
				return nil, "", bad(plugin, err.Error())
			}
			code := framework.Unschedulable
			if v.Unresolvable {
				code = framework.Unresolvable
			}
			statuses[b] = framework.NewStatus(code, v.Reason)
		}
		out[i].Status = statuses[b]
	}
	return out, fmt.Sprintf("%d of %d nodes fit", fitting, n), nil
}

func bad(plugin, detail string) error {
	return &host.Fault{Plugin: plugin, Kind: point.BadAnswer, Detail: detail}
}
