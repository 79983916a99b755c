// SPDX-License-Identifier: Apache-2.0

package requestmetrics

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// chain are the metrics of what stands before a request is answered: who asks,
// may they.
type chain struct {
	users          *prometheus.CounterVec
	authentication outcome
	authorization  outcome
	terminated     *prometheus.CounterVec
	deprecated     *prometheus.GaugeVec
}

// outcome counts attempts and how long they took, by their result.
type outcome struct {
	attempts *prometheus.CounterVec
	took     *prometheus.HistogramVec
}

func newOutcome(attempts, took, what string) outcome {
	return outcome{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: attempts, Help: "Counter of " + what + " attempts."}, []string{"result"}),
		took: prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
			Name: took, Help: "Duration in seconds of " + what + ".", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}), []string{"result"}),
	}
}

func (o outcome) observe(result string, began time.Time) {
	o.attempts.WithLabelValues(result).Inc()
	o.took.WithLabelValues(result).Observe(time.Since(began).Seconds())
}

func newChain() chain {
	return chain{
		users: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authenticated_user_requests", Help: "Requests of known users, by a few well-known names; an address counts as email_id, any other name as other.",
		}, []string{"username"}),
		authentication: newOutcome("authentication_attempts", "authentication_duration_seconds", "authentication"),
		authorization:  newOutcome("authorization_attempts_total", "authorization_duration_seconds", "authorization"),
		terminated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_terminations_total", Help: "Requests that were ended or refused to protect the server.",
		}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		deprecated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_requested_deprecated_apis",
			Help: "Deprecated resources that somebody has asked for, with the release that will lack them.",
		}, []string{"group", "version", "resource", "subresource", "removed_release"}),
	}
}

// Deprecated records that a version was asked for that will be removed.
func (m *chain) Deprecated(group, version, resource, removedIn string) {
	m.deprecated.WithLabelValues(group, version, resource, "", removedIn).Set(1)
}

func (m *chain) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.users, m.authentication.attempts, m.authentication.took, m.authorization.attempts, m.authorization.took,
		m.terminated, m.deprecated,
	}
}

// Authenticated counts one attempt; who is nil where it failed.
func (m *chain) Authenticated(who user.Info, err error, began time.Time) {
	switch {
	case err != nil:
		m.authentication.observe("error", began)
	case who == nil:
		m.authentication.observe("failure", began)
	default:
		m.authentication.observe("success", began)
		m.users.WithLabelValues(knownUser(who.GetName())).Inc()
	}
}

// knownUser keeps the number of label values small, as upstream does.
func knownUser(name string) string {
	switch {
	case name == "admin" || name == "client" || name == "kube_proxy" || name == "kubelet" ||
		name == "system:serviceaccount:kube-system:default":
		return name
	case strings.Contains(name, "@"):
		return "email_id"
	}
	return "other"
}

// Authorized counts one decision.
func (m *chain) Authorized(d authorizer.Decision, err error, began time.Time) {
	result := "no-opinion"
	switch {
	case d == authorizer.DecisionAllow:
		result = "allowed"
	case err != nil:
		result = "error"
	case d == authorizer.DecisionDeny:
		result = "denied"
	}
	m.authorization.observe(result, began)
}

// cutOff counts a request that the server ended because it took too long.
func (m *chain) cutOff(info *genericrequest.RequestInfo, code int) {
	if code == http.StatusGatewayTimeout {
		m.terminated.WithLabelValues(verbOf(info), info.APIGroup, info.APIVersion, info.Resource, info.Subresource, scopeOf(info),
			"apiserver", "504").Inc()
	}
}
