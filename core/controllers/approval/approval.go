// SPDX-License-Identifier: Apache-2.0

// Package approval approves the certificate requests of kubelets whose right to
// them an access review confirms, and removes requests that nobody needs any more.
//
// Client certificates are approved as upstream does it. Serving certificates are
// approved only where New is told to, and only for names and addresses that the node
// itself reports and that belong to no other node, API server, Service or pod: what a node
// reports is only its word, and it must not get a certificate for somebody else's name. A machine
// that joins by a token must choose a name that no node has, or it could take over that node; what
// it is denied says so.
package approval

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/controllers"
)

// How long requests are kept, as upstream does.
const (
	keepDecided = time.Hour
	keepPending = 24 * time.Hour
)

const nodePrefix = "system:node:"

// Names are those of the cluster itself, which no node gets a certificate for.
type Names struct {
	// Server has the names and addresses by which clients know the API, beside its endpoints.
	Server []string
	// Domain of Services, such as cluster.local.
	Domain string
	// Networks of Services and of pods.
	Networks []netip.Prefix
}

// has says whether a name is the cluster's, whatever node reports it. Names that stand for several are nobody's.
func (n *Names) has(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return jointoken.Reserved(name) || strings.Contains(name, "*") || strings.HasSuffix(name, ".svc") ||
		n.Domain != "" && strings.HasSuffix(name, ".svc."+n.Domain) ||
		slices.ContainsFunc(n.Server, func(s string) bool { return strings.EqualFold(strings.TrimSuffix(s, "."), name) })
}

// hasAddress says whether an address is the cluster's, or stands for no single machine.
func (n *Names) hasAddress(ip net.IP) bool {
	addr, ok := netip.AddrFromSlice(ip)
	addr = addr.Unmap()
	return !ok || addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() ||
		slices.ContainsFunc(n.Networks, func(p netip.Prefix) bool { return p.Contains(addr) }) ||
		slices.ContainsFunc(n.Server, func(s string) bool { return ip.Equal(net.ParseIP(s)) })
}

// Controller approves requests.
type Controller struct {
	client   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
	servers  discoverylisters.EndpointSliceNamespaceLister
	names    Names
	serving  bool
	loop     *controllers.Loop[string]
}

// New makes the controller. With the names of the cluster it approves serving certificates for others too.
func New(env controllers.Env, workers int, names *Names) (*Controller, error) {
	requests, nodes := env.Informers.Certificates().V1().CertificateSigningRequests(), env.Informers.Core().V1().Nodes()
	servers := env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		client: env.Client, requests: requests.Lister(), nodes: nodes.Lister(),
		servers: servers.Lister().EndpointSlices(metav1.NamespaceDefault),
	}
	if names != nil {
		c.names, c.serving = *names, true
	}
	c.loop = controllers.NewLoop(env, "certificate-controller", workers, c.reconcile)
	c.loop.Watch(requests.Informer(), controllers.Changes(func(_, current metav1.Object) {
		if current != nil {
			c.loop.Add(current.GetName())
		}
	}))
	c.loop.Needs(nodes.Informer(), servers.Informer())
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, name string) error {
	request, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "CertificateSigningRequest", request)
	until := request.CreationTimestamp.Add(keepPending)
	if decided(request) {
		until = keptUntil(request)
	}
	wait := time.Until(until)
	if wait <= 0 {
		return c.remove(ctx, request)
	}
	c.loop.AddAfter(name, wait)
	if decided(request) || len(request.Status.Certificate) > 0 {
		return nil
	}
	return c.judge(ctx, request)
}

func decided(r *certificatesv1.CertificateSigningRequest) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied ||
			c.Type == certificatesv1.CertificateFailed
	})
}

// keptUntil: an hour after the decision; a day if it was approved and nobody signed
// it yet.
func keptUntil(r *certificatesv1.CertificateSigningRequest) time.Time {
	last := r.CreationTimestamp.Time
	keep := keepDecided
	for _, c := range r.Status.Conditions {
		if c.LastUpdateTime.After(last) {
			last = c.LastUpdateTime.Time
		}
		if c.Type == certificatesv1.CertificateApproved && len(r.Status.Certificate) == 0 {
			keep = keepPending
		}
	}
	return last.Add(keep)
}

func (c *Controller) remove(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	err := c.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, r.Name, controllers.DeleteExactly(r))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing an old certificate request: %w", err)
	}
	controllers.Did(ctx, "removed, because it is old", "CertificateSigningRequest", nil)
	return nil
}

// judge approves a request that it recognizes and that its author has a right to.
// What it does not recognize is left to others.
func (c *Controller) judge(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	asked, err := parse(r.Spec.Request)
	if err != nil {
		return nil //nolint:nilerr // validation lets none through; nobody can approve it, and trying again mends nothing
	}
	switch {
	case r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && isClient(asked, r.Spec.Usages):
		if r.Spec.Username == asked.Subject.CommonName {
			ok, err := c.allowed(ctx, r, "selfnodeclient")
			if err != nil || ok {
				return errors.Join(err, c.approveIf(ctx, ok, r, "Auto approving self kubelet client certificate after SubjectAccessReview."))
			}
		}
		if denied, err := c.denyTaken(ctx, r, strings.TrimPrefix(asked.Subject.CommonName, nodePrefix)); denied || err != nil {
			return err
		}
		ok, err := c.allowed(ctx, r, "nodeclient")
		return errors.Join(err, c.approveIf(ctx, ok, r, "Auto approving kubelet client certificate after SubjectAccessReview."))
	case c.serving && r.Spec.SignerName == certificatesv1.KubeletServingSignerName && isServing(asked, r.Spec.Usages):
		ok, err := c.ownsNames(r.Spec.Username, asked)
		return errors.Join(err, c.approveIf(ctx, ok, r, "Auto approving kubelet serving certificate for the node's own names and addresses."))
	}
	return nil
}

