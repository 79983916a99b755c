// SPDX-License-Identifier: Apache-2.0

// Package filter enforces NetworkPolicies, and ClusterNetworkPolicies where these are
// defined, on the pods of one node, by a table of nftables of its own.
//
// What is to be in the table is core/networkpolicy's decision; here objects are
// followed, and each change becomes one transaction, so that no packet sees a state in
// between. The table outlives the process, and the first write of the next one replaces
// it in one transaction too: there is no moment without rules. It is written once all
// policies are known that there are, which a first list from a cache may not have. An
// address that the table isolates, and of which the API does not say whose it is, stays
// cut off until somebody says so.
//
// Guard is for whoever starts pods: it returns once what policies say of a pod is in
// the kernel. It does not rely on the watches for that, each of which may be behind
// the one that brought the pod: it asks, and waits until they have brought the answers.
// What whoever starts pods says of a pod's network holds until he takes it back,
// whatever the watch says of the pod meanwhile.
package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config of a Filter.
type Config struct {
	// Table is the name of the table in nftables; it derives from the cluster's name, so
	// that several clusters share a host. Required.
	Table string
	// Node whose pods are guarded. Required.
	Node string
	// Client reads policies, namespaces and pods, and writes events. Required.
	Client kubernetes.Interface
	// Dynamic reads ClusterNetworkPolicies and their definition; nil: they are not enforced.
	Dynamic dynamic.Interface
	// Bridge: pods hang on a bridge of ours, by links that Guard is told.
	Bridge bool
	// Sees says why packets between pods of this node would not pass the table; nil: they do.
	Sees func() error
	// Patience is how long a pod waits for its rules before its start fails; default 10 s.
	Patience time.Duration
	// Check is how often the table is looked at for what others did to it; default 30 s.
	Check time.Duration
	// Log; default: nothing is logged.
	Log *slog.Logger
}

func (c *Config) complete() error {
	switch {
	case c.Table == "":
		return errors.New("network policy filter: Table is empty: name the nftables table after the cluster")
	case c.Node == "":
		return errors.New("network policy filter: Node is empty: name the node whose pods are guarded")
	case c.Client == nil:
		return errors.New("network policy filter: Client is nil")
	}
	if c.Patience <= 0 {
		c.Patience = 10 * time.Second
	}
	if c.Check <= 0 {
		c.Check = 30 * time.Second
	}
	if c.Sees == nil {
		c.Sees = func() error { return nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Filter of one node.
type Filter struct {
	cfg       Config
	table     *table
	links     *linkTable
	ending    sync.Mutex // held by who goes through the kernel's connections
	informers []informers.SharedInformerFactory
	synced    []cache.InformerSynced
	ready     chan struct{}
	wake      chan struct{}
	events    record.EventRecorder

	mu   sync.Mutex
	plan *networkpolicy.Plan
	// seen are the policies that are in the plan; those of the cluster have no namespace. unreadable are some of those.
	seen       map[types.NamespacedName]metav1.ObjectMeta
	unreadable map[types.NamespacedName]error
	// seenNamespaces are the resource versions of the namespaces whose labels are in the plan.
	seenNamespaces map[string]string
	// seenNodes are the same of nodes; none while no policy could speak of them.
	seenNodes map[string]string
	// here are the pods of this node that are in the plan.
	here map[types.UID]*corev1.Pod
	// guests have addresses by the word of who started them; hosts are whose an address is.
	guests map[types.UID][]netip.Addr
	hosts  map[netip.Addr]types.UID
	// linkOf are the names of pods' links to our bridge; heldLinks are those that an
	// earlier process isolated, and nobody has named yet.
	linkOf    map[types.UID]string
	heldLinks map[string]link
	// held are verdicts of an earlier process for addresses of which nobody said whose
	// they are; freed are those of them that somebody has by now.
	held  map[networkpolicy.Verdict]bool
	freed []networkpolicy.Verdict
	// changes counts what has come in; inForce is how many of them the kernel has.
	changes, inForce uint64
	failure          error         // of the last write
	turn             chan struct{} // closed when inForce, seen or failure changes
	broken           bool          // the table is not what the plan says
	// told are problems of policies, and crowded pods, of which an event speaks already.
	told    map[types.NamespacedName]string
	crowded map[types.NamespacedName]bool
}

// New checks the configuration and that nftables can be used here.
func New(cfg Config) (*Filter, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	t, err := openTable(cfg.Table)
	if err != nil {
		return nil, err
	}
	var links *linkTable
	if cfg.Bridge {
		if links, err = openLinkTable(cfg.Table); err != nil {
			return nil, err
		}
	}
	f := &Filter{
		cfg: cfg, table: t, links: links, linkOf: map[types.UID]string{}, informers: []informers.SharedInformerFactory{
			informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithTransform(slim)),
			informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithNamespace(metav1.NamespaceSystem),
				informers.WithTweakListOptions(func(o *metav1.ListOptions) {
					o.LabelSelector = discoveryv1.LabelServiceName + "=" + dnsName
				})),
		},
		ready: make(chan struct{}), wake: make(chan struct{}, 1), plan: networkpolicy.New(), seen: map[types.NamespacedName]metav1.ObjectMeta{},
		unreadable:     map[types.NamespacedName]error{},
		seenNamespaces: map[string]string{},
		seenNodes:      map[string]string{},
		here:           map[types.UID]*corev1.Pod{},
		guests:         map[types.UID][]netip.Addr{}, hosts: map[netip.Addr]types.UID{}, held: map[networkpolicy.Verdict]bool{},
		turn: make(chan struct{}), broken: true, told: map[types.NamespacedName]string{}, crowded: map[types.NamespacedName]bool{},
	}
	return f, f.follow()
}

// slim keeps of a pod what policies can see: its environment is none of our business.
func slim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		return slimPod(o), nil
	case metav1.Object:
		o.SetManagedFields(nil)
		return o, nil
	}
	return o, nil
}

