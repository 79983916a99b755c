// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An owner is read once after a child of it has vanished, and again until the server has the
// same one that the cache shows.
func TestVanished(t *testing.T) {
	v := NewVanished()
	owner := func(uid types.UID) *corev1.ReplicationController {
		return &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "o", Namespace: "n", UID: uid}}
	}
	key := Key{Namespace: "n", Name: "o"}
	leaving := owner("old")
	leaving.DeletionTimestamp = new(metav1.Now())
	unreachable := errors.New("unreachable")
	for _, step := range []struct {
		about string
		note  bool
		live  *corev1.ReplicationController
		fails error
		want  error
		reads int
	}{
		{about: "nothing has vanished", live: owner("new")},
		{about: "made anew", note: true, live: owner("new"), want: ErrStale, reads: 1},
		{about: "still made anew", live: owner("new"), want: ErrStale, reads: 1},
		{about: "gone", fails: apierrors.NewNotFound(corev1.Resource("x"), "o"), want: ErrStale, reads: 1},
		{about: "leaving", live: leaving, want: ErrStale, reads: 1},
		{about: "nobody answers", fails: unreachable, want: unreachable, reads: 1},
		{about: "the same", live: owner("old"), reads: 1},
		{about: "known to be the same", live: owner("new")},
	} {
		if step.note {
			v.Note(key)
		}
		reads := 0
		err := v.Sure(t.Context(), owner("old"), func(context.Context) (metav1.Object, error) {
			reads++
			return step.live, step.fails
		})
		if !errors.Is(err, step.want) || reads != step.reads {
			t.Errorf("%s: %v after %d reads, want %v after %d", step.about, err, reads, step.want, step.reads)
		}
	}
	v.Note(key)
	if v.Forget(key); len(v.by) != 0 {
		t.Errorf("remembered: %v", v.by)
	}
}
