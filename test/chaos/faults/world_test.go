// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

const (
	web      = "web" // a Deployment of pods that answer, and a Service before them
	quiet    = "quiet"
	replicas = 2
	// recoversWithin is how long all may take to be as it was before a fault.
	recoversWithin = 2 * time.Minute
)

// world is a cluster, and all who look at it.
type world struct {
	ctx      context.Context //nolint:containedctx // the observers' lifetime, which is the test's
	t        *testing.T
	cluster  *harness.Cluster
	machines []*machine // of the cluster; servers come first
	spares   []*machine // that may join
	on       topology
	servers  pool   // those that clients know
	names    string // the namespace
	// authority is what observers with a token know of the cluster, from its beginning on.
	authority []byte
	bearer    string // of the observers; "": they are the administrator, with a certificate

	resolver resolver // for names outside the cluster

	gate       sync.RWMutex // closed: nobody writes
	written    *written
	calls      calls
	watchers   []*watcher
	scheduled  delays
	controlled delays
}

var worlds atomic.Int64

// newWorld starts a cluster of a topology with its observers. All ends with the test.
func newWorld(t *testing.T, on topology, hello string) *world {
	t.Helper()
	binary := harness.Binary(t)
	if on.clock {
		if binary = os.Getenv("CHAOS_CLOCK_BIN"); binary == "" {
			t.Fatal("CHAOS_CLOCK_BIN names no program whose clock can be stepped: `make faults` builds one")
		}
	}
	w := &world{t: t, on: on, cluster: harness.NewFor(t, binary, "")}
	w.names = w.cluster.Name
	_, port, err := net.SplitHostPort(w.cluster.Listen)
	must(t, err)
	lab := netlab.New(t)
	w.wire(lab, port)
	ctx, stop := context.WithCancel(t.Context())
	w.ctx = ctx
	must(t, w.populate(hello))
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	w.observe(&all)
	must(t, w.awaitRecovery())
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wire makes the machines: one link, on which the test has an address too.
func (w *world) wire(lab netlab.Lab, port string) {
	w.t.Helper()
	// No other world has this link and network, not even one whose link is not gone yet.
	id := os.Getpid()%10000*10 + int(worlds.Add(1)%10)
	link, network := fmt.Sprintf("wpf%d", id), fmt.Sprintf("198.%d.%d", 18+id>>8&1, id&0xff)
	must(w.t, harness.Execute("ip", "link", "add", link, "type", "bridge"))
	w.t.Cleanup(func() { _ = harness.Execute("ip", "link", "delete", link) })
	must(w.t, errors.Join(harness.Execute("ip", "address", "add", network+".1/24", "dev", link),
		harness.Execute("ip", "link", "set", link, "up")))
	w.resolver.at = net.JoinHostPort(network+".1", "5300")
	must(w.t, w.resolver.start())
	w.t.Cleanup(w.resolver.stop)
	inCluster := w.on.servers + w.on.workers
	for i := range inCluster + w.on.spares {
		m := &machine{
			lab: lab, binary: w.cluster.Binary, name: string(rune('a' + i)), server: i < w.on.servers || i >= inCluster,
			address: fmt.Sprintf("%s.%d", network, i+2), port: port,
		}
		m.bare = m.server && w.on.spares > 0
		m.node, m.cluster, m.config = m.name, w.cluster.Name+m.name, filepath.Join(w.cluster.Dir, m.name+".yaml")
		if i == 0 {
			m.cluster = w.cluster.Name // whose networks are its
		}
		must(w.t, os.WriteFile(m.config, fmt.Appendf(nil,
			"apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nnode: {address: %s, logLinkDir: \"\", evictionPressureTransitionPeriod: 5s, mode: %s}\ndns: {upstream: [%q]}\n",
			m.address, m.mode(), w.resolver.at), 0o600))
		lab.Namespace(m.name)
		end := link + m.name
		must(w.t, harness.Execute("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", lab.Name(m.name)))
		must(w.t, harness.Execute("ip", "link", "set", end, "master", link, "up"))
		lab.Run(m.name, "ip", "address", "add", m.address+"/24", "dev", "eth0")
		lab.Run(m.name, "ip", "link", "set", "eth0", "up")
		lab.Run(m.name, "ip", "route", "add", "default", "via", network+".1")
		must(w.t, errors.Join(m.mount(w.cluster.Dir), m.linked(w.cluster.Binary, w.cluster.Dir)))
		w.t.Cleanup(func() {
			if err := m.remove(); err != nil {
				w.t.Errorf("machine %s: %v", m.name, err)
			}
		})
		if i < inCluster {
			w.machines = append(w.machines, m)
		} else {
			w.spares = append(w.spares, m)
		}
	}
	// Workers leave before servers, and the first server last.
}

// populate starts the machines one by one, and makes what is looked at.
func (w *world) populate(hello string) error {
	first := w.machines[0]
	if err := first.start(); err != nil {
		return err
	}
	if w.on.workers > 0 && !w.on.clock { // whose wrong clocks tokens don't bear
		kube, err := w.client(first)
		if err != nil {
			return err
		}
		if w.bearer, err = w.tokenFor(kube); err != nil {
			return err
		}
	}
	for _, m := range w.machines[1:] {
		if err := w.join(m); err != nil {
			return err
		}
	}
	for _, m := range w.machines {
		if m.server {
			var err error
			if m.kube, err = w.client(m); err != nil {
				return err
			}
		}
		if m.bare {
			continue
		}
		if err := m.do(m.binary, "image", "import", hello, "--data-dir", m.data); err != nil {
			return err
		}
	}
	return w.objects(first.kube)
}

// join has a machine become a worker, or a further server, by a token.
func (w *world) join(m *machine) error { return w.joinAt(w.first(), m) }

func (w *world) joinAt(server, m *machine) error {
	args := []string{server.binary, "token", "create", "-q", "--data-dir", server.data}
	if m.server {
		args = append(args, "--server")
	}
	token, err := server.in(args...).Output()
	if err != nil {
		return fmt.Errorf("make a token: %w", err)
	}
	file := filepath.Join(w.cluster.Dir, "token-"+m.name)
	if err := os.WriteFile(file, token, 0o600); err != nil {
		return err
	}
	how := []string{"join", server.address + ":" + server.port, "--token-file", file}
	if m.server {
		how = append(how, "--server")
	}
	return m.start(how...)
}

// client is an observer's at one server.
func (w *world) client(m *machine) (*kubernetes.Clientset, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(w.machines[0].data, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.ServerName, cfg.QPS = "https://"+net.JoinHostPort(m.address, m.port), "kubernetes", -1
	if w.bearer != "" {
		if w.authority == nil {
			w.authority = cfg.CAData
		}
		cfg.BearerToken, cfg.CAData, cfg.CertData, cfg.KeyData = w.bearer, w.authority, nil, nil
	}
	// The connections of different clients are different ones.
	cfg.Dial = (&net.Dialer{Timeout: tryFor}).DialContext
	return kubernetes.NewForConfig(cfg)
}

// clients is one of all servers that begins with one of them, and hears of those that join and leave.
func (w *world) clients(first int) servers {
	return servers{at: first, pool: &w.servers, client: w.client, own: map[*machine]*kubernetes.Clientset{}}
}

func (w *world) objects(c *kubernetes.Clientset) error {
	_, err := c.CoreV1().Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.names}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	labels := map[string]string{"app": web}
	one := intstr.FromInt32(1)
	deployment := func(name string, n int32, pod corev1.PodSpec) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: pod},
		}}
	}
	grace := int64(1)
	pod := corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{
			Name: web, Image: "wasmplane.local/hello:1",
			Ports: []corev1.ContainerPort{{ContainerPort: 80}},
		}},
		Affinity: w.placed(),
	}
	_, err = c.AppsV1().Deployments(w.names).Create(w.ctx, deployment(web, replicas, pod), metav1.CreateOptions{})
	if err == nil {
		_, err = c.AppsV1().Deployments(w.names).Create(w.ctx, deployment(quiet, 0, pod), metav1.CreateOptions{})
	}
	if err == nil {
		_, err = c.CoreV1().Services(w.names).Create(w.ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: web}, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
	}
	return errors.Join(err, makeShelf(w.ctx, c))
}

