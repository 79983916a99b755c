// SPDX-License-Identifier: Apache-2.0

package site

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/loadbalancer/neighbor"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
)

// VirtualAddressLease in kube-system is held by the server that has the virtual address.
const VirtualAddressLease = "wasmplane-virtual-address"

const (
	virtualField = "apiserver.virtualAddress"
	// leaves is how long a server that was stopped may still be seen on the link.
	leaves = 5 * time.Second
	// retry of an address that could not be had, retryFormer of one that another server may be giving back.
	retry, retryFormer = 5 * time.Second, 250 * time.Millisecond
	// recently is for how long an address counts as that of the server that was seen to live.
	recently = 10 * time.Second
)

// virtualFits says whether a server that listens at listen, and whose address for others is host, could
// have the virtual address: the link is not asked.
func virtualFits(ip netip.Addr, cluster config.Cluster, listen string, own ...netip.Addr) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("apiserver.listen: %w", err)
	}
	at, err := netip.ParseAddr(host)
	if host != "" && (err != nil || !at.IsUnspecified() || at.Is4() && ip.Is6()) {
		return fmt.Errorf("%s: the API listens at %s alone, and would not hear who comes to %s: have it listen at all addresses (apiserver.listen, or --listen), such as :6443", virtualField, listen, ip)
	}
	for what, networks := range map[string][]netip.Prefix{"pods": cluster.PodNetworks(), "Services": cluster.ServiceNetworks()} {
		for _, p := range networks {
			if p.Contains(ip) {
				return fmt.Errorf("%s: %s lies in the cluster's network of %s, %s: choose a free address of the network that the servers are in", virtualField, ip, what, p)
			}
		}
	}
	if slices.Contains(own, ip) {
		return fmt.Errorf("%s: %s is this machine's own address: choose one that no machine has", virtualField, ip)
	}
	if _, err := neighbor.LinkOf(ip); err != nil {
		return fmt.Errorf("%s: %w", virtualField, err)
	}
	return nil
}

// VirtualFits says why a server of c could not have the virtual addresses; host is its own.
func VirtualFits(c *config.Configuration, host string) error {
	own, _ := netip.ParseAddr(host) //nolint:errcheck // no address is none of the virtual ones
	for _, ip := range c.APIServer.VirtualAddresses() {
		if err := virtualFits(ip, c.Cluster, c.APIServer.Listen, append(c.Node.Addresses(), own)...); err != nil {
			return err
		}
	}
	return nil
}

// checkVirtual refuses a virtual address that this server could not have: of another network, of
// a server, or of somebody on the link who is none.
func (s Site) checkVirtual(ctx context.Context) error {
	if err := VirtualFits(s.Options.Config, s.Advertise.String()); err != nil {
		return err
	}
	for _, ip := range s.Options.Config.APIServer.VirtualAddresses() {
		for _, server := range balance.New(balance.Config{File: s.Options.Dir.Servers(), Log: s.Options.Logger}).Servers() {
			if at, err := netip.ParseAddrPort(server); err == nil && at.Addr() == ip {
				return fmt.Errorf("%s: %s is the address of a server of the cluster: choose one that no machine has", virtualField, ip)
			}
		}
		on, err := neighbor.LinkOf(ip)
		if err != nil {
			return fmt.Errorf("%s: %w", virtualField, err)
		}
		if err := neighbor.Drop(on, ip); err != nil { // what is left of before goes first
			return fmt.Errorf("%s: %w; that takes root, or the capability NET_ADMIN", virtualField, err)
		}
		if err := s.free(ctx, on, ip); err != nil {
			return fmt.Errorf("%s: %w", virtualField, err)
		}
	}
	return nil
}

// free fails where somebody on the link has the address who is no server of this cluster.
func (s Site) free(ctx context.Context, on net.Interface, ip netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, leaves)
	defer cancel()
	for {
		who, err := neighbor.Occupant(ctx, on, ip)
		if err != nil || who == nil || s.ours(ctx, ip) {
			return err
		}
		if !run.Sleep(ctx, time.Second) {
			return fmt.Errorf("another machine on %s, %s, has %s, and is no server of this cluster: choose a free address", on.Name, who, ip)
		}
	}
}

// ours tells whether a server of this cluster answers at the address.
func (s Site) ours(ctx context.Context, ip netip.Addr) bool {
	d := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: time.Second},
		Config:    &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.Authority.Roots(), ServerName: join.ServerName},
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(s.Port)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// HoldVirtualAddress has this server have the virtual addresses while it is the one that holds the lease, until ctx ends.
// settled is called, perhaps more than once, when it has them, cannot have them, or another server holds the lease.
func (s Site) HoldVirtualAddress(ctx context.Context, kube kubernetes.Interface, settled func()) error {
	all := s.Options.Config.APIServer.VirtualAddresses()
	if len(all) == 0 {
		settled()
		<-ctx.Done()
		return nil
	}
	// Its holder is named as the server is, for people who ask which it is.
	holder, err := process.IdentityOf(s.Options, cmp.Or(s.Around.Name, s.Options.Config.Node.Name))
	if err != nil {
		return err
	}
	h := &holding{Site: s, kube: kube, settled: settled}
	h.former.servers = func() []string {
		return balance.New(balance.Config{File: s.Options.Dir.Servers(), Log: s.Options.Logger}).Servers()
	}
	var parts []func(context.Context) error
	for _, ip := range all {
		parts = append(parts, func(ctx context.Context) error {
			h.hold(ctx, ip)
			return nil
		})
	}
	timing := s.Options.Config.LeaderElection
	return leader.Election{
		Client: kube, Namespace: metav1.NamespaceSystem, Name: VirtualAddressLease, Identity: holder, Logger: s.Options.Logger,
		Follows: settled, LeaseDuration: time.Duration(timing.LeaseDuration), Quick: time.Duration(timing.QuickLeaseDuration),
		Address: net.JoinHostPort(s.Advertise.String(), strconv.Itoa(s.Port)), Probe: h.former.connect,
	}.Stand(ctx, run.Parallel(parts...))
}

