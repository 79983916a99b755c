// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/dns/announce"
	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/kubelet/reach"
)

// AllNodes in the place of a node's name.
const AllNodes = "all"

// Network has a node, or AllNodes, try the ports of all others, and prints what is blocked. domain is the cluster's.
func Network(ctx context.Context, w io.Writer, cfg *rest.Config, domain, from string) error {
	set, err := client.New(cfg)
	if err != nil {
		return err
	}
	m, err := survey(ctx, set.Kube, cfg)
	if err != nil {
		return err
	}
	asked := m.nodes
	if from != AllNodes {
		asked = slices.DeleteFunc(slices.Clone(m.nodes), func(n place) bool { return n.name != from })
		if len(asked) == 0 {
			return fmt.Errorf("there is no node %q; --from all asks each node", from)
		}
	}
	trials := make([]trial, len(asked))
	var all sync.WaitGroup
	for i, n := range asked {
		all.Go(func() { trials[i] = m.try(ctx, set.Kube, n, domain) })
	}
	all.Wait()
	if !show(w, trials, m.notes()) {
		return ErrLacking
	}
	return nil
}

// place is a node or a server, and where it is reached.
type place struct {
	name    string
	address netip.Addr // of the machine
	node    bool       // false: a server without pods
	api     string     // HOST:PORT, of a server
	store   string     // HOST:PORT, of a server whose store others reach
	kubelet string
	dns     string
	idle    string // why the node is not asked; "" = it is
}

// network is what is to be tried.
type network struct {
	nodes   []place // who can be asked, by name
	places  []place // nodes, and servers without one
	service string  // of the API, HOST:PORT; "" = there is none
	servers []peers.Peer
	store   error // why it is not known where the stores are
	// nodeClocks are sentences about nodes whose clock is off.
	nodeClocks []string
}

// survey asks the API who there is.
func survey(ctx context.Context, kube kubernetes.Interface, cfg *rest.Config) (*network, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	found, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask which nodes there are: %w", err)
	}
	m := &network{}
	for i := range found.Items {
		m.places = append(m.places, placeOf(&found.Items[i]))
	}
	if err := m.addServers(ctx, kube, cfg); err != nil {
		return nil, err
	}
	if err := m.addServices(ctx, kube); err != nil {
		return nil, err
	}
	if m.nodeClocks, err = peers.AskNodeClocks(ctx, kube); err != nil {
		return nil, err
	}
	slices.SortFunc(m.places, func(a, b place) int { return strings.Compare(a.name, b.name) })
	m.nodes = slices.DeleteFunc(slices.Clone(m.places), func(p place) bool { return !p.node })
	return m, nil
}

func placeOf(n *corev1.Node) place {
	p := place{name: n.Name, node: true}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && !p.address.IsValid() {
			p.address = ip
		}
	}
	if port := n.Status.DaemonEndpoints.KubeletEndpoint.Port; port != 0 && p.address.IsValid() {
		p.kubelet = net.JoinHostPort(p.address.String(), strconv.Itoa(int(port)))
	}
	if _, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue {
		p.idle = "is not ready"
		if c != nil {
			p.idle = fmt.Sprintf("is not ready since %s (%s)", c.LastTransitionTime.UTC().Format(time.RFC3339), cmp.Or(c.Message, c.Reason))
		}
	}
	return p
}

// addServers adds where the servers' APIs and stores are.
func (m *network) addServers(ctx context.Context, kube kubernetes.Interface, cfg *rest.Config) error {
	addresses, err := peers.Addresses(ctx, kube)
	if err != nil {
		return err
	}
	m.servers = peers.Ask(ctx, cfg, addresses...)
	for _, s := range m.servers {
		if at, err := netip.ParseAddrPort(s.Address); err == nil {
			m.at(at.Addr(), s.Server.Name).api = s.Address
		}
	}
	own := peers.Own(ctx, cfg)
	m.store = own.Err
	for _, member := range own.Members {
		address := strings.TrimPrefix(member.Peer, "https://")
		if at, err := netip.ParseAddrPort(address); err == nil {
			m.at(at.Addr(), member.Name).store = address
		}
	}
	return nil
}

// at is the place at that address, or of that name.
func (m *network) at(address netip.Addr, name string) *place {
	i := slices.IndexFunc(m.places, func(p place) bool { return p.address == address })
	if i < 0 && name != "" {
		i = slices.IndexFunc(m.places, func(p place) bool { return p.name == name })
	}
	if i < 0 {
		m.places = append(m.places, place{name: cmp.Or(name, address.String()), address: address})
		i = len(m.places) - 1
	}
	return &m.places[i]
}

// addServices adds the address of the API's Service, and where the nodes' DNS are.
func (m *network) addServices(ctx context.Context, kube kubernetes.Interface) error {
	api, err := kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("ask for the Service of the API: %w", err)
	}
	if len(api.Spec.Ports) > 0 {
		m.service = net.JoinHostPort(api.Spec.ClusterIP, strconv.Itoa(int(api.Spec.Ports[0].Port)))
	}
	found, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + announce.ServiceName})
	if err != nil {
		return fmt.Errorf("ask where the DNS are: %w", err)
	}
	for _, s := range found.Items {
		for _, e := range s.Endpoints {
			i := slices.IndexFunc(m.places, func(p place) bool { return e.NodeName != nil && p.name == *e.NodeName })
			if i >= 0 && len(e.Addresses) > 0 {
				m.places[i].dns = net.JoinHostPort(e.Addresses[0], "53")
			}
		}
	}
	return nil
}

// The columns of the table.
const (
	api     = "API"
	kubelet = "KUBELET"
	peer    = "STORE"
	pods    = "PODS"
	ownDNS  = "DNS"
	service = "SERVICE"
)

