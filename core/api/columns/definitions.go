// SPDX-License-Identifier: Apache-2.0

package columns

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Definitions prints as upstream's own server of definitions does.
func Definitions(ctx context.Context, o runtime.Object, noHeaders bool) (*metav1.Table, error) {
	return tableconvertor.New().ConvertToTable(ctx, o, &metav1.TableOptions{NoHeaders: noHeaders})
}
