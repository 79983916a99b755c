// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (b *Bootstrap) serviceCIDRs() (cidrs []string) {
	for _, p := range b.cfg.ServiceCIDRs {
		cidrs = append(cidrs, p.String())
	}
	return cidrs
}

// keepServiceNetwork makes the default ServiceCIDR anew when somebody has deleted it, which
// is how a cluster comes to a wider one.
func (b *Bootstrap) keepServiceNetwork(ctx context.Context) {
	tick := time.NewTicker(b.cfg.Refresh)
	defer tick.Stop()
	var told string
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := b.serviceNetwork(ctx)
		if err == nil || ctx.Err() != nil {
			told = ""
			continue
		}
		if err.Error() != told {
			told = err.Error()
			b.cfg.Log.WarnContext(ctx, "the default ServiceCIDR is not as it should be; this is tried again", "error", err)
		}
	}
}

// serviceNetwork publishes the network of Services. Another one in the cluster
// than in the configuration is not touched: addresses have been given out of it.
func (b *Bootstrap) serviceNetwork(ctx context.Context) error {
	api, cidrs := b.cfg.Client.NetworkingV1().ServiceCIDRs(), b.serviceCIDRs()
	c, err := api.Get(ctx, kubernetesName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c, err = api.Create(ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: kubernetesName}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("service network: %w", err)
	}
	switch {
	case slices.Equal(c.Spec.CIDRs, cidrs):
	case len(c.Spec.CIDRs) == 1 && len(cidrs) == 2 && c.Spec.CIDRs[0] == cidrs[0]:
		// The cluster gets a second family. Services keep what they have until somebody asks for more.
		c = c.DeepCopy()
		c.Spec.CIDRs = cidrs
		if c, err = api.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("give the service network its second family: %w", err)
		}
	case sameBeginning(c.Spec.CIDRs, b.cfg.ServiceCIDRs):
		b.inconsistent(ctx, c)
	default:
		return fmt.Errorf("%w: its Services are in %q, the configuration says %q, and a cluster's service network cannot be changed, but for "+
			"a second IP family that is added behind the first, and for a network of another length that begins with the same address; "+
			"set cluster.serviceCIDR back, or begin a new cluster; for more addresses create a further ServiceCIDR", errMisconfigured, c.Spec.CIDRs, cidrs)
	}
	if c.DeletionTimestamp != nil || meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) != nil {
		return nil
	}
	c = c.DeepCopy()
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "NetworkReady",
		Message: "Kubernetes default Service CIDR is ready",
	})
	if _, err := api.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("service network: %w", err)
	}
	return nil
}

// sameBeginning tells whether each network is wider or narrower than the cluster's, and begins
// with the same address: what follows from that, such as the address of the API's own Service
// in certificates, stays.
func sameBeginning(has []string, configured []netip.Prefix) bool {
	return slices.EqualFunc(has, configured, func(text string, p netip.Prefix) bool {
		h, err := netip.ParsePrefix(text)
		return err == nil && h.Masked().Addr() == p.Addr()
	})
}

// inconsistent tells once that the cluster's default range is not the configuration's, by
// upstream's event.
func (b *Bootstrap) inconsistent(ctx context.Context, c *networkingv1.ServiceCIDR) {
	if b.disagreed == c.UID {
		return
	}
	message := fmt.Sprintf("The default ServiceCIDR %v does not match the configuration %v: Services get addresses of the former. "+
		"To change it, create a ServiceCIDR that contains both, delete the ServiceCIDR %s, which is then made anew, and delete the other one",
		c.Spec.CIDRs, b.serviceCIDRs(), kubernetesName)
	b.cfg.Log.WarnContext(ctx, message)
	now := metav1.Now()
	_, err := b.cfg.Client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: kubernetesName + "."},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "ServiceCIDR", Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
		},
		Type: corev1.EventTypeWarning, Reason: "KubernetesDefaultServiceCIDRInconsistent", Message: message,
		Source: corev1.EventSource{Component: "kubernetes-default-service-cidr-controller"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil {
		// The namespace may come only after this, at a cluster's first start; the next look tells again.
		if !errors.Is(err, context.Canceled) {
			b.cfg.Log.DebugContext(ctx, "could not record the event of the default ServiceCIDR", "error", err)
		}
		return
	}
	b.disagreed = c.UID
}