// placed keeps pods off servers where there are workers, and has one on each.
func (w *world) placed() *corev1.Affinity {
	if w.on.workers == 0 {
		return nil
	}
	var names []string
	for _, m := range w.machines[w.on.servers:] {
		names = append(names, m.name)
	}
	return &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}},
			}},
		}},
		PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": web}}, TopologyKey: corev1.LabelHostname,
			},
		}}},
	}
}

// observe starts all who look.
func (w *world) observe(all *sync.WaitGroup) {
	w.servers.set(w.machines[:w.on.servers])
	w.written = newWritten()
	for i := range writers {
		s := w.clients(i)
		all.Go(func() { w.written.write(w.ctx, s, w.names, i, &w.gate) })
	}
	for i := range w.on.servers + w.on.spares {
		s, one := w.clients(i), &watcher{namespace: w.names, seen: map[string]int64{}}
		w.watchers = append(w.watchers, one)
		all.Go(func() { one.run(w.ctx, s) })
	}
	w.calls.gaps.last = time.Now()
	w.calls.request = w.caller()
	for range callers {
		all.Go(func() { w.calls.run(w.ctx) })
	}
	scheduled, controlled := w.clients(0), w.clients(1)
	all.Go(func() { w.scheduled.schedule(w.ctx, scheduled, w.names) })
	all.Go(func() { w.controlled.change(w.ctx, controlled, w.names, quiet) })
}

