// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// audience lets a node ask for a token's audience if a volume of the pod does, or
// if it was granted the verb request-serviceaccounts-token-audience on it.
func (p *Plugin) audience(ctx context.Context, r *admission.Request, audiences []string, pod *corev1.Pod) error {
	wanted := ""
	switch len(audiences) {
	case 0:
	case 1:
		wanted = audiences[0]
	default:
		return errors.New("node may only request 0 or 1 audiences")
	}
	found, err := p.podAsksFor(pod, wanted)
	if found {
		return nil
	}
	if err != nil {
		return fmt.Errorf("error validating audience %q: %w", wanted, err)
	}
	d, _, err := p.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: r.User, Verb: "request-serviceaccounts-token-audience", APIGroup: r.Resource.Group, APIVersion: r.Resource.Version,
		Resource: wanted, Namespace: r.Namespace, Name: r.Name, ResourceRequest: true,
	})
	switch {
	case d == authz.Allow:
		return nil
	case err != nil:
		return fmt.Errorf("error authorizing %s to request tokens for audience %q: %w", r.User.GetName(), wanted, err)
	}
	return fmt.Errorf("%s is not authorized to request tokens for audience %q", r.User.GetName(), wanted)
}

// podAsksFor looks at projected tokens, and at the CSI drivers of the volumes.
func (p *Plugin) podAsksFor(pod *corev1.Pod, audience string) (bool, error) {
	var errs []error
	for _, v := range pod.Spec.Volumes {
		if projects(v, audience) {
			return true, nil
		}
		name, err := p.driverOf(pod, v)
		if err == nil && name != "" {
			var driver *storagev1.CSIDriver
			if driver, err = p.drivers.Get(name); err == nil {
				for _, t := range driver.Spec.TokenRequests {
					if t.Audience == audience {
						return true, nil
					}
				}
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return false, utilerrors.NewAggregate(errs)
}

func projects(v corev1.Volume, audience string) bool {
	if v.Projected == nil {
		return false
	}
	for _, s := range v.Projected.Sources {
		if s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience {
			return true
		}
	}
	return false
}

func (p *Plugin) driverOf(pod *corev1.Pod, v corev1.Volume) (string, error) {
	claim := ""
	switch {
	case v.CSI != nil:
		return v.CSI.Driver, nil
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		claim = ephemeral.VolumeClaimName(pod, &v)
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	default:
		return "", nil
	}
	pvc, err := p.claims.PersistentVolumeClaims(pod.Namespace).Get(claim)
	if err != nil {
		return "", err
	}
	pv, err := p.volumes.Get(pvc.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil {
		return "", err
	}
	return pv.Spec.CSI.Driver, nil
}
