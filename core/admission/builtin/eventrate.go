// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
)

const (
	bucketsByDefault = 4096
	sourceAndObject  = "SourceAndObject"
)

// eventRateLimit keeps events from flooding the store. Unlike upstream's it also
// counts those of events.k8s.io, which are the same objects.
type eventRateLimit struct{ limits []*eventLimit }

// eventLimit has one bucket for each server, namespace, user, or source and object.
type eventLimit struct {
	kind string
	make func() flowcontrol.PassiveRateLimiter

	mu      sync.Mutex
	buckets *lru.Cache
}

func newEventRateLimit(limits []pluginconfig.EventLimit, now clock.PassiveClock) (*eventRateLimit, error) {
	if len(limits) == 0 {
		return nil, fmt.Errorf("%s: it is enabled, but apiserver.admissionConfigFile has no limits of it", eventRateLimitName)
	}
	p := &eventRateLimit{}
	for _, l := range limits {
		size := int(l.CacheSize)
		if size == 0 {
			size = bucketsByDefault
		}
		p.limits = append(p.limits, &eventLimit{
			kind: l.Type, buckets: lru.New(size),
			make: func() flowcontrol.PassiveRateLimiter {
				return flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(l.QPS), int(l.Burst), now)
			},
		})
	}
	return p, nil
}

func (*eventRateLimit) Name() string { return eventRateLimitName }

func (*eventRateLimit) Handles(r *admission.Request) bool {
	return !r.DryRun && (on("", "events", "", admission.Create, admission.Update).Handles(r) ||
		on("events.k8s.io", "events", "", admission.Create, admission.Update).Handles(r))
}

func (p *eventRateLimit) Validate(_ context.Context, r *admission.Request) error {
	var reached []error
	for _, l := range p.limits {
		if key := l.key(r); !l.accept(key) {
			reached = append(reached, fmt.Errorf("limit reached on type %v for key %v", l.kind, key))
		}
	}
	if err := utilerrors.NewAggregate(reached); err != nil {
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	return nil
}

func (l *eventLimit) accept(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket, ok := l.buckets.Get(key)
	if !ok {
		bucket = l.make()
		l.buckets.Add(key, bucket)
	}
	return bucket.(flowcontrol.PassiveRateLimiter).TryAccept()
}

// key of the bucket that the event is taken from.
func (l *eventLimit) key(r *admission.Request) string {
	switch l.kind {
	case "Namespace":
		return r.Namespace
	case "User":
		if r.User == nil {
			return ""
		}
		return r.User.GetName()
	case sourceAndObject:
		return sourceKey(r)
	}
	return ""
}

func sourceKey(r *admission.Request) string {
	v, err := versionedOrNil(r.Object)
	if err != nil {
		return ""
	}
	var source corev1.EventSource
	var about corev1.ObjectReference
	switch e := v.(type) {
	case *corev1.Event:
		source, about = e.Source, e.InvolvedObject
	case *eventsv1.Event:
		source, about = corev1.EventSource{Component: e.ReportingController, Host: e.ReportingInstance}, e.Regarding
		if e.DeprecatedSource.Component != "" {
			source = e.DeprecatedSource
		}
	default:
		return ""
	}
	return strings.Join([]string{source.Component, source.Host, about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion}, "")
}
