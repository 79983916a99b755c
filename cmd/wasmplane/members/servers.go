// SPDX-License-Identifier: Apache-2.0

package members

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/site"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers/storagemigration"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/diskspeed"
)

// askServers calls the API about the cluster's servers. What it refuses is a sentence.
func askServers(ctx context.Context, kube kubernetes.Interface, verb, path string, params map[string]string) (handover.Offer, error) {
	var out handover.Offer
	r := kube.Discovery().RESTClient().Verb(verb).AbsPath(path).MaxRetries(0)
	for name, value := range params {
		r = r.Param(name, value)
	}
	answered := r.Do(ctx)
	data, _ := answered.Raw() //nolint:errcheck // Error has read what a refusal says
	err := answered.Error()
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		return out, errors.New(status.Status().Message)
	case err != nil:
		return out, fmt.Errorf("ask about the cluster's servers: %w", err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, fmt.Errorf("read which servers there are: %w", err)
	}
	return out, nil
}

// Servers prints the servers of a cluster that has more than one, or could have, each asked by itself.
func Servers(ctx context.Context, w io.Writer, kube kubernetes.Interface, cfg *rest.Config) error {
	found, err := askServers(ctx, kube, "GET", handover.MembersPath, nil)
	if err != nil || len(found.Members)+len(found.Light) < 2 {
		return err
	}
	addresses, err := peers.Addresses(ctx, kube)
	if err != nil {
		return err
	}
	all := peers.Ask(ctx, cfg, addresses...)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\nSERVER\tSTORE\tADDRESS\tVERSION")
	version := func(name string) string {
		if i := slices.IndexFunc(all, func(p peers.Peer) bool { return p.Server.Name == name }); i >= 0 && name != "" {
			return all[i].Server.Version
		}
		return ""
	}
	for _, m := range found.Members {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", cmp.Or(m.Name, m.ID), state(m), strings.TrimPrefix(m.Peer, "https://"), version(m.Name))
	}
	for _, l := range found.Light {
		is := "light, has no vote"
		if !l.Alive {
			is = "light, does not answer"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", l.Name, is, l.Address, version(l.Name))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range all {
		if text := p.Clock(); text != "" {
			fmt.Fprintf(w, "%s: %s.\n", text, peers.Advice)
		}
	}
	if text := advice(found.Members); text != "" {
		fmt.Fprintln(w, text)
	}
	return nil
}

// Disk prints how long the store of the server that kube asks waits for its disk, where that is known.
func Disk(ctx context.Context, w io.Writer, kube kubernetes.Interface) error {
	text, err := kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("ask how fast the store's disk is: %w", err)
	}
	l := diskOf(string(text))
	if l.Writes == 0 {
		return nil
	}
	fmt.Fprintf(w, "\ndisk of the store: 99 of 100 writes within %s\n", l.P99.Round(time.Millisecond))
	if slow := l.Slow(); slow != "" {
		fmt.Fprintln(w, slow)
	}
	return nil
}

// diskOf finds the store's disk in a server's metrics; it has no writes where nothing was measured yet.
func diskOf(metrics string) (l diskspeed.Latency) {
	for line := range strings.Lines(metrics) {
		value, ok := strings.CutPrefix(line, diskspeed.Metric+" ")
		if seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64); ok && err == nil && seconds > 0 {
			return diskspeed.Latency{P99: time.Duration(seconds * float64(time.Second)), Writes: 1}
		}
	}
	return l
}

// VirtualAddress prints which server has the address by which clients elsewhere reach all of them.
func VirtualAddress(ctx context.Context, w io.Writer, kube kubernetes.Interface, dir datadir.Dir, state datadir.State) error {
	lease, err := kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, site.VirtualAddressLease, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("ask who has the virtual address: %w", err)
	}
	holder := ""
	if err == nil {
		holder = ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	ours, err := dir.Holds(holder)
	if err != nil {
		return err
	}
	server, _, _ := strings.Cut(holder, "_") // no server's name has one
	switch {
	case holder == "":
		server = "no server just now"
	case ours:
		server = "this server"
	}
	fmt.Fprintf(w, "\nvirtual address: %s, of %s\n", state.Public, server)
	return nil
}

// Clocks prints which nodes' clocks are off.
func Clocks(ctx context.Context, w io.Writer, kube kubernetes.Interface) error {
	wrong, err := peers.AskNodeClocks(ctx, kube)
	for _, text := range wrong {
		fmt.Fprintf(w, "%s: %s.\n", text, peers.Advice)
	}
	return err
}