func slimPod(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
	}}
	if of, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		out.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: of}
	}
	out.Spec.NodeName, out.Spec.HostNetwork = p.Spec.NodeName, p.Spec.HostNetwork
	out.Status.Phase, out.Status.PodIP, out.Status.PodIPs = p.Status.Phase, p.Status.PodIP, p.Status.PodIPs
	keep := func(to *[]corev1.Container, from []corev1.Container) {
		for _, c := range from {
			if len(c.Ports) > 0 {
				*to = append(*to, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
			}
		}
	}
	keep(&out.Spec.InitContainers, p.Spec.InitContainers)
	keep(&out.Spec.Containers, p.Spec.Containers)
	return out
}

// follow registers with the informers.
func (f *Filter) follow() error {
	for _, one := range []struct {
		informer cache.SharedIndexInformer
		take     func(o any, gone bool)
	}{
		{f.informers[0].Core().V1().Namespaces().Informer(), f.namespace},
		{f.informers[0].Networking().V1().NetworkPolicies().Informer(), f.policy},
		{f.informers[0].Core().V1().Pods().Informer(), f.pod},
		{f.informers[1].Discovery().V1().EndpointSlices().Informer(), f.dns},
	} {
		registered, err := f.hear(one.informer, one.take)
		if err != nil {
			return err
		}
		f.synced = append(f.synced, registered.HasSynced)
	}
	return nil
}

// hear brings what an informer tells into the plan.
func (f *Filter) hear(informer cache.SharedIndexInformer, one func(o any, gone bool)) (cache.ResourceEventHandlerRegistration, error) {
	take := func(o any, gone bool) {
		if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = t.Obj
		}
		f.mu.Lock()
		one(o, gone)
		f.changes++
		f.advance()
		f.mu.Unlock()
		f.nudge()
	}
	registered, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { take(o, false) },
		UpdateFunc: func(old, o any) {
			if another(old, o) {
				take(old, true) // the watch has missed its end
			}
			take(o, false)
		},
		DeleteFunc: func(o any) { take(o, true) },
	})
	if err != nil {
		return nil, fmt.Errorf("follow what network policies speak of: %w", err)
	}
	return registered, nil
}

// another reports whether an object has taken the name of an earlier one.
func another(old, now any) bool {
	a, okA := old.(metav1.Object)
	b, okB := now.(metav1.Object)
	return okA && okB && a.GetUID() != b.GetUID()
}

func (f *Filter) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// advance wakes those who wait for something to change. Lock held.
func (f *Filter) advance() {
	close(f.turn)
	f.turn = make(chan struct{})
}

