// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/run"
)

// RetryForbidden tries again for a moment when the API forbids: a node may read what
// its pods refer to, and the API's authorizer may learn of a pod a little later
// than the node does.
func RetryForbidden(ctx context.Context, try func() error) error {
	const attempts = 9 // some 1.3 s
	retry := run.Backoff{First: 5 * time.Millisecond, Longest: time.Second}
	for n := 1; ; n++ {
		err := try()
		if !apierrors.IsForbidden(err) || n == attempts || !retry.Wait(ctx) {
			return err
		}
	}
}
