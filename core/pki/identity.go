// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Identity is who a client certificate makes its holder.
type Identity struct {
	// Name is the file's name without extension.
	Name string
	// User and Groups are what authorization sees.
	User   string
	Groups []string

	frontProxy bool
}

// Groups with a meaning of their own.
const (
	// AdminsGroup is bound to cluster-admin by core/bootstrap, and can be unbound.
	AdminsGroup = "wasmplane:cluster-admins"
	// BreakGlassGroup is above every authorizer: no policy can lock it out.
	BreakGlassGroup = "system:masters"
	nodesGroup      = "system:nodes"
)

// Admin is the person who runs the cluster, subject to authorization like anyone.
func Admin() Identity {
	return Identity{Name: "admin", User: "kubernetes-admin", Groups: []string{AdminsGroup}}
}

// BreakGlass is for the day when a policy has locked everyone out. No component
// uses it; its file is best kept somewhere else.
func BreakGlass() Identity {
	return Identity{Name: "break-glass", User: "kubernetes-super-admin", Groups: []string{BreakGlassGroup}}
}

// Scheduler is the scheduler's identity.
func Scheduler() Identity {
	return Identity{Name: "scheduler", User: "system:kube-scheduler"}
}

// ControllerManager is the identity under which the controllers' process starts;
// the controllers themselves act as service accounts.
func ControllerManager() Identity {
	return Identity{Name: "controller-manager", User: "system:kube-controller-manager"}
}

// Proxy is the service proxy's identity.
func Proxy() Identity {
	return Identity{Name: "proxy", User: "system:kube-proxy"}
}

// KubeletClient is the apiserver as a client of kubelets.
func KubeletClient() Identity {
	return Identity{Name: "apiserver-kubelet-client", User: "kube-apiserver-kubelet-client"}
}

// FrontProxyClient is the apiserver as an authenticating proxy before
// aggregated API servers; it is signed by the front proxy authority.
func FrontProxyClient() Identity {
	return Identity{Name: "front-proxy-client", User: "front-proxy-client", frontProxy: true}
}

// Node is the kubelet of the named node.
func Node(name string) Identity {
	return Identity{Name: "node-" + name, User: "system:node:" + name, Groups: []string{nodesGroup}}
}

func (id Identity) validate() error {
	if id.User == "" {
		return fmt.Errorf("identity %q has no user", id.Name)
	}
	if id.Name == "" || id.Name != filepath.Base(id.Name) || strings.HasPrefix(id.Name, ".") {
		return fmt.Errorf("identity name %q cannot be a file's name", id.Name)
	}
	return nil
}
