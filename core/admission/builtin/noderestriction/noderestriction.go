// SPDX-License-Identifier: Apache-2.0

// Package noderestriction is the admission plugin NodeRestriction: it holds a kubelet to
// its own node and to the pods that run on it.
package noderestriction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/builtin/podrefs"
	"github.com/wasmplane/wasmplane/core/admission/nodevolumes"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// Plugin holds a kubelet to its own node and to the pods that run on
// it. The Node authorizer decides by names; this plugin looks into the objects.
//
// It is asked first, as a mutator that changes nothing: what a node may not do
// need not be completed.
type Plugin struct {
	client  kubernetes.Interface
	pods    listers.PodLister
	nodes   listers.NodeLister
	claims  listers.PersistentVolumeClaimLister
	volumes listers.PersistentVolumeLister
	drivers storagelisters.CSIDriverLister
	authz   authz.Authorizer
}

// New is the plugin, which asks client for what the informers have not seen yet.
func New(client kubernetes.Interface, informers informers.SharedInformerFactory, authorizer authz.Authorizer) *Plugin {
	core := informers.Core().V1()
	return &Plugin{
		client: client, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		drivers: informers.Storage().V1().CSIDrivers().Lister(), authz: authorizer,
	}
}

// Name implements admission.Plugin.
func (*Plugin) Name() string { return "NodeRestriction" }

// Handles implements admission.Plugin.
func (*Plugin) Handles(r *admission.Request) bool {
	_, isNode := nodeName(r.User)
	return isNode && r.Operation != admission.Connect
}

// nodeName is the node that u is.
func nodeName(u user.Info) (string, bool) {
	if u == nil {
		return "", false
	}
	name, ok := strings.CutPrefix(u.GetName(), "system:node:")
	return name, ok && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// Mutate implements admission.Mutator.
func (p *Plugin) Mutate(ctx context.Context, r *admission.Request) error {
	node, _ := nodeName(r.User)
	if node == "" {
		return admission.Forbidden(r, fmt.Errorf("could not determine node from user %q", r.User.GetName()))
	}
	err := p.judge(ctx, node, r)
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return admission.Forbidden(r, err)
}

// judge's plain errors become Forbidden; API status errors stay what they are.
func (p *Plugin) judge(ctx context.Context, node string, r *admission.Request) error {
	switch r.Resource.GroupResource().String() {
	case "pods":
		return p.pod(ctx, node, r)
	case "nodes":
		return p.node(node, r)
	case "persistentvolumeclaims":
		return nodevolumes.Claim(node, r)
	case "persistentvolumes":
		return nodevolumes.Volume(node, r)
	case "serviceaccounts":
		return p.token(ctx, r, node)
	case "leases.coordination.k8s.io":
		return lease(node, r)
	case "csinodes.storage.k8s.io":
		return csiNode(node, r)
	case "resourceslices.resource.k8s.io":
		return resourceSlice(node, r)
	case "certificatesigningrequests.certificates.k8s.io":
		return nodeCSR(node, r)
	case "podcertificaterequests.certificates.k8s.io":
		return p.podCertificate(ctx, node, r)
	}
	return nil
}

func (p *Plugin) pod(ctx context.Context, node string, r *admission.Request) error {
	switch {
	case r.Subresource == "" && r.Operation == admission.Create:
		return p.createPod(ctx, node, r)
	case r.Subresource == "" && r.Operation == admission.Delete:
		pod, err := p.getPod(ctx, r.Namespace, r.Name)
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != node {
			return fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node)
		}
		return nil
	case r.Subresource == "":
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", r.Operation, node)
	case r.Subresource == "status":
		return podStatus(node, r)
	case r.Subresource == "eviction":
		return p.evict(ctx, node, r)
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", r.Subresource)
}

func (p *Plugin) getPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return reading.Cached(
		func() (*corev1.Pod, error) { return p.pods.Pods(namespace).Get(name) },
		func() (*corev1.Pod, error) {
			return p.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		})
}

