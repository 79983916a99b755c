// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"strings"

	oteltrace "go.opentelemetry.io/otel/trace"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/aggregator"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/live"
	"github.com/wasmplane/wasmplane/core/api/rbac"
	"github.com/wasmplane/wasmplane/core/apiserver/resourcemetrics"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel/resolve"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/customresource"
	"github.com/wasmplane/wasmplane/core/customresource/lifecycle"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/allocation"
	"github.com/wasmplane/wasmplane/core/registry/reader"
	"github.com/wasmplane/wasmplane/core/registry/view"
	pointcustom "github.com/wasmplane/wasmplane/plugins/point/customresource"
)

// resources are what the server offers: built-in ones, those that definitions define,
// and those of other servers.
type resources struct {
	registries  *registry.Set
	custom      *customresource.Serving
	definitions *lifecycle.Lifecycle
	remotes     *aggregator.Aggregator
	usage       *resourcemetrics.Source // of nodes and pods
}

func newResources(ctx context.Context, b base, st *storage, plugins *process.Plugins, may *authorization, admit *admitting,
	tracer oteltrace.Tracer,
) (_ *resources, err error) {
	r := &resources{}
	if r.usage, err = b.resourceMetrics(); err != nil {
		return nil, err
	}
	if r.registries, err = registry.New(registry.Config{
		Contract: b.contract, Store: st.store, Cache: st.cache, Admission: admit.Chain, Authorizer: may.Chain,
		Services: allocation.Ranges{CIDRs: strings.Split(b.Options.Config.Cluster.ServiceCIDR, ",")},
		Roles:    rbac.Guard{RBAC: may.roles, Chain: may.Chain},
		Computed: map[schema.GroupResource]reader.Computed{
			{Group: api.MetricsGroup, Resource: "nodes"}: r.usage.Nodes,
			{Group: api.MetricsGroup, Resource: "pods"}:  r.usage.Pods,
		},
		Space: st.room, Administrators: []string{pki.BreakGlassGroup, pki.AdminsGroup},
		Logger: b.Options.Logger, Tracer: tracer,
	}); err != nil {
		return nil, err
	}
	b.view.Use(r.registries)
	if err := b.metrics.Register(view.NewCounts(r.registries)); err != nil {
		return nil, fmt.Errorf("register the metrics of what is stored: %w", err)
	}
	if r.remotes, err = b.aggregation(); err != nil {
		return nil, err
	}
	if r.custom, err = b.customResources(ctx, r.registries, plugins); err != nil {
		return nil, err
	}
	own, err := apiextensions.NewForConfig(b.internal.Config)
	if err != nil {
		return nil, fmt.Errorf("client of the definitions of custom resources: %w", err)
	}
	r.definitions, err = lifecycle.New(lifecycle.Config{Client: own.CustomResourceDefinitions(), Server: r.custom, Logger: b.Options.Logger})
	return r, err
}

// resourceMetrics asks the nodes what they use.
func (b base) resourceMetrics() (*resourcemetrics.Source, error) {
	pair, err := b.Authority.Client(pki.KubeletClient())
	if err != nil {
		return nil, err
	}
	return resourcemetrics.New(resourcemetrics.Config{
		Cluster: b.view, Kubelets: tunnel.NewResourceMetrics(b.kubeletClient(pair)),
		Logger: b.Options.Logger,
	})
}

// connect gives the contract what its strategies ask of a running server.
func (b base) connect(chain *authz.Chain) {
	kube := b.internal.Kube
	policies := kube.AdmissionregistrationV1()
	b.contract.Connect(live.Server{
		Authorizer: chain,
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		},
		ValidatingPolicy: func(ctx context.Context, name string) (*admissionregistrationv1.ValidatingAdmissionPolicy, error) {
			return policies.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		},
		MutatingPolicy: func(ctx context.Context, name string) (*admissionregistrationv1.MutatingAdmissionPolicy, error) {
			return policies.MutatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		},
		Resource: b.view.ResourceOf,
	})
}

// aggregation is for group versions that other servers serve.
func (b base) aggregation() (*aggregator.Aggregator, error) {
	proxy, err := b.Authority.Client(pki.FrontProxyClient())
	if err != nil {
		return nil, err
	}
	var builtIn []schema.GroupVersion
	for _, g := range b.contract.Groups() {
		for _, v := range g.Versions {
			// The group of registrations itself needs none; metrics are whoever's registers
			// for them, and an installer would stop at a registration that is not its own.
			if g.Name != "apiregistration.k8s.io" && g.Name != api.MetricsGroup {
				builtIn = append(builtIn, schema.GroupVersion{Group: g.Name, Version: v})
			}
		}
	}
	return aggregator.New(aggregator.Config{
		API: client.InMemory(b.local, serverUser, process.Parts.APIServer.Name), Informers: b.informers, BuiltIn: builtIn,
		Certificate: proxy.Certificate,
		Dial:        process.OperatorsDial(b.Options).Context(),
		Metrics:     b.metrics, Logger: b.Options.Logger,
	})
}

// customResources serves what definitions define.
func (b base) customResources(ctx context.Context, registries *registry.Set, plugins *process.Plugins) (*customresource.Serving, error) {
	services, err := resolve.New(b.informers)
	if err != nil {
		return nil, err
	}
	converters := pointcustom.NewSet(plugins.CustomResources)
	custom, err := customresource.New(customresource.Config{
		Registries: registries, Contract: b.contract, Services: services, Dial: process.OperatorsDial(b.Options), Extension: converters,
		Logger: b.Options.Logger,
	})
	if err != nil {
		return nil, err
	}
	converters.Changed() // nothing has been converted by those that are there already
	plugins.OnChange(func() {
		changed := converters.Changed()
		if len(changed) == 0 {
			return
		}
		if err := custom.Renew(ctx, func(converter string) bool { return changed[converter] }); err != nil {
			b.Options.Logger.ErrorContext(ctx, "custom resources may be shown as an older version of their plugin converted them", "error", err)
		}
	})
	return custom, nil
}