func (f *Filter) namespace(o any, gone bool) {
	n, ok := o.(*corev1.Namespace)
	if !ok {
		return
	}
	f.seenNamespaces[n.Name] = n.ResourceVersion
	switch {
	case gone:
		delete(f.seenNamespaces, n.Name)
		f.plan.SetNamespace(n.Name, nil)
	case n.Labels == nil:
		f.plan.SetNamespace(n.Name, map[string]string{})
	default:
		f.plan.SetNamespace(n.Name, n.Labels)
	}
}

func (f *Filter) policy(o any, gone bool) {
	np, ok := o.(*networkingv1.NetworkPolicy)
	if !ok {
		return
	}
	key := types.NamespacedName{Namespace: np.Namespace, Name: np.Name}
	if gone {
		delete(f.seen, key)
		f.plan.RemovePolicy(key)
		return
	}
	f.seen[key] = metav1.ObjectMeta{UID: np.UID, ResourceVersion: np.ResourceVersion}
	f.plan.SetPolicy(np)
}

// dnsName is the Service of the cluster's DNS, and the label of its pods where it has any.
const dnsName = "kube-dns"

// dns has the DNS, which answers on nodes and not in pods, be the peer that policies for
// it name everywhere: pods of kube-system with the label k8s-app=kube-dns.
func (f *Filter) dns(o any, gone bool) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	// No pod is called so.
	one := networkpolicy.Pod{
		NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: "endpointslice/" + s.Name},
		Labels:         map[string]string{"k8s-app": dnsName},
	}
	if gone {
		f.plan.RemovePod(one.NamespacedName)
		return
	}
	for _, e := range s.Endpoints {
		if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
			one.IPs = append(one.IPs, parse(e.Addresses)...)
		}
	}
	for _, port := range s.Ports {
		if port.Name != nil && port.Port != nil && port.Protocol != nil {
			one.Ports = append(one.Ports, networkpolicy.Port{
				Protocol: networkpolicy.Protocol(*port.Protocol), Name: *port.Name,
				Number: uint16(*port.Port),
			})
		}
	}
	f.plan.SetPod(one)
}

func (f *Filter) pod(o any, gone bool) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	if _, guest := f.guests[p.UID]; gone && guest {
		return // deleted by force: it runs until whoever started it says that it has no network any more
	}
	if gone {
		f.removePod(p)
	} else {
		f.setPod(p)
	}
}

// keyOf is a pod in the plan. Another of the same name is another pod: for a while there may
// be both, and what is heard of the one must not open the other.
func keyOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name + "/" + string(p.UID)}
}

func (f *Filter) removePod(p *corev1.Pod) {
	f.leave(p.UID)
	delete(f.here, p.UID)
	f.plan.RemovePod(keyOf(p))
}

// leave forgets what addresses a pod of this node was given.
func (f *Filter) leave(uid types.UID) {
	for _, ip := range f.guests[uid] {
		if f.hosts[ip] == uid {
			delete(f.hosts, ip)
		}
	}
	delete(f.guests, uid)
	delete(f.linkOf, uid)
}

// setPod brings a pod into the plan, with the addresses that are its own. The kubelet and
// the watch each tell of pods of this node: the one who knows more counts.
func (f *Filter) setPod(p *corev1.Pod) {
	if last := f.here[p.UID]; last != nil && (p.Spec.NodeName == "" || newer(last.ResourceVersion, p.ResourceVersion)) {
		p = last // the watch may be so late that the pod has no node there yet
	}
	here := p.Spec.NodeName == f.cfg.Node
	if here {
		f.here[p.UID] = p
	}
	one := networkpolicy.Pod{NamespacedName: keyOf(p), Labels: p.Labels, Here: here, Ports: namedPorts(p), IPs: f.addresses(p)}
	if here {
		for _, ip := range one.IPs {
			f.free(ip)
		}
	}
	f.plan.SetPod(one)
}

// addresses of a pod: what it was given, until whoever gave it takes it back; else what the API
// says. A pod that has ended, or is on its node's network, has none.
func (f *Filter) addresses(p *corev1.Pod) []netip.Addr {
	given, known := f.guests[p.UID]
	switch {
	case p.Spec.HostNetwork:
		return nil
	case known: // whatever phase somebody has written
		return given
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return nil
	default:
		return f.reported(p)
	}
}

