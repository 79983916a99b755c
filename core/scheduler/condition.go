package scheduler

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// setCondition writes PodScheduled=False with the reason, and the nominated node,
// unless both stand there already.
func (s *Scheduler) setCondition(ctx context.Context, p *corev1.Pod, reason, message, nominated string) error {
	since := metav1.Now()
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse {
			continue
		}
		since = c.LastTransitionTime
		if c.Reason == reason && c.Message == message && (nominated == "" || p.Status.NominatedNodeName == nominated) {
			return nil
		}
	}
	status := map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: p.Generation,
		LastTransitionTime: since, Reason: reason, Message: message,
	}}}
	if nominated != "" {
		status["nominatedNodeName"] = nominated
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode the PodScheduled condition: %w", err)
	}
	_, err = s.cfg.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