// caller asks the Service from the last machine, by a new connection.
func (w *world) caller() func(context.Context) error {
	service, err := w.machines[0].kube.CoreV1().Services(w.names).Get(w.ctx, web, metav1.GetOptions{})
	must(w.t, err)
	last := w.machines[len(w.machines)-1]
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			if inside := last.lab.In(last.name, func() error {
				c, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return nil
			}); inside != nil {
				return nil, inside
			}
			return c, err
		},
	}}
	url := "http://" + service.Spec.ClusterIP + "/"
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s, %w", answer.Status, err)
		}
		return nil
	}
}

// awaitRecovery waits until all is as it was before a fault. Its error says what is not in time, with what the cluster says of it.
func (w *world) awaitRecovery() error {
	ctx, cancel := context.WithTimeout(w.ctx, recoversWithin)
	defer cancel()
	scheduled, controlled := w.scheduled.count(), w.controlled.count()
	var complaint error
	err := harness.Poll(ctx, 200*time.Millisecond, func() error {
		err := w.amiss(ctx, scheduled, controlled)
		if ctx.Err() == nil {
			complaint = err // what is asked when time is over is not answered
		}
		return complaint
	})
	if err != nil {
		return fmt.Errorf("after %s it is not as before: %w\n%s", recoversWithin, err, w.evidence())
	}
	return nil
}

// amiss is the first thing that is not as before a fault; the counts are of when it ended.
func (w *world) amiss(ctx context.Context, scheduled, controlled int) error {
	servers := w.machines[:w.on.servers]
	for _, m := range servers {
		if err := m.healthy(ctx); err != nil {
			return err
		}
		for _, check := range []func(context.Context, *kubernetes.Clientset) error{w.nodes, w.pods} {
			if err := check(ctx, m.kube); err != nil {
				return fmt.Errorf("asked of %s: %w", m.name, err)
			}
		}
	}
	if w.scheduled.count() < scheduled+2 {
		return errors.New("no pod was bound since")
	}
	if w.controlled.count() < controlled+2 {
		return errors.New("no change of a Deployment was seen since")
	}
	one, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	if err := w.calls.request(one); err != nil {
		return fmt.Errorf("the Service: %w", err)
	}
	return nil
}

