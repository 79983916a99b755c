// SPDX-License-Identifier: Apache-2.0

package schedulers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/test/internal/sides"
)

// clients make objects at once.
const clients = 32

// longestRow bounds how long a step may take.
const longestRow = 5 * time.Minute

// runner runs one row on one side.
type runner struct {
	tb     testing.TB
	side   *sides.Side
	row    row
	client *kubernetes.Clientset
	nodes  []string
	pods   bound
	beside sync.WaitGroup // what goes on beside the steps
	// classes of priority that were made, by name.
	classes sync.Map
}

// figures of the part of a row that is measured.
type figures struct {
	pods   int
	took   time.Duration
	cpu    time.Duration
	memory int64
	nodes  map[string]string // of all pods
}

// bound counts the pods that have a node, by the step that made them.
type bound struct {
	mu      sync.Mutex
	nodes   map[string]string
	steps   map[string]int
	changed chan struct{}
	// each pod of a step that is to be replaced comes here when it has its node; nil: there is no such step.
	each     chan *corev1.Pod
	replaced string
}

func (b *bound) saw(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.nodes[p.Name]; known {
		return
	}
	b.nodes[p.Name] = p.Spec.NodeName
	step, _, _ := strings.Cut(p.Name, "-")
	b.steps[step]++
	if b.each != nil && step == b.replaced {
		b.each <- p // there is room for as many as there are at once
	}
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// await that many pods of a step have their nodes.
func (b *bound) await(ctx context.Context, step string, want int) error {
	for {
		b.mu.Lock()
		have := b.steps[step]
		b.mu.Unlock()
		if have >= want {
			return nil
		}
		select {
		case <-b.changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods have their nodes: %w", have, want, ctx.Err())
		}
	}
}

// run a row on a side that is empty.
func run(tb testing.TB, side *sides.Side, r row) (f figures, err error) {
	tb.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", side.Kubeconfig)
	if err != nil {
		return f, err
	}
	cfg.QPS, cfg.ContentType = -1, "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return f, err
	}
	ctx, cancel := context.WithCancel(tb.Context())
	u := &runner{tb: tb, side: side, row: r, client: client}
	u.pods = bound{nodes: map[string]string{}, steps: map[string]int{}, changed: make(chan struct{}, 1)}
	inf := informers.NewSharedInformerFactory(client, 0)
	_, err = inf.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: u.pods.saw, UpdateFunc: func(_, now any) { u.pods.saw(now) },
	})
	if err != nil {
		cancel()
		return f, err
	}
	inf.Start(ctx.Done())
	inf.WaitForCacheSync(ctx.Done())
	leases := make(chan struct{})
	defer func() {
		cancel()
		<-leases
		u.beside.Wait()
		inf.Shutdown()
	}()
	nodes := make(chan []string, 1)
	go func() {
		defer close(leases)
		u.renew(ctx, nodes)
	}()
	if r.claims() {
		if err := u.claimController(ctx, client); err != nil {
			return f, err
		}
	}
	for i, o := range r.ops {
		stepCtx, end := context.WithTimeout(ctx, longestRow)
		err := u.step(ctx, stepCtx, i, o, &f)
		end()
		if err != nil {
			return f, fmt.Errorf("%s: %w", o.Opcode, err)
		}
		if o.Opcode == "createNodes" {
			nodes <- u.nodes
		}
	}
	f.memory = side.Memory(tb)
	u.pods.mu.Lock()
	defer u.pods.mu.Unlock()
	f.nodes = maps.Clone(u.pods.nodes)
	return f, nil
}

// step does one step; what goes on beside the others ends with the row.
func (u *runner) step(row, ctx context.Context, i int, o op, f *figures) error {
	switch o.Opcode {
	case "createNodes":
		return u.makeNodes(ctx, o)
	case "createNamespaces":
		for n := range o.Count {
			var shape corev1.Namespace
			u.row.template(o.NSTemplatePath, &o, n, &shape)
			if err := u.namespace(ctx, fmt.Sprintf("%s-%d", o.Prefix, n), shape.Labels); err != nil {
				return err
			}
		}
	case "createPods":
		return u.makePods(ctx, i, o, f)
	case "createPodSets":
		for n := range o.Count {
			each := *o.Each
			each.Namespace, each.SkipWait = fmt.Sprintf("%s-%d", o.NamespacePrefix, n), true
			if err := u.makePods(ctx, i, each, f); err != nil {
				return err
			}
		}
		return u.pods.await(ctx, fmt.Sprint("step", i), o.Count*o.Each.Count)
	case "createAny":
		return u.makeAny(ctx, o)
	case "allocResourceClaims":
		return u.allocate(ctx, o)
	case "churn":
		return u.churn(row, ctx, o)
	case "deletePods":
		return u.deletePods(row, o)
	case "barrier":
		if o.Stage == "Attempted" { // they were made, and the scheduler is told of them
			return nil
		}
		for step, made := range u.made() {
			if err := u.pods.await(ctx, step, made); err != nil {
				return err
			}
		}
	}
	return nil
}

// made is how many pods each step makes.
func (u *runner) made() map[string]int {
	out := map[string]int{}
	for i, o := range u.row.ops {
		if o.Opcode == "createPods" && o.Count > 0 && !o.SkipWait {
			out[fmt.Sprint("step", i)] = o.Count
		}
	}
	return out
}

