// SPDX-License-Identifier: Apache-2.0

package succession

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// rootCA is the ConfigMap of every namespace from which pods know whom to trust.
const rootCA = "kube-root-ca.crt"

// Underway tells whether the authority changes just now.
func Underway(ctx context.Context, kube kubernetes.Interface) (bool, error) {
	_, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask whether the cluster's authority changes: %w", err)
	}
	return true, nil
}

// Member is a server as those that keep the store know it.
type Member struct {
	Name, Host string
	Alive      bool
}

// Driver takes the change from phase to phase.
type Driver struct {
	// Kube is asked for a client each time: its credentials change on the way.
	Kube func() (kubernetes.Interface, error)
	// Authority is this server's folder. Driving changes nothing in it.
	Authority *pki.Authority
	// Members are the servers that keep the store, none where that is an external etcd.
	Members func(context.Context, kubernetes.Interface) ([]Member, error)
	// Given is the authority that is to follow; nil = a new one is made.
	Given *pki.Given
	// Without are names of machines that are not waited for.
	Without []string
	Now     func() time.Time
}

// Look reads how far the change has come; a World without a phase: there is none.
func (d *Driver) Look(ctx context.Context) (World, error) {
	w := World{Now: d.Now()}
	kube, err := d.Kube()
	if err != nil {
		return w, err
	}
	secret, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return w, nil
	}
	if err != nil {
		return w, fmt.Errorf("ask how far the change of the authority has come: %w", err)
	}
	if w.State, err = Read(secret); err != nil {
		return w, err
	}
	if w.From, w.To, err = w.State.Pins(); err != nil {
		return w, err
	}
	if err := d.machines(ctx, kube, &w); err != nil {
		return w, err
	}
	return w, d.namespaces(ctx, kube, &w)
}

// machines are all servers, and all nodes of other machines.
func (d *Driver) machines(ctx context.Context, kube kubernetes.Interface, w *World) error {
	reports := map[string]string{}
	found, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, Name, metav1.GetOptions{})
	if err == nil {
		reports = found.Data
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("ask what the servers have reported: %w", err)
	}
	members, err := d.Members(ctx, kube)
	if err != nil {
		return err
	}
	slice, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("ask where the servers are: %w", err)
	}
	for _, e := range slice.Endpoints {
		for _, a := range e.Addresses {
			if i := slices.IndexFunc(members, func(m Member) bool { return m.Host == a }); i >= 0 {
				members[i].Alive = true
			} else {
				members = append(members, Member{Host: a, Alive: true})
			}
		}
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("ask which nodes there are: %w", err)
	}
	hosts := map[string]bool{}
	for _, m := range members {
		hosts[m.Host] = true
		for _, n := range nodes.Items {
			if m.Name == "" && slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Address == m.Host }) {
				m.Name = n.Name
			}
		}
		d.add(w, Machine{Name: cmp.Or(m.Name, m.Host), Server: true, Alive: m.Alive}, reports[Key(m.Host)])
	}
	for _, n := range nodes.Items {
		if !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return hosts[a.Address] || loopback(a.Address) }) {
			d.add(w, machineOf(&n), n.Annotations[Annotation])
		}
	}
	return nil
}

// loopback addresses are simulated nodes', which are part of a server.
func loopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.IsLoopback()
}

func machineOf(n *corev1.Node) Machine {
	m := Machine{Name: n.Name}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			m.Alive = c.Status == corev1.ConditionTrue
			m.Silent = c.LastTransitionTime.Time
		}
	}
	return m
}

func (d *Driver) add(w *World, m Machine, report string) {
	if slices.Contains(d.Without, m.Name) {
		return
	}
	if r, err := ParseReport(report); err == nil {
		m.Report = &r
	}
	w.Machines = append(w.Machines, m)
}

