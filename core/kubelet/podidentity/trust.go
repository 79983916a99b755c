// SPDX-License-Identifier: Apache-2.0

package podidentity

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const (
	// TrustRefresh is how often ClusterTrustBundles in volumes are looked at again.
	TrustRefresh = time.Minute
	// maxSelector bounds the text of a label selector, which goes into a URL.
	maxSelector = 100 * 1024
)

// TrustBundles reads ClusterTrustBundles for projected volumes.
type TrustBundles struct {
	client kubernetes.Interface
	// seed orders certificates: the same for the life of the process, so that
	// files don't change, and no other, so that nobody relies on the order.
	seed uint64
}

// NewTrustBundles makes TrustBundles that reads by client.
func NewTrustBundles(client kubernetes.Interface) *TrustBundles {
	return &TrustBundles{client: client, seed: rand.Uint64()}
}

// Anchors are the certificates that a source selects, each once, as PEM.
func (t *TrustBundles) Anchors(ctx context.Context, src *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	var bundles []certificatesv1.ClusterTrustBundle
	var err error
	switch {
	case src.Name != nil:
		bundles, err = t.named(ctx, *src.Name, ptr.Deref(src.Optional, false))
	case src.SignerName != nil:
		bundles, err = t.ofSigner(ctx, *src.SignerName, src.LabelSelector, ptr.Deref(src.Optional, false))
	default:
		err = errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	if err != nil {
		return nil, err
	}
	return t.normalize(bundles), nil
}

func (t *TrustBundles) named(ctx context.Context, name string, optional bool) ([]certificatesv1.ClusterTrustBundle, error) {
	b, err := t.client.CertificatesV1().ClusterTrustBundles().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("while getting ClusterTrustBundle: %w", err)
	}
	return []certificatesv1.ClusterTrustBundle{*b}, nil
}

// ofSigner: no selector selects nothing, an empty one everything.
func (t *TrustBundles) ofSigner(ctx context.Context, signer string, labels *metav1.LabelSelector,
	optional bool,
) ([]certificatesv1.ClusterTrustBundle, error) {
	selector, err := metav1.LabelSelectorAsSelector(labels)
	if err != nil {
		return nil, fmt.Errorf("while parsing label selector: %w", err)
	}
	if n := len(selector.String()); n > maxSelector {
		return nil, fmt.Errorf("label selector length (%d) is larger than %d", n, maxSelector)
	}
	var found []certificatesv1.ClusterTrustBundle
	if labels != nil {
		list, err := t.client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{
			LabelSelector: selector.String(), FieldSelector: fields.OneTermEqualSelector("spec.signerName", signer).String(), ResourceVersion: "0",
		})
		if err != nil {
			return nil, fmt.Errorf("while listing ClusterTrustBundles matching label selector %v: %w", labels, err)
		}
		// Trust is not left to a selector that somebody on the way may ignore.
		found = slices.DeleteFunc(list.Items, func(b certificatesv1.ClusterTrustBundle) bool { return b.Spec.SignerName != signer })
	}
	if len(found) == 0 && !optional {
		return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	return found, nil
}

func (t *TrustBundles) normalize(bundles []certificatesv1.ClusterTrustBundle) []byte {
	var all []string
	for i := range bundles {
		for rest := []byte(bundles[i].Spec.TrustBundle); ; {
			var b *pem.Block
			if b, rest = pem.Decode(rest); b == nil {
				break
			}
			all = append(all, string(b.Bytes))
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	rand.New(rand.NewPCG(t.seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) //nolint:gosec // an order, not a secret
	out := []byte{}
	for _, der := range all {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)})...)
	}
	return out
}
