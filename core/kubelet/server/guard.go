// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
)

// Delegate makes an authenticator and an authorizer that ask the API: tokens by
// TokenReview, rights by SubjectAccessReview. Client certificates are checked
// against roots, which may be others for each request. Answers are kept for a short while.
func Delegate(client kubernetes.Interface, roots func() *x509.CertPool) (authenticator.Request, authorizer.Authorizer, error) {
	verify := func() (x509.VerifyOptions, bool) {
		o := x509request.DefaultVerifyOptions()
		o.Roots = roots()
		return o, true
	}
	// The API may be away for a moment; who asks waits no longer than a few seconds.
	retry := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
	tokens, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: client.AuthenticationV1(), TokenAccessReviewTimeout: 10 * time.Second, CacheTTL: 2 * time.Minute,
		WebhookRetryBackoff: &retry,
	}.New()
	if err != nil {
		return nil, nil, fmt.Errorf("make an authenticator that asks the API: %w", err)
	}
	authn := union.New(x509request.NewDynamic(verify, x509request.CommonNameUserConversion), tokens)
	authz, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(), AllowCacheTTL: 5 * time.Minute, DenyCacheTTL: 30 * time.Second,
		WebhookRetryBackoff: &retry,
	}.New()
	if err != nil {
		return nil, nil, fmt.Errorf("make an authorizer that asks the API: %w", err)
	}
	return authn, authz, nil
}

// guarded lets a request through if it is known who sent it, and they may.
func (s *Server) guarded(part string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		connection := http.NewResponseController(w)
		if r.ContentLength != 0 {
			// net/http reads a body that nobody wanted before it sends the answer:
			// without an end to that, who is refused could hold the connection for ever.
			_ = connection.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout)) // what has no connection needs no deadline
		}
		who, ok, err := s.cfg.Authenticator.AuthenticateRequest(r)
		if err != nil {
			s.cfg.Logger.Info("a request to the kubelet could not be authenticated", "path", r.URL.Path, "error", err)
		}
		if err != nil || !ok {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		node := s.nodeOf(r)
		// The node's part alone, or all of the node, as upstream has it.
		decision, denied := s.may(r, who.User, node, part)
		if decision != authorizer.DecisionAllow && part != "proxy" {
			decision, _ = s.may(r, who.User, node, "proxy")
		}
		if decision != authorizer.DecisionAllow {
			http.Error(w, denied, http.StatusForbidden)
			return
		}
		if r.ContentLength != 0 {
			_ = connection.SetReadDeadline(time.Time{}) // as above
		}
		h(w, r)
	}
}

func (s *Server) nodeOf(r *http.Request) string {
	if n, _ := s.find(r); n != nil {
		return n.NodeName()
	}
	if n := s.about(r); n != nil {
		return n.NodeName()
	}
	return ""
}

func (s *Server) may(r *http.Request, u user.Info, node, part string) (authorizer.Decision, string) {
	verb := map[string]string{
		http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create", http.MethodPut: "update",
		http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[r.Method]
	if r.Method == http.MethodGet && isUpgrade(r) && part == "proxy" {
		// A WebSocket begins with a GET, and does what a POST does.
		verb = "create"
	}
	d, reason, err := s.cfg.Authorizer.Authorize(r.Context(), authorizer.AttributesRecord{
		User: u, Verb: verb, APIVersion: "v1", Resource: "nodes", Subresource: part, Name: node, ResourceRequest: true, Path: r.URL.Path,
	})
	msg := fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=[%s])", u.GetName(), verb, part)
	if err != nil {
		s.cfg.Logger.Warn("a request to the kubelet could not be authorized", "user", u.GetName(), "path", r.URL.Path, "error", err)
		return authorizer.DecisionDeny, msg
	}
	if reason != "" && d != authorizer.DecisionAllow {
		s.cfg.Logger.Debug("a request to the kubelet was refused", "user", u.GetName(), "path", r.URL.Path, "reason", reason)
	}
	return d, msg
}
