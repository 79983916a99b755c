// SPDX-License-Identifier: Apache-2.0

// Package resourceclaim looks after claims of devices: it makes those of pods that name a
// template (KEP-3063, KEP-4381) and writes their names to the pods, reserves claims for pods
// that got their node without the scheduler, and takes pods that end off the claims. A claim
// that nobody uses lets go of its devices; one that was made for a pod goes with it.
package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// key is a pod, or a claim.
type key struct {
	claim bool
	controllers.Key
}

// Controller makes claims and lets them go.
type Controller struct {
	client    kubernetes.Interface
	pods      corelisters.PodLister
	claims    resourcelisters.ResourceClaimLister
	templates resourcelisters.ResourceClaimTemplateLister
	podIndex  cache.Indexer // by claim and by template
	owned     cache.Indexer // claims, by the pod that owns them
	written   *controllers.Written
	events    record.EventRecorder
	loop      *controllers.Loop[key]
}

// The indexes.
const (
	byClaim    = "resource-claim"
	byTemplate = "resource-claim-template"
	byPod      = "resource-claim-owner"
)

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	pods, r := env.Informers.Core().V1().Pods(), env.Informers.Resource().V1()
	claims, templates := r.ResourceClaims(), r.ResourceClaimTemplates()
	for _, err := range []error{
		controllers.AddIndex(pods.Informer(), byClaim, indexed(claimsOf)),
		controllers.AddIndex(pods.Informer(), byTemplate, indexed(templatesOf)),
		controllers.AddIndex(claims.Informer(), byPod, indexed(ownerOf)),
	} {
		if err != nil {
			return nil, fmt.Errorf("resourceclaim-controller: %w", err)
		}
	}
	c := &Controller{
		client: env.Client, events: env.Recorder("resource_claim"), written: controllers.NewWritten(),
		pods: pods.Lister(), claims: claims.Lister(), templates: templates.Lister(),
		podIndex: pods.Informer().GetIndexer(), owned: claims.Informer().GetIndexer(),
	}
	c.loop = controllers.NewLoop(env, "resourceclaim-controller", workers, c.reconcile)
	c.loop.Watch(pods.Informer(), controllers.Changes(c.onPod))
	c.loop.Watch(claims.Informer(), controllers.Changes(c.onClaim))
	c.loop.Watch(templates.Informer(), controllers.Changes(func(old, current metav1.Object) {
		if old == nil { // pods may have waited for it
			c.addPods(byTemplate, cache.MetaObjectToName(current))
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// indexed is an index by what f finds in an object of its type.
func indexed[T any](f func(T) []string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		if o, ok := obj.(T); ok {
			return f(o), nil
		}
		return nil, nil
	}
}

// claimsOf are the claims that a pod uses, as far as their names are known.
func claimsOf(p *corev1.Pod) (keys []string) {
	for i := range p.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil {
			keys = append(keys, p.Namespace+"/"+*name)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		keys = append(keys, p.Namespace+"/"+s.ResourceClaimName)
	}
	return keys
}

func templatesOf(p *corev1.Pod) (keys []string) {
	for i := range p.Spec.ResourceClaims {
		if name := p.Spec.ResourceClaims[i].ResourceClaimTemplateName; name != nil {
			keys = append(keys, p.Namespace+"/"+*name)
		}
	}
	return keys
}

// ownerOf is the pod that owns a claim.
func ownerOf(c *resourcev1.ResourceClaim) []string {
	if ref := owner(c); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}

func owner(c *resourcev1.ResourceClaim) *metav1.OwnerReference {
	if ref := metav1.GetControllerOfNoCopy(c); ref != nil && ref.APIVersion == "v1" && ref.Kind == "Pod" {
		return ref
	}
	return nil
}

// onPod queues a pod that may need claims, and the claims of one that needs none any more.
func (c *Controller) onPod(old, current metav1.Object) {
	p, ok := current.(*corev1.Pod)
	if !ok {
		p = old.(*corev1.Pod)
	}
	if len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	if current == nil || done(p) {
		for _, name := range claimsOf(p) {
			c.loop.Add(key{true, cache.MetaObjectToName(&metav1.ObjectMeta{Namespace: p.Namespace, Name: name[len(p.Namespace)+1:]})})
		}
		own, _ := controllers.Indexed[*resourcev1.ResourceClaim](c.owned, byPod, string(p.UID)) // fails only without the index
		for _, claim := range own {
			c.loop.Add(key{true, cache.MetaObjectToName(claim)})
		}
		return
	}
	c.loop.Add(key{false, cache.MetaObjectToName(p)})
}

// onClaim queues a claim and the pods that use it, or for which it was made.
func (c *Controller) onClaim(old, current metav1.Object) {
	claim, ok := current.(*resourcev1.ResourceClaim)
	if ok {
		c.loop.Add(key{true, cache.MetaObjectToName(claim)})
	} else {
		claim = old.(*resourcev1.ResourceClaim)
	}
	c.addPods(byClaim, cache.MetaObjectToName(claim))
	if ref := owner(claim); ref != nil {
		c.written.Appeared(ref.UID, claim.UID)
		c.loop.Add(key{false, controllers.Key{Namespace: claim.Namespace, Name: ref.Name}})
	}
}

func (c *Controller) addPods(index string, name controllers.Key) {
	pods, _ := controllers.Indexed[*corev1.Pod](c.podIndex, index, name.String()) // fails only without the index
	for _, p := range pods {
		c.loop.Add(key{false, cache.MetaObjectToName(p)})
	}
}

func (c *Controller) reconcile(ctx context.Context, k key) error {
	if k.claim {
		return c.claim(ctx, k.Key)
	}
	return c.pod(ctx, k.Key)
}

func (c *Controller) pod(ctx context.Context, name controllers.Key) error {
	p, err := c.pods.Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "Pod", p)
	if len(c.written.Unseen(p.UID)) > 0 {
		return controllers.ErrStale // a claim of the pod would be made twice
	}
	own, err := controllers.Indexed[*resourcev1.ResourceClaim](c.owned, byPod, string(p.UID))
	if err != nil {
		return err
	}
	plan := planPod(p, own, func(claim string) *resourcev1.ResourceClaim {
		found, err := c.claims.ResourceClaims(p.Namespace).Get(claim)
		if err != nil {
			return nil
		}
		return found
	})
	var all []error
	for _, ref := range plan.make {
		made, err := c.make(ctx, p, ref)
		if err != nil {
			c.events.Event(p, corev1.EventTypeWarning, "FailedResourceClaimCreation", fmt.Sprintf("PodResourceClaim %s: %v", ref.Name, err))
			all = append(all, fmt.Errorf("resource claim %s of pod %s: %w", ref.Name, name, err))
			continue
		}
		if plan.names == nil {
			plan.names = withKnown(p, nil)
		}
		plan.names[ref.Name] = made.Name
	}
	if plan.names != nil {
		all = append(all, c.report(ctx, p, plan.names))
	}
	for _, claim := range plan.reserve {
		all = append(all, c.reserve(ctx, p, claim))
	}
	return errors.Join(all...)
}

// make a claim from a template.
func (c *Controller) make(ctx context.Context, p *corev1.Pod, ref *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	template, err := c.templates.ResourceClaimTemplates(p.Namespace).Get(*ref.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", *ref.ResourceClaimTemplateName, err)
	}
	made, err := c.client.ResourceV1().ResourceClaims(p.Namespace).Create(ctx, claimFor(p, ref, template), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create ResourceClaim: %w", err)
	}
	c.written.RecordCreated(p.UID, made)
	if _, err := c.claims.ResourceClaims(made.Namespace).Get(made.Name); err == nil {
		c.written.Appeared(p.UID, made.UID) // its event may have come before it was recorded
	}
	controllers.Did(ctx, "made the claim of a pod", "ResourceClaim", made)
	return made, nil
}

// claimFor is the claim of a reference.
func claimFor(p *corev1.Pod, ref *corev1.PodResourceClaim, t *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	yes := true
	annotations := maps.Clone(t.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = ref.Name
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, GenerateName: baseName(p.Name, ref.Name), Labels: t.Spec.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &yes}},
		},
		Spec: *t.Spec.Spec.DeepCopy(),
	}
}

