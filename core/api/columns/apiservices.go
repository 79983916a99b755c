// SPDX-License-Identifier: Apache-2.0

// Package columns prints the kinds that upstream's printers do not know, because
// servers beside its own serve them: with the columns of those servers.
//
// A table function prints an object, or an empty list for the columns alone.
package columns

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// APIServices has upstream's columns, which its aggregator prints by itself.
func APIServices(_ context.Context, o runtime.Object, noHeaders bool) (*metav1.Table, error) {
	table := &metav1.Table{}
	if m, err := meta.CommonAccessor(o); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	if !noHeaders {
		docs := metav1.ObjectMeta{}.SwaggerDoc()
		table.ColumnDefinitions = []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: docs["name"]},
			{Name: "Service", Type: "string", Description: "The reference to the service that hosts this API endpoint."},
			{Name: "Available", Type: "string", Description: "Whether this service is available."},
			{Name: "Age", Type: "string", Description: docs["creationTimestamp"]},
		}
	}
	var err error
	table.Rows, err = metatable.MetaToTableRow(o, func(o runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		s, ok := o.(*apiregistration.APIService)
		if !ok {
			return nil, fmt.Errorf("print an APIService: found %T", o)
		}
		service := "Local"
		if s.Spec.Service != nil {
			service = s.Spec.Service.Namespace + "/" + s.Spec.Service.Name
		}
		return []any{name, service, availability(s), age}, nil
	})
	return table, err
}

func availability(s *apiregistration.APIService) string {
	for _, c := range s.Status.Conditions {
		switch {
		case c.Type != apiregistration.Available:
		case c.Status == apiregistration.ConditionTrue || c.Reason == "":
			return string(c.Status)
		default:
			return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
	}
	return string(apiregistration.ConditionUnknown)
}
