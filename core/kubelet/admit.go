// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/fit"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Admitter has a say in whether a pod may run on this node, after the node's own
// checks. A refusal ends the pod as Failed, with the reason and message given.
// An error means that no decision could be made: the node asks again.
type Admitter interface {
	// Name for messages and traces.
	Name() string
	Admit(ctx context.Context, pod *corev1.Pod, node *corev1.Node) (admitted bool, reason, message string, err error)
}

// admit decides whether a pod may run here: the node's own checks first, which
// also reserve the pod's resources, then each admitter.
func (k *Kubelet) admit(ctx context.Context, p *corev1.Pod) (fit.Verdict, error) {
	ctx, span := k.Span(ctx, "admit", p)
	defer span.End()
	node, err := k.nodeFor(p)
	if err != nil {
		return fit.Verdict{}, fmt.Errorf("admit pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	v := k.room.Reserve(p, k.withDevices(node, p))
	if len(v.Lacking) > 0 && evict.Critical(p) {
		if v, err = k.preempt(p, k.withDevices(node, p)); err != nil {
			return fit.Verdict{}, err
		}
	}
	for _, a := range k.cfg.Admitters {
		if v.Refused {
			break
		}
		ok, reason, message, err := a.Admit(ctx, p, node)
		if err != nil {
			return fit.Verdict{}, fmt.Errorf("ask node admission plugin %s about pod %s/%s: %w", a.Name(), p.Namespace, p.Name, err)
		}
		if !ok {
			v = fit.Verdict{Refused: true, Reason: reason, Message: message}
			span.SetAttributes(trace.PluginKey.String(a.Name()))
		}
	}
	if !v.Refused {
		if v, err = k.giveDevices(ctx, p); err != nil {
			return fit.Verdict{}, err
		}
		if v.Refused && k.devicesComeFree() {
			k.cfg.Devices.Release(p.UID) // what it has got of several
			return fit.Verdict{}, errDevicesHeld
		}
	}
	decision := "allow"
	if v.Refused {
		decision = "deny"
		k.vacate(p.UID)
	}
	span.SetAttributes(trace.PointKey.String("node.admit"), trace.DecisionKey.String(decision), trace.MessageKey.String(v.Message))
	return v, nil
}

// errPreempting has a critical pod ask again once those have ended that go for it.
var errPreempting = errors.New("pods that go for it have not ended yet")

// errDevicesHeld has a pod ask again that came, by the scheduler's count, into the place of one that has not ended yet.
var errDevicesHeld = errors.New("a pod that was deleted by force has not ended yet, and holds devices")

// devicesComeFree reports whether a pod that the API no longer has holds devices, which it gives back when it has ended.
func (k *Kubelet) devicesComeFree() bool {
	return slices.ContainsFunc(population{k}.all(), func(w *worker) bool { return w.isRemoved() && k.cfg.Devices.Has(w.uid) })
}

// preempt ends pods so that a critical one has its place. Where the end of all would not do, none goes.
func (k *Kubelet) preempt(critical *corev1.Pod, node *corev1.Node) (fit.Verdict, error) {
	pods := population{k}
	if pods.ending() {
		return fit.Verdict{}, errPreempting
	}
	// Those that were to end have, perhaps only now.
	v := k.room.Reserve(critical, node)
	if len(v.Lacking) == 0 {
		return v, nil
	}
	chosen, err := evict.Preempt(critical, k.room.Pods(), v.Lacking, status.QOS)
	if err != nil {
		k.log.Warn("no pods can go for a critical one", "kind", "Pod", "namespace", critical.Namespace, "name", critical.Name, "error", err)
		return v, nil
	}
	for _, p := range chosen {
		pods.end(p.UID, evict.Preempting, evict.PreemptingMessage, nil)
	}
	return fit.Verdict{}, errPreempting
}
