package kubelet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// tell records an event about a pod, or about one of its containers.
func (k *Kubelet) tell(p *corev1.Pod, containerName, kind, reason, message string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
	if containerName != "" {
		if c, kd := container(p, containerName); c != nil {
			field := map[pod.Kind]string{pod.Init: "initContainers", pod.Sidecar: "initContainers", pod.Regular: "containers", pod.Ephemeral: "ephemeralContainers"}[kd]
			ref.FieldPath = fmt.Sprintf("spec.%s{%s}", field, containerName)
		}
	}
	k.rec.Event(ref, kind, reason, message)
}

func (k *Kubelet) tellProbe(p *corev1.Pod, c *corev1.Container, kind, reason, message string) {
	k.tell(p, c.Name, kind, reason, message)
}

// runtimeClass is asked for when a pod names one: few do.
func (k *Kubelet) runtimeClass(ctx context.Context, name string) (*nodev1.RuntimeClass, error) {
	return k.cfg.Client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
}