// denyTaken denies to a machine with a token what would make it a node that there is.
func (c *Controller) denyTaken(ctx context.Context, r *certificatesv1.CertificateSigningRequest, name string) (denied bool, err error) {
	if !slices.Contains(r.Spec.Groups, bootstrapapi.BootstrapDefaultGroup) {
		return false, nil
	}
	_, err = c.nodes.Get(name)
	if apierrors.IsNotFound(err) && !c.names.has(name) {
		return false, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	judged := r.DeepCopy()
	judged.Status.Conditions = append(judged.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: jointoken.ReasonNameTaken,
		Message: "There is a node of that name, or none can have it: a token is for new nodes only.",
	})
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, judged,
		metav1.UpdateOptions{}); err != nil {
		return false, fmt.Errorf("denying: %w", err)
	}
	controllers.Did(ctx, "denied", "CertificateSigningRequest", nil)
	return true, nil
}

func parse(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	return request, request.CheckSignature()
}

func isClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) bool {
	return isNodes(r) && len(r.DNSNames)+len(r.IPAddresses) == 0 && usedFor(usages, certificatesv1.UsageClientAuth)
}

func isServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) bool {
	return isNodes(r) && len(r.DNSNames)+len(r.IPAddresses) > 0 && usedFor(usages, certificatesv1.UsageServerAuth)
}

func isNodes(r *x509.CertificateRequest) bool {
	return slices.Equal(r.Subject.Organization, []string{"system:nodes"}) && strings.HasPrefix(r.Subject.CommonName, nodePrefix) &&
		len(r.EmailAddresses)+len(r.URIs) == 0
}

// usedFor: exactly this purpose, with digital signature and, for RSA keys, key
// encipherment.
func usedFor(usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) bool {
	rest := slices.DeleteFunc(slices.Clone(usages), func(u certificatesv1.KeyUsage) bool { return u == certificatesv1.UsageKeyEncipherment })
	return len(rest) == 2 && slices.Contains(rest, certificatesv1.UsageDigitalSignature) && slices.Contains(rest, purpose)
}

// ownsNames reports whether a node asks for itself, and only for what it is called.
func (c *Controller) ownsNames(user string, r *x509.CertificateRequest) (bool, error) {
	if user != r.Subject.CommonName {
		return false, nil
	}
	node, err := c.nodes.Get(strings.TrimPrefix(user, nodePrefix))
	if apierrors.IsNotFound(err) {
		return false, controllers.ErrNotYet // it registers in a moment
	}
	if err != nil {
		return false, err
	}
	own := func(kinds []corev1.NodeAddressType, value string) bool {
		return slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
			return slices.Contains(kinds, a.Type) && a.Address == value
		})
	}
	names := []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS}
	addresses := []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP}
	if c.names.has(node.Name) {
		return false, nil
	}
	for _, name := range r.DNSNames {
		if name != node.Name && !own(names, name) {
			return false, notReported(node)
		}
		if others, err := c.nameOfOthers(node.Name, name); others || err != nil {
			return false, err
		}
	}
	for _, ip := range r.IPAddresses {
		if !own(addresses, ip.String()) {
			return false, notReported(node)
		}
		if others, err := c.addressOfOthers(node.Name, ip); others || err != nil {
			return false, err
		}
	}
	return true, nil
}

// nameOfOthers: what a node reports of itself is only its word. A name of another node, of
// the API or of a Service would let it pass for those.
func (c *Controller) nameOfOthers(node, name string) (bool, error) {
	if c.names.has(name) {
		return true, nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		return n.Name != node && (strings.EqualFold(n.Name, name) ||
			slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return strings.EqualFold(a.Address, name) }))
	}), nil
}

// addressOfOthers is the same for addresses.
func (c *Controller) addressOfOthers(node string, ip net.IP) (bool, error) {
	if c.names.hasAddress(ip) {
		return true, nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, n := range nodes {
		if n.Name != node && slices.ContainsFunc(n.Status.Addresses,
			func(a corev1.NodeAddress) bool { return ip.Equal(net.ParseIP(a.Address)) }) {
			return true, nil
		}
	}
	servers, err := c.servers.Get("kubernetes")
	if apierrors.IsNotFound(err) {
		return false, controllers.ErrNotYet
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(servers.Endpoints, func(e discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(e.Addresses, func(a string) bool { return ip.Equal(net.ParseIP(a)) })
	}), nil
}

// notReported: a node that is just registering reports its addresses in a moment; one
// that has done so and asks for others is refused.
func notReported(node *corev1.Node) error {
	if len(node.Status.Addresses) == 0 {
		return controllers.ErrNotYet
	}
	return nil
}

func (c *Controller) allowed(ctx context.Context, r *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(r.Spec.Extra))
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: "certificates.k8s.io", Version: "*", Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking whether %s may have a kubelet certificate: %w", r.Spec.Username, err)
	}
	return review.Status.Allowed, nil
}

func (c *Controller) approveIf(ctx context.Context, ok bool, r *certificatesv1.CertificateSigningRequest, message string) error {
	if !ok {
		return nil
	}
	approved := r.DeepCopy()
	approved.Status.Conditions = append(approved.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: message,
	})
	_, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, approved, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("approving: %w", err)
	}
	controllers.Did(ctx, "approved", "CertificateSigningRequest", nil)
	return nil
}
