// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	aggregation "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	// Each of these adds one group to legacyscheme.Scheme.
	_ "k8s.io/kubernetes/pkg/apis/admission/install"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apiserverinternal/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/extensions/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/imagepolicy/install"
	_ "k8s.io/kubernetes/pkg/apis/lifecycle/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	metrics "k8s.io/metrics/pkg/apis/metrics/install"
)

// Schemes are the type registries of the three servers that upstream chains, and of
// the metrics server beside them.
// Their types would clash in one: each has conversions of its own for lists and options.
type Schemes struct {
	Builtin     *runtime.Scheme // legacyscheme's, which is process-global
	Extensions  *runtime.Scheme
	Aggregation *runtime.Scheme
	Metrics     *runtime.Scheme
}

// NewSchemes makes them.
func NewSchemes() Schemes {
	s := Schemes{Builtin: legacyscheme.Scheme, Extensions: runtime.NewScheme(), Aggregation: runtime.NewScheme(), Metrics: runtime.NewScheme()}
	extensions.Install(s.Extensions)
	aggregation.Install(s.Aggregation)
	metrics.Install(s.Metrics)
	for _, own := range []*runtime.Scheme{s.Extensions, s.Aggregation, s.Metrics} {
		metav1.AddToGroupVersion(own, schema.GroupVersion{Version: "v1"})
	}
	return s
}

// All are all of them.
func (s Schemes) All() []*runtime.Scheme {
	return []*runtime.Scheme{s.Builtin, s.Extensions, s.Aggregation, s.Metrics}
}

// Of is the scheme that has a group's types.
func (s Schemes) Of(group string) *runtime.Scheme {
	switch group {
	case "apiextensions.k8s.io":
		return s.Extensions
	case "apiregistration.k8s.io":
		return s.Aggregation
	case MetricsGroup:
		return s.Metrics
	}
	return s.Builtin
}
