// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
)

// OffersUsers is an error where the runtime cannot give a pod a user namespace, so that the pod's owner
// reads what is missing and not what the runtime makes of it.
func OffersUsers(ctx context.Context, e Engine, handler string) error {
	l, ok := e.(HandlerLister)
	if !ok {
		return nil
	}
	list, err := l.Handlers(ctx)
	if err != nil || len(list) == 0 {
		return err
	}
	for _, h := range list {
		if h.Name == handler && h.GetFeatures().GetUserNamespaces() {
			return nil
		}
	}
	if handler != "" {
		return fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
	}
	return errors.New("can't set `spec.hostUsers: false`, the node's runtime does not support user namespaces: " +
		"they need runc 1.2 or newer, and Linux 6.3 or newer")
}
