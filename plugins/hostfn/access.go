// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"context"
	"errors"
	"fmt"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// Access answers who may do what: the cluster's own authorizers.
type Access interface {
	Review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)
}

// Events takes events about objects. It does not wait for them to be written.
type Events interface {
	Record(plugin string, about corev1.ObjectReference, kind, reason, message string)
}

type reviewing struct{}

// costOfReview is what asking the authorizers costs in fuel.
const costOfReview = 2000

// Review asks the cluster's authorizers.
func (c *Caller) Review(ctx context.Context,
	spec authorizationv1.SubjectAccessReviewSpec,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	none := authorizationv1.SubjectAccessReviewStatus{}
	if !c.e.Grants.AccessReview {
		return none, c.refused("ask who may do what", Grant(Review))
	}
	if c.f.backend.Access == nil {
		return none, notHere("authorizers to ask")
	}
	if ctx.Value(reviewing{}) != nil {
		return none, &host.RefusedError{Reason: fmt.Sprintf("plugin %q is being asked by an access review itself, and may not start another",
			c.e.Name)}
	}
	if spec.User == "" && len(spec.Groups) == 0 {
		return none, errors.New("user or groups are missing")
	}
	if (spec.ResourceAttributes == nil) == (spec.NonResourceAttributes == nil) {
		return none, errors.New("either resourceAttributes or nonResourceAttributes are needed")
	}
	if own := c.e.Namespace; own != "" && (spec.ResourceAttributes == nil || spec.ResourceAttributes.Namespace != own) {
		return none, &host.RefusedError{Reason: fmt.Sprintf("plugin %q of namespace %s may ask about that namespace only", c.e.Name, own)}
	}
	own := authorizationv1.ResourceAttributes{Verb: "create", Group: authorizationv1.GroupName, Resource: "subjectaccessreviews"}
	if c.e.Namespace != "" {
		own.Resource, own.Namespace = "localsubjectaccessreviews", c.e.Namespace
	}
	if err := c.may(ctx, own); err != nil {
		return none, err
	}
	if err := host.Charge(ctx, costOfReview); err != nil {
		return none, err
	}
	return c.f.backend.Access.Review(context.WithValue(ctx, reviewing{}, true), spec)
}

// EventRequest is an event about an object.
type EventRequest struct {
	Regarding struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Namespace  string `json:"namespace"`
		Name       string `json:"name"`
		UID        string `json:"uid"`
	} `json:"regarding"`
	Type    string `json:"type"` // Normal or Warning
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Bounds of events: what a plugin may record in a burst, and then each second.
const (
	eventBurst     = 50
	eventsASecond  = 5
	longestReason  = 128
	longestEventID = 253
)

func (c *Caller) event(ctx context.Context, input []byte) ([]byte, error) {
	var q EventRequest
	if err := decode(input, &q); err != nil {
		return nil, err
	}
	return nil, c.RecordEvent(ctx, q)
}

// RecordEvent records an event in the plugin's name; not in a dry run.
func (c *Caller) RecordEvent(ctx context.Context, q EventRequest) error {
	if !c.e.Grants.Events {
		return c.refused("record events", Grant(Event))
	}
	if c.f.backend.Events == nil {
		return notHere("API to record events in")
	}
	r := q.Regarding
	switch {
	case r.Kind == "" || r.Name == "" || r.APIVersion == "":
		return errors.New("regarding: apiVersion, kind and name are needed")
	case q.Type != corev1.EventTypeNormal && q.Type != corev1.EventTypeWarning:
		return fmt.Errorf("type: expected Normal or Warning, found %q", q.Type)
	case q.Reason == "" || len(q.Reason) > longestReason:
		return fmt.Errorf("reason: expected 1 to %d characters", longestReason)
	case len(r.Name) > longestEventID || len(r.Namespace) > longestEventID || len(r.Kind) > longestEventID:
		return errors.New("regarding: the name is longer than names are")
	case c.e.Namespace != "" && r.Namespace != c.e.Namespace:
		return &host.RefusedError{Reason: fmt.Sprintf("plugin %q of namespace %s may record events there only", c.e.Name, c.e.Namespace)}
	}
	if err := c.may(ctx, authorizationv1.ResourceAttributes{Verb: "create", Resource: "events", Namespace: r.Namespace}); err != nil {
		return err
	}
	if host.DryRun(ctx) {
		return nil
	}
	if !c.f.rates.of(c.e.Name).TryAccept() {
		return fmt.Errorf("more than %d events, or %d each second: this one is dropped", eventBurst, eventsASecond)
	}
	c.f.backend.Events.Record(c.e.Name, corev1.ObjectReference{
		APIVersion: r.APIVersion, Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, UID: types.UID(r.UID),
	}, q.Type, q.Reason, clip(q.Message, 1000))
	return nil
}

// rates bound the events of each plugin, across its versions.
type rates struct {
	mu   sync.Mutex
	made map[string]flowcontrol.PassiveRateLimiter
}

func (r *rates) of(plugin string) flowcontrol.PassiveRateLimiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil {
		r.made = map[string]flowcontrol.PassiveRateLimiter{}
	}
	if r.made[plugin] == nil {
		r.made[plugin] = flowcontrol.NewTokenBucketPassiveRateLimiter(eventsASecond, eventBurst)
	}
	return r.made[plugin]
}
