// SPDX-License-Identifier: Apache-2.0

// Package ended ends the work of requests that are over.
//
// Most of what a write does is computed by functions that know of no context: decoding, merging, defaulting, field
// management, validation. Each is bounded by itself, and between any two of them the write looks here.
package ended

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Check is the refusal of a request whose deadline has passed or whose client has gone; nil = it goes on.
func Check(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}
