package admission

import (
	"context"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// Matches says whether the plugin would be asked about a request at a point, by
// its rules, selectors and conditions. Tools ask that of what New makes.
func (a *adapter) Matches(ctx context.Context, pt abi.Point, r *admission.Request) (bool, error) {
	v := a.plugin.Current()
	if v == nil || v.Hook(pt) == nil {
		return false, nil
	}
	return a.matchers.of(v).matches(ctx, pt, r, a.namespaces)
}
