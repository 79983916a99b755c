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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
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
		h := &c.Webhooks[i]
		k := w.newHook(c.Name, h.Name, seen, h.Rules, h.MatchPolicy, h.NamespaceSelector, h.ObjectSelector)
		k.conditions = matching.NewConditions(w.compiler, h.MatchConditions, false, h.FailurePolicy, w.cfg.Conditions, h.Name, "webhook", "admit")
		k.client, k.versions, k.sideEffects = h.ClientConfig, h.AdmissionReviewVersions, h.SideEffects
		k.ignore, k.timeout = ignores(h.FailurePolicy), seconds(h.TimeoutSeconds)
		k.reinvoke = h.ReinvocationPolicy != nil && *h.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy
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
		h := &c.Webhooks[i]
		k := w.newHook(c.Name, h.Name, seen, h.Rules, h.MatchPolicy, h.NamespaceSelector, h.ObjectSelector)
		k.conditions = matching.NewConditions(w.compiler, h.MatchConditions, false, h.FailurePolicy, w.cfg.Conditions, h.Name, "webhook", "validate")
		k.client, k.versions, k.sideEffects = h.ClientConfig, h.AdmissionReviewVersions, h.SideEffects
		k.ignore, k.timeout = ignores(h.FailurePolicy), seconds(h.TimeoutSeconds)
		out = append(out, k)
	}
	return out
}

// newHook is what both kinds have in common. Names are unique in a configuration
// only by convention: the id counts.
func (w *Webhooks) newHook(configuration, name string, seen map[string]int, rules []admissionregistrationv1.RuleWithOperations,
	policy *admissionregistrationv1.MatchPolicyType, namespaces, objects *metav1.LabelSelector) *hook {
	h := &hook{configuration: configuration, name: name, id: fmt.Sprintf("%s/%s/%d", configuration, name, seen[name])}
	seen[name]++
	h.criteria = matching.NewCriteria(policy, namespaces, objects)
	h.criteria.Rules = make([]admissionregistrationv1.NamedRuleWithOperations, len(rules))
	for i, r := range rules {
		h.criteria.Rules[i].RuleWithOperations = r
	}
	return h
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
