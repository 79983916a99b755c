// SPDX-License-Identifier: Apache-2.0

package reviewserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// ConfigurationName is the name of both webhook configurations.
const ConfigurationName = "wasmplane-plugins"

// Registration keeps a cluster's webhook configurations as the plugins in force want them.
type Registration struct {
	Client kubernetes.Interface
	// URL under which the API server reaches Handler, without a path; or Service, as NAMESPACE/NAME:PORT.
	URL, Service string
	// CA is the certificate authority of the server's certificate now, in PEM.
	CA func() []byte
	// Versions are the versions of the admission plugins in force, in order.
	Versions func() []*point.Version
	// Exclude are namespaces whose objects no plugin sees: what the server itself
	// needs to run must not wait for it.
	Exclude []string
	Logger  *slog.Logger
}

// every is how often the configurations are looked at without a reason.
const every = time.Minute

// Run registers, and keeps what is registered right, until ctx ends. changed
// tells that the plugins are others.
func (r *Registration) Run(ctx context.Context, changed <-chan struct{}, registered func()) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		case <-again.C:
		}
		if err := r.Apply(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			r.Logger.ErrorContext(ctx, "the webhook configurations could not be written; it is tried again", "error", err)
			again.Reset(5 * time.Second)
			continue
		}
		registered()
	}
}

// Apply writes both configurations where they differ.
func (r *Registration) Apply(ctx context.Context) error {
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ConfigurationName}}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ConfigurationName}}
	for _, v := range r.Versions() {
		if rules := rulesOf(v, abi.AdmissionMutate); rules != nil {
			mutating.Webhooks = append(mutating.Webhooks, r.mutating(v, rules))
		}
		if rules := rulesOf(v, abi.AdmissionValidate); rules != nil {
			validating.Webhooks = append(validating.Webhooks, r.validating(v, rules))
		}
	}
	return errors.Join(r.applyMutating(ctx, mutating), r.applyValidating(ctx, validating))
}

// configurations are the API of one kind of them.
type configurations[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Create(ctx context.Context, c T, o metav1.CreateOptions) (T, error)
	Update(ctx context.Context, c T, o metav1.UpdateOptions) (T, error)
}

// put writes a configuration where it is not what is there.
func put[T metav1.Object](ctx context.Context, api configurations[T], want T, same func(have T) bool) error {
	have, err := api.Get(ctx, want.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !same(have):
		want.SetResourceVersion(have.GetResourceVersion())
		_, err = api.Update(ctx, want, metav1.UpdateOptions{})
	}
	return err
}

func (r *Registration) applyValidating(ctx context.Context, want *admissionregistrationv1.ValidatingWebhookConfiguration) error {
	err := put(ctx, r.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations(), want,
		func(have *admissionregistrationv1.ValidatingWebhookConfiguration) bool {
			return equality.Semantic.DeepEqual(have.Webhooks, want.Webhooks)
		})
	if err != nil {
		return fmt.Errorf("register validating webhooks: %w", err)
	}
	return nil
}

func (r *Registration) applyMutating(ctx context.Context, want *admissionregistrationv1.MutatingWebhookConfiguration) error {
	err := put(ctx, r.Client.AdmissionregistrationV1().MutatingWebhookConfigurations(), want,
		func(have *admissionregistrationv1.MutatingWebhookConfiguration) bool {
			return equality.Semantic.DeepEqual(have.Webhooks, want.Webhooks)
		})
	if err != nil {
		return fmt.Errorf("register mutating webhooks: %w", err)
	}
	return nil
}

// Remove deletes both configurations.
func (r *Registration) Remove(ctx context.Context) error {
	api := r.Client.AdmissionregistrationV1()
	var errs []error
	for _, err := range []error{
		api.ValidatingWebhookConfigurations().Delete(ctx, ConfigurationName, metav1.DeleteOptions{}),
		api.MutatingWebhookConfigurations().Delete(ctx, ConfigurationName, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove a webhook configuration: %w", err))
		}
	}
	return errors.Join(errs...)
}