func (w *world) nodes(ctx context.Context, c *kubernetes.Clientset) error {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for i := range nodes.Items {
		for _, condition := range nodes.Items[i].Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
			if condition.Type != corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return fmt.Errorf("node %s: %s: %s", nodes.Items[i].Name, condition.Type, condition.Message)
			}
		}
	}
	wants := 0
	for _, m := range w.machines {
		if !m.bare {
			wants++
		}
	}
	if ready != wants {
		return fmt.Errorf("%d of %d nodes are ready", ready, wants)
	}
	return nil
}

// pods checks that Deployment and Service have what they had.
func (w *world) pods(ctx context.Context, c *kubernetes.Clientset) error {
	d, err := c.AppsV1().Deployments(w.names).Get(ctx, web, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if s := d.Status; s.ObservedGeneration < d.Generation || s.AvailableReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas {
		return fmt.Errorf("deployment %s has %d pods, %d available, of %d", web, s.Replicas, s.AvailableReplicas, *d.Spec.Replicas)
	}
	slices, err := c.DiscoveryV1().EndpointSlices(w.names).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for i := range slices.Items {
		for _, e := range slices.Items[i].Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				ready++
			}
		}
	}
	if ready != int(*d.Spec.Replicas) {
		return fmt.Errorf("service %s has %d ready endpoints of %d", web, ready, *d.Spec.Replicas)
	}
	return nil
}

// running is how often each pod's containers were started, by the pod's UID.
func (w *world) running() (map[string]int, error) {
	pods, err := w.machines[0].kube.CoreV1().Pods(w.names).List(w.ctx, metav1.ListOptions{LabelSelector: "app=" + web})
	if err != nil {
		return nil, err
	}
	is := map[string]int{}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			is[string(pods.Items[i].UID)] += int(c.RestartCount)
		}
	}
	return is, nil
}

// restarted counts containers that were started again, and pods that are others.
func restarted(before, after map[string]int) (n int) {
	for uid, count := range before {
		now, found := after[uid]
		if !found {
			n++
			continue
		}
		n += max(0, now-count)
	}
	return n
}

// judge counts, while nobody writes, what was lost and which watches were wrong.
func (w *world) judge(r *result) error {
	w.gate.Lock()
	defer w.gate.Unlock()
	c := w.machines[0].kube.CoreV1().ConfigMaps(w.names)
	mark, err := c.Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "mark-"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	list, err := c.List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	is := map[string]int64{}
	for i := range list.Items {
		is[list.Items[i].Name] = revisionOf(&list.Items[i])
	}
	for _, lost := range w.written.lost(is) {
		r.Lost++
		r.Breaches = append(r.Breaches, "lost: "+lost)
	}
	ctx, cancel := context.WithTimeout(w.ctx, recoversWithin)
	defer cancel()
	for i, one := range w.watchers {
		err := harness.Poll(ctx, 20*time.Millisecond, func() error {
			if at := one.reached(); at < revisionOf(mark) {
				return fmt.Errorf("it is at %d, and %d was acknowledged", at, revisionOf(mark))
			}
			return nil
		})
		wrong := []string{}
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		w.written.mu.Lock()
		acknowledged := maps.Clone(w.written.created)
		w.written.mu.Unlock()
		wrong = append(wrong, one.judge(is, acknowledged)...)
		for _, what := range wrong {
			r.WrongWatches++
			r.Breaches = append(r.Breaches, fmt.Sprintf("watcher %d: %s", i, what))
		}
		one.mu.Lock()
		r.Relists += one.relists
		one.relists = 0
		one.mu.Unlock()
	}
	return nil
}

