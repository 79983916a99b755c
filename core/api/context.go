// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
)

// StrategyInfo is what upstream's strategies look up in their context.
type StrategyInfo struct {
	// Request is the parsed request. Declarative validation reads its group,
	// version and subresource; without it they are taken from the three below.
	Request     *request.RequestInfo
	Resource    *Resource
	Version     string // "" = the preferred one
	Subresource string

	User user.Info
	// Namespace of the object; "" for cluster-wide ones.
	Namespace string
	// DryRun: nothing is going to be written.
	DryRun bool
	// Warn receives what the client is to be warned of; nil drops it.
	Warn func(text string)
}

// StrategyContext prepares ctx for calls of strategies, rest.BeforeCreate and
// its like. Without it they panic, or log an error for ordinary bad input.
func StrategyContext(ctx context.Context, info StrategyInfo) context.Context {
	ctx = klog.NewContext(ctx, logr.Discard())
	ctx = request.WithNamespace(ctx, info.Namespace)
	if info.Request == nil {
		info.Request = info.request()
	}
	ctx = request.WithRequestInfo(ctx, info.Request)
	if info.User != nil {
		ctx = request.WithUser(ctx, info.User)
	}
	if info.DryRun {
		ctx = context.WithValue(ctx, dryRunKey{}, true)
	}
	if info.Warn != nil {
		ctx = warning.WithWarningRecorder(ctx, warner(info.Warn))
	}
	return ctx
}

type dryRunKey struct{}

// DryRun says whether a strategy is called for a write that is only tried.
func DryRun(ctx context.Context) bool {
	dry, _ := ctx.Value(dryRunKey{}).(bool)
	return dry
}

func (i StrategyInfo) request() *request.RequestInfo {
	r := &request.RequestInfo{IsResourceRequest: true, Namespace: i.Namespace, APIVersion: i.Version, Subresource: i.Subresource}
	if i.Resource == nil {
		return r
	}
	r.APIGroup, r.Resource = i.Resource.Group, i.Resource.GroupResource.Resource
	if r.APIVersion == "" {
		r.APIVersion = i.Resource.Versions[0]
	}
	return r
}

type warner func(string)

// AddWarning implements warning.Recorder.
func (w warner) AddWarning(_, text string) { w(text) }