// rulesOf are the rules of an entry, or the module's own; nil where the plugin takes no part.
func rulesOf(v *point.Version, at abi.Point) []admissionregistrationv1.RuleWithOperations {
	h := v.Hook(at)
	if h == nil {
		return nil
	}
	var rules []abi.Rule
	for _, r := range v.Entry.Match.Rules {
		rules = append(rules, abi.Rule{Operations: r.Operations, Groups: r.APIGroups, Versions: r.APIVersions, Resources: r.Resources})
	}
	if len(rules) == 0 {
		rules = h.Match
	}
	if len(rules) == 0 {
		rules = []abi.Rule{{}}
	}
	var out []admissionregistrationv1.RuleWithOperations
	for _, r := range rules {
		all := func(list []string) []string {
			if len(list) == 0 {
				return []string{"*"}
			}
			return list
		}
		var operations []admissionregistrationv1.OperationType
		for _, op := range all(r.Operations) {
			operations = append(operations, admissionregistrationv1.OperationType(op))
		}
		scope := admissionregistrationv1.AllScopes
		out = append(out, admissionregistrationv1.RuleWithOperations{
			Operations: operations,
			Rule: admissionregistrationv1.Rule{
				APIGroups: all(r.Groups), APIVersions: all(r.Versions), Resources: all(r.Resources), Scope: &scope,
			},
		})
	}
	return out
}

// common is what both kinds of webhooks have of a version.
type common struct {
	name      string
	client    admissionregistrationv1.WebhookClientConfig
	policy    admissionregistrationv1.FailurePolicyType
	effects   admissionregistrationv1.SideEffectClass
	namespace *metav1.LabelSelector
	object    *metav1.LabelSelector
	timeout   int32
}

// timeout of one question; the plugin's own limits are far below.
const timeoutSeconds = 10

func (r *Registration) common(v *point.Version, verb string) common {
	e := &v.Entry
	c := common{
		name: e.Name + ".plugins.wasmplane.dev", client: r.client("/" + verb + "/" + e.Name),
		policy: admissionregistrationv1.Fail, effects: admissionregistrationv1.SideEffectClassNone,
		namespace: e.Match.NamespaceSelector.LabelSelector(), object: e.Match.ObjectSelector.LabelSelector(), timeout: timeoutSeconds,
	}
	if e.FailurePolicy == manifest.Ignore || e.Mode != manifest.Enforce {
		c.policy = admissionregistrationv1.Ignore
	}
	if g := &e.Grants; g.Events || g.State.Size > 0 || len(g.HTTP) > 0 {
		c.effects = admissionregistrationv1.SideEffectClassNoneOnDryRun
	}
	if exclude := slices.Clone(r.Exclude); len(exclude) > 0 {
		c.namespace.MatchExpressions = append(c.namespace.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: exclude,
		})
	}
	return c
}

func (r *Registration) client(path string) admissionregistrationv1.WebhookClientConfig {
	c := admissionregistrationv1.WebhookClientConfig{CABundle: r.CA()}
	if r.Service == "" {
		url := strings.TrimSuffix(r.URL, "/") + path
		c.URL = &url
		return c
	}
	namespace, name, port, _ := ParseService(r.Service) // checked when it was configured
	c.Service = &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: name, Port: &port, Path: &path}
	return c
}

// ParseService reads NAMESPACE/NAME:PORT; the port may be left out: 443.
func ParseService(s string) (namespace, name string, port int32, err error) {
	port = 443
	namespace, name, ok := strings.Cut(s, "/")
	name, number, has := strings.Cut(name, ":")
	if has {
		if _, err := fmt.Sscanf(number, "%d", &port); err != nil || port < 1 || port > 65535 {
			ok = false
		}
	}
	if !ok || namespace == "" || name == "" {
		return "", "", 0, fmt.Errorf("expected NAMESPACE/NAME or NAMESPACE/NAME:PORT, found %q", s)
	}
	return namespace, name, port, nil
}

var versions = []string{"v1"}

func (r *Registration) validating(v *point.Version,
	rules []admissionregistrationv1.RuleWithOperations,
) admissionregistrationv1.ValidatingWebhook {
	c := r.common(v, "validate")
	match := admissionregistrationv1.Equivalent
	return admissionregistrationv1.ValidatingWebhook{
		Name: c.name, ClientConfig: c.client, Rules: rules, FailurePolicy: &c.policy, MatchPolicy: &match,
		NamespaceSelector: c.namespace, ObjectSelector: c.object, SideEffects: &c.effects,
		TimeoutSeconds: &c.timeout, AdmissionReviewVersions: versions,
	}
}

func (r *Registration) mutating(v *point.Version,
	rules []admissionregistrationv1.RuleWithOperations,
) admissionregistrationv1.MutatingWebhook {
	c := r.common(v, "mutate")
	match, again := admissionregistrationv1.Equivalent, admissionregistrationv1.IfNeededReinvocationPolicy
	return admissionregistrationv1.MutatingWebhook{
		Name: c.name, ClientConfig: c.client, Rules: rules, FailurePolicy: &c.policy, MatchPolicy: &match,
		NamespaceSelector: c.namespace, ObjectSelector: c.object, SideEffects: &c.effects, ReinvocationPolicy: &again,
		TimeoutSeconds: &c.timeout, AdmissionReviewVersions: versions,
	}
}
