// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// tableOf prints objects and writes the Table around the JSON of each row's
// object: encoding/json would copy and scan nested objects again at each level.
// Rows of a list that are the same tomorrow but for their age are kept with their objects.
func (a *Writer) tableOf(ctx context.Context, c tableCall, list metav1.ListMeta, objects []*object.Object) ([][]byte, error) {
	switch c.options.IncludeObject {
	case metav1.IncludeNone, metav1.IncludeObject, metav1.IncludeMetadata, "":
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unrecognized includeObject value: %q", c.options.IncludeObject))
	}
	rows := &tableRows{
		contract: a.contract, now: a.now(), call: c,
		partial: partialPrefix(c.kind.GroupVersion().WithKind("PartialObjectMetadata")),
	}
	rows.pieces = make([][]byte, 1, 2*len(objects)+2)
	head, err := rows.all(ctx, list, objects)
	if err != nil {
		return nil, err
	}
	rows.pieces[0] = head
	rows.text = append(rows.text, "]}\n"...)
	rows.cut()
	return rows.pieces, nil
}

// tableRows writes the rows of one Table.
type tableRows struct {
	contract *api.Contract
	now      time.Time
	call     tableCall
	partial  []byte // what stands before an object's metadata
	pieces   [][]byte
	text     []byte // the last piece, which is not among pieces yet
	some     bool   // there is a row
}

// cut ends a piece.
func (t *tableRows) cut() {
	if len(t.text) > 0 {
		t.pieces, t.text = append(t.pieces, t.text), t.text[len(t.text):]
	}
}

// textRoom is how much text is gathered in one allocation.
const textRoom = 16 << 10

// next begins a row.
func (t *tableRows) next() {
	if cap(t.text)-len(t.text) < textRoom/16 {
		t.cut()
		t.text = make([]byte, 0, textRoom)
	}
	if t.some {
		t.text = append(t.text, ',')
	}
	t.some = true
}

// all adds the rows, and answers what stands before them.
func (t *tableRows) all(ctx context.Context, list metav1.ListMeta, objects []*object.Object) ([]byte, error) {
	if list.ResourceVersion == "" || len(objects) == 0 {
		return t.printed(ctx, list, objects)
	}
	for _, o := range objects {
		row, err := o.Kept(rowName, func() ([]byte, error) { return t.row(ctx, o) })
		if err != nil {
			return nil, err
		}
		if len(row) == len(goesWithTime) {
			if _, err := t.printed(ctx, list, []*object.Object{o}); err != nil {
				return nil, err
			}
			continue
		}
		if err := t.kept(row, o); err != nil {
			return nil, err
		}
	}
	empty := &tableRows{contract: t.contract, now: t.now, call: t.call}
	return empty.printed(ctx, list, nil)
}

// rowName is the name under which objects keep their rows, in parts: when the
// object was created, in seconds, where in what follows its age belongs, from
// where to where its metadata goes in its JSON (zeros where nobody has looked), and the row up to its object,
// without the age. Rows that go with the time are kept as goesWithTime alone.
const (
	rowName      = "row"
	rowHead      = 24
	goesWithTime = "t"
)

