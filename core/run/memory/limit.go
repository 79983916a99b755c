// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// ofLimit is the share of the control group's limit that the collector keeps to. The rest
// is for what it does not see: stacks of the kernel, mapped files, children.
const ofLimit = 0.9

// Limit has the garbage collector keep to the memory limit of the process's control group,
// where there is one: without it a process is killed over garbage. GOMEMLIMIT in the
// environment is the operator's choice, and stays.
func Limit(ctx context.Context, log *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit, err := memlimit.Set(memlimit.WithRatio(ofLimit), memlimit.WithProvider(memlimit.FromCgroup))
	switch {
	case errors.Is(err, memlimit.ErrNoLimit) || errors.Is(err, memlimit.ErrCgroupsNotSupported) || errors.Is(err, memlimit.ErrNoCgroup):
	case err != nil:
		log.WarnContext(ctx, "the memory limit of the control group is not known", "error", err)
	case limit > 0:
		log.InfoContext(ctx, "memory is kept below the control group's limit", "bytes", limit)
	}
}
