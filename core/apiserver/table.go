package apiserver

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
func (s *Server) tableOf(ctx context.Context, c tableCall, list metav1.ListMeta, objects []*object.Object) ([][]byte, error) {
	switch c.options.IncludeObject {
	case metav1.IncludeNone, metav1.IncludeObject, metav1.IncludeMetadata, "":
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unrecognized includeObject value: %q", c.options.IncludeObject))
	}
	rows := &tableRows{server: s, call: c, partial: partialPrefix(c.kind.GroupVersion().WithKind("PartialObjectMetadata"))}
	rows.pieces = make([][]byte, 1, 5*len(objects)+2)
	head, err := rows.all(ctx, list, objects)
	if err != nil {
		return nil, err
	}
	rows.pieces[0] = head
	return append(rows.pieces, []byte("]}\n")), nil
}

// tableRows writes the rows of one Table.
type tableRows struct {
	server  *Server
	call    tableCall
	partial []byte // what stands before an object's metadata
	pieces  [][]byte
}

// all adds the rows, and answers what stands before them.
func (t *tableRows) all(ctx context.Context, list metav1.ListMeta, objects []*object.Object) ([]byte, error) {
	if list.ResourceVersion == "" || len(objects) == 0 {
		return t.printed(ctx, list, objects)
	}
	now := t.server.cfg.Now()
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
		if err := t.kept(row, o, now); err != nil {
			return nil, err
		}
	}
	empty := &tableRows{server: t.server, call: t.call}
	return empty.printed(ctx, list, nil)
}

// rowName is the name under which objects keep their rows, in three parts: when
// the object was created, in seconds, where in what follows its age belongs, and
// the row up to its object, without the age. Rows that go with the time are kept
// as goesWithTime alone.
const (
	rowName      = "row"
	rowHead      = 16
	goesWithTime = "t"
)

// row makes what is kept.
func (t *tableRows) row(ctx context.Context, o *object.Object) ([]byte, error) {
	internal, err := registry.Internal(o)
	if err != nil {
		return nil, err
	}
	row, ok, err := t.server.cfg.Contract.Row(ctx, t.call.resource, internal)
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
func (t *tableRows) kept(row []byte, o *object.Object, now time.Time) error {
	t.comma()
	if at := binary.BigEndian.Uint64(row[8:]); at > 0 {
		created := time.Unix(int64(binary.BigEndian.Uint64(row)), 0)
		t.pieces = append(t.pieces, row[rowHead:at], []byte(`"`+duration.HumanDuration(now.Sub(created))+`"`), row[at:])
	} else {
		t.pieces = append(t.pieces, row[rowHead:])
	}
	return t.object(o)
}

// comma separates rows.
func (t *tableRows) comma() {
	if len(t.pieces) > 1 {
		t.pieces = append(t.pieces, []byte{','})
	}
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
	table, err := t.server.cfg.Contract.Table(ctx, t.call.resource, api.TableRequest{Version: t.call.version, TableOptions: bare, ListMeta: list}, internal)
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
		t.comma()
		t.pieces = append(t.pieces, row)
		if err := t.object(objects[i]); err != nil {
			return nil, err
		}
	}
	head, err := json.Marshal(struct {
		Kind       string                         `json:"kind"`
		APIVersion string                         `json:"apiVersion"`
		Metadata   metav1.ListMeta                `json:"metadata"`
		Columns    []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}{t.call.kind.Kind, t.call.kind.GroupVersion().String(), table.ListMeta, columns(table)})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return append(head[:len(head)-1], `,"rows":[`...), nil
}

// object adds as much of a row's object as the client wants, and ends the row.
func (t *tableRows) object(o *object.Object) error {
	switch t.call.options.IncludeObject {
	case metav1.IncludeNone:
		t.pieces = append(t.pieces, []byte(`,"object":null}`))
		return nil
	case metav1.IncludeObject:
		data, err := o.Encoded(object.JSON)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		t.pieces = append(t.pieces, []byte(`,"object":`), bytes.TrimSuffix(data, []byte{'\n'}), []byte{'}'})
		return nil
	case metav1.IncludeMetadata:
	}
	metadata, err := jsonMetadata(o)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	t.pieces = append(t.pieces, []byte(`,"object":`), t.partial, metadata, []byte(`}}`))
	return nil
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

func columns(t *metav1.Table) []metav1.TableColumnDefinition {
	if t.ColumnDefinitions == nil {
		return []metav1.TableColumnDefinition{}
	}
	return t.ColumnDefinitions
}
