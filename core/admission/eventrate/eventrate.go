// SPDX-License-Identifier: Apache-2.0

// Package eventrate is the EventRateLimit plugin: it keeps events from flooding the
// store, by token buckets for the whole server, for each namespace, each user, or
// each source and object. What is over a limit is refused with 429. Unlike upstream's
// it also counts events of events.k8s.io, which are the same objects.
package eventrate

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
)

// Name of the plugin.
const Name = "EventRateLimit"

const (
	bucketsByDefault = 4096
	sourceAndObject  = "SourceAndObject"
)

// Plugin is the EventRateLimit plugin. Without limits, as its zero value, it lets
// everything pass.
type Plugin struct{ limits []*limit }

// limit has one bucket for each server, namespace, user, or source and object.
type limit struct {
	kind string
	make func() flowcontrol.PassiveRateLimiter

	mu      sync.Mutex
	buckets *lru.Cache
}

// New makes the plugin; at least one limit is needed.
func New(limits []pluginconfig.EventLimit, now clock.PassiveClock) (*Plugin, error) {
	if len(limits) == 0 {
		return nil, fmt.Errorf("%s: it is enabled, but apiserver.admissionConfigFile has no limits of it", Name)
	}
	p := &Plugin{}
	for _, l := range limits {
		size := int(l.CacheSize)
		if size == 0 {
			size = bucketsByDefault
		}
		p.limits = append(p.limits, &limit{
			kind: l.Type, buckets: lru.New(size),
			make: func() flowcontrol.PassiveRateLimiter {
				return flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(l.QPS), int(l.Burst), now)
			},
		})
	}
	return p, nil
}

// Name implements admission.Plugin.
func (*Plugin) Name() string { return Name }

// Handles implements admission.Plugin.
func (*Plugin) Handles(r *admission.Request) bool {
	return !r.DryRun && r.Resource.Resource == "events" && (r.Resource.Group == "" || r.Resource.Group == eventsv1.GroupName) &&
		r.Subresource == "" &&
		(r.Operation == admission.Create || r.Operation == admission.Update)
}

// Validate implements admission.Validator.
func (p *Plugin) Validate(_ context.Context, r *admission.Request) error {
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

func (l *limit) accept(key string) bool {
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
func (l *limit) key(r *admission.Request) string {
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
	var v runtime.Object
	if r.Object != nil {
		var err error
		if v, err = r.Object.Versioned(); err != nil {
			return ""
		}
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
	return strings.Join([]string{source.Component, source.Host, about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion},
		"")
}
