// SPDX-License-Identifier: Apache-2.0

// Package priority names the class of a request: the FlowSchema that matches it and
// the priority level that this one leads to.
//
// Matching is done by upstream's controller of API priority and fairness. Finding a
// class takes no seat of its level and counts nothing.
package priority

import (
	"context"
	"net/http"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Class is where a request belongs. The zero value is no class.
type Class struct {
	Schema *flowcontrolv1.FlowSchema
	Level  *flowcontrolv1.PriorityLevelConfiguration
}

// SetHeaders tells the client its class, by UIDs: a name may disclose something.
func (c *Class) SetHeaders(h http.Header) {
	if c.Schema == nil {
		return
	}
	h.Set(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID, string(c.Level.UID))
	h.Set(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID, string(c.Schema.UID))
}

// found ends Handle once it has reported the class.
type found struct{}

// Find finds the class of a request. Only Handle knows the matching rules. It reports
// the class before it looks for a seat: at that point it has counted nothing, and it
// holds one lock, which a deferred call releases, so a panic is a safe way out.
func Find(ctx context.Context, control flowcontrol.Interface, digest flowcontrol.RequestDigest) (c Class) {
	defer func() {
		if r := recover(); r != nil && r != (found{}) {
			panic(r)
		}
	}()
	control.Handle(ctx, digest,
		func(fs *flowcontrolv1.FlowSchema, pl *flowcontrolv1.PriorityLevelConfiguration, _ string) {
			c = Class{Schema: fs, Level: pl}
			panic(found{})
		},
		func() fcrequest.WorkEstimate { return fcrequest.WorkEstimate{} }, func(bool) {}, func() {})
	return c
}