// Migrations prints which resources are being written in the storage versions of an upgrade.
func Migrations(ctx context.Context, w io.Writer, kube kubernetes.Interface) error {
	all, err := kube.StoragemigrationV1().StorageVersionMigrations().List(ctx, metav1.ListOptions{LabelSelector: storagemigration.Label})
	if err != nil {
		return fmt.Errorf("ask which objects are written in another version: %w", err)
	}
	if len(all.Items) > 0 {
		fmt.Fprintf(w, "\nThe objects of %d resources are being written in the storage version of this release:\n", len(all.Items))
	}
	for _, m := range all.Items {
		state := "waits"
		for _, kind := range []migrationv1.MigrationConditionType{
			migrationv1.MigrationRunning, migrationv1.MigrationSucceeded,
			migrationv1.MigrationFailed,
		} {
			if c := meta.FindStatusCondition(m.Status.Conditions, string(kind)); c != nil && c.Status == metav1.ConditionTrue {
				state = c.Message
			}
		}
		fmt.Fprintf(w, "  %s: %s\n", schema.GroupResource(m.Spec.Resource), state)
	}
	return nil
}

// Away are the servers that do not answer, or do not vote yet.
func Away(all []store.Member) (names []string) {
	for _, m := range all {
		if !m.Alive || m.Learner {
			names = append(names, cmp.Or(m.Name, m.ID))
		}
	}
	return names
}

func state(m store.Member) string {
	switch {
	case !m.Alive && m.Name == "":
		return "has not come yet"
	case !m.Alive:
		return "does not answer"
	case m.Learner:
		return "copies, does not vote yet"
	case m.Leader:
		return "leads"
	}
	return "votes"
}

// advice is what to do about the number of servers.
func advice(all []store.Member) string {
	voters, alive := 0, 0
	for _, m := range all {
		if !m.Learner {
			voters++
		}
		if !m.Learner && m.Alive {
			alive++
		}
	}
	switch {
	case voters == 2:
		return "Two servers are worse than one: more than half must agree on a write, so that the loss of either stops the cluster. Have a third one join."
	case voters%2 == 0 && voters > 0:
		return fmt.Sprintf("%d servers withstand the loss of no more than %d would. Have another one join, or one leave.", voters, voters-1)
	case alive-voters/2 == 1 && voters > 1:
		return "No further server may be lost: more than half must answer. Start those that don't, or replace them."
	}
	return ""
}

// ofServers reaches the API by all servers but those whose hosts skip names; where it names any, this machine's is not asked.
func ofServers(dir datadir.Dir, skip ...string) (kubernetes.Interface, error) {
	cfg, err := dir.Own("members")
	if err != nil {
		return nil, err
	}
	const attempt = 3 * time.Second
	servers := balance.New(balance.Config{
		File: dir.Servers(), First: strings.TrimPrefix(cfg.Host, "https://"), Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if len(skip) > 0 && err == nil && (slices.Contains(skip, host) || net.ParseIP(host).IsLoopback()) {
				return nil, errors.New("this server is leaving, or is a light one")
			}
			return (&net.Dialer{Timeout: attempt}).DialContext(ctx, network, address)
		},
	})
	cfg.Dial, cfg.ServerName = servers.DialContext, join.ServerName
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	return set.Kube, nil
}

// Leaving is a server of several that is about to leave.
type Leaving struct {
	dir datadir.Dir
	own join.Server
	// cannot are the hosts of servers that cannot take it out: its own, and light ones.
	cannot []string
	// endsFirst: the others can agree without it that it is gone.
	endsFirst bool
}

// leaveTime bounds each step of leaving.
const leaveTime = 40 * time.Second