// namespaces counts those whose pods are told of other authorities than the phase's.
func (d *Driver) namespaces(ctx context.Context, kube kubernetes.Interface, w *World) error {
	maps, err := kube.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, rootCA).String(),
	})
	if err != nil {
		return fmt.Errorf("ask what the namespaces' %s hold: %w", rootCA, err)
	}
	root, err := w.State.root()
	if err != nil {
		return err
	}
	for _, m := range maps.Items {
		if m.Name != rootCA {
			continue // not every server of the API selects
		}
		certs, err := cabundle.Parse([]byte(m.Data["ca.crt"]))
		if err != nil || !strings.Contains(pki.Pins(certs), root) || w.State.Phase == Dropped && pki.Pins(certs) != root {
			w.Unpublished++
		}
	}
	return nil
}

// Begin makes the new authority and offers it to the servers.
func (d *Driver) Begin(ctx context.Context) error {
	kube, err := d.Kube()
	if err != nil {
		return err
	}
	about, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, clusterinfo.ConfigMap, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("ask which authority the cluster has: %w", err)
	}
	from := cabundle.Pin(d.Authority.ClusterCA())
	if about.Data[clusterinfo.Authority] != from {
		return fmt.Errorf("the cluster has the authority %s, and this machine's folder pki has %s: run this on a server of the cluster", about.Data[clusterinfo.Authority], from)
	}
	s, to, err := d.Authority.Successor(d.Given)
	if err != nil {
		return err
	}
	sealed, err := d.Authority.Seal(s, to)
	if err != nil {
		return err
	}
	chain, err := cabundle.Parse(s.Cluster.Cert)
	if err != nil {
		return err
	}
	state := State{
		Phase: Offered, Since: d.Now(), From: cabundle.Encode(d.Authority.ClusterCA()), To: cabundle.Encode(chain[0]), Sealed: sealed,
	}
	if len(chain) > 1 {
		state.Root = cabundle.Encode(chain[len(chain)-1])
	}
	// Reports of an earlier change would count for this one.
	if err := d.clear(ctx, kube); err != nil {
		return err
	}
	_, err = kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, state.Secret(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return errors.New("the cluster's authority changes already; run the command again to carry on with it")
	}
	if err != nil {
		return fmt.Errorf("offer the new authority to the servers: %w", err)
	}
	return nil
}

// Enter begins a phase; "" ends the change. What machines are told comes first: whoever
// carries on after a crash in between finds that it may be said again.
func (d *Driver) Enter(ctx context.Context, w World, next Phase) error {
	kube, err := d.Kube()
	if err != nil {
		return err
	}
	if next == "" {
		err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("end the change of the authority: %w", err)
		}
		return d.clear(ctx, kube)
	}
	state := w.State
	state.Phase, state.Since = next, d.Now()
	if next == Announced || next == Dropped {
		state.Sealed = nil // all servers have it
	}
	if err := d.publish(ctx, kube, state); err != nil {
		return err
	}
	secrets := kube.CoreV1().Secrets(metav1.NamespaceSystem)
	has, err := secrets.Get(ctx, Name, metav1.GetOptions{})
	if err == nil && string(has.Data["phase"]) != string(w.State.Phase) {
		return errors.New("another one drives the change of the authority at the same time; run the command again when that has ended")
	}
	if err == nil {
		has = has.DeepCopy()
		has.Data = state.Secret().Data
		_, err = secrets.Update(ctx, has, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("begin the next phase: %w", err)
	}
	return nil
}

// publish tells workers, and tokens, of the authorities.
func (d *Driver) publish(ctx context.Context, kube kubernetes.Interface, s State) error {
	certs, err := cabundle.Parse(s.Public())
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{
		clusterinfo.Authority: cabundle.Pin(certs[0]), clusterinfo.Authorities: string(s.Public()),
	}})
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Patch(ctx, clusterinfo.ConfigMap, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("tell the machines of the authorities: %w", err)
	}
	return nil
}

func (d *Driver) clear(ctx context.Context, kube kubernetes.Interface) error {
	err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Delete(ctx, Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the servers' reports: %w", err)
	}
	return nil
}

// HostOf is the host of a member's URL.
func HostOf(peer string) string {
	_, address, _ := strings.Cut(peer, "://")
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return host
}
