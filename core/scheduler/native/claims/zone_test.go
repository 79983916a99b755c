// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
)

const (
	zone, region       = corev1.LabelTopologyZone, corev1.LabelTopologyRegion
	oldZone, oldRegion = corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion
)

func labelled(labels ...string) (out map[string]string) {
	out = map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		out[labels[i]] = labels[i+1]
	}
	return out
}

func volumeIn(name string, labels ...string) *corev1.PersistentVolume {
	pv := volumeOn(name, "a", "made", "1Gi")
	pv.Spec.NodeAffinity, pv.Labels = nil, labelled(labels...)
	return pv
}

// TestVolumesAreReachedWithinTheirZones: as upstream's VolumeZone has it.
func TestVolumesAreReachedWithinTheirZones(t *testing.T) {
	const elsewhere = "node(s) had no available volume zone"
	for _, r := range []struct {
		name         string
		volume, node []string
		want         string
	}{
		{"no labels on the volume", nil, []string{zone, "a"}, ""},
		{"no labels on the node", []string{zone, "a"}, nil, ""},
		{"only other labels on the node", []string{zone, "a"}, []string{"disk", "a"}, ""},
		{"the same zone", []string{zone, "a"}, []string{zone, "a"}, ""},
		{"another zone", []string{zone, "a"}, []string{zone, "b"}, elsewhere},
		{"one zone of several", []string{zone, "a__b"}, []string{zone, "b"}, ""},
		{"none of several zones", []string{zone, "a__b"}, []string{zone, "c"}, elsewhere},
		{"spaces in a list", []string{zone, "a __ b"}, []string{zone, "b"}, ""},
		{"a list that cannot be read counts for nothing", []string{zone, "a__"}, []string{zone, "c"}, ""},
		{"the same zone of another region", []string{zone, "a", region, "r"}, []string{zone, "a", region, "s"}, elsewhere},
		{"zone and region", []string{zone, "a", region, "r"}, []string{zone, "a", region, "r"}, ""},
		{"a region where the node says its zone alone", []string{region, "r"}, []string{zone, "a"}, elsewhere},
		{"the older labels on both", []string{oldZone, "a", oldRegion, "r"}, []string{oldZone, "a", oldRegion, "r"}, ""},
		{"an older label on the volume", []string{oldZone, "a"}, []string{zone, "a"}, ""},
		{"an older label of another zone on the volume", []string{oldZone, "a"}, []string{zone, "b"}, elsewhere},
		{"an older label on the node", []string{zone, "a"}, []string{oldZone, "a"}, elsewhere},
		{"the older label of the node goes first", []string{oldZone, "a"}, []string{oldZone, "b", zone, "a"}, elsewhere},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := newCluster(t, volumeIn("v", r.volume...), claim("data", "made", "1Gi", boundTo("v")))
			z := claims.NewZone(c.inf)
			c.start()
			s, p, n := framework.NewState(), podWith("web", "data"), node("n")
			n.Labels = labelled(r.node...)
			_, st := z.PreFilter(t.Context(), s, p, nil)
			if skips := st != nil && st.Code == framework.Skip; !st.IsSuccess() && !skips {
				t.Fatal(st)
			}
			if got := reason(z.Filter(t.Context(), s, p, framework.NewNodeInfo(n))); got != r.want {
				t.Errorf("got %q, want %q", got, r.want)
			}
		})
	}
}

// TestClaimsWithoutAVolumeHaveNoZone: the words are upstream's.
func TestClaimsWithoutAVolumeHaveNoZone(t *testing.T) {
	unset := class("unset", "example.com/disk", waits)
	unset.VolumeBindingMode = nil
	c := newCluster(t, class("later", "example.com/disk", waits), class("at-once", "example.com/disk", immediate), unset,
		claim("later", "later", "1Gi"), claim("at-once", "at-once", "1Gi"), claim("unset", "unset", "1Gi"), claim("classless", "", "1Gi"),
		claim("no-class", "nowhere", "1Gi"), claim("no-volume", "later", "1Gi", boundTo("nowhere")),
	)
	z := claims.NewZone(c.inf)
	c.start()
	for name, want := range map[string]string{
		"later": "", "at-once": "PersistentVolume had no name", "unset": `VolumeBindingMode not set for StorageClass "unset"`,
		"classless": "PersistentVolumeClaim had no pv name and storageClass name", "no-class": `storageclass.storage.k8s.io "nowhere" not found`,
		"no-volume": `persistentvolume "nowhere" not found`, "no-claim": `persistentvolumeclaim "no-claim" not found`, "ephemeral:own": "",
	} {
		_, st := z.PreFilter(t.Context(), framework.NewState(), podWith("web", name), nil)
		switch {
		case want == "" && (st == nil || st.Code != framework.Skip):
			t.Errorf("%s: %v, want to be left out", name, st)
		case want != "" && (st == nil || st.Code != framework.Unresolvable || st.Joined() != want):
			t.Errorf("%s: %+v, want %q", name, st, want)
		}
	}
}

// TestWhatMayBringAVolumeIntoReach: events, and which object they are about.
func TestWhatMayBringAVolumeIntoReach(t *testing.T) {
	z := &claims.Zone{}
	for _, e := range []framework.ClusterEvent{framework.NodeAdded, framework.NodeLabelsChanged, framework.VolumesChanged} {
		if z.Hints()&e == 0 {
			t.Errorf("event %b does not bring the pod back", e)
		}
	}
	foreign := claim("data", "made", "1Gi")
	foreign.Namespace = "other"
	for name, r := range map[string]struct {
		old, now runtime.Object
		want     bool
	}{
		"its claim":                                  {nil, claim("data", "made", "1Gi"), true},
		"its claim gets a volume":                    {claim("data", "made", "1Gi"), claim("data", "made", "1Gi", boundTo("v")), true},
		"another claim":                              {nil, claim("other", "made", "1Gi"), false},
		"a claim of another namespace":               {nil, foreign, false},
		"a new volume":                               {nil, volumeIn("v"), true},
		"a volume as it was":                         {volumeIn("v", zone, "a"), volumeIn("v", zone, "a", "disk", "ssd"), false},
		"a volume that moved":                        {volumeIn("v", zone, "a"), volumeIn("v", zone, "b"), true},
		"a volume whose zones come in another order": {volumeIn("v", zone, "a__b"), volumeIn("v", zone, "b__a"), false},
		"a volume that is gone":                      {volumeIn("v", zone, "a"), nil, false},
		"a class for later":                          {nil, class("made", "example.com/disk", waits), true},
		"a class for at once":                        {nil, class("made", "example.com/disk", immediate), false},
		"a class that changed":                       {class("made", "x", waits), class("made", "x", waits), false},
	} {
		if got := z.Helped(podWith("web", "data"), r.old, r.now); got != r.want {
			t.Errorf("%s: helps %t, want %t", name, got, r.want)
		}
	}
}
