// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
)

// TableRequest says what rows are wanted for.
type TableRequest struct {
	Version string // of the objects that rows include
	metav1.TableOptions
	// ListMeta of the answer; for a single object it is taken from the object.
	ListMeta metav1.ListMeta
}

// Table prints internal objects as upstream's printers do: one row each. One
// object is a get or a watch event, several are a list.
func (c *Contract) Table(ctx context.Context, r *Resource, q TableRequest, internal []runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{ListMeta: q.ListMeta}
	for i, o := range internal {
		one, err := c.print(ctx, r, q.Version, o, q.NoHeaders || i > 0)
		if err != nil {
			return nil, fmt.Errorf("print %s: %w", r.Kind, err)
		}
		if i == 0 {
			table.ColumnDefinitions = one.ColumnDefinitions
		}
		table.Rows = append(table.Rows, one.Rows...)
	}
	if len(internal) == 0 && !q.NoHeaders {
		if err := c.headers(ctx, r, q.Version, table); err != nil {
			return nil, err
		}
	}
	if table.ResourceVersion == "" && len(internal) == 1 {
		if m, err := meta.CommonAccessor(internal[0]); err == nil {
			table.ResourceVersion = m.GetResourceVersion()
		}
	}
	if table.Rows == nil {
		table.Rows = []metav1.TableRow{}
	}
	for i := range table.Rows {
		if err := c.include(r, q, &table.Rows[i]); err != nil {
			return nil, err
		}
	}
	table.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("Table"))
	return table, nil
}

func (c *Contract) print(ctx context.Context, r *Resource, version string, o runtime.Object, noHeaders bool) (*metav1.Table, error) {
	options := &metav1.TableOptions{NoHeaders: noHeaders}
	if r.Custom != nil {
		v, err := r.Custom.Version(version)
		if err != nil {
			return nil, err
		}
		return v.Table.ConvertToTable(ctx, o, options)
	}
	if r.printer != nil {
		return r.printer(ctx, o, noHeaders)
	}
	if r.plainTable {
		return rest.NewDefaultTableConvertor(r.GroupResource).ConvertToTable(ctx, o, options)
	}
	return c.printer().GenerateTable(o, printers.GenerateOptions{Wide: true, NoHeaders: noHeaders})
}

// Row is one printed object that can be kept, although the time goes on.
type Row struct {
	Cells      []any
	Conditions []metav1.TableRowCondition
	// Age is the index of the cell that tells the time since the object's creation; -1 = there is none.
	Age int
}

// timely are the kinds whose printers tell other times than the object's age.
func timely() []string {
	return []string{"CronJob", "DeviceTaintRule", "Event", "Eviction", "Job", "ResourcePoolStatusRequest"}
}

// Row prints an internal object. ok = false: its row goes with the time, or is
// printed by somebody of whom that is not known; Table prints it.
func (c *Contract) Row(ctx context.Context, r *Resource, internal runtime.Object) (row Row, ok bool, err error) {
	if r.Custom != nil || r.printer != nil || slices.Contains(timely(), r.Kind) {
		return Row{}, false, nil
	}
	table, err := c.print(ctx, r, "", internal, false)
	if err != nil || len(table.Rows) != 1 {
		return Row{}, false, err
	}
	row = Row{Cells: table.Rows[0].Cells, Conditions: table.Rows[0].Conditions, Age: -1}
	for i, column := range table.ColumnDefinitions {
		if column.Name == "Age" {
			row.Age = i
		}
	}
	for _, cell := range row.Cells {
		if text, is := cell.(string); is && r.Kind == "Pod" && strings.HasSuffix(text, " ago)") {
			return Row{}, false, nil // when it restarted last
		}
	}
	return row, row.Age < len(row.Cells), nil
}

// headers are the columns of an empty list.
func (c *Contract) headers(ctx context.Context, r *Resource, version string, table *metav1.Table) error {
	empty, err := c.print(ctx, r, version, r.NewList(), false)
	if err != nil {
		return fmt.Errorf("print columns of %s: %w", r.Kind, err)
	}
	table.ColumnDefinitions = empty.ColumnDefinitions
	return nil
}

// include turns the internal object that the printer left in a row into what the client asked for.
func (c *Contract) include(r *Resource, q TableRequest, row *metav1.TableRow) error {
	o := row.Object.Object
	switch q.IncludeObject {
	case metav1.IncludeNone:
		row.Object.Object = nil
	case metav1.IncludeObject:
		codec := r.Codec(q.Version)
		if codec == nil {
			return apierrors.NewBadRequest(fmt.Sprintf("%s is not served in version %q", r.GroupResource, q.Version))
		}
		v, err := codec.Versioned(o)
		if err != nil {
			return err
		}
		row.Object.Object = v
	case metav1.IncludeMetadata, "":
		p, err := Partial(o)
		if err != nil {
			return err
		}
		row.Object.Object = p
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("unrecognized includeObject value: %q", q.IncludeObject))
	}
	return nil
}

// Partial is the metadata of an object, as PartialObjectMetadata.
func Partial(o runtime.Object) (*metav1.PartialObjectMetadata, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	p := meta.AsPartialObjectMetadata(m)
	p.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
	return p, nil
}

// printer is made when the first table is asked for: registering 90 printers costs a millisecond.
func (c *Contract) printer() *printers.HumanReadableGenerator {
	c.printOnce.Do(func() { c.printers = printers.NewTableGenerator().With(printersinternal.AddHandlers) })
	return c.printers
}

type tablePrinter struct {
	printOnce sync.Once
	printers  *printers.HumanReadableGenerator
}