// undergo has the cluster live through a class. Its error is one after which the cluster is of no more use.
func (w *world) undergo(c class) (r result, err error) {
	r.Class = c.id()
	before, err := w.running()
	if err != nil {
		return r, err
	}
	w.take(&result{})
	if wrong := c.run(w); wrong != nil {
		r.Breaches = append(r.Breaches, wrong.Error())
	}
	mended := time.Now()
	if err := w.awaitRecovery(); err != nil {
		return r, err
	}
	r.Recovery = seconds(time.Since(mended))
	after, err := w.running()
	if err != nil {
		return r, err
	}
	r.Restarts = restarted(before, after)
	complaints := append(w.written.complaints(), w.calls.complaints()...)
	w.take(&r)
	if err := w.judge(&r); err != nil {
		return r, err
	}
	if worse := c.may.breaches(r); len(worse) > 0 {
		r.Breaches = append(append(r.Breaches, worse...), complaints...)
	}
	return r, nil
}

func (w *world) take(r *result) {
	w.written.take(r)
	w.calls.take(r)
	r.Scheduler, r.Controllers = w.scheduled.take(), w.controlled.take()
}

// hold waits while a fault lasts.
func (w *world) hold(d time.Duration) { run.Sleep(w.ctx, d) }

// evidence is what the first server that answers says, and what all machines logged last.
func (w *world) evidence() string {
	var b strings.Builder
	for _, m := range w.machines[:w.on.servers] {
		if m.kube == nil || m.healthy(w.ctx) != nil {
			continue
		}
		for _, what := range []string{
			"get nodes,pods,deployments,endpointslices -A -o wide", "get events -A --sort-by=.lastTimestamp",
			"get leases -A",
		} {
			args := append([]string{m.binary, "kubectl", "--kubeconfig", filepath.Join(m.data, "kubeconfig"), "--request-timeout=5s"},
				strings.Fields(what)...)
			out, _ := m.in(args...).CombinedOutput()
			fmt.Fprintf(&b, "[%s]\n%s\n", what, harness.Tail(string(out), 30))
		}
		break
	}
	for _, m := range w.machines {
		if log, err := os.ReadFile(filepath.Join(m.data, "wasmplane.log")); err == nil {
			fmt.Fprintf(&b, "[the log of %s ends]\n%s\n", m.name, harness.Tail(string(log), 25))
		}
		if m.process != nil {
			fmt.Fprintf(&b, "[%s printed last]\n%s\n", m.name, harness.Tail(m.process.Output.String(), 5))
		}
	}
	return b.String()
}

// keepLogs copies the logs of all machines, to a directory.
func (w *world) keepLogs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var problems []error
	for _, m := range w.machines {
		log, err := os.ReadFile(filepath.Join(m.data, "wasmplane.log"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // of a server that was lost, and has not come back
		}
		problems = append(problems, err, os.WriteFile(filepath.Join(dir, m.name+".log"), log, 0o600))
	}
	return errors.Join(problems...)
}

// leader is the server that holds a lease.
func (w *world) leader(lease string) (*machine, error) {
	for _, m := range w.machines[:w.on.servers] {
		one, cancel := context.WithTimeout(w.ctx, tryFor)
		l, err := m.kube.CoordinationV1().Leases("kube-system").Get(one, lease, metav1.GetOptions{})
		cancel()
		if err != nil || l.Spec.HolderIdentity == nil {
			continue
		}
		for _, is := range w.machines[:w.on.servers] {
			identity, err := os.ReadFile(filepath.Join(is.data, "identity"))
			if err == nil && strings.Contains(*l.Spec.HolderIdentity, strings.TrimSpace(string(identity))) {
				return is, nil
			}
		}
		return nil, fmt.Errorf("lease %s is held by %s, which is no server", lease, *l.Spec.HolderIdentity)
	}
	return nil, fmt.Errorf("nobody answers who holds lease %s", lease)
}
