// SPDX-License-Identifier: Apache-2.0

package process

import (
	"net/http"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/proxy"
	"github.com/wasmplane/wasmplane/core/scheduler/podrequests"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// Part is a row of the table of components: what a cluster is made of, and what sets
// each part apart.
type Part struct {
	// Name of its command, its kubeconfig, its traces and its requests.
	Name string
	// Identity that it works under, which has a kubeconfig where it is a process of its
	// own. Nil: the API server, and what brings its own kubeconfig.
	Identity func(*config.Configuration) pki.Identity
	// serving says where a process of its own serves metrics and health; port is the
	// customary one of upstream's component. Nil: nowhere, or at a server that it has anyway.
	serving func(*config.Configuration) config.Serving
	port    string
	// upstream is what upstream calls it.
	upstream string
	// open: metrics are for this machine, and nobody is asked who they are: its identity
	// may not ask the API.
	open bool
	// also is what upstream's component answers at that port besides.
	also func(*Component) map[string]http.HandlerFunc
	// readyCheck is the name of the check that it has caught up with the cluster.
	readyCheck string
	// points at which it asks plugins, by how they begin.
	points []string
	// stateOnDisk: what its plugins keep stays on its machine. No node may write what
	// another's plugins, or the control plane's, go by.
	stateOnDisk bool
	// reports: it may write the status of Plugins.
	reports bool
}

// Parts is the table.
var Parts = struct{ APIServer, Scheduler, Controllers, Kubelet, Proxy, DNS, Webhook Part }{
	APIServer: Part{Name: "apiserver", points: []string{"admission.", "authorization", "customresource."}, reports: true},
	Scheduler: Part{
		Name: "scheduler", Identity: fixed(pki.Scheduler()),
		serving: func(c *config.Configuration) config.Serving { return c.Scheduler.Serving }, port: "10259",
		upstream:   "kube-scheduler",
		readyCheck: "sched-handler-sync", points: []string{"scheduling."}, reports: true,
		also: func(c *Component) map[string]http.HandlerFunc {
			return map[string]http.HandlerFunc{podrequests.Path: podrequests.Handler(c.pods).ServeHTTP}
		},
	},
	Controllers: Part{
		Name: "controllers", Identity: fixed(pki.ControllerManager()),
		serving: func(c *config.Configuration) config.Serving { return c.Controllers.Serving }, port: "10257",
		upstream: "kube-controller-manager",
		points:   []string{"reconcile"}, reports: true,
	},
	Kubelet: Part{
		Name: "kubelet", Identity: func(c *config.Configuration) pki.Identity { return pki.Node(c.Node.Name) },
		points: []string{"nodeadmission"}, stateOnDisk: true,
	},
	Proxy: Part{
		Name: "proxy", Identity: fixed(pki.Proxy()),
		serving: func(c *config.Configuration) config.Serving { return config.Serving{Listen: c.Proxy.MetricsListen} }, port: "10249",
		upstream: "kube-proxy",
		open:     true, also: func(*Component) map[string]http.HandlerFunc {
			return map[string]http.HandlerFunc{"/proxyMode": proxy.Mode}
		},
	},
	DNS: Part{Name: "dns", Identity: fixed(pki.Identity{
		Name: "dns", User: roles.CoreDNS().GetName(), Groups: roles.CoreDNS().GetGroups(),
	})},
	Webhook: Part{Name: "webhook", points: []string{"admission.", "authorization"}},
}

// Clients are the parts that have a kubeconfig of their own.
func Clients() []Part {
	return []Part{Parts.Scheduler, Parts.Controllers, Parts.Proxy, Parts.DNS, Parts.Kubelet}
}

func fixed(id pki.Identity) func(*config.Configuration) pki.Identity {
	return func(*config.Configuration) pki.Identity { return id }
}

// Asks are the points at which the part asks plugins.
func (p Part) Asks() []abi.Point {
	out := []abi.Point{}
	for _, pt := range abi.Points() {
		if slices.ContainsFunc(p.points, func(prefix string) bool { return strings.HasPrefix(string(pt), prefix) }) {
			out = append(out, pt)
		}
	}
	return out
}
