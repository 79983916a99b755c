// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Objects is a Sink that writes objects of the API.
type Objects struct {
	Client dynamic.Interface
	Format Format
	// Resource finds that of a kind.
	Resource func(schema.GroupVersionKind) (schema.GroupVersionResource, error)
}

// Write implements Sink.
func (s Objects) Write(ctx context.Context, r *Report) error {
	o := r.Object(s.Format, time.Now())
	client := s.Client.Resource(s.Format.resource(r.About.Namespace)).Namespace(r.About.Namespace)
	before, err := client.Get(ctx, o.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, o, metav1.CreateOptions{})
	case err == nil:
		o.SetResourceVersion(before.GetResourceVersion())
		_, err = client.Update(ctx, o, metav1.UpdateOptions{})
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the object is on its way out, too
	}
	return err
}

// Remove implements Sink.
func (s Objects) Remove(ctx context.Context, id string) error {
	namespace, name, _ := strings.Cut(id, "/")
	err := s.Client.Resource(s.Format.resource(namespace)).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Totals implements Sink: in the status of a constraint, as Gatekeeper's audit has them.
func (s Objects) Totals(ctx context.Context, policy Info, total int, first []Violation) error {
	gvk := schema.FromAPIVersionAndKind(policy.About.APIVersion, policy.About.Kind)
	r, err := s.Resource(gvk)
	if err != nil {
		return err
	}
	violations := []any{}
	for _, v := range first {
		kind := schema.FromAPIVersionAndKind(v.Object.APIVersion, v.Object.Kind)
		one := map[string]any{
			"enforcementAction": policy.Action, "group": kind.Group, "version": kind.Version, "kind": kind.Kind,
			"name": v.Object.Name, "message": v.Message,
		}
		if v.Object.Namespace != "" {
			one["namespace"] = v.Object.Namespace
		}
		violations = append(violations, one)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"auditTimestamp": time.Now().UTC().Format(time.RFC3339), "totalViolations": total, "violations": violations,
	}})
	if err != nil {
		return err
	}
	_, err = s.Client.Resource(r).Namespace(policy.About.Namespace).Patch(ctx, policy.About.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
