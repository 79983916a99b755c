// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apimachinery/pkg/version"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/wasmplane/wasmplane/core/dial"
)

// Remote is the server of one group version. Nobody changes one: what is learned
// of a server makes a new one.
type Remote struct {
	aggregator *Aggregator
	gv         schema.GroupVersion
	// GroupPriority and VersionPriority order groups, and versions in a group,
	// the highest first.
	GroupPriority, VersionPriority int32

	service   apiregistrationv1.ServiceReference
	ca        []byte
	insecure  bool
	available bool
	transport *dial.Renewed[*tls.Certificate]
	broken    error // why there is no transport
	known     known
}

// newRemote keeps the connections and the knowledge of old where it is reached as before.
func (a *Aggregator) newRemote(s *apiregistrationv1.APIService, old *Remote) *Remote {
	r := &Remote{
		aggregator: a, gv: groupVersion(s), GroupPriority: s.Spec.GroupPriorityMinimum, VersionPriority: s.Spec.VersionPriority,
		service: *s.Spec.Service.DeepCopy(), ca: slices.Clone(s.Spec.CABundle), insecure: s.Spec.InsecureSkipTLSVerify,
		available: helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available),
	}
	if old != nil && old.reaches(s) {
		r.transport, r.broken, r.known = old.transport, old.broken, old.known
		return r
	}
	if old != nil {
		old.close()
	}
	r.transport, r.broken = a.newTransport(r)
	return r
}

// reaches says whether r is still how the APIService wants its server reached.
func (r *Remote) reaches(s *apiregistrationv1.APIService) bool {
	ref := s.Spec.Service
	return ref != nil && ref.Namespace == r.service.Namespace && ref.Name == r.service.Name && portOf(ref) == portOf(&r.service) &&
		bytes.Equal(s.Spec.CABundle, r.ca) && s.Spec.InsecureSkipTLSVerify == r.insecure
}

func (r *Remote) equal(o *Remote) bool {
	return o != nil && r.transport == o.transport && r.available == o.available && r.GroupPriority == o.GroupPriority &&
		r.VersionPriority == o.VersionPriority
}

// newTransport trusts what the APIService says, and presents the front proxy's
// certificate. The name in the server's certificate is the Service's, whichever
// of its endpoints is dialed.
func (a *Aggregator) newTransport(r *Remote) (*dial.Renewed[*tls.Certificate], error) {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: r.service.Name + "." + r.service.Namespace + ".svc",
		InsecureSkipVerify: r.insecure, //nolint:gosec // the APIService's own word, which administrators alone may write
	}
	var err error
	if len(r.ca) > 0 {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(r.ca) {
			err = fmt.Errorf("spec.caBundle of APIService %s has no certificate in it: expected PEM", nameOf(r.gv))
		}
	}
	return dial.NewRenewed(a.cfg.Certificate, func(ours *tls.Certificate) *http.Transport {
		own := cfg.Clone()
		own.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return ours, nil }
		return &http.Transport{
			DialContext: a.cfg.Dial, TLSClientConfig: own, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 1 << 20,
		}
	}), err
}

func (r *Remote) close() { r.transport.CloseIdleConnections() }

// GroupVersion is what the server serves.
func (r *Remote) GroupVersion() schema.GroupVersion { return r.gv }

func (r *Remote) root() string {
	if r.gv.Group == "" {
		return "/api/" + r.gv.Version
	}
	return "/apis/" + r.gv.Group + "/" + r.gv.Version
}

// resolve picks an endpoint: by itself, so that the server needs no rules for
// Services on its own machine.
func (a *Aggregator) resolve(r *Remote) (*url.URL, error) {
	service, err := a.services.Services(r.service.Namespace).Get(r.service.Name)
	if err != nil {
		return nil, err
	}
	if !hasEndpoints(service) {
		return streamproxy.ResolveCluster(a.services, r.service.Namespace, r.service.Name, portOf(&r.service))
	}
	return streamproxy.ResolveEndpoint(a.services, a.slices, r.service.Namespace, r.service.Name, portOf(&r.service))
}

// Serve passes a request on. The context has its user and its request info. An
// error is what the client is to be told; nothing was written then.
func (r *Remote) Serve(w http.ResponseWriter, req *http.Request) error {
	if r.broken != nil {
		return apierrors.NewInternalError(r.broken)
	}
	if !r.available {
		return apierrors.NewServiceUnavailable("service unavailable")
	}
	who, ok := genericrequest.UserFrom(req.Context())
	if !ok {
		return apierrors.NewInternalError(errors.New("missing user"))
	}
	location, err := r.aggregator.resolve(r)
	if err != nil {
		r.aggregator.cfg.Logger.WarnContext(req.Context(), "no endpoint of another API server was found", "apiservice", nameOf(r.gv),
			"error", err)
		return apierrors.NewServiceUnavailable("service unavailable")
	}
	location.Path, location.RawPath, location.RawQuery = req.URL.Path, req.URL.RawPath, req.URL.Query().Encode()
	onward, cancel := streamproxy.NewRequestForProxy(location, req)
	defer cancel()

	upgrade := httpstream.IsUpgradeRequest(req)
	if upgrade {
		// Upgrades dial for themselves and bypass the round tripper below.
		transport.SetAuthProxyHeaders(onward, who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra())
	}
	through := transport.NewAuthProxyRoundTripper(who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra(), r.transport)
	failed := &failure{}
	h := utilproxy.NewUpgradeAwareHandler(location, through, true, upgrade, failed)
	h.RejectForwardingRedirects = true
	h.ServeHTTP(w, onward)
	return failed.err
}

// failure keeps what went wrong before anything was answered.
type failure struct{ err error }

// Error implements proxy.ErrorResponder.
func (f *failure) Error(_ http.ResponseWriter, req *http.Request, err error) {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		f.err = err
	case errors.Is(err, context.Canceled) && req.Context().Err() != nil:
		f.err = apierrors.NewTimeoutError("the client is gone", 0)
	default:
		f.err = apierrors.NewServiceUnavailable(err.Error())
	}
}

// sortRemotes: groups of high priority first, then by name; within a group
// versions of high priority first, then the more stable and newer ones.
func sortRemotes(all []*Remote) {
	slices.SortFunc(all, func(a, b *Remote) int {
		return cmp.Or(
			cmp.Compare(b.GroupPriority, a.GroupPriority), cmp.Compare(a.gv.Group, b.gv.Group),
			cmp.Compare(b.VersionPriority, a.VersionPriority), version.CompareKubeAwareVersionStrings(b.gv.Version, a.gv.Version))
	})
}

// GroupBefore says whether discovery lists the server's group before one of ours.
func (r *Remote) GroupBefore(ours string) bool {
	p, ok := groupPriorities()[ours]
	if !ok {
		p = definedGroupPriority
	}
	return r.GroupPriority > p && ours != "apiregistration.k8s.io" || r.GroupPriority == p && r.gv.Group < ours
}

// VersionBefore says whether discovery lists the server's version before another
// one of the same group.
func (r *Remote) VersionBefore(other string) bool {
	gv := schema.GroupVersion{Group: r.gv.Group, Version: other}
	p := int32(definedVersionPriority)
	if o, ok := r.aggregator.Remote(gv); ok {
		p = o.VersionPriority
	} else if slices.Contains(r.aggregator.cfg.BuiltIn, gv) {
		p = priorities(gv).version
	}
	if p != r.VersionPriority {
		return r.VersionPriority > p
	}
	return version.CompareKubeAwareVersionStrings(r.gv.Version, other) > 0
}
