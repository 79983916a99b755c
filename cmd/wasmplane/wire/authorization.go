// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/api/nodeauth"
	"github.com/wasmplane/wasmplane/core/api/rbac"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/auth/reloads"
)

// authorization says who may do what.
type authorization struct {
	*authz.Chain
	native    authz.Native
	roles     *rbac.Authorizer
	rolesRead chan struct{} // closed when roles and bindings have been read
	plugins   *process.Plugins
	order     atomic.Pointer[[]authz.Entry]
}

// newAuthorization makes the chain: in the order of a file, or else Wasm authorizers
// that stand before, the Node authorizer, RBAC, Wasm authorizers that stand behind.
func newAuthorization(b base, plugins *process.Plugins) (*authorization, error) {
	r, read := b.informers.Rbac().V1(), make(chan struct{})
	roles := rbac.NewAuthorizer(read, r.Roles().Lister(), r.RoleBindings().Lister(), r.ClusterRoles().Lister(),
		r.ClusterRoleBindings().Lister())
	a := &authorization{
		roles: roles, rolesRead: read, plugins: plugins,
		native: authz.Native{Node: authz.Named("Node", nodeauth.New(b.informers)), RBAC: authz.Named("RBAC", roles)},
	}
	order := authz.DefaultEntries()
	if f := b.Options.Config.APIServer.AuthorizationConfigFile; f != "" {
		file := b.Options.Config.Path(f)
		id, err := b.Options.Dir.Identity()
		if err != nil {
			return nil, err
		}
		b.follows.add("the authorization configuration", func(context.Context) error { return a.reorder(b, file, id) },
			append([]string{file}, authz.WebhookFiles(file)...)...)
		if order, err = authz.LoadFile(file, *process.OperatorsDial(b.Options)); err != nil {
			return nil, fmt.Errorf("apiserver.authorizationConfigFile: %w", err)
		}
	}
	a.order.Store(&order)
	var err error
	if a.Chain, err = authz.NewChain(a.authorizers(order)...); err != nil {
		return nil, err
	}
	plugins.OnChange(func() {
		if err := a.Replace(a.authorizers(*a.order.Load())...); err != nil {
			b.Options.Logger.Error("the authorizers stay as they were", "error", err)
		}
	})
	return a, nil
}

// reorder takes on a file that has changed. Its ends are counted under upstream's names.
func (a *authorization) reorder(b base, file, server string) (err error) {
	defer func() { reloads.Authorization.Ended(server, err) }()
	order, err := authz.LoadFile(file, *process.OperatorsDial(b.Options))
	if err != nil {
		return err
	}
	if err := a.Replace(a.authorizers(order)...); err != nil {
		return err
	}
	a.order.Store(&order)
	return nil
}

func (a *authorization) authorizers(order []authz.Entry) []authz.Authorizer {
	before, after := a.plugins.Authorizers()
	return authz.Arrange(order, a.native, before, after)
}

// readRoles waits until roles and bindings have been read, once the informers run; till
// then RBAC allows nothing.
func (a *authorization) readRoles(ctx context.Context, b base) {
	r := b.informers.Rbac().V1()
	if cache.WaitForCacheSync(ctx.Done(), r.Roles().Informer().HasSynced, r.RoleBindings().Informer().HasSynced,
		r.ClusterRoles().Informer().HasSynced, r.ClusterRoleBindings().Informer().HasSynced) {
		close(a.rolesRead)
	}
}