// row makes what is kept.
func (t *tableRows) row(ctx context.Context, o *object.Object) ([]byte, error) {
	internal, err := registry.Internal(o)
	if err != nil {
		return nil, err
	}
	row, ok, err := t.contract.Row(ctx, t.call.resource, internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	m, err := o.Meta()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	created := m.GetCreationTimestamp()
	if !ok || created.IsZero() {
		return []byte(goesWithTime), nil
	}
	out := make([]byte, rowHead, 256)
	binary.BigEndian.PutUint64(out, uint64(created.Unix()))
	if t.wantsMetadata() {
		begin, end, err := metadataBounds(o)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		binary.BigEndian.PutUint32(out[16:], uint32(begin))
		binary.BigEndian.PutUint32(out[20:], uint32(end))
	}
	out = append(out, `{"cells":[`...)
	for i, cell := range row.Cells {
		if i > 0 {
			out = append(out, ',')
		}
		if i == row.Age {
			binary.BigEndian.PutUint64(out[8:], uint64(len(out)))
			continue
		}
		data, err := json.Marshal(cell)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		out = append(out, data...)
	}
	if out, err = appendConditions(append(out, ']'), row.Conditions); err != nil {
		return nil, err
	}
	return slices.Clip(out), nil
}

// kept adds a row that is kept.
func (t *tableRows) kept(row []byte, o *object.Object) error {
	t.next()
	if at := binary.BigEndian.Uint64(row[8:]); at > 0 {
		created := time.Unix(int64(binary.BigEndian.Uint64(row)), 0)
		t.text = append(append(append(t.text, row[rowHead:at]...), '"'), duration.HumanDuration(t.now.Sub(created))...)
		t.text = append(append(t.text, '"'), row[at:]...)
	} else {
		t.text = append(t.text, row[rowHead:]...)
	}
	return t.object(o, int(binary.BigEndian.Uint32(row[16:])), int(binary.BigEndian.Uint32(row[20:])))
}

// printed prints objects, adds their rows, and answers what stands before them.
func (t *tableRows) printed(ctx context.Context, list metav1.ListMeta, objects []*object.Object) ([]byte, error) {
	internal := make([]runtime.Object, len(objects))
	for i, o := range objects {
		var err error
		if internal[i], err = registry.Internal(o); err != nil {
			return nil, err
		}
	}
	bare := *t.call.options
	bare.IncludeObject = metav1.IncludeNone
	table, err := t.contract.Table(ctx, t.call.resource, api.TableRequest{Version: t.call.version, TableOptions: bare, ListMeta: list},
		internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if len(table.Rows) != len(objects) {
		return nil, apierrors.NewInternalError(fmt.Errorf("%d objects printed as %d rows", len(objects), len(table.Rows)))
	}
	for i := range table.Rows {
		cells, err := json.Marshal(table.Rows[i].Cells)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		row, err := appendConditions(append([]byte(`{"cells":`), cells...), table.Rows[i].Conditions)
		if err != nil {
			return nil, err
		}
		t.next()
		t.text = append(t.text, row...)
		if err := t.object(objects[i], 0, 0); err != nil {
			return nil, err
		}
	}
	head, err := json.Marshal(struct {
		Kind       string                         `json:"kind"`
		APIVersion string                         `json:"apiVersion"`
		Metadata   metav1.ListMeta                `json:"metadata"`
		Columns    []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}{t.call.kind.Kind, t.call.kind.GroupVersion().String(), table.ListMeta, table.ColumnDefinitions})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return append(head[:len(head)-1], `,"rows":[`...), nil
}

func (t *tableRows) wantsMetadata() bool {
	return t.call.options.IncludeObject != metav1.IncludeNone && t.call.options.IncludeObject != metav1.IncludeObject
}

// object adds as much of a row's object as the client wants, and ends the row.
// Its metadata goes from begin to end of its JSON, if that is known.
func (t *tableRows) object(o *object.Object, begin, end int) error {
	if t.call.options.IncludeObject == metav1.IncludeNone {
		t.text = append(t.text, `,"object":null}`...)
		return nil
	}
	data, err := o.Encoded(object.JSON)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	t.text = append(t.text, `,"object":`...)
	if !t.wantsMetadata() {
		t.shared(bytes.TrimSuffix(data, []byte{'\n'}))
		t.text = append(t.text, '}')
		return nil
	}
	if end == 0 {
		if begin, end, err = metadataBounds(o); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	t.text = append(t.text, t.partial...)
	if end == 0 {
		t.text = append(t.text, "{}"...)
	} else {
		t.shared(data[begin:end])
	}
	t.text = append(t.text, "}}"...)
	return nil
}

// shared adds bytes that are the object's own, not copied.
func (t *tableRows) shared(data []byte) {
	t.cut()
	t.pieces = append(t.pieces, data)
}

func appendConditions(out []byte, conditions []metav1.TableRowCondition) ([]byte, error) {
	if len(conditions) == 0 {
		return out, nil
	}
	data, err := json.Marshal(conditions)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return append(append(out, `,"conditions":`...), data...), nil
}

// tableCall is what a Table is made for.
type tableCall struct {
	resource *api.Resource
	version  string
	options  *metav1.TableOptions
	kind     schema.GroupVersionKind // Table, in the version that was asked for
}