// ServerLeaves says whether the server of a data directory can leave the others, while it
// still runs; nil where there are no others.
func ServerLeaves(ctx context.Context, dir datadir.Dir) (*Leaving, error) {
	own, err := join.ReadServer(dir.Server())
	if errors.Is(err, join.ErrNotJoined) || err == nil && own.Address == "" && !own.Light {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir.Kubeconfig()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has never run
	}
	kube, err := ofServers(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	found, err := askServers(ctx, kube, "GET", handover.MembersPath, nil)
	if err != nil {
		return nil, fmt.Errorf("server %s cannot leave the others: %w; --force takes it down all the same, and the others go on counting it until `wasmplane node remove %s` there", own.Name, err, own.Name)
	}
	l := &Leaving{dir: dir, own: own}
	for _, other := range found.Light {
		if host, _, err := net.SplitHostPort(other.Address); err == nil {
			l.cannot = append(l.cannot, host)
		}
	}
	if own.Light {
		l.cannot, l.endsFirst = append(l.cannot, own.Host), true
		return l, nil
	}
	there := false
	for _, m := range found.Members {
		there = there || m.Name == own.Name
	}
	if len(found.Members) < 2 && there && len(found.Light) > 0 {
		return nil, fmt.Errorf("server %s is the only one that keeps the store, which the light server %s uses: take light servers out first (wasmplane down there), or --force", own.Name, found.Light[0].Name)
	}
	if len(found.Members) < 2 || !there {
		return nil, nil
	}
	if kube, err = ofServers(dir, l.cannot...); err != nil {
		return nil, err
	}
	if _, err := askServers(ctx, kube, "DELETE", handover.MembersPath, map[string]string{"name": own.Name, "dry-run": "true"}); err != nil {
		return nil, fmt.Errorf("server %s cannot leave the others: %w; --force takes it down all the same: the others then cannot write until enough servers run, or until one of them goes on alone (wasmplane restore --from-this-member)", own.Name, err)
	}
	host, _, err := net.SplitHostPort(own.Address)
	l.cannot, l.endsFirst = append(l.cannot, host), agreeWithout(found.Members, own.Name)
	return l, err
}

// agreeWithout tells whether more than half of those that vote answer besides the one of that name.
func agreeWithout(all []store.Member, name string) bool {
	voters, others := 0, 0
	for _, m := range all {
		if m.Learner {
			continue
		}
		voters++
		if m.Alive && m.Name != name {
			others++
		}
	}
	return others > voters/2
}

// EndsFirst tells whether the server's process is to end before Leave. Then it hands over in order what it leads, and nobody waits
// until its leases end.
func (l *Leaving) EndsFirst() bool { return l != nil && l.endsFirst }

// Leave takes the server out of the cluster, through another one, and unless EndsFirst while it runs: of two
// servers neither can agree alone that the other is gone. It stops by itself then.
func (l *Leaving) Leave(ctx context.Context, report func(string)) error {
	if l == nil {
		return nil
	}
	report("taking server " + l.own.Name + " out of the cluster")
	kube, err := ofServers(l.dir, l.cannot...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	if _, err := askServers(ctx, kube, "DELETE", handover.MembersPath, map[string]string{"name": l.own.Name, "force": "true"}); err != nil {
		return fmt.Errorf("take server %s out of the cluster: %w; do it on another server: wasmplane node remove %s", l.own.Name, err, l.own.Name)
	}
	if err := kube.CoreV1().Nodes().Delete(ctx, l.own.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		report("error: take node " + l.own.Name + " out of the cluster: " + err.Error())
	}
	return nil
}

// Forget removes what the machine, which has left, knows of the cluster: its keys are
// worth as much as ever.
func (l *Leaving) Forget() error {
	if l == nil {
		return nil
	}
	for _, path := range []string{
		l.dir.Server(), l.dir.Servers(), l.dir.Etcd(), l.dir.PKI(), l.dir.Kubeconfig(),
		l.dir.BreakGlassKubeconfig(),
	} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("forget the cluster: %w", err)
		}
	}
	return l.dir.RemoveState()
}

// removeServer takes the server of that name out; removed tells whether there is one.
func removeServer(ctx context.Context, kube kubernetes.Interface, name string, force bool) (removed bool, err error) {
	found, err := askServers(ctx, kube, "GET", handover.MembersPath, nil)
	if err != nil {
		return false, err
	}
	member := slices.ContainsFunc(found.Members, func(m store.Member) bool { return m.Name == name || m.Name == "" && m.ID == name })
	light := slices.ContainsFunc(found.Light, func(l handover.Light) bool { return l.Name == name })
	switch {
	case !member && !light:
		return false, nil
	case !light && len(found.Members) == 1:
		return false, fmt.Errorf("%s is the only server that keeps the store: `wasmplane down --purge` there ends the cluster", name)
	}
	params := map[string]string{"name": name}
	if force {
		params["force"] = "true"
	}
	_, err = askServers(ctx, kube, "DELETE", handover.MembersPath, params)
	return true, err
}
