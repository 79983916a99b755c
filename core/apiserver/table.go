package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// tableOf prints objects and writes the Table around the JSON of each row's
// object: encoding/json would copy and scan nested objects again at each level.
func (s *Server) tableOf(ctx context.Context, c tableCall, list metav1.ListMeta, objects []*object.Object) ([][]byte, error) {
	internal := make([]runtime.Object, len(objects))
	for i, o := range objects {
		var err error
		if internal[i], err = registry.Internal(o); err != nil {
			return nil, err
		}
	}
	bare := *c.options
	bare.IncludeObject = metav1.IncludeNone
	table, err := s.cfg.Contract.Table(ctx, c.resource, api.TableRequest{Version: c.version, TableOptions: bare, ListMeta: list}, internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if len(table.Rows) != len(objects) {
		return nil, apierrors.NewInternalError(fmt.Errorf("%d objects printed as %d rows", len(objects), len(table.Rows)))
	}
	head, err := json.Marshal(struct {
		Kind       string                         `json:"kind"`
		APIVersion string                         `json:"apiVersion"`
		Metadata   metav1.ListMeta                `json:"metadata"`
		Columns    []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}{c.kind.Kind, c.kind.GroupVersion().String(), table.ListMeta, columns(table)})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	pieces := make([][]byte, 0, len(objects)+2)
	pieces = append(pieces, append(head[:len(head)-1], `,"rows":[`...))
	for i := range table.Rows {
		row, err := rowOf(&table.Rows[i], objects[i], c)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			row = append([]byte{','}, row...)
		}
		pieces = append(pieces, row)
	}
	return append(pieces, []byte("]}\n")), nil
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

// rowOf is one row with as much of its object as the client wants.
func rowOf(row *metav1.TableRow, o *object.Object, c tableCall) ([]byte, error) {
	cells, err := json.Marshal(row.Cells)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	out := append([]byte(`{"cells":`), cells...)
	if len(row.Conditions) > 0 {
		conditions, err := json.Marshal(row.Conditions)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		out = append(append(out, `,"conditions":`...), conditions...)
	}
	included := []byte("null")
	switch c.options.IncludeObject {
	case metav1.IncludeNone:
	case metav1.IncludeObject:
		if included, err = o.Encoded(object.JSON); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
	case metav1.IncludeMetadata, "":
		if included, err = partialJSON(o, c.kind.GroupVersion().WithKind("PartialObjectMetadata")); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unrecognized includeObject value: %q", c.options.IncludeObject))
	}
	out = append(append(out, `,"object":`...), bytes.TrimSuffix(included, []byte{'\n'})...)
	return append(out, '}'), nil
}