// createPod: only mirrors of the node's static pods, owned by the node, that lead to no API object.
func (p *Plugin) createPod(ctx context.Context, node string, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	if !podrefs.IsMirror(pod) {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if err := p.ownedByNode(ctx, node, pod); err != nil {
		return err
	}
	switch resource, err := podrefs.Any(pod); {
	case err != nil:
		return fmt.Errorf("error checking mirror pod for API references: %w", err)
	case resource != "":
		return fmt.Errorf("node %q can not create pods that reference %s", node, resource)
	}
	return nil
}

func (p *Plugin) ownedByNode(ctx context.Context, node string, pod *corev1.Pod) error {
	switch len(pod.OwnerReferences) {
	case 0:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case 1:
	default:
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	switch o := pod.OwnerReferences[0]; {
	case o.APIVersion != "v1" || o.Kind != "Node" || o.Name != node:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case o.Controller == nil || !*o.Controller:
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	case o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion:
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	n, err := reading.Cached(
		func() (*corev1.Node, error) { return p.nodes.Get(node) },
		func() (*corev1.Node, error) { return p.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}) })
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("error looking up node %s to verify uid: %w", node, err)
	}
	if uid := pod.OwnerReferences[0].UID; uid != n.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, uid, n.UID)
	}
	return nil
}

func podStatus(node string, r *admission.Request) error {
	if r.Operation != admission.Update {
		return fmt.Errorf("unexpected operation %q", r.Operation)
	}
	old, pod, err := reading.Both[*corev1.Pod](r)
	if err != nil {
		return err
	}
	switch {
	case old.Spec.NodeName != node:
		return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
	case !labels.Equals(old.Labels, pod.Labels):
		return fmt.Errorf("node %q cannot update labels through pod status", node)
	case !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return fmt.Errorf("node %q cannot update resource claim statues", node)
	case !equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return fmt.Errorf("node %q cannot update extended resource claim status", node)
	case !equality.Semantic.DeepEqual(old.Status.NodeAllocatableResourceClaimStatuses, pod.Status.NodeAllocatableResourceClaimStatuses):
		return fmt.Errorf("node %q cannot update node allocatable resource claim statuses", node)
	}
	return nil
}

func (p *Plugin) evict(ctx context.Context, node string, r *admission.Request) error {
	if r.Operation != admission.Create {
		return fmt.Errorf("unexpected operation %s", r.Operation)
	}
	name := r.Name
	if name == "" {
		eviction, err := reading.Typed[*policyv1.Eviction](r.Object)
		if err != nil {
			return err
		}
		if name = eviction.Name; name == "" {
			return errors.New("could not determine pod from request data")
		}
	}
	pod, err := p.getPod(ctx, r.Namespace, name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node)
	}
	return nil
}

func (p *Plugin) node(node string, r *admission.Request) error {
	name := r.Name
	if name == "" && r.Object != nil {
		if m, err := r.Object.Meta(); err == nil {
			name = m.GetName()
		}
	}
	if name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	switch r.Operation {
	case admission.Create:
		n, err := reading.Typed[*corev1.Node](r.Object)
		if err != nil {
			return err
		}
		if n.Spec.ConfigSource != nil { //nolint:staticcheck // that the field is dead makes it no less forbidden: upstream refuses it too
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if len(n.Spec.PodCIDR)+len(n.Spec.PodCIDRs) > 0 { // others' traffic would be routed to it
			return fmt.Errorf("node %q is not allowed to choose its own podCIDR", node)
		}
		if bad := forbiddenLabels(n.Labels, nil); len(bad) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node, strings.Join(bad, ", "))
		}
	case admission.Update:
		return updateNode(node, r)
	default: // a node may delete itself
	}
	return nil
}

