// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/declared"
)

// Listed is one plugin in a list for people and their tools.
type Listed struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace,omitempty"`
	Origin    string   `json:"origin"` // file, api or tenant
	Points    []string `json:"points,omitempty"`
	// Kinds are what it watches, reads and writes, as its module declares.
	Kinds  *declared.Kinds `json:"kinds,omitempty"`
	Source string          `json:"source,omitempty"`
	Mode   string          `json:"mode,omitempty"`
	// State is ready, outdated, failed, refused, not asked or disabled.
	State       string `json:"state"`
	Message     string `json:"message,omitempty"` // why it is not ready
	Version     string `json:"version,omitempty"`
	Digest      string `json:"digest,omitempty"`
	BreakerOpen bool   `json:"breakerOpen"`
	Calls       int64  `json:"calls"`
	Denials     int64  `json:"denials"`
	Failures    int64  `json:"failures"`
	MeanTime    string `json:"meanTime,omitempty"`
}

// List lists the plugins of a cluster, the file's first, by name. Kinds that the
// caller may not list are left out where there is another that it may.
func List(ctx context.Context, c dynamic.Interface) ([]Listed, error) {
	var out []Listed
	var refused error
	read := 0
	for _, r := range []schema.GroupVersionResource{plugindefinition.Resource(), plugindefinition.TenantResource()} {
		l, err := c.Resource(r).List(ctx, metav1.ListOptions{})
		if apierrors.IsForbidden(err) {
			refused = err
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", r.Resource, err)
		}
		read++
		for i := range l.Items {
			out = append(out, listed(&l.Items[i]))
		}
	}
	if read == 0 {
		return nil, refused
	}
	order := []string{FromFile, "api", "tenant"}
	slices.SortStableFunc(out, func(a, b Listed) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Origin), slices.Index(order, b.Origin)), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

func listed(o *unstructured.Unstructured) Listed {
	s := readStatus(o)
	source, _, _ := unstructured.NestedString(o.Object, "spec", "source")
	mode, _, _ := unstructured.NestedString(o.Object, "spec", "mode")
	l := Listed{
		Name: o.GetName(), Namespace: o.GetNamespace(), Origin: originOf(o), Points: s.Points, Kinds: s.Kinds, Source: cmp.Or(source, s.Source),
		Mode:  cmp.Or(s.Mode, mode),
		State: "loading", Version: s.Version, Digest: s.Digest, BreakerOpen: s.BreakerOpen,
		Calls: s.Calls, Denials: s.Denials, Failures: s.Failures, MeanTime: s.MeanTime,
	}
	ready, updated := meta.FindStatusCondition(s.Conditions, Ready), meta.FindStatusCondition(s.Conditions, Updated)
	if ready == nil || updated == nil {
		return l
	}
	switch {
	case ready.Reason == "Refused":
		l.State, l.Message = "refused", ready.Message
	case ready.Reason == "NotAsked":
		l.State, l.Message = "not asked", ready.Message
	case ready.Status != metav1.ConditionTrue:
		l.State, l.Message = "failed", updated.Message
	case updated.Status == metav1.ConditionFalse:
		l.State, l.Message = "outdated", updated.Message
	default:
		l.State = "ready"
	}
	if disabled, _, _ := unstructured.NestedBool(o.Object, "spec", "disabled"); disabled {
		l.State, l.Message = "disabled", "by the object's spec"
	}
	return l
}
