// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/attempts"
)

// Static are configurations that come from files. What it returns is replaced,
// never changed, when the files change.
type Static interface {
	Mutating() []*admissionregistrationv1.MutatingWebhookConfiguration
	Validating() []*admissionregistrationv1.ValidatingWebhookConfiguration
}

// hook is one webhook, ready to be asked.
type hook struct {
	id            string // unique among all webhooks
	configuration string
	name          string
	criteria      matching.Criteria
	conditions    *matching.Conditions // nil: none
	client        admissionregistrationv1.WebhookClientConfig
	versions      []string
	ignore        bool // failurePolicy: Ignore
	sideEffects   *admissionregistrationv1.SideEffectClass
	timeout       time.Duration // 0: the request's own
	reinvoke      bool          // reinvocationPolicy: IfNeeded
}

// subject is the object that has the webhook called.
func (h *hook) subject(mutates bool) attempts.Subject {
	kind := "ValidatingWebhookConfiguration"
	if mutates {
		kind = "MutatingWebhookConfiguration"
	}
	return attempts.Subject{Object: corev1.ObjectReference{
		APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: kind, Name: h.configuration,
	}}
}

// source holds the compiled webhooks of the API's configurations. A
// configuration is compiled once per state of it, when a request first needs it.
type source struct {
	informer cache.SharedIndexInformer
	synced   cache.DoneChecker
	compile  func(configuration any) []*hook

	mu       sync.Mutex
	outdated bool
	hooks    []*hook
	compiled map[string]*compiled
}

type compiled struct {
	uid     types.UID
	version string
	hooks   []*hook
}

func newSource(informer cache.SharedIndexInformer, compile func(any) []*hook) (*source, error) {
	s := &source{informer: informer, compile: compile, outdated: true, compiled: map[string]*compiled{}}
	outdate := func() {
		s.mu.Lock()
		s.outdated = true
		s.mu.Unlock()
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { outdate() },
		UpdateFunc: func(any, any) { outdate() },
		DeleteFunc: func(any) { outdate() },
	})
	if err != nil {
		return nil, fmt.Errorf("follow the webhook configurations: %w", err)
	}
	s.synced = registration.HasSyncedChecker()
	return s, nil
}

// ready waits until the configurations have been read, and else refuses: a
// webhook that was not asked might have been there to refuse.
func (s *source) ready(ctx context.Context, r *admission.Request, within time.Duration) error {
	select {
	case <-s.synced.Done():
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case <-s.synced.Done():
		return nil
	case <-ctx.Done():
		return admission.Forbidden(r, errors.New("not yet ready to handle request"))
	}
}

// current is the list in force, by name of the configuration.
func (s *source) current() []*hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.outdated {
		return s.hooks
	}
	s.outdated = false
	items := s.informer.GetStore().List()
	slices.SortFunc(items, func(a, b any) int { return cmp.Compare(nameOf(a), nameOf(b)) })
	kept := make(map[string]*compiled, len(items))
	s.hooks = nil
	for _, item := range items {
		m, ok := item.(metav1.Object)
		if !ok {
			continue
		}
		c := s.compiled[m.GetName()]
		if c == nil || c.uid != m.GetUID() || c.version != m.GetResourceVersion() {
			c = &compiled{uid: m.GetUID(), version: m.GetResourceVersion(), hooks: s.compile(item)}
		}
		kept[m.GetName()] = c
		s.hooks = append(s.hooks, c.hooks...)
	}
	s.compiled = kept
	return s.hooks
}

func nameOf(o any) string {
	if m, ok := o.(metav1.Object); ok {
		return m.GetName()
	}
	return ""
}

func (w *Webhooks) compileMutating(o any) []*hook {
	c, ok := o.(*admissionregistrationv1.MutatingWebhookConfiguration)
	if !ok {
		return nil
	}
	seen := map[string]int{}
	out := make([]*hook, 0, len(c.Webhooks))
	for i := range c.Webhooks {
		again := c.Webhooks[i].ReinvocationPolicy
		k := w.newHook(c.Name, seen, inCommon(&c.Webhooks[i]), "admit")
		k.reinvoke = again != nil && *again == admissionregistrationv1.IfNeededReinvocationPolicy
		out = append(out, k)
	}
	return out
}

func (w *Webhooks) compileValidating(o any) []*hook {
	c, ok := o.(*admissionregistrationv1.ValidatingWebhookConfiguration)
	if !ok {
		return nil
	}
	seen := map[string]int{}
	out := make([]*hook, 0, len(c.Webhooks))
	for i := range c.Webhooks {
		out = append(out, w.newHook(c.Name, seen, &c.Webhooks[i], "validate"))
	}
	return out
}

// inCommon is a mutating webhook without what only those have.
func inCommon(m *admissionregistrationv1.MutatingWebhook) *admissionregistrationv1.ValidatingWebhook {
	return &admissionregistrationv1.ValidatingWebhook{
		Name: m.Name, ClientConfig: m.ClientConfig, Rules: m.Rules, FailurePolicy: m.FailurePolicy, MatchPolicy: m.MatchPolicy,
		NamespaceSelector: m.NamespaceSelector, ObjectSelector: m.ObjectSelector, SideEffects: m.SideEffects,
		TimeoutSeconds: m.TimeoutSeconds, AdmissionReviewVersions: m.AdmissionReviewVersions, MatchConditions: m.MatchConditions,
	}
}

// newHook is what both kinds have in common. Names are unique in a configuration
// only by convention: the id counts. Metrics of its conditions have the kind of admission.
func (w *Webhooks) newHook(configuration string, seen map[string]int, h *admissionregistrationv1.ValidatingWebhook, kind string) *hook {
	k := &hook{
		configuration: configuration, name: h.Name, id: fmt.Sprintf("%s/%s/%d", configuration, h.Name, seen[h.Name]),
		criteria:   matching.NewCriteria(h.MatchPolicy, h.NamespaceSelector, h.ObjectSelector),
		conditions: matching.NewConditions(w.compiler, h.MatchConditions, false, h.FailurePolicy, w.cfg.Conditions, h.Name, "webhook", kind),
		client:     h.ClientConfig, versions: h.AdmissionReviewVersions, sideEffects: h.SideEffects,
		ignore: ignores(h.FailurePolicy), timeout: seconds(h.TimeoutSeconds),
	}
	seen[h.Name]++
	k.criteria.Rules = make([]admissionregistrationv1.NamedRuleWithOperations, len(h.Rules))
	for i, r := range h.Rules {
		k.criteria.Rules[i].RuleWithOperations = r
	}
	return k
}

func ignores(p *admissionregistrationv1.FailurePolicyType) bool {
	return p != nil && *p == admissionregistrationv1.Ignore
}

func seconds(n *int32) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Second
}

// static compiles the files' configurations, once per state of them.
type static[T metav1.Object] struct {
	mu    sync.Mutex
	from  []T
	hooks []*hook
}

func (s *static[T]) current(now []T, compile func(any) []*hook) []*hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.EqualFunc(s.from, now, func(a, b T) bool { return any(a) == any(b) }) {
		return s.hooks
	}
	s.from, s.hooks = now, nil
	for _, c := range now {
		s.hooks = append(s.hooks, compile(c)...)
	}
	return s.hooks
}
