// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"os"
	"sync/atomic"
)

// Role is another life of this program: that of a child which does one job and ends. Its parent starts Program with
// Variable in the environment.
type Role struct {
	// Variable of the environment that carries what the parent tells the child. It is not argv[0], because executing
	// os.Executable() again loses argv[0].
	Variable string
	// Name is what errors that the child prints begin with.
	Name string

	prepared atomic.Bool
}

// MaybeRun takes the process over when it was started in this role: it never returns then, and ends the process after
// do. It comes first in main, before flags are read.
func (r *Role) MaybeRun(do func(encoded string) error) {
	encoded, ok := os.LookupEnv(r.Variable)
	if !ok {
		r.prepared.Store(true)
		return
	}
	os.Clearenv()
	if err := do(encoded); err != nil {
		fmt.Fprintln(os.Stderr, r.Name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Prepared says that this process's main gave MaybeRun its chance, so that a child of this program would take the role
// and not be another of whatever this process is.
func (r *Role) Prepared() bool { return r.prepared.Load() }