func updateNode(node string, r *admission.Request) error {
	old, n, err := reading.Both[*corev1.Node](r)
	if err != nil {
		return err
	}
	switch {
	case n.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(n.Spec.ConfigSource, old.Spec.ConfigSource): //nolint:staticcheck // as above
		return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
	case !equality.Semantic.DeepEqual(n.Spec.Taints, old.Spec.Taints):
		return fmt.Errorf("node %q is not allowed to modify taints", node)
	case !equality.Semantic.DeepEqual(n.OwnerReferences, old.OwnerReferences):
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	case n.Spec.PodCIDR != old.Spec.PodCIDR || !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs):
		return fmt.Errorf("node %q is not allowed to choose its own podCIDR", node)
	}
	if bad := forbiddenLabels(n.Labels, old.Labels); len(bad) > 0 {
		return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// forbiddenLabels are changed labels by which a node could draw workloads to itself.
func forbiddenLabels(a, b map[string]string) []string {
	var bad []string
	check := func(k string) {
		prefix, _, ok := strings.Cut(k, "/")
		if !ok {
			return
		}
		within := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
		if within(corev1.LabelNamespaceNodeRestriction) || (within("kubernetes.io") || within("k8s.io")) && !kubeletapis.IsKubeletLabel(k) {
			bad = append(bad, k)
		}
	}
	for k, v := range a {
		if was, ok := b[k]; !ok || was != v {
			check(k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			check(k)
		}
	}
	slices.Sort(bad)
	return bad
}

// token: a node asks for tokens only of pods that run on it, and only for
// audiences that the pod's volumes ask for.
func (p *Plugin) token(ctx context.Context, r *admission.Request, node string) error {
	if r.Operation != admission.Create || r.Subresource != "token" {
		return nil
	}
	request, err := reading.Typed[*authenticationv1.TokenRequest](r.Object)
	if err != nil {
		return err
	}
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return errors.New("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return errors.New("node requested token with a pod binding without a uid")
	}
	pod, err := p.getPod(ctx, r.Namespace, ref.Name)
	if err == nil && pod.UID != ref.UID {
		// The informer may still show a pod of the same name that is gone.
		pod, err = p.client.CoreV1().Pods(r.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	switch {
	case err != nil:
		return err
	case ref.UID != pod.UID:
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case pod.Spec.NodeName != node:
		return errors.New("node requested token bound to a pod scheduled on a different node")
	}
	return p.audience(ctx, r, request.Spec.Audiences, pod)
}

func lease(node string, r *admission.Request) error {
	if r.Namespace != corev1.NamespaceNodeLease {
		return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	if name != node {
		return errors.New("can only access node lease with the same name as the requesting node")
	}
	return nil
}

// nameOf is the object's name on a create, where the path has none.
func nameOf(r *admission.Request) (string, error) {
	if r.Operation != admission.Create || r.Object == nil {
		return r.Name, nil
	}
	m, err := r.Object.Meta()
	if err != nil {
		return "", errors.New("unable to access the object name")
	}
	return m.GetName(), nil
}

func csiNode(node string, r *admission.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	if name != node {
		return errors.New("can only access CSINode with the same name as the requesting node")
	}
	if r.Subresource == "status" {
		old, n, err := reading.Both[*storagev1.CSINode](r)
		if err != nil {
			return err
		}
		if !equality.Semantic.DeepEqual(old.Spec, n.Spec) {
			return fmt.Errorf("node %q is not allowed to modify CSINode spec via status", node)
		}
	}
	return nil
}

func resourceSlice(node string, r *admission.Request) error {
	o, verb := r.Object, "create"
	switch r.Operation {
	case admission.Create:
	case admission.Delete:
		o, verb = r.OldObject, "delete"
	default:
		return nil
	}
	slice, err := reading.Typed[*resourcev1.ResourceSlice](o)
	if err != nil {
		return err
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return fmt.Errorf("can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}

func nodeCSR(node string, r *admission.Request) error {
	if r.Operation != admission.Create || r.Subresource != "" {
		return nil
	}
	csr, err := reading.Typed[*certificatesv1.CertificateSigningRequest](r.Object)
	if err != nil {
		return err
	}
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName &&
		csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := reading.CSR(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("unable to parse csr: %w", err)
	}
	if want := "system:node:" + node; parsed.Subject.CommonName != want {
		return fmt.Errorf("can only create a node CSR with CN=%s", want)
	}
	return nil
}