// reported are the addresses that the API knows of a pod. Those that a pod of this node was
// given meanwhile are no longer its own.
func (f *Filter) reported(p *corev1.Pod) []netip.Addr {
	texts := make([]string, 0, 2)
	for _, ip := range p.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	if len(texts) == 0 {
		texts = append(texts, p.Status.PodIP)
	}
	var out []netip.Addr
	for _, ip := range parse(texts) {
		if host, given := f.hosts[ip]; !given || host == p.UID || f.mirrors(p, host) {
			out = append(out, ip)
		}
	}
	return out
}

// mirrors reports whether a pod of the API is the mirror of a static one of this node. Anybody may write
// so into a pod; nobody else has its name.
func (f *Filter) mirrors(p *corev1.Pod, static types.UID) bool {
	host := f.here[static]
	return host != nil && p.Annotations[corev1.MirrorPodAnnotationKey] == string(static) && p.Namespace == host.Namespace &&
		p.Name == host.Name
}

// parse leaves out what is no address.
func parse(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip.Unmap().WithZone(""))
		}
	}
	return out
}

// free ends what an earlier process left for an address.
func (f *Filter) free(ip netip.Addr) {
	for _, d := range []networkpolicy.Direction{networkpolicy.Ingress, networkpolicy.Egress} {
		v := networkpolicy.Verdict{Direction: d, Address: ip}
		if f.held[v] {
			delete(f.held, v)
			f.freed = append(f.freed, v)
		}
	}
}

func namedPorts(p *corev1.Pod) []networkpolicy.Port {
	var out []networkpolicy.Port
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			proto := port.Protocol
			if proto == "" {
				proto = corev1.ProtocolTCP
			}
			if word := networkpolicy.Protocol(proto); word != "" && port.Name != "" {
				out = append(out, networkpolicy.Port{Protocol: word, Name: port.Name, Number: uint16(port.ContainerPort)})
			}
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return out
}

// Ready is closed once the kernel has what policies said at the start.
func (f *Filter) Ready() <-chan struct{} { return f.ready }

// Run keeps the table up to date until ctx ends, and leaves it as it is: what is cut
// off stays cut off.
func (f *Filter) Run(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: f.cfg.Client.CoreV1().Events("")})
	defer broadcaster.Shutdown()
	f.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "network-policy", Host: f.cfg.Node})
	watching, cancel := context.WithCancel(ctx)
	defined := run.Go("cluster network policies", func() error { return f.followDefinition(watching) })
	defer func() {
		cancel()
		if err := <-defined; err != nil {
			f.cfg.Log.ErrorContext(ctx, "cluster network policies were not followed", "error", err)
		}
		for _, i := range f.informers {
			i.Shutdown()
		}
	}()
	for _, i := range f.informers {
		i.Start(watching.Done())
	}
	if !cache.WaitForCacheSync(ctx.Done(), f.synced...) {
		return nil
	}
	check := time.NewTicker(f.cfg.Check)
	defer check.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	adopted, started, retry := false, false, run.Backoff{First: 50 * time.Millisecond, Longest: 10 * time.Second}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-again.C:
		case <-check.C:
			f.inspect(ctx)
		}
		var err error
		if !adopted {
			if err = f.catchUp(ctx); err == nil {
				err = f.adopt(ctx)
			}
			adopted = err == nil
		}
		if err == nil {
			err = f.sync(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			f.failed(err)
			wait := retry.Next()
			again.Reset(wait)
			f.cfg.Log.ErrorContext(ctx, "could not bring network policies into nftables; what is there stays in force; trying again",
				"error", err, "retryIn", wait)
			continue
		}
		retry.Reset()
		if !started {
			started = true
			close(f.ready)
		}
	}
}

// adopt takes over what an earlier process left: who is cut off and of whom nobody knows
// yet, stays so.
func (f *Filter) adopt(ctx context.Context) error {
	left, err := f.table.verdicts(ctx)
	if err != nil {
		return err
	}
	links, err := f.links.left(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.linkOf {
		delete(links, name)
	}
	f.heldLinks = links
	for _, v := range left {
		if _, known := f.plan.Holder(v.Address); !known {
			f.held[v] = true
		}
	}
	return nil
}

// inspect finds a table that somebody else removed or emptied.
func (f *Filter) inspect(ctx context.Context) {
	for _, intact := range []func(context.Context) (bool, error){f.table.intact, f.links.intact} {
		ok, err := intact(ctx)
		if err != nil {
			f.cfg.Log.WarnContext(ctx, "could not look at the nftables table", "error", err)
			continue
		}
		if !ok && !f.broken {
			f.cfg.Log.WarnContext(ctx, "the nftables table was changed by somebody else; writing it anew", "table", f.table.name)
			f.broken = true
		}
	}
}

func (f *Filter) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
	f.advance()
}

