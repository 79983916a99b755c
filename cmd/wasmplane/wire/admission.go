// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/builtin"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/admission/quotaadmission"
	"github.com/wasmplane/wasmplane/core/admission/staticfiles"
	"github.com/wasmplane/wasmplane/core/admission/webhook"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/quota"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/gate"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celgate"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagegate"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
)

// admitting is what a write has to pass.
type admitting struct {
	*admission.Chain
	policies *policy.Policies
	images   *imagegate.Gate // nil where Kyverno's policies are not in force
	kyverno  *celgate.Gate   // nil with images
	gate     *gate.Gate      // nil where Gatekeeper's are not
	run      func(context.Context) error
}

// newAdmission makes the chain. Its order is documented in docs/ADMISSION.md: the
// built-in plugins in upstream's order, CEL policies, webhooks, Gatekeeper's mutators, the Wasm plugins in
// the order of the configuration, and the quotas last, so that nothing is charged
// for what somebody refuses.
func newAdmission(ctx context.Context, b base, plugins *extensions, chain *authz.Chain) (*admitting, error) {
	list, settings, err := b.builtinAdmission(chain)
	if err != nil {
		return nil, err
	}
	conditions := matching.NewMetrics()
	for _, c := range conditions.Collectors() {
		if err := b.metrics.Register(c); err != nil {
			return nil, err
		}
	}
	files, follow, err := b.staticAdmission(ctx)
	if err != nil {
		return nil, err
	}
	policies, err := policy.New(policy.Config{
		Client: b.internal.Kube, Informers: b.informers, Authorizer: chain, Resources: b.view, Objects: b.view, Types: b.view.Types,
		Static: files, Conditions: conditions, Log: b.Options.Logger,
	})
	if err != nil {
		return nil, err
	}
	hooks, err := webhook.New(webhook.Config{
		Client: b.internal.Kube, Informers: b.informers, Authorizer: chain, Resources: b.view, Static: files,
		MutatingCredentials: settings.MutatingCredentials, ValidatingCredentials: settings.ValidatingCredentials,
		Conditions: conditions, Log: b.Options.Logger, Dial: process.OperatorsDial(b.Options),
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(policies.Register(b.metrics), hooks.Register(b.metrics)); err != nil {
		return nil, err
	}
	guard := plugins.Guard(b.view.List)
	list = append(list, guard)
	list = append(list, b.enabled(policies.Mutating(), hooks.Mutating(), policies.Validating(), hooks.Validating())...)
	var g *gate.Gate
	if slices.Contains(b.Options.Config.PolicyKinds, policyobject.Gatekeeper) {
		g = gate.New(gate.Config{
			Objects: b.view, Namespaces: b.namespaceLabels, Rights: guard.Rights, Plugins: plugins.Admission,
			External: plugins.providers,
		})
		list = append(list, g.Mutation(), g.Expansion())
	}
	images, err := b.images(guard.Rights)
	if err != nil {
		return nil, err
	}
	var kyverno *celgate.Gate
	if images != nil {
		kyverno = b.kyvernoPolicies(guard.Rights, images, plugins.access,
			policy.Config{Authorizer: chain, Resources: b.view, Types: b.view.Types})
		list = append(list, kyverno, images)
	}
	quotas, err := quotaadmission.New(quotaadmission.Config{
		Client: b.internal.Kube, Informers: b.informers,
		Limited: limitedResources(settings), Log: b.Options.Logger,
	})
	if err != nil {
		return nil, err
	}
	order := func() []admission.Plugin {
		return slices.Concat(list, plugins.Admission(), b.enabled(quotas))
	}
	admit, err := admission.NewChain(order()...)
	if err != nil {
		return nil, err
	}
	if err := admit.Register(b.metrics); err != nil {
		return nil, err
	}
	b.logOrder(admit)
	plugins.OnChange(func() {
		if err := admit.Replace(order()...); err != nil {
			b.Options.Logger.ErrorContext(ctx, "the admission plugins stay as they were", "error", err)
			return
		}
		b.logOrder(admit)
	})
	return &admitting{Chain: admit, policies: policies, images: images, kyverno: kyverno, gate: g, run: follow}, nil
}

// builtinAdmission are the built-in plugins as the configuration wants them, and
// what the file says of those that stand elsewhere in the chain.
func (b base) builtinAdmission(chain *authz.Chain) ([]admission.Plugin, *pluginconfig.Settings, error) {
	c, settings := b.Options.Config.APIServer, &pluginconfig.Settings{}
	if c.AdmissionConfigFile != "" {
		var err error
		if settings, err = pluginconfig.Load(b.Options.Config.Path(c.AdmissionConfigFile)); err != nil {
			return nil, nil, fmt.Errorf("apiserver.admissionConfigFile: %w", err)
		}
	}
	if b.Options.Config.Profile == config.Hardened {
		if err := settings.Harden(); err != nil {
			return nil, nil, err
		}
	}
	list, err := builtin.Default(builtin.Deps{
		Client: b.internal.Kube, Informers: b.informers, Authorizer: chain, Settings: settings,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(b.internal.Kube.Discovery())),
		On:     c.EnableAdmissionPlugins, Off: c.DisableAdmissionPlugins, Dial: process.OperatorsDial(b.Options),
		Others: []string{policy.MutatingName, webhook.MutatingName, policy.ValidatingName, webhook.ValidatingName, quotaadmission.Name},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("apiserver.enableAdmissionPlugins and disableAdmissionPlugins: %w", err)
	}
	return list, settings, nil
}

// enabled leaves out what the configuration disables.
func (b base) enabled(list ...admission.Plugin) []admission.Plugin {
	return slices.DeleteFunc(list, func(p admission.Plugin) bool {
		return slices.Contains(b.Options.Config.APIServer.DisableAdmissionPlugins, p.Name())
	})
}

// limitedResources are what the file lets be used only under a quota.
func limitedResources(s *pluginconfig.Settings) (out []quota.Limited) {
	for _, l := range s.LimitedResources {
		out = append(out, quota.Limited{
			Resource: schema.GroupResource{Group: l.APIGroup, Resource: l.Resource}, Contains: l.MatchContains, Scopes: l.MatchScopes,
		})
	}
	return out
}

// logOrder logs the running order, at the start and whenever it changes.
func (b base) logOrder(c *admission.Chain) {
	mutators, validators := c.Order()
	b.Options.Logger.Info("admission asks in this order", "mutating", mutators, "validating", validators)
}

// staticFiles are what files bring to admission.
type staticFiles interface {
	webhook.Static
	policy.Static
}

// staticAdmission opens the folder of manifests that the configuration names, and follows it.
func (b base) staticAdmission(ctx context.Context) (files staticFiles, follow func(context.Context) error, err error) {
	if b.Options.Config.APIServer.StaticAdmissionDir == "" {
		return staticfiles.None{}, untilEnd, nil
	}
	f, err := staticfiles.Open(ctx, staticfiles.Config{
		Dir: b.Options.Config.Path(b.Options.Config.APIServer.StaticAdmissionDir), Decode: staticDecoder{b.contract}.decode,
		Note: b.Options.Inform,
		Log:  b.Options.Logger,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("apiserver.staticAdmissionDir: %w", err)
	}
	return f, f.Run, nil
}

// staticDecoder reads the manifests of a folder.
type staticDecoder struct{ contract *api.Contract }

// decode reads one manifest as the API would: strictly, with its defaults,
// validated. Only its name is of a kind that the API refuses.
func (d staticDecoder) decode(ctx context.Context, doc []byte) (runtime.Object, error) {
	data, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, err
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(data, &meta); err != nil {
		return nil, err
	}
	gvk := meta.GroupVersionKind()
	res, ok := d.contract.ByKind(gvk.GroupKind())
	if !ok || gvk.Group != admissionregistrationv1.GroupName || !res.Serves(gvk.Version) {
		return nil, fmt.Errorf("expected a webhook configuration or an admission policy of admissionregistration.k8s.io/v1, found apiVersion %q, kind %q", meta.APIVersion, meta.Kind)
	}
	codec := res.Codec(gvk.Version)
	o, strict, err := d.contract.DecodeStrict(res, gvk.Version, data, object.JSON)
	if err == nil && len(strict) > 0 {
		err = errors.Join(strict...)
	}
	if err != nil {
		return nil, err
	}
	codec.Default(o)
	named, err := codec.Internal(o.DeepCopyObject())
	if err != nil {
		return nil, err
	}
	m, err := apimeta.Accessor(named)
	if err != nil {
		return nil, err
	}
	m.SetName(strings.TrimSuffix(m.GetName(), staticfiles.Suffix) + ".example.com")
	rest.FillObjectMetaSystemFields(m)
	info := api.StrategyInfo{User: serverUser, Request: &genericrequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIGroup: gvk.Group, APIVersion: gvk.Version, Resource: res.GroupResource.Resource,
		Name: m.GetName(),
	}}
	if err := rest.BeforeCreate(res.Strategy, api.StrategyContext(ctx, info), named); err != nil {
		return nil, err
	}
	return codec.Versioned(o)
}
