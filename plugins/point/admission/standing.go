// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Standing is a plugin that is asked about what is stored already, beside requests: no mode has an effect,
// nothing is counted as one of its decisions.
type Standing interface {
	admission.Plugin
	// Current is whatever there is of it, be it broken or still being loaded; nil = nothing.
	Current() *point.Version
	// Version is that in force where it can be asked to validate; nil = it cannot.
	Version() *point.Version
	// Broken is that of an entry which could not be loaded, and might validate if it could; nil = it is none.
	Broken() *point.Version
	// Pending says that it is being loaded for the first time: whether it can be asked is not known yet.
	Pending() bool
	// Judge asks the plugin to validate. asked says whether it is about the request at all; against are
	// what it has against the object. An error is a failure of the plugin.
	Judge(ctx context.Context, r *admission.Request) (asked bool, against []string, err error)
}

// Current implements Standing.
func (a *adapter) Current() *point.Version { return a.plugin.Current() }

// Version implements Standing.
func (a *adapter) Version() *point.Version {
	v := a.plugin.Current()
	if v == nil || v.Err != nil || v.Hook(abi.AdmissionValidate) == nil {
		return nil
	}
	return v
}

// Broken implements Standing.
func (a *adapter) Broken() *point.Version {
	v := a.plugin.Current()
	if v == nil || v.Err == nil || v.Pending() || v.Hook(abi.AdmissionValidate) == nil {
		return nil
	}
	return v
}

// Pending implements Standing.
func (a *adapter) Pending() bool { return a.plugin.Current().Pending() }

// Judge implements Standing.
func (a *adapter) Judge(ctx context.Context, r *admission.Request) (asked bool, against []string, err error) {
	if a.Version() == nil {
		return false, nil, nil
	}
	c, answer, err := a.answer(aside(ctx), r)
	if err != nil || c == nil {
		return err != nil, nil, err
	}
	if c.Err != nil {
		return true, nil, c.Err
	}
	return true, objections(answer), nil
}

// Judge implements Standing.
func (g *group) Judge(ctx context.Context, r *admission.Request) (asked bool, against []string, err error) {
	v := g.Version()
	if v == nil {
		return false, nil, nil
	}
	if asked, err = matcherOf(v).matches(ctx, abi.AdmissionValidate, r, g.cluster); err != nil || !asked {
		return err != nil, nil, err
	}
	answer, err := g.judge(aside(ctx), r, v.Entry.Group)
	if err != nil {
		return true, nil, err
	}
	return true, objections(answer), nil
}

// aside is for what nobody waits for: nothing is changed, and failures say nothing of how requests fare.
func aside(ctx context.Context) context.Context { return host.WithAside(host.WithDryRun(ctx)) }

// objections are those of an answer, each by itself: a policy may have found several.
func objections(a *abi.AdmissionAnswer) (out []string) {
	if !a.Denied() {
		return nil
	}
	if a.Message != "" || a.Field != "" || len(a.Causes) == 0 {
		out = append(out, about(a.Field, a.Message))
	}
	for _, c := range a.Causes {
		out = append(out, about(c.Field, c.Message))
	}
	return out
}
