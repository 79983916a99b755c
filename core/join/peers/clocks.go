// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/wasmplane/wasmplane/core/run"
)

// Bound is from when on the clock of a server is said to be wrong. Leases and elections measure
// durations, so that they bear more; certificates and tokens begin five minutes back.
const Bound = 5 * time.Second

// WrongClock is the reason of events about a clock.
const WrongClock = "ClockWrong"

// Advice is what to do about clocks that differ.
const Advice = "set the clocks of all machines by time servers (timedatectl set-ntp true)"

// quiet is how long a node that is ready may not have renewed its lease, which it does every ten seconds.
const quiet = 2 * time.Minute

// NodeClocks says which nodes' clocks are off by this machine's, as the times tell with which their
// kubelets renew their leases.
func NodeClocks(nodes []corev1.Node, leases []coordinationv1.Lease, now time.Time) (out []string) {
	renewed := map[string]time.Time{}
	for _, l := range leases {
		if l.Spec.RenewTime != nil {
			renewed[l.Name] = l.Spec.RenewTime.Time
		}
	}
	for _, n := range nodes {
		at, ok := renewed[n.Name]
		_, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
		switch ahead := at.Sub(now).Round(time.Second); {
		case !ok:
		case ahead >= Bound:
			out = append(out, fmt.Sprintf("the clock of node %s is %s ahead of this machine's", n.Name, ahead))
		case ahead <= -quiet && ready != nil && ready.Status == corev1.ConditionTrue:
			out = append(out, fmt.Sprintf("the clock of node %s is %s behind this machine's", n.Name, -ahead))
		}
	}
	return out
}

// AskNodeClocks is NodeClocks of a cluster.
func AskNodeClocks(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
	// Leases come last: what they say is compared with the time of the answer.
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask which nodes there are: %w", err)
	}
	leases, err := kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask when the nodes were heard of: %w", err)
	}
	return NodeClocks(nodes.Items, leases.Items, time.Now()), nil
}

const (
	// clocksEvery is how often clocks are compared; clocksAgain how often one that stays wrong is
	// reported: events are kept for an hour by default.
	clocksEvery = time.Minute
	clocksAgain = time.Hour
)

// Watch reports a clock that is off, of this machine or of another.
type Watch struct {
	// Compare says what is wrong; "" = nothing.
	Compare func(context.Context) (string, error)
	// Report makes it known beyond the log.
	Report func(ctx context.Context, text string)
	Log    *slog.Logger
}

// Run compares until ctx ends.
func (w Watch) Run(ctx context.Context) error {
	var reported time.Time
	for {
		text, err := w.Compare(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			w.Log.DebugContext(ctx, "the clocks of the servers could not be asked", "error", err)
		case err == nil && text == "" && !reported.IsZero():
			w.Log.InfoContext(ctx, "the clocks agree again")
			reported = time.Time{}
		case text != "" && time.Since(reported) >= clocksAgain:
			w.Log.ErrorContext(ctx, "the clocks of machines differ", "detail", text)
			w.Report(ctx, text)
			reported = time.Now()
		}
		if !run.Sleep(ctx, clocksEvery) {
			return nil
		}
	}
}

// Apart says what is wrong with this machine's clock, by those of the other servers; "" = nothing. Where most of
// the others agree that it is off, it is this one; a single other one may be as wrong.
func Apart(others []Peer) string {
	var off []string
	judged, ahead, behind := 0, 0, 0
	for _, p := range others {
		text := p.Clock()
		switch {
		case text != "":
			off = append(off, text)
		case p.Err != nil:
			continue // it says no time
		}
		if p.Ahead >= Bound {
			ahead++
		} else if p.Ahead <= -Bound {
			behind++
		}
		judged++
	}
	const do = "; " + Advice + ": certificates and tokens hold between two times"
	switch {
	case len(off) == 0:
		return ""
	case judged > 1 && 2*max(ahead, behind) <= judged && 2*len(off) <= judged:
		return "" // it is the other one that is wrong, which says so itself
	case judged > 1 && 2*max(ahead, behind) > judged:
		return "this machine's clock is wrong: " + strings.Join(off, ", ") + do
	default:
		return "the clock of this machine, or another's, is wrong: " + strings.Join(off, ", ") + do
	}
}

// Clock says what is wrong with a server's clock, or with this machine's; "" = nothing.
func (p Peer) Clock() string {
	switch {
	case expired(p.Err):
		return fmt.Sprintf("by this machine's clock the certificate of server %s does not hold", p.Called())
	case p.Ahead >= Bound:
		return fmt.Sprintf("the clock of server %s is %s ahead of this machine's", p.Called(), p.Ahead)
	case p.Ahead <= -Bound:
		return fmt.Sprintf("the clock of server %s is %s behind this machine's", p.Called(), -p.Ahead)
	}
	return ""
}

// expired: a certificate does not hold now, so that no time could be asked for.
func expired(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired
}