// former is the server that had the addresses, as this one has seen it.
type former struct {
	// servers are those of the cluster: no others are connected to, whatever the lease says.
	servers func() []string

	mu   sync.Mutex
	host netip.Addr
	seen time.Time
}

// connect has the system of a server's machine say that the server lives. The connection is not used: it is reset.
func (f *former) connect(ctx context.Context, address string) error {
	if !slices.Contains(f.servers(), address) {
		return fmt.Errorf("%s is no server of this cluster", address)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // nothing is left of it for a minute, four times a second
	}
	_ = conn.Close()
	at, err := netip.ParseAddrPort(address)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.host, f.seen = at.Addr(), time.Now()
	return err
}

// recent is the address of the server that had the virtual ones until now.
func (f *former) recent() (netip.Addr, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.host, time.Since(f.seen) < recently
}

// holding is the time in which this server holds the lease.
type holding struct {
	Site
	kube    kubernetes.Interface
	settled func()
	former  former
}

// hold keeps one address until ctx ends. Why it cannot be had is said once, and it is tried again.
func (h *holding) hold(ctx context.Context, ip netip.Addr) {
	said := ""
	for {
		on, err := h.available(ctx, ip)
		if errors.Is(err, errLeaving) {
			if !run.Sleep(ctx, retryFormer) {
				return
			}
			continue
		}
		h.settled()
		if err == nil {
			h.Options.Logger.InfoContext(ctx, "this server has the API's virtual address now", "address", ip, "interface", on.Name)
			said, err = "", neighbor.Keep(ctx, on, ip, h.Options.Logger)
		}
		if ctx.Err() != nil {
			if err != nil && said == "" {
				h.Options.Logger.WarnContext(ctx, "the virtual address could not be given back in order; it ends by itself",
					"address", ip, "error", err)
			}
			return
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			h.Options.Inform("error: " + virtualField + ": " + said)
			if err := h.Warn(ctx, h.kube, "VirtualAddressUnavailable", virtualField+": "+said); err != nil && ctx.Err() == nil {
				h.Options.Logger.WarnContext(ctx, "the event about the virtual address was not written", "error", err)
			}
		}
		if !run.Sleep(ctx, retry) {
			return
		}
	}
}

// errLeaving: somebody answers for an address that a server of the cluster had a moment ago.
var errLeaving = errors.New("the address is not free yet")

// available is the link for the address, which is no node's, and which nobody has: nobody but the machine
// of the server that had it until now, whose kernel answers for it for a moment longer than the server lives.
func (h *holding) available(ctx context.Context, ip netip.Addr) (net.Interface, error) {
	nodes, err := h.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return net.Interface{}, fmt.Errorf("ask for the nodes' addresses: %w", err)
	}
	if node := nodeWith(nodes.Items, ip); node != "" {
		return net.Interface{}, fmt.Errorf("%s is the address of node %s: choose one that no machine has", ip, node)
	}
	on, err := neighbor.LinkOf(ip)
	if err != nil {
		return on, err
	}
	host, recent := h.former.recent()
	if !recent {
		who, err := neighbor.Occupant(ctx, on, ip)
		if err == nil && who != nil {
			err = fmt.Errorf("another machine on %s, %s, has %s: choose a free address, on all servers", on.Name, who, ip)
		}
		return on, err
	}
	its, err := neighbor.Hardware(on, host)
	if err != nil {
		return on, err
	}
	who, err := neighbor.Answers(ctx, on, ip)
	if err == nil && who != nil && !bytes.Equal(who, its) {
		err = errLeaving
	}
	return on, err
}

// nodeWith is the node that has the address; "" = none has.
func nodeWith(nodes []corev1.Node, ip netip.Addr) string {
	for i := range nodes {
		for _, a := range nodes[i].Status.Addresses {
			if at, err := netip.ParseAddr(a.Address); err == nil && at.Unmap() == ip {
				return nodes[i].Name
			}
		}
	}
	return ""
}

// Warn writes an event about this machine's Node.
func (s Site) Warn(ctx context.Context, kube kubernetes.Interface, reason, text string) error {
	at, node := metav1.Now(), s.Options.Config.Node.Name
	_, err := kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: node + "."},
		// As kubelets name their Node, by which `kubectl describe node` finds it.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: text,
		Source:         corev1.EventSource{Component: "wasmplane", Host: node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}, metav1.CreateOptions{})
	return err
}

// PublicURL is how clients elsewhere reach the API: by the virtual address, where there is one.
func (s Site) PublicURL() string {
	if all := s.Options.Config.APIServer.VirtualAddresses(); len(all) > 0 {
		return "https://" + net.JoinHostPort(all[0].String(), strconv.Itoa(s.Port))
	}
	return s.URL()
}
