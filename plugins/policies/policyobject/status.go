// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
)

// reporter is who reports, where a project's status has reports by pod.
const reporter = "wasmplane"

// condition is a condition of an object; nil = it has none of that type.
func condition(o *unstructured.Unstructured, kind string) map[string]any {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return m
		}
	}
	return nil
}

// state is what the controller looks at of an object's status.
func state(o *unstructured.Unstructured) string {
	out := ""
	for _, kind := range []string{apiobject.Ready, apiobject.Updated} {
		if c := condition(o, kind); c != nil {
			out += fmt.Sprint(c["status"], c["message"], c["observedGeneration"], ";")
		}
	}
	return out
}

// readiness is the condition of a policy: what is wrong with it, or else what its Plugin says.
func readiness(o, plugin *unstructured.Unstructured, problem error) map[string]any {
	c := map[string]any{
		"type": apiobject.Ready, "status": "False", "reason": "Waiting", "message": "its plugin is not there yet",
		"observedGeneration": o.GetGeneration(),
	}
	switch {
	case problem != nil:
		c["reason"], c["message"] = "Refused", problem.Error()
		if plugin != nil {
			c["message"] = problem.Error() + " (the version before stays in force)"
		}
	case plugin != nil:
		updated, ready := condition(plugin, apiobject.Updated), condition(plugin, apiobject.Ready)
		seen, _, _ := unstructured.NestedInt64(plugin.Object, "status", "observedGeneration")
		switch {
		case ready == nil || updated == nil || seen != plugin.GetGeneration():
			c["reason"], c["message"] = "Loading", "its plugin "+plugin.GetName()+" is being loaded"
		case updated["status"] != "True":
			c["reason"], c["message"] = updated["reason"], updated["message"]
		default:
			c["status"], c["reason"], c["message"] = ready["status"], ready["reason"], "by its plugin "+plugin.GetName()+": "+fmt.Sprint(
				ready["message"])
		}
	}
	if before := condition(o, apiobject.Ready); before != nil && before["status"] == c["status"] {
		c["lastTransitionTime"] = before["lastTransitionTime"]
	}
	return c
}

// templateStatus is the status of a template, in Gatekeeper's form.
func templateStatus(o *unstructured.Unstructured, k *known) map[string]any {
	by := map[string]any{"id": reporter, "observedGeneration": o.GetGeneration()}
	if k.err != nil {
		by["errors"] = []any{map[string]any{"code": "ingest_error", "message": k.err.Error()}}
	}
	return map[string]any{"created": k.installed, "byPod": []any{by}}
}

// constraintStatus is the status of a constraint, in Gatekeeper's form, with a condition.
func constraintStatus(o, plugin *unstructured.Unstructured, problem error) map[string]any {
	c := readiness(o, plugin, problem)
	by := map[string]any{
		"id": reporter, "observedGeneration": o.GetGeneration(), "constraintUID": string(o.GetUID()),
		"enforced": c["status"] == "True",
	}
	if c["status"] != "True" {
		by["errors"] = []any{map[string]any{"code": fmt.Sprint(c["reason"]), "message": fmt.Sprint(c["message"])}}
	}
	out := map[string]any{"conditions": []any{c}, "byPod": []any{by}}
	before, _, _ := unstructured.NestedMap(o.Object, "status")
	for _, field := range []string{"auditTimestamp", "totalViolations", "violations"} { // of the scan of what is stored
		if value, there := before[field]; there {
			out[field] = value
		}
	}
	return out
}

// policyStatus is the status of a policy of Kubewarden, in its form.
func policyStatus(o, plugin *unstructured.Unstructured, problem error) map[string]any {
	c := readiness(o, plugin, problem)
	out := map[string]any{"conditions": []any{c}, "policyStatus": "pending"}
	if c["status"] == "True" {
		out["policyStatus"] = "active"
	}
	mode, _, _ := unstructured.NestedString(o.Object, "spec", "mode")
	if mode == "" {
		mode = "protect"
	}
	out["mode"] = mode
	return out
}

// writeStatus writes a status where it says something else than before.
func (c *Controller) writeStatus(ctx context.Context, r schema.GroupVersionResource, o *unstructured.Unstructured,
	status map[string]any,
) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	stamp(status)
	if before, _, _ := unstructured.NestedMap(o.Object, "status"); equality.Semantic.DeepEqual(before, status) {
		return nil
	}
	fresh := o.DeepCopy()
	fresh.Object["status"] = status
	_, err := c.cfg.Client.Resource(r).Namespace(o.GetNamespace()).UpdateStatus(ctx, fresh, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change is going to be seen
	}
	return err
}

// stamp dates the conditions that have just changed.
func stamp(status map[string]any) {
	list, _ := status["conditions"].([]any)
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["lastTransitionTime"] == nil {
			m["lastTransitionTime"] = metav1.Now().UTC().Format("2006-01-02T15:04:05Z")
		}
	}
}
