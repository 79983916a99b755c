// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/wasmplane/wasmplane/core/dial"
)

// Types of authorizers in a file. Wasm is ours; the others are upstream's.
const (
	typeNode = "Node"
	typeRBAC = "RBAC"
	typeWasm = "Wasm"
)

// everyPlugin is the name of the entry that stands for all Wasm authorizers
// that have none of their own.
const everyPlugin = "wasm"

// Entry is one authorizer of a file, in its place.
type Entry struct {
	Type, Name string
	// Webhook is set where Type is Webhook.
	Webhook Authorizer
}

// LoadFile reads an AuthorizationConfiguration of apiserver.config.k8s.io. Beside
// upstream's types it knows Wasm: the entry's name is that of a plugin, or "wasm"
// for all plugins that have no entry of their own. Webhooks are connected to by the policy.
func LoadFile(file string, to dial.Policy) ([]Entry, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the authorization configuration: %w", err)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("%s is empty: it begins with apiVersion: apiserver.config.k8s.io/v1 and kind: AuthorizationConfiguration", file)
	}
	entries, err := parseFile(data, to)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return entries, nil
}

func parseFile(data []byte, to dial.Policy) ([]Entry, error) {
	config, err := load.LoadFromData(data)
	if err != nil {
		return nil, err
	}
	compiler := cel.NewDefaultCompiler()
	known := sets.New(typeNode, typeRBAC, typeWasm, string(apiserver.TypeWebhook))
	if errs := validation.ValidateAuthorizationConfiguration(compiler, nil, config, known,
		sets.New(typeWasm, string(apiserver.TypeWebhook))); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var entries []Entry
	for i, a := range config.Authorizers {
		e := Entry{Type: string(a.Type), Name: a.Name}
		switch e.Type {
		case typeNode, typeRBAC:
			// Upstream's rule: decisions and metrics name them so.
			if want := strings.ToLower(e.Type); e.Name != want {
				return nil, field.Invalid(field.NewPath("authorizers").Index(i).Child("name"), e.Name,
					fmt.Sprintf("an authorizer of type %s is named %s", e.Type, want))
			}
		case string(apiserver.TypeWebhook):
			if e.Webhook, err = newWebhook(a, to, compiler); err != nil {
				return nil, fmt.Errorf("authorizers[%d] (%s): %w", i, a.Name, err)
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// WebhookFiles are the kubeconfigs that the entries of a file point at.
func WebhookFiles(file string) []string {
	config, err := load.LoadFromFile(file)
	if err != nil {
		return nil
	}
	var files []string
	for _, a := range config.Authorizers {
		if a.Webhook != nil && a.Webhook.ConnectionInfo.KubeConfigFile != nil {
			files = append(files, *a.Webhook.ConnectionInfo.KubeConfigFile)
		}
	}
	return files
}

// webhookAnswer bounds a SubjectAccessReview that comes back, in bytes.
const webhookAnswer = 1 << 20

func newWebhook(a apiserver.AuthorizerConfiguration, to dial.Policy, compiler cel.Compiler) (Authorizer, error) {
	w := a.Webhook
	if w.ConnectionInfo.Type != apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile {
		return nil, fmt.Errorf("connectionInfo.type: expected %s, found %q", apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
			w.ConnectionInfo.Type)
	}
	config, err := webhookutil.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, to.Context())
	if err != nil {
		return nil, fmt.Errorf("connectionInfo.kubeConfigFile: %w", err)
	}
	config.Timeout = w.Timeout.Duration
	config.Wrap(dial.Webhook(webhookAnswer))
	onError := NoOpinion
	if w.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = Deny
	}
	allowedFor, deniedFor := w.AuthorizedTTL.Duration, w.UnauthorizedTTL.Duration
	if !w.CacheAuthorizedRequests {
		allowedFor = 0
	}
	if !w.CacheUnauthorizedRequests {
		deniedFor = 0
	}
	hook, err := webhook.New(config, w.SubjectAccessReviewVersion, allowedFor, deniedFor, *webhook.DefaultRetryBackoff(), onError,
		w.MatchConditions, a.Name,
		webhookMetrics{WebhookMetrics: metrics.NewWebhookMetrics(), MatcherMetrics: cel.NewMatcherMetrics()}, compiler)
	if err != nil {
		return nil, err
	}
	return Named(a.Name, hook), nil
}

// webhookMetrics are those that upstream's apiserver has.
type webhookMetrics struct {
	metrics.NoopRequestMetrics
	metrics.WebhookMetrics
	cel.MatcherMetrics
}

// Native are the authorizers that are always there.
type Native struct{ Node, RBAC Authorizer }

// Arrange puts authorizers into the order of entries. Plugins without an entry
// stand at the entry "wasm"; where there is none, those in before stand before all
// others and those in after behind: no plugin is left out because a file does not
// know it. An entry whose plugin is not loaded has no opinion.
func Arrange(entries []Entry, native Native, before, after []Authorizer) []Authorizer {
	named, everyone := map[string]bool{}, false
	for _, e := range entries {
		if e.Type == typeWasm {
			named[e.Name], everyone = true, everyone || e.Name == everyPlugin
		}
	}
	rest := func(list []Authorizer) (out []Authorizer) {
		for _, a := range list {
			if !named[a.Name()] {
				out = append(out, Guard(a))
			}
		}
		return out
	}
	plugins := append(append([]Authorizer{}, before...), after...)
	var chain []Authorizer
	if !everyone {
		chain = rest(before)
	}
	for _, e := range entries {
		switch {
		case e.Type == typeNode:
			chain = append(chain, native.Node)
		case e.Type == typeRBAC:
			chain = append(chain, native.RBAC)
		case e.Webhook != nil:
			chain = append(chain, e.Webhook)
		case e.Name == everyPlugin:
			chain = append(chain, rest(plugins)...)
		default:
			for _, a := range plugins {
				if a.Name() == e.Name {
					chain = append(chain, Guard(a))
				}
			}
		}
	}
	if !everyone {
		chain = append(chain, rest(after)...)
	}
	return chain
}

// DefaultEntries is the order without a file.
func DefaultEntries() []Entry {
	return []Entry{{Type: typeNode, Name: "node"}, {Type: typeRBAC, Name: "rbac"}}
}
