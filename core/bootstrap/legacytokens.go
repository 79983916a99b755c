// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// LegacyTokenTracking is the ConfigMap of kube-system that says since which day the Secrets of used tokens are
// labelled (core/api/satoken). The name and its key are upstream's.
const (
	LegacyTokenTracking = "kube-apiserver-legacy-service-account-token-tracking"
	trackedSince        = "since"
	trackedDay          = "2006-01-02"
	// trackingCheck is how soon one that was deleted is made again, with the day of then.
	trackingCheck = 30 * time.Minute
)

// legacyTokenTracking writes that from today on it is known which tokens are used. A day that is there stays.
func (b *Bootstrap) legacyTokenTracking(ctx context.Context) error {
	api, today := b.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem), time.Now().UTC().Format(trackedDay)
	has, err := api.Get(ctx, LegacyTokenTracking, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: LegacyTokenTracking}, Data: map[string]string{trackedSince: today},
		}, metav1.CreateOptions{})
		err = made(err)
	case err == nil:
		if _, wrong := time.Parse(trackedDay, has.Data[trackedSince]); wrong == nil {
			return nil
		}
		has = has.DeepCopy()
		if has.Data == nil {
			has.Data = map[string]string{}
		}
		has.Data[trackedSince] = today
		if _, err = api.Update(ctx, has, metav1.UpdateOptions{}); apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // somebody else works on it
		}
	}
	if err != nil {
		return fmt.Errorf("config map %s: %w", LegacyTokenTracking, err)
	}
	return nil
}

func (b *Bootstrap) keepLegacyTokenTracking(ctx context.Context) {
	for run.Sleep(ctx, trackingCheck) {
		if err := b.legacyTokenTracking(ctx); err != nil && ctx.Err() == nil {
			b.cfg.Log.WarnContext(ctx, "since when the use of tokens is known could not be written; this is tried again", "error", err)
		}
	}
}
