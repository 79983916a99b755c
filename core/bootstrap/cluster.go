// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// Cluster is what the config map of the cluster holds (package clusterinfo). Its zero value: there is none.
type Cluster struct {
	Name, Domain string
	// PodCIDR is one network, or one of each IP family with a comma between them.
	PodCIDR string
	// Authority is the pin of this server's authority, as cabundle.Pin writes it. A server
	// with another one than the cluster's is refused: every certificate and token that
	// it gives out would be wrong for all others.
	Authority string
	// Trusted are all authorities that this server trusts, in PEM. While the cluster's changes,
	// servers may be a step apart: the other one of the two is no reason to refuse.
	Trusted string
	// Alone: no other server can be at this store, so a new authority takes the old one's place.
	Alone bool
}

func (b *Bootstrap) clusterData() map[string]string {
	c := b.cfg.Cluster
	data := map[string]string{
		clusterinfo.Name: c.Name, clusterinfo.Domain: c.Domain, clusterinfo.PodCIDR: c.PodCIDR,
		clusterinfo.ServiceCIDR: strings.Join(b.serviceCIDRs(), ","), clusterinfo.Authority: c.Authority,
	}
	if c.Trusted != "" {
		data[clusterinfo.Authorities] = c.Trusted
	}
	return data
}

// trusts tells whether this server trusts the authority of a pin.
func (c Cluster) trusts(pin string) bool {
	certs, err := cabundle.Parse([]byte(c.Trusted))
	return err == nil && slices.ContainsFunc(certs, func(t *x509.Certificate) bool { return cabundle.Pin(t) == pin })
}

// checkAuthority refuses a server of another authority before it writes anything.
func (b *Bootstrap) checkAuthority(ctx context.Context) error {
	if b.cfg.Cluster.Authority == "" {
		return nil
	}
	has, err := b.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, clusterinfo.ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the cluster's authority: %w", err)
	}
	return b.sameAuthority(ctx, has)
}

func (b *Bootstrap) sameAuthority(ctx context.Context, has *corev1.ConfigMap) error {
	theirs, ours := has.Data[clusterinfo.Authority], b.cfg.Cluster.Authority
	if theirs == "" || theirs == ours || b.cfg.Cluster.trusts(theirs) {
		return nil
	}
	if b.cfg.Cluster.Alone {
		b.cfg.Log.WarnContext(ctx, "the cluster has a new certificate authority; clients need new credentials, and machines that had joined must join again", "before", theirs, "now", ours)
		return nil
	}
	return fmt.Errorf("%w: the cluster in this store has the certificate authority %s, this server's pki has %s, and what one gives out the other refuses; "+
		"stop this server and replace its folder pki by a copy of that of a server of the cluster, or, if that authority is lost for good and no other server runs, "+
		"delete /registry/configmaps/%s/%s from the store (etcdctl del) and start this server again", errMisconfigured, theirs, ours, metav1.NamespaceSystem, clusterinfo.ConfigMap)
}

// updateCluster leaves the authorities to who changes them, while they change.
func (b *Bootstrap) updateCluster(ctx context.Context) error {
	has, err := b.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, clusterinfo.ConfigMap, metav1.GetOptions{})
	if err != nil {
		return err
	}
	data := b.clusterData()
	theirs, err := cabundle.Parse([]byte(has.Data[clusterinfo.Authorities]))
	ours, err2 := cabundle.Parse([]byte(b.cfg.Cluster.Trusted))
	known := b.cfg.Cluster.trusts(has.Data[clusterinfo.Authority])
	if err == nil && err2 == nil && known && pki.Pins(theirs) != pki.Pins(ours) {
		delete(data, clusterinfo.Authority)
		delete(data, clusterinfo.Authorities)
	}
	return b.configMap(ctx, metav1.NamespaceSystem, clusterinfo.ConfigMap, data)
}

// cluster publishes what the cluster is. Of two servers that begin it at once, the
// second compares its authority with what the first has written.
func (b *Bootstrap) cluster(ctx context.Context) error {
	if b.cfg.Cluster == (Cluster{}) {
		return nil
	}
	api := b.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: clusterinfo.ConfigMap}, Data: b.clusterData()},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if err = b.checkAuthority(ctx); err == nil {
			err = b.updateCluster(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("config map %s: %w", clusterinfo.ConfigMap, err)
	}
	return nil
}