// each calls do for 0 to n-1, some at a time, until one fails.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	var wg sync.WaitGroup
	for range min(n, clients) {
		wg.Go(func() {
			for i := range work {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case work <- i:
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
	return context.Cause(ctx)
}

func (u *runner) makeNodes(ctx context.Context, o op) error {
	shape := corev1.Node{Status: corev1.NodeStatus{
		Capacity:   corev1.ResourceList{"pods": *quantity("110"), "cpu": *quantity("4"), "memory": *quantity("32Gi")},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	if o.NodeTemplatePath != "" {
		shape = corev1.Node{}
		u.row.template(o.NodeTemplatePath, &o, 0, &shape)
	}
	shapes := make([]*corev1.Node, o.Count)
	first, numbered := len(u.nodes), u.row.numbered(o.NodeTemplatePath)
	for i := range shapes {
		shapes[i] = &shape
		if numbered {
			shapes[i] = &corev1.Node{}
			u.row.template(o.NodeTemplatePath, &o, i, shapes[i])
		}
		name := shapes[i].Name // others of the row may refer to it
		if name == "" {
			name = fmt.Sprintf("node-%05d", first+i)
		}
		u.nodes = append(u.nodes, name)
	}
	return each(ctx, o.Count, func(ctx context.Context, i int) error {
		if err := u.attachable(ctx, o, u.nodes[first+i]); err != nil {
			return err
		}
		shape := shapes[i]
		n := shape.DeepCopy()
		n.GenerateName, n.Name = "", u.nodes[first+i]
		n.Labels = map[string]string{corev1.LabelHostname: n.Name}
		for k, v := range shape.Labels {
			n.Labels[k] = v
		}
		if l := o.Labels; l != nil {
			n.Labels[l.LabelKey] = l.LabelValues[i%len(l.LabelValues)]
		}
		if l := o.UniqueLabel; l != nil {
			n.Labels[l.LabelKey] = fmt.Sprint(first + i)
		}
		if a := o.Allocatable; a != nil {
			if n.Status.Allocatable == nil {
				n.Status.Allocatable = n.Status.Capacity.DeepCopy()
			}
			for name, amount := range a.Node {
				n.Status.Allocatable[name] = *quantity(amount)
			}
		}
		made, err := u.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if len(made.Spec.Taints) > len(n.Spec.Taints) { // no node controller takes off what marks a new node
			made.Spec.Taints = n.Spec.Taints
			_, err = u.client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{})
		}
		return err
	})
}

// renew keeps the nodes alive: each lease every ten seconds, one after the other.
func (u *runner) renew(ctx context.Context, come <-chan []string) {
	const leased = "kube-node-lease"
	var nodes []string
	leases := map[string]*coordinationv1.Lease{}
	api := u.client.CoordinationV1().Leases(leased)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return
		case nodes = <-come:
			continue
		case <-tick.C:
		}
		for range (len(nodes) + 99) / 100 {
			name := nodes[next%len(nodes)]
			next++
			now := metav1.NowMicro()
			l, seconds := leases[name], int32(40)
			var err error
			if l == nil {
				l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
				l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}
				l, err = api.Create(ctx, l, metav1.CreateOptions{})
			} else {
				l = l.DeepCopy()
				l.Spec.RenewTime = &now
				l, err = api.Update(ctx, l, metav1.UpdateOptions{})
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				u.tb.Errorf("renew the lease of %s: %v", name, err)
				return
			}
			leases[name] = l
		}
	}
}

// namespaced: a step before makes the namespace.
func (u *runner) namespaced(name string) bool {
	return slices.ContainsFunc(u.row.ops, func(o op) bool {
		return o.Opcode == "createNamespaces" && o.Prefix != "" && strings.HasPrefix(name, o.Prefix+"-")
	})
}

// namespace makes one in which pods can be made: no controller makes its service account.
func (u *runner) namespace(ctx context.Context, name string, labels map[string]string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := u.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	no := false
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}, AutomountServiceAccountToken: &no}
	_, err := u.client.CoreV1().ServiceAccounts(name).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (u *runner) makePods(ctx context.Context, i int, o op, f *figures) error {
	step, namespace := fmt.Sprint("step", i), o.Namespace
	if namespace == "" {
		namespace = step
	}
	if !u.namespaced(namespace) {
		if err := u.namespace(ctx, namespace, nil); err != nil {
			return err
		}
	}
	var shape corev1.Pod
	u.row.template(o.PodTemplatePath, &o, 0, &shape)
	numbered := u.row.numbered(o.PodTemplatePath)
	if err := u.important(ctx, &shape); err != nil {
		return err
	}
	makeOne := func(ctx context.Context, i int) error {
		p := shape.DeepCopy()
		if numbered {
			p = &corev1.Pod{}
			u.row.template(o.PodTemplatePath, &o, i, p)
		}
		p.GenerateName, p.Name = "", fmt.Sprintf("%s-%s-%d", step, namespace, i)
		if err := u.volume(ctx, o, namespace, i, p); err != nil {
			return err
		}
		_, err := u.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	if o.steady > 0 {
		u.pods.replace(step, o.Count)
	}
	began, before, bound := time.Now(), u.side.CPU(u.tb), o.Count
	err := each(ctx, o.Count, makeOne)
	if err != nil || o.SkipWait {
		return err
	}
	if o.steady > 0 {
		bound, err = u.steadily(ctx, o, namespace, makeOne)
	} else {
		err = u.pods.await(ctx, step, o.Count)
	}
	if err != nil {
		return err
	}
	if o.CollectMetrics {
		f.pods, f.took, f.cpu = bound, time.Since(began), u.side.CPU(u.tb)-before
	}
	return nil
}
