// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fairness "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// fairnessInterval is how often upstream puts right what was changed.
const fairnessInterval = time.Minute

// keepFairness keeps upstream's FlowSchemas and priority levels: the mandatory
// ones always, the suggested ones until an operator changes them. A server that
// has none of them yet treats every request alike, so nobody waits for this.
func (b *Bootstrap) keepFairness(ctx context.Context) {
	tick := time.NewTicker(fairnessInterval)
	defer tick.Stop()
	looked := sync.OnceFunc(func() { close(b.fair) })
	for {
		if err := b.fairness(ctx); err != nil && ctx.Err() == nil {
			b.cfg.Log.WarnContext(ctx, "flow schemas and priority levels are not all in place; trying again", "error", err)
		}
		looked()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// fairness makes levels before the schemas that refer to them.
func (b *Bootstrap) fairness(ctx context.Context) error {
	var errs []error
	for _, set := range []struct {
		levels    []*flowcontrolv1.PriorityLevelConfiguration
		schemas   []*flowcontrolv1.FlowSchema
		mandatory bool
	}{
		{fairness.SuggestedPriorityLevelConfigurations, fairness.SuggestedFlowSchemas, false},
		{fairness.MandatoryPriorityLevelConfigurations, fairness.MandatoryFlowSchemas, true},
	} {
		for _, level := range set.levels {
			errs = append(errs, keep(ctx, "priority level", b.cfg.Client.FlowcontrolV1().PriorityLevelConfigurations(), level, set.mandatory,
				func(o *flowcontrolv1.PriorityLevelConfiguration) *flowcontrolv1.PriorityLevelConfigurationSpec {
					return &o.Spec
				}))
		}
		for _, schema := range set.schemas {
			errs = append(errs, keep(ctx, "flow schema", b.cfg.Client.FlowcontrolV1().FlowSchemas(), schema, set.mandatory,
				func(o *flowcontrolv1.FlowSchema) *flowcontrolv1.FlowSchemaSpec { return &o.Spec }))
		}
	}
	return errors.Join(errs...)
}

// fairnessObject is a FlowSchema or a PriorityLevelConfiguration.
type fairnessObject[T any] interface {
	metav1.Object
	DeepCopy() T
}

type fairnessClient[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, o metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, o metav1.UpdateOptions) (T, error)
}

// fairnessManager is upstream's field manager of these objects.
const fairnessManager = "api-priority-and-fairness-config-producer-v1"

// keep makes an object, or brings its spec up to date where nobody has made it
// his own. The annotation apf.kubernetes.io/autoupdate-spec says whose it is.
func keep[T fairnessObject[T], S any](ctx context.Context, kind string, api fairnessClient[T], wanted T, mandatory bool,
	spec func(T) *S,
) error {
	name := wanted.GetName()
	has, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, wanted.DeepCopy(), metav1.CreateOptions{FieldManager: fairnessManager})
		if made(err) != nil {
			return fmt.Errorf("%s %s: %w", kind, name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	update := mandatory || ours(has)
	changed := has.DeepCopy()
	if update && !equality.Semantic.DeepEqual(spec(has), spec(wanted)) {
		*spec(changed) = *spec(wanted.DeepCopy())
	}
	if annotated, err := strconv.ParseBool(has.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err != nil || annotated != update {
		annotations := changed.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(update)
		changed.SetAnnotations(annotations)
	}
	if equality.Semantic.DeepEqual(has, changed) {
		return nil
	}
	if _, err := api.Update(ctx, changed, metav1.UpdateOptions{FieldManager: fairnessManager}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	return nil
}

// ours: nobody has changed its spec, or an operator has said that we may.
func ours(o metav1.Object) bool {
	if update, err := strconv.ParseBool(o.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return update
	}
	return o.GetGeneration() == 1
}
