// SPDX-License-Identifier: Apache-2.0

package store

import "fmt"

// Write is one that asks for room.
type Write struct {
	Namespace string // "" = of the cluster
	// Bytes of the new value, and Before of what it replaces.
	Bytes, Before int
	// Reserved: it may use what is kept back, and more than the namespace's share.
	Reserved bool
}

// Limits of a FullError, as the configuration names them.
const (
	Quota          = "store.quotaBytes"
	NamespaceQuota = "store.namespaceQuotaBytes"
)

// FullError refuses a write. It names the limit as the configuration does.
type FullError struct {
	Limit     string
	Namespace string
	Bytes     int64 // taken
	Bound     int64
}

// Error implements error.
func (e *FullError) Error() string {
	if e.Limit == NamespaceQuota {
		return fmt.Sprintf("the objects of namespace %s take %d of %d bytes (%s): delete some of them first", e.Namespace, e.Bytes, e.Bound,
			e.Limit)
	}
	return fmt.Sprintf("the store is full: %d bytes are taken, and %d of %s are for ordinary writes; delete objects, and it takes writes again within seconds",
		e.Bytes, e.Bound, e.Limit)
}

// Is makes it an ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }
