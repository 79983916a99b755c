// SPDX-License-Identifier: Apache-2.0

package wasmplane

import "unsafe"

// ColumnType says what a cell of the node table holds.
type ColumnType string

// The types of columns.
const (
	Int    ColumnType = "int"    // an integer or a quantity, rounded up
	Milli  ColumnType = "milli"  // thousandths of a quantity: of a CPU, for example
	Number ColumnType = "string" // the number that stands for a string; equal strings have the same, 0 = absent
	Bool   ColumnType = "bool"   // 1 for true, or where the value Equals
)

// Column is a value of a node, or of the pod, that Judge reads.
type Column struct {
	Path   string
	Type   ColumnType
	Equals string // with Bool: compares strings
}

// Table is a hook at scheduling.table: it filters and scores all nodes in one
// call. The host keeps the rows in the plugin's memory up to date.
//
// Besides fields of the Node object, columns may name what the scheduler has worked
// out: "requested.cpu", "requested.memory", "allocatable.pods", "pods"; and for the pod "requests.cpu", ...
type Table struct {
	Columns     []Column // of each node
	Pod         []Column // of the pod
	ColumnsFunc func() (columns, pod []Column)
	// Reasons that Unfit and Never refer to.
	Reasons []string
	// Events after which a pod that was refused is worth another try; none = any.
	Events []Event
	// Judge rates one node: Fits, Unfit or Never.
	Judge func(pod, node []int64) Judgement
	// JudgeAll, where set, takes Judge's place: it rates all nodes, whose cells lie
	// one row behind the other, and writes a judgement for each. It is several
	// times as fast, as a call costs more in this language than a comparison.
	JudgeAll func(pod, nodes []int64, out []Judgement)

	rows      []int64
	verdicts  []Judgement
	nodeWidth int
	podWidth  int
}

// Judgement is what is thought of one node.
type Judgement byte

// Fits says that the pod may run there, with a score from 0 to 100.
func Fits(score int64) Judgement { return Judgement(1 + min(max(score, 0), 100)) }

// Unfit says not now, for a reason by its index in Reasons.
func Unfit(reason int) Judgement { return Judgement(128 + reason&63) }

// Never says not there, whatever pods leave the node.
func Never(reason int) Judgement { return Judgement(192 + reason&63) }

func (t *Table) describe(h Object) {
	if t.ColumnsFunc != nil {
		t.Columns, t.Pod = t.ColumnsFunc()
	}
	t.nodeWidth, t.podWidth = len(t.Columns), len(t.Pod)
	delete(h, "fields")
	h["columns"], h["pod"], h["reasons"] = columns(t.Columns), columns(t.Pod), t.Reasons
	if len(t.Events) > 0 {
		h[eventsKey] = names(t.Events)
	}
}

func columns(list []Column) []Object {
	var out []Object
	for _, c := range list {
		o := Object{"path": c.Path, "type": string(c.Type)}
		if c.Equals != "" {
			o["equals"] = c.Equals
		}
		out = append(out, o)
	}
	return out
}

// run judges every row: the input is the number of rows and the pod's cells, eight bytes each.
func (t *Table) run(input []byte) ([]byte, error) {
	n := int(u64(input))
	pod := make([]int64, t.podWidth)
	for i := range pod {
		pod[i] = int64(u64(input[8+8*i:]))
	}
	if t.JudgeAll != nil {
		t.JudgeAll(pod, t.rows[:n*t.nodeWidth], t.verdicts[:n])
	} else {
		for i := range n {
			t.verdicts[i] = t.Judge(pod, t.rows[i*t.nodeWidth:(i+1)*t.nodeWidth:(i+1)*t.nodeWidth])
		}
	}
	return unsafe.Slice((*byte)(unsafe.SliceData(t.verdicts)), n), nil
}
