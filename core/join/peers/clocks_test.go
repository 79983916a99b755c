// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/join/handover"
)

func TestWhoseClockIsWrong(t *testing.T) {
	at := func(name string, ahead time.Duration, err error) Peer {
		return Peer{Offer: handover.Offer{Server: handover.Server{Name: name}}, Ahead: ahead, Err: err}
	}
	invalid := fmt.Errorf("tls: %w", x509.CertificateInvalidError{Reason: x509.Expired})
	for name, c := range map[string]struct {
		others []Peer
		want   string
	}{
		"alone":                              {nil, ""},
		"all agree":                          {[]Peer{at("b", 0, nil), at("c", -time.Second, nil)}, ""},
		"ours is off":                        {[]Peer{at("b", time.Hour, nil), at("c", time.Hour, nil)}, "this machine's clock is wrong: the clock of server b is 1h0m0s ahead of this machine's, the clock of server c"},
		"another's is off":                   {[]Peer{at("b", time.Hour, nil), at("c", 0, nil)}, ""},
		"one of two":                         {[]Peer{at("b", -time.Minute, nil)}, "the clock of this machine, or another's, is wrong: the clock of server b is 1m0s behind"},
		"one that is down says nothing":      {[]Peer{at("b", 0, errors.New("refused")), at("c", time.Minute, nil)}, "or another's, is wrong: the clock of server c"},
		"a certificate of another time":      {[]Peer{at("b", 0, invalid), at("c", 0, invalid)}, "by this machine's clock the certificate of server b does not hold"},
		"of four, two each way and one well": {[]Peer{at("b", time.Minute, nil), at("c", -time.Minute, nil), at("d", 0, nil), at("e", 0, nil)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Apart(c.others)
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%q; want %q", got, c.want)
			}
		})
	}
}

func TestNodesWhoseClockIsOff(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		renewed time.Duration // before now
		ready   corev1.ConditionStatus
		want    string
	}{
		"in time":                     {8 * time.Second, corev1.ConditionTrue, ""},
		"a day ahead":                 {-24 * time.Hour, corev1.ConditionTrue, "the clock of node n is 24h0m0s ahead of this machine's"},
		"a day ahead, and gone since": {-24 * time.Hour, corev1.ConditionUnknown, "24h0m0s ahead"},
		"a day behind":                {24 * time.Hour, corev1.ConditionTrue, "the clock of node n is 24h0m0s behind this machine's"},
		"away":                        {24 * time.Hour, corev1.ConditionUnknown, ""},
		"a moment away":               {time.Minute, corev1.ConditionTrue, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
			at := metav1.NewMicroTime(now.Add(-c.renewed))
			l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: coordinationv1.LeaseSpec{RenewTime: &at}}
			got := strings.Join(NodeClocks([]corev1.Node{n, {ObjectMeta: metav1.ObjectMeta{Name: "without a lease"}}}, []coordinationv1.Lease{l},
				now), "; ")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%q; want %q", got, c.want)
			}
		})
	}
}

// A clock that drifts while the machine runs is reported once an hour until it is right again.
func TestAClockThatDriftsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		off, reports := "", 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := Watch{
			Compare: func(context.Context) (string, error) { return off, nil },
			Report: func(_ context.Context, text string) {
				if text != off {
					t.Errorf("reported %q", text)
				}
				reports++
			},
			Log: slog.New(slog.DiscardHandler),
		}
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		for i, step := range []struct {
			off  string
			wait time.Duration
			want int
		}{
			{"", time.Hour, 0},
			{"a day", 2 * time.Minute, 1},
			{"a day", 30 * time.Minute, 1},
			{"a day", time.Hour, 2},
			{"", 2 * time.Minute, 2},
			{"again", 2 * time.Minute, 3},
		} {
			off = step.off
			time.Sleep(step.wait)
			synctest.Wait()
			if reports != step.want {
				t.Errorf("after step %d %d reports, want %d", i, reports, step.want)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