var columns = []string{api, kubelet, peer, pods, ownDNS, service}

// attempt is one target of a node, and what came of it.
type attempt struct {
	to     place
	column string
	reach.Target
	reach.Result
}

// trial is what one node has tried; problem is why it could not be asked.
type trial struct {
	from     place
	attempts []attempt
	problem  string
}

// targets are what a node has to reach.
func (m *network) targets(n place, domain string) (out []attempt) {
	question := "kubernetes.default.svc." + domain + "."
	add := func(to place, column, kind, address string) {
		if address == "" || len(out) == reach.Most {
			return
		}
		t := reach.Target{Kind: kind, Address: address}
		if kind == reach.DNS {
			t.Question = question
		}
		out = append(out, attempt{to: to, column: column, Target: t})
	}
	for _, p := range m.places {
		if p.name == n.name {
			add(p, ownDNS, reach.DNS, p.dns)
			add(p, service, reach.TCP, m.service)
			continue
		}
		add(p, api, reach.TCP, p.api)
		if n.api != "" { // servers alone connect to kubelets and stores
			add(p, kubelet, reach.TCP, p.kubelet)
			add(p, peer, reach.TCP, p.store)
		}
		add(p, pods, reach.DNS, p.dns)
	}
	return out
}

// asking bounds how long a node is waited for: its tries take a few seconds together.
const asking = 30 * time.Second

func (m *network) try(ctx context.Context, kube kubernetes.Interface, n place, domain string) trial {
	t := trial{from: n, problem: n.idle}
	if t.problem != "" {
		return t
	}
	attempts := m.targets(n, domain)
	targets := make([]reach.Target, len(attempts))
	for i, a := range attempts {
		targets[i] = a.Target
	}
	results, err := ask(ctx, kube, n.name, targets)
	if err == nil && len(results) != len(attempts) {
		err = errors.New("it answered something else")
	}
	if err != nil {
		t.problem = fmt.Sprintf("could not be asked through the API: %v; let TCP %s pass from the servers to it", err, port(n.kubelet))
		return t
	}
	for i := range attempts {
		attempts[i].Result = results[i]
	}
	t.attempts = attempts
	return t
}

// notes are what is to be said besides what the nodes tried: what could not be tried, and the
// servers and nodes whose clock is off.
func (m *network) notes() (out []string) {
	if m.store != nil {
		out = append(out, fmt.Sprintf("the servers' stores were not tried, for it is not known where they are: %v", m.store))
	}
	for _, s := range m.servers {
		if text := s.Clock(); text != "" {
			out = append(out, text+"; "+peers.Advice)
		}
	}
	for _, text := range m.nodeClocks {
		out = append(out, text+"; "+peers.Advice)
	}
	return out
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address) //nolint:errcheck // "" where there is none
	return cmp.Or(port, "10250")
}

// show prints the table and what to do. ok: everything was reached.
func show(w io.Writer, trials []trial, notes []string) (ok bool) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "FROM\tTO\t"+strings.Join(columns, "\t"))
	for _, one := range trials {
		if one.problem != "" {
			fmt.Fprintln(t, one.from.name+"\t"+strings.Repeat("\t?", len(columns)))
			notes = append(notes, fmt.Sprintf("node %s %s", one.from.name, one.problem))
		}
		var cells map[string]string
		flush := func(to string) {
			if cells == nil {
				return
			}
			row := []string{one.from.name, to}
			for _, c := range columns {
				row = append(row, cmp.Or(cells[c], "-"))
			}
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
		last := ""
		for _, a := range one.attempts {
			if a.to.name != last {
				flush(last)
				last, cells = a.to.name, map[string]string{}
			}
			cells[a.column] = "ok"
			if a.Problem != "" {
				cells[a.column] = "BLOCKED"
				if a.Refused {
					cells[a.column] = "REFUSED"
				}
				notes = append(notes, fmt.Sprintf("from %s to %s, %s at %s: %s; %s", one.from.name, a.to.name, what[a.column], a.Address, a.Problem,
					advice(one.from, a)))
			}
		}
		flush(last)
	}
	_ = t.Flush() // who reads has gone otherwise
	if len(notes) == 0 {
		fmt.Fprintln(w, "\nEverything is reached.")
		return true
	}
	fmt.Fprintln(w)
	for _, n := range notes {
		fmt.Fprintln(w, "-", n)
	}
	return false
}

var what = map[string]string{
	api: "the API", kubelet: "the kubelet", peer: "the store", pods: "the network of the pods (the DNS there)",
	ownDNS: "its own DNS", service: "a Service's address (the API's)",
}

// advice is what to do about an attempt that failed.
func advice(from place, a attempt) string {
	if a.to.idle != "" {
		return fmt.Sprintf("%s %s: look after that first", a.to.name, a.to.idle)
	}
	if a.Refused {
		switch a.column {
		case api:
			return "the machine answers, and nothing listens there: start that server, with --listen :" + port(a.Address)
		case pods, ownDNS:
			return "the machine answers, and no DNS listens there: see the log of wasmplane on " + a.to.name
		case service:
			return "no server answers behind it, or the node's service proxy does not run: see the log of wasmplane on " + from.name
		}
		return "the machine answers, and nothing listens there: see the log of wasmplane on " + a.to.name
	}
	switch a.column {
	case pods:
		return fmt.Sprintf("let UDP 4789 pass between %s and %s in both directions if routers stand between them; on one link let packets with addresses of pods pass, or set node.podNetwork.backend: vxlan", from.name, a.to.name)
	case ownDNS, service:
		return "see the log of wasmplane on " + from.name
	}
	return fmt.Sprintf("let TCP %s pass from %s to %s", port(a.Address), from.name, a.to.name)
}