// sync writes what has changed, or, where nobody knows what is in the table, all.
func (f *Filter) sync(ctx context.Context) error {
	f.mu.Lock()
	upTo, freed, whole := f.changes, f.freed, f.broken
	f.freed = nil
	var c *networkpolicy.Change
	var held []networkpolicy.Verdict
	if whole {
		c, held = f.plan.Whole(), slices.Collect(maps.Keys(f.held))
	} else {
		c = f.plan.Flush()
		c.RemovedVerdicts = append(freed, c.RemovedVerdicts...)
	}
	links := f.wantedLinks()
	f.mu.Unlock()
	err := f.links.sync(ctx, links)
	switch {
	case err != nil:
	case whole:
		err = f.table.rewrite(ctx, c, held)
	case !c.Empty():
		err = f.table.update(ctx, c)
	}
	return f.wrote(ctx, upTo, err)
}

// wantedLinks are those of pods, with the addresses that are theirs. Lock held.
func (f *Filter) wantedLinks() map[string]link {
	want := maps.Clone(f.heldLinks)
	if want == nil {
		want = map[string]link{}
	}
	for uid, name := range f.linkOf {
		p := f.here[uid]
		if p == nil {
			continue
		}
		to, from := f.plan.Isolated(keyOf(p))
		if l := (link{from, to, f.addresses(p)}); l.wanted() {
			want[name] = l
		}
	}
	return want
}

// wrote takes note of how a write ended.
func (f *Filter) wrote(ctx context.Context, upTo uint64, err error) error {
	f.broken = err != nil
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.inForce, f.failure = upTo, nil
	f.advance()
	f.mu.Unlock()
	f.report(ctx)
	return nil
}

// newer reports whether a resource version is at least another.
func newer(have, want string) bool {
	a, errA := strconv.ParseUint(have, 10, 64)
	b, errB := strconv.ParseUint(want, 10, 64)
	if errA != nil || errB != nil {
		return have == want
	}
	return a >= b
}

// report says of policies and pods that cannot be had as asked, once, what is wrong.
func (f *Filter) report(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	problems := f.plan.Problems()
	maps.Copy(problems, f.unreadable)
	for key, err := range problems {
		if f.told[key] == err.Error() {
			continue
		}
		f.told[key] = err.Error()
		of := &corev1.ObjectReference{
			APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: key.Namespace, Name: key.Name, UID: f.seen[key].UID,
		}
		if key.Namespace == "" {
			of.APIVersion, of.Kind = policyv1alpha2.GroupVersion.String(), clusterKind
		}
		f.cfg.Log.WarnContext(ctx, "a network policy is not enforced as it stands", "kind", of.Kind, "namespace", key.Namespace,
			"name", key.Name, "error", err)
		f.events.Event(of, corev1.EventTypeWarning, "NotEnforced", err.Error())
	}
	maps.DeleteFunc(f.told, func(key types.NamespacedName, _ string) bool { return problems[key] == nil })
	crowded := f.plan.Crowded()
	for _, key := range crowded {
		if f.crowded[key] {
			continue
		}
		f.crowded[key] = true
		message := fmt.Sprintf(
			"More than %d different network policies of one tier select the pod; what the others allow is not in force: use fewer, or policies with more rules",
			networkpolicy.MaxPolicies,
		)
		f.cfg.Log.WarnContext(ctx, "more network policies select a pod than are enforced", "kind", "Pod", "namespace", key.Namespace,
			"name", key.Name, "limit", networkpolicy.MaxPolicies)
		for _, p := range f.here {
			if keyOf(p) == key {
				f.events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
					corev1.EventTypeWarning, "TooManyNetworkPolicies", message)
			}
		}
	}
	maps.DeleteFunc(f.crowded, func(key types.NamespacedName, _ bool) bool { return !slices.Contains(crowded, key) })
}