// baseName leaves room for a hyphen and five characters in a name of 63; of a longer one both parts lose alike.
func baseName(pod, ref string) string {
	const most = 57
	name := pod + "-" + ref + "-"
	if len(name) <= most {
		return name
	}
	return pod[:len(pod)*most/len(name)] + "-" + ref[:len(ref)*most/len(name)]
}

// report the names of the claims to the pod.
func (c *Controller) report(ctx context.Context, p *corev1.Pod, names map[string]string) error {
	var list []corev1.PodResourceClaimStatus
	for _, ref := range slices.Sorted(maps.Keys(names)) {
		list = append(list, corev1.PodResourceClaimStatus{Name: ref, ResourceClaimName: new(names[ref])})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID}, "status": map[string]any{"resourceClaimStatuses": list},
	})
	if err != nil {
		return fmt.Errorf("encode a pod's status: %w", err)
	}
	_, err = c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", p.Namespace, p.Name, err)
	}
	return nil
}

func (c *Controller) reserve(ctx context.Context, p *corev1.Pod, claim *resourcev1.ResourceClaim) error {
	next := claim.DeepCopy()
	next.Status.ReservedFor = append(next.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
		Resource: "pods", Name: p.Name,
		UID: p.UID,
	})
	if _, err := c.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("reserve claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

func (c *Controller) claim(ctx context.Context, name controllers.Key) error {
	claim, err := c.claims.ResourceClaims(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "ResourceClaim", claim)
	var failed error
	plan := planClaim(claim, func(u resourcev1.ResourceClaimConsumerReference) bool {
		gone, err := c.gone(ctx, claim.Namespace, u)
		failed = errors.Join(failed, err)
		return gone && err == nil
	}, c.madeFor(claim))
	if failed != nil {
		return failed
	}
	return c.carryOut(ctx, claim, plan)
}

// madeFor is the pod for which a claim was made, or the one that has its name now.
func (c *Controller) madeFor(claim *resourcev1.ResourceClaim) *corev1.Pod {
	ref := owner(claim)
	if ref == nil {
		return nil
	}
	p, err := c.pods.Pods(claim.Namespace).Get(ref.Name)
	if err != nil {
		return nil // the garbage collector deletes the claim of a pod that is gone
	}
	return p
}

// gone says whether a pod uses a claim no more. Where the cache does not have it the API is
// asked: the pod may be newer than the cache.
func (c *Controller) gone(ctx context.Context, namespace string, u resourcev1.ResourceClaimConsumerReference) (bool, error) {
	p, err := c.pods.Pods(namespace).Get(u.Name)
	if apierrors.IsNotFound(err) || err == nil && p.UID != u.UID {
		p, err = c.client.CoreV1().Pods(namespace).Get(ctx, u.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look up pod %s/%s, which uses a claim: %w", namespace, u.Name, err)
	}
	return p.UID != u.UID || done(p), nil
}

func (c *Controller) carryOut(ctx context.Context, claim *resourcev1.ResourceClaim, plan claimPlan) error {
	all, next := c.client.ResourceV1().ResourceClaims(claim.Namespace), claim.DeepCopy()
	var err error
	if plan.remove || plan.deallocate {
		next.Status.ReservedFor = plan.users
		if plan.deallocate {
			next.Status.Allocation, next.Status.Devices = nil, nil
		}
		if next, err = all.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("take those off the claim that use it no more: %w", err)
		}
		controllers.Did(ctx, "took users off a claim", "ResourceClaim", next)
	}
	if at := slices.Index(next.Finalizers, resourcev1.Finalizer); at >= 0 && plan.unprotect {
		next.Finalizers = slices.Delete(next.Finalizers, at, at+1)
		if _, err = all.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("take the finalizer off the claim: %w", err)
		}
	}
	if !plan.delete {
		return nil
	}
	err = all.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the claim of a pod that needs it no more: %w", err)
	}
	controllers.Did(ctx, "deleted the claim of a pod", "ResourceClaim", claim)
	return nil
}
