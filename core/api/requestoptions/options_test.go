// SPDX-License-Identifier: Apache-2.0

package requestoptions_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/api/requestoptions"
	"github.com/wasmplane/wasmplane/core/object"
)

func TestOptionsAreReadAndValidated(t *testing.T) {
	query := func(kv ...string) map[string][]string {
		m := map[string][]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = append(m[kv[i]], kv[i+1])
		}
		return m
	}
	list, err := requestoptions.List(query("labelSelector", "a=b,c!=d", "fieldSelector", "metadata.name=x", "limit", "5",
		"watch", "true", "allowWatchBookmarks", "1"))
	if err != nil || list.LabelSelector.String() != "a=b,c!=d" || list.Limit != 5 || !list.Watch || !list.AllowWatchBookmarks {
		t.Errorf("%+v %v", list, err)
	}
	for _, bad := range []map[string][]string{
		query("labelSelector", "a in"), query("resourceVersionMatch", "Exact"), query("sendInitialEvents", "true"), query("limit", "x"),
	} {
		if o, err := requestoptions.List(bad); err == nil {
			t.Errorf("%v was accepted: %+v", bad, o)
		}
	}
	if _, err := requestoptions.Create(query("dryRun", "Some")); !apierrors.IsInvalid(err) {
		t.Errorf("dryRun=Some: %v", err)
	}
	if _, err := requestoptions.Patch(query("force", "true"), types.MergePatchType); !apierrors.IsInvalid(err) {
		t.Errorf("force on a merge patch: %v", err)
	}
	if _, err := requestoptions.Patch(query(), types.ApplyYAMLPatchType); !apierrors.IsInvalid(err) {
		t.Errorf("apply without a manager: %v", err)
	}
	del, err := requestoptions.Delete(query("gracePeriodSeconds", "3", "propagationPolicy", "Foreground"), nil, "")
	if err != nil || *del.GracePeriodSeconds != 3 || *del.PropagationPolicy != metav1.DeletePropagationForeground {
		t.Errorf("%+v %v", del, err)
	}
	for _, body := range []string{
		`{"gracePeriodSeconds":0,"preconditions":{"uid":"u"}}`,
		`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"preconditions":{"uid":"u"}}`,
		`{"kind":"DeleteOptions","apiVersion":"apps/v1","gracePeriodSeconds":0,"preconditions":{"uid":"u"}}`,
	} {
		del, err := requestoptions.Delete(nil, []byte(body), object.JSON)
		if err != nil || *del.GracePeriodSeconds != 0 || *del.Preconditions.UID != "u" {
			t.Errorf("%s: %+v %v", body, del, err)
		}
	}
	if _, err := requestoptions.Delete(nil, []byte(`{"propagationPolicy":"Sideways"}`), object.JSON); !apierrors.IsInvalid(err) {
		t.Errorf("propagationPolicy=Sideways: %v", err)
	}
}
