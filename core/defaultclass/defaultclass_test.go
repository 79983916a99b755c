// SPDX-License-Identifier: Apache-2.0

package defaultclass

import (
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func meta(name string, age time.Duration, annotation, value string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
		Annotations: map[string]string{annotation: value},
	}
}

func TestStorage(t *testing.T) {
	class := func(name string, age time.Duration, annotation, value string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: meta(name, age, annotation, value)}
	}
	const beta = storageAnnotationBeta
	for name, tc := range map[string]struct {
		all  []*storagev1.StorageClass
		want string
	}{
		"none":               {nil, ""},
		"none says it":       {[]*storagev1.StorageClass{class("a", 0, StorageAnnotation, "false")}, ""},
		"one":                {[]*storagev1.StorageClass{class("a", 0, "other", "true"), class("b", 0, StorageAnnotation, "true")}, "b"},
		"the old form":       {[]*storagev1.StorageClass{class("a", 0, beta, "true")}, "a"},
		"the newest":         {[]*storagev1.StorageClass{class("a", time.Hour, StorageAnnotation, "true"), class("b", time.Second, beta, "true"), class("c", time.Minute, StorageAnnotation, "true")}, "b"},
		"of one second":      {[]*storagev1.StorageClass{class("b", 0, StorageAnnotation, "true"), class("a", 0, StorageAnnotation, "true")}, "a"},
		"the newest says no": {[]*storagev1.StorageClass{class("a", time.Hour, StorageAnnotation, "true"), class("b", 0, StorageAnnotation, "no")}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if c := Storage(tc.all); c != nil {
				got = c.Name
			}
			if got != tc.want {
				t.Errorf("default %q, want %q", got, tc.want)
			}
		})
	}
}

func TestIngress(t *testing.T) {
	class := &networkingv1.IngressClass{ObjectMeta: meta("a", 0, networkingv1.AnnotationIsDefaultIngressClass, "true")}
	if got := Ingress([]*networkingv1.IngressClass{class}); got != class {
		t.Errorf("default %v", got)
	}
	if got := Ingress(nil); got != nil {
		t.Errorf("default %v of none", got)
	}
}
