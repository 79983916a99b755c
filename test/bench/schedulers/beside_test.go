// SPDX-License-Identifier: Apache-2.0

package schedulers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// makeAny makes the objects of a template, of whatever kind it is.
func (u *runner) makeAny(ctx context.Context, o op) error {
	if o.Namespace != "" && !u.namespaced(o.Namespace) {
		if err := u.namespace(ctx, o.Namespace, nil); err != nil {
			return err
		}
	}
	return each(ctx, o.Count, func(ctx context.Context, i int) error {
		object, err := u.row.object(o.TemplatePath, &o, i)
		if err != nil {
			return err
		}
		_, err = u.one(ctx, o.Namespace, object)
		return err
	})
}

// one makes an object, and answers what removes it.
func (u *runner) one(ctx context.Context, namespace string, object runtime.Object) (remove func(context.Context) error, err error) {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	switch o := object.(type) {
	case *corev1.Pod:
		if err := u.important(ctx, o); err != nil {
			return nil, err
		}
		pods := u.client.CoreV1().Pods(namespace)
		o, err = pods.Create(ctx, o, metav1.CreateOptions{})
		return func(ctx context.Context) error { return pods.Delete(ctx, o.Name, now) }, err
	case *corev1.Node:
		nodes := u.client.CoreV1().Nodes()
		o, err = nodes.Create(ctx, o, metav1.CreateOptions{})
		return func(ctx context.Context) error { return nodes.Delete(ctx, o.Name, now) }, err
	case *corev1.Service:
		services := u.client.CoreV1().Services(namespace)
		o, err = services.Create(ctx, o, metav1.CreateOptions{})
		return func(ctx context.Context) error { return services.Delete(ctx, o.Name, now) }, err
	case *resourcev1.DeviceClass:
		classes := u.client.ResourceV1().DeviceClasses()
		o, err = classes.Create(ctx, o, metav1.CreateOptions{})
		return func(ctx context.Context) error { return classes.Delete(ctx, o.Name, now) }, err
	case *resourcev1.ResourceClaim:
		claims := u.client.ResourceV1().ResourceClaims(namespace)
		o, err = claims.Create(ctx, o, metav1.CreateOptions{})
		return func(ctx context.Context) error { return claims.Delete(ctx, o.Name, now) }, err
	case *resourcev1.ResourceClaimTemplate:
		templates := u.client.ResourceV1().ResourceClaimTemplates(namespace)
		o, err = templates.Create(ctx, o, metav1.CreateOptions{})
		return func(ctx context.Context) error { return templates.Delete(ctx, o.Name, now) }, err
	case *resourcev1.ResourceSlice:
		slices := u.client.ResourceV1().ResourceSlices()
		o, err = slices.Create(ctx, o, metav1.CreateOptions{})
		return func(ctx context.Context) error { return slices.Delete(ctx, o.Name, now) }, err
	}
	return nil, fmt.Errorf("a %T is not made here", object)
}

// important gives a pod its priority by a class: upstream's rows name the number itself, which a server takes from nobody.
func (u *runner) important(ctx context.Context, p *corev1.Pod) error {
	if p.Spec.Priority == nil {
		return nil
	}
	p.Spec.PriorityClassName = fmt.Sprintf("priority-%d", *p.Spec.Priority)
	if _, made := u.classes.LoadOrStore(p.Spec.PriorityClassName, true); made {
		return nil
	}
	_, err := u.client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: p.Spec.PriorityClassName}, Value: *p.Spec.Priority,
	}, metav1.CreateOptions{})
	return err
}

// churn makes the objects of templates again and again until the row ends; with mode recreate it removes them before.
func (u *runner) churn(row, ctx context.Context, o op) error {
	const namespace = "churn"
	if err := u.namespace(ctx, namespace, nil); err != nil {
		return err
	}
	u.goOn(row, time.Duration(o.IntervalMillis)*time.Millisecond, func(ctx context.Context, turn int) error {
		if o.Mode == "create" && o.Number > 0 && turn >= o.Number {
			return nil
		}
		for _, path := range o.TemplatePaths {
			object, err := u.row.object(path, &o, turn)
			if err != nil {
				return err
			}
			remove, err := u.one(ctx, namespace, object)
			if err == nil && o.Mode == "recreate" {
				err = remove(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// deletePods deletes the pods of a namespace, so many a second, beside the other steps. Upstream names the namespace of
// a step "namespace-" and its number.
func (u *runner) deletePods(row context.Context, o op) error {
	namespace := o.Namespace
	if number, ok := strings.CutPrefix(namespace, "namespace-"); ok {
		namespace = "step" + number
	}
	all, err := u.client.CoreV1().Pods(namespace).List(row, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(all.Items) == 0 {
		return fmt.Errorf("there are no pods in %s", namespace)
	}
	u.goOn(row, time.Second/time.Duration(max(o.PodsPerSecond, 1)), func(ctx context.Context, turn int) error {
		if turn >= len(all.Items) {
			return nil
		}
		return u.client.CoreV1().Pods(namespace).Delete(ctx, all.Items[turn].Name, metav1.DeleteOptions{})
	})
	return nil
}

// goOn does something every so often until the row ends.
func (u *runner) goOn(row context.Context, every time.Duration, do func(ctx context.Context, turn int) error) {
	u.beside.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for turn := 0; ; turn++ {
			select {
			case <-row.Done():
				return
			case <-tick.C:
			}
			if err := do(row, turn); err != nil && !errors.Is(err, context.Canceled) && row.Err() == nil {
				u.tb.Errorf("beside the row: %v", err)
				return
			}
		}
	})
}
