// SPDX-License-Identifier: Apache-2.0

package columns

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"
)

// Metrics has the columns of metrics-server.
func Metrics(_ context.Context, o runtime.Object, noHeaders bool) (*metav1.Table, error) {
	table := &metav1.Table{}
	if !noHeaders {
		table.ColumnDefinitions = []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
			{Name: "cpu", Type: "string", Format: "quantity"},
			{Name: "memory", Type: "string", Format: "quantity"},
			{Name: "Window", Type: "string", Format: "duration"},
		}
	}
	add := func(o runtime.Object, name string, cpu, memory resource.Quantity, window metav1.Duration) {
		table.Rows = append(table.Rows, metav1.TableRow{
			Cells:  []any{name, cpu.String(), memory.String(), window.Duration.String()},
			Object: runtime.RawExtension{Object: o},
		})
	}
	switch o := o.(type) {
	case *metrics.NodeMetrics:
		add(o, o.Name, o.Usage["cpu"], o.Usage["memory"], o.Window)
	case *metrics.PodMetrics:
		var cpu, memory resource.Quantity
		for _, c := range o.Containers {
			cpu.Add(c.Usage["cpu"])
			memory.Add(c.Usage["memory"])
		}
		add(o, o.Name, cpu, memory, o.Window)
	case *metrics.NodeMetricsList, *metrics.PodMetricsList:
	default:
		return nil, fmt.Errorf("print what a node or pod uses: found %T", o)
	}
	return table, nil
}
