// SPDX-License-Identifier: Apache-2.0

package attempts_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"

	"github.com/wasmplane/wasmplane/core/attempts"
)

// desk is a ledger with what it tells.
type desk struct {
	*attempts.Ledger
	log    bytes.Buffer
	events []string
	now    time.Time
}

func newDesk() *desk {
	d := &desk{now: time.Unix(1e9, 0)}
	d.Ledger = attempts.New(attempts.Config{
		Logger: slog.New(slog.NewTextHandler(&d.log, nil)), Now: func() time.Time { return d.now },
	})
	d.EventsTo(func(about corev1.ObjectReference, _, reason, message string) {
		d.events = append(d.events, about.Name+" "+reason+" "+message)
	})
	return d
}

// counted are the counter's series with their values.
func (d *desk) counted(t *testing.T) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(d.Ledger); err != nil {
		t.Fatal(err)
	}
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			key := ""
			for _, l := range m.Label {
				key += l.GetValue() + " "
			}
			out[strings.TrimSpace(key)] = m.Counter.GetValue()
		}
	}
	return out
}

func (d *desk) lines() int { return strings.Count(d.log.String(), "an attempt was refused") }

func of(namespace, name string) attempts.Subject {
	return attempts.Subject{User: "tina", Object: corev1.ObjectReference{Kind: "TenantPlugin", Namespace: namespace, Name: name}}
}

// TestWhatIsRefusedIsTold, once, and again after a while with how often it was repeated.
func TestWhatIsRefusedIsTold(t *testing.T) {
	d := newDesk()
	a := attempts.Attempt{Kind: attempts.Act, Reason: "update", Subject: of("red", "p"), Detail: "tina may not update pods", Event: "no"}
	for range 5 {
		d.Refused(t.Context(), a)
	}
	if got := d.counted(t); len(got) != 1 || got["act update"] != 5 {
		t.Errorf("counted %v", got)
	}
	if d.lines() != 1 || !strings.Contains(d.log.String(), `user=tina kind=TenantPlugin namespace=red name=p detail="tina may not update pods"`) {
		t.Errorf("logged %s", d.log.String())
	}
	if len(d.events) != 1 || d.events[0] != "p AttemptRefused no" {
		t.Errorf("events %q", d.events)
	}
	d.now = d.now.Add(11 * time.Minute)
	d.Refused(t.Context(), a)
	if len(d.events) != 2 || !strings.Contains(d.events[1], "(4 more since") || d.lines() != 2 {
		t.Errorf("events %q, %s", d.events, d.log.String())
	}
}

// TestAFloodIsCounted and fills neither memory nor the log, nor keeps others' from being told.
func TestAFloodIsCounted(t *testing.T) {
	d := newDesk()
	for i := range 5000 {
		d.Refused(t.Context(), attempts.Attempt{
			Kind: attempts.Module, Reason: fmt.Sprintf("a limit that somebody chose %d", i), Subject: of("red", fmt.Sprint(i)),
			Detail: strings.Repeat("x", 10_000), Event: strings.Repeat("y", 10_000),
		})
	}
	d.Refused(t.Context(), attempts.Attempt{Kind: attempts.Dial, Reason: "tenants", Subject: of("blue", "p"), Event: "no"})
	counted := d.counted(t)
	if len(counted) > 70 || counted["module other"] < 4000 || counted["dial tenants"] != 1 {
		t.Errorf("%d series: %v", len(counted), counted)
	}
	if n := d.lines(); n > 16 || d.log.Len() > 16*1500 {
		t.Errorf("%d lines, %d bytes", n, d.log.Len())
	}
	if last := d.events[len(d.events)-1]; len(d.events) > 16 || !strings.HasPrefix(last, "p ") {
		t.Errorf("%d events, the last one %q", len(d.events), last)
	}
}

// TestARequestsRecordHasIt, with the object that the attempt was for. Of two of a kind the first one stays.
func TestARequestsRecordHasIt(t *testing.T) {
	d := newDesk()
	ctx := audit.WithAuditContext(t.Context())
	record := audit.AuditContextFrom(ctx)
	if err := record.Init(audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}, nil); err != nil {
		t.Fatal(err)
	}
	ctx = attempts.With(ctx, of("red", "p"))
	ctx = attempts.With(ctx, of("blue", "within")) // who began it counts
	for _, detail := range []string{"tina may not update pods", "tina may not get pods"} {
		d.Refused(ctx, attempts.Attempt{Kind: attempts.Act, Reason: "update", Detail: detail})
	}
	want := "tina may not update pods (for TenantPlugin red/p)"
	if got, _ := record.GetEventAnnotation("attempts.wasmplane.dev/act"); got != want {
		t.Errorf("annotated %q, want %q", got, want)
	}
}

// TestNobodyKeepsAccount where there is no ledger.
func TestNobodyKeepsAccount(*testing.T) {
	var none *attempts.Ledger
	none.EventsTo(nil)
	none.Refused(context.Background(), attempts.Attempt{Kind: attempts.Dial})
}
