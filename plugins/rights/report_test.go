// SPDX-License-Identifier: Apache-2.0

package rights_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// nothing is what everybody may do.
type nothing struct{}

func (nothing) Review(context.Context, authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	return authorizationv1.SubjectAccessReviewStatus{}, nil
}

// TestWhatAWriterLacksIsWrittenDown: what a plugin asks for when it is written, and what it is about to do. What
// is only shown in its status is no attempt.
func TestWhatAWriterLacksIsWrittenDown(t *testing.T) {
	e := &manifest.Entry{
		Name: "red:p", Namespace: "red", FromAPI: true, Writer: &user.DefaultInfo{Name: "tina"},
		Grants: manifest.Grants{Read: []manifest.ReadGrant{{Resources: []string{"secrets"}}}},
	}
	pods := authorizationv1.ResourceAttributes{Verb: "update", Resource: "pods", Namespace: "red"}
	for name, c := range map[string]struct {
		attempt func(*rights.Checker)
		want    []string
		event   bool
	}{
		"asked for": {
			func(c *rights.Checker) { _ = c.Check(t.Context(), e, nil) },
			[]string{
				"attempt=grant reason=read", "user=tina kind=TenantPlugin namespace=red name=p", "may not get secrets in namespace red",
			},
			false,
		},
		"about to be done": {
			func(c *rights.Checker) { _ = c.Act(t.Context(), e, pods) },
			[]string{"attempt=act reason=update", "may not update pods in namespace red"},
			true,
		},
		"about to be given away": {
			func(c *rights.Checker) { _ = c.Grants(t.Context(), e, "", "change who may do what") }, []string{"attempt=act reason=grant"}, true,
		},
		"shown": {func(c *rights.Checker) { c.Standing(t.Context(), e, nil) }, nil, false},
	} {
		var log bytes.Buffer
		var events []string
		ledger := attempts.New(attempts.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ledger.EventsTo(func(about corev1.ObjectReference, _, _, message string) {
			events = append(events, about.Namespace+"/"+about.Name+": "+message)
		})
		c.attempt(rights.New(nothing{}).Reporting(ledger))
		for _, want := range c.want {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s: logged %q, want %q", name, log.String(), want)
			}
		}
		if c.want == nil && log.Len() > 0 {
			t.Errorf("%s: logged %q", name, log.String())
		}
		if (len(events) == 1) != c.event || c.event && !strings.HasPrefix(events[0], "red/p: ") {
			t.Errorf("%s: events %q", name, events)
		}
	}
}
