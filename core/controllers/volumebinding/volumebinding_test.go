// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func aVolume(name, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		},
	}
	for _, f := range change {
		f(pv)
	}
	return pv
}

func aClaim(name, size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeClaimSpec{
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: ptr.To(""),
		}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func aClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}, Provisioner: provisioner,
		VolumeBindingMode: &mode,
	}
}

type world struct {
	*controllertest.Cluster
	t *testing.T
}

func start(t *testing.T, objects ...runtime.Object) world {
	t.Helper()
	w := world{controllertest.New(objects...), t}
	b, err := New(w.Env(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	w.Start(t, b)
	return w
}

func (w world) claim(name string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c, err := w.Client.CoreV1().PersistentVolumeClaims("a").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w world) volume(name string) *corev1.PersistentVolume {
	w.t.Helper()
	pv, err := w.Client.CoreV1().PersistentVolumes().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pv
}

// state of a claim and a volume, as "Phase of the other".
func (w world) state(kind, name string) string {
	w.t.Helper()
	if kind == "claim" {
		c := w.claim(name)
		return strings.TrimSpace(string(c.Status.Phase) + " " + c.Spec.VolumeName)
	}
	pv := w.volume(name)
	if pv.Spec.ClaimRef == nil {
		return string(pv.Status.Phase)
	}
	return string(pv.Status.Phase) + " " + pv.Spec.ClaimRef.Name
}

func (w world) becomes(kind, name, want string) {
	w.t.Helper()
	controllertest.Eventually(w.t, func() error {
		if got := w.state(kind, name); got != want {
			return fmt.Errorf("%s %s: %q, want %q", kind, name, got, want)
		}
		return nil
	})
}

// event waits for one that contains the words.
func (w world) event(words string) {
	w.t.Helper()
	var seen []string
	controllertest.Eventually(w.t, func() error {
		for {
			select {
			case e := <-w.Events.Events:
				seen = append(seen, e)
				if strings.Contains(e, words) {
					return nil
				}
			default:
				return fmt.Errorf("no event says %q; there were %q", words, seen)
			}
		}
	})
}

// A claim gets the smallest volume that fits, and both say so.
func TestAClaimGetsTheSmallestThatFits(t *testing.T) {
	w := start(t, aVolume("small", "1Gi"), aVolume("large", "9Gi"), aVolume("fits", "5Gi"))
	for _, name := range []string{"small", "large", "fits"} {
		w.becomes("volume", name, "Available") // a volume that is not, no claim gets
	}
	if _, err := w.Client.CoreV1().PersistentVolumeClaims("a").Create(t.Context(), aClaim("c", "2Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.becomes("claim", "c", "Bound fits")
	w.becomes("volume", "fits", "Bound c")
	w.becomes("volume", "large", "Available")
	c, pv := w.claim("c"), w.volume("fits")
	if got := c.Status.Capacity[corev1.ResourceStorage]; got.String() != "5Gi" || len(c.Status.AccessModes) != 1 {
		t.Errorf("the claim's status is %v", c.Status)
	}
	if c.Annotations[volume.AnnBindCompleted] == "" || c.Annotations[volume.AnnBoundByController] == "" ||
		pv.Annotations[volume.AnnBoundByController] == "" {
		t.Errorf("annotations: claim %v, volume %v", c.Annotations, pv.Annotations)
	}
	if pv.Spec.ClaimRef.UID != c.UID || pv.Spec.ClaimRef.Kind != "PersistentVolumeClaim" {
		t.Errorf("the volume's claim is %v", pv.Spec.ClaimRef)
	}
}

// A volume that somebody meant for a claim is its, and nobody else's.
func TestWhatIsMeantForAClaimIsIts(t *testing.T) {
	meant := func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: "late"}
	}
	w := start(t, aVolume("meant", "1Gi", meant), aClaim("early", "1Gi"))
	w.event("no persistent volumes available for this claim and no storage class is set")
	w.becomes("volume", "meant", "Available late")
	if _, err := w.Client.CoreV1().PersistentVolumeClaims("a").Create(t.Context(), aClaim("late", "1Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.becomes("claim", "late", "Bound meant")
	if by := w.volume("meant").Annotations[volume.AnnBoundByController]; by != "" {
		t.Error("the volume is said to be bound by the controller")
	}
	w.becomes("claim", "early", "Pending")
}

// A volume that was meant for a claim is its, though their classes differ.
func TestWhatIsMeantForAClaimMayBeOfAnotherClass(t *testing.T) {
	w := start(t, aVolume("meant", "1Gi", func(pv *corev1.PersistentVolume) {
		pv.Spec.StorageClassName = "one"
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: "c"}
	}), aClaim("c", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("nowhere") }))
	w.becomes("claim", "c", "Bound meant")
	w.becomes("volume", "meant", "Bound c")
}

// A claim that names its volume gets it, or is told why not.
func TestAClaimMayNameItsVolume(t *testing.T) {
	named := func(name string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = name }
	}
	w := start(t, aVolume("one", "1Gi"), aClaim("large", "2Gi", named("one")))
	w.event(`Cannot bind to requested volume "one": requested PV is too small`)
	w = start(t, aVolume("one", "1Gi"), aClaim("fits", "1Gi", named("one")))
	w.becomes("claim", "fits", "Bound one")
	if by := w.claim("fits").Annotations[volume.AnnBoundByController]; by != "" {
		t.Error("the claim is said to be bound by the controller")
	}
	if _, err := w.Client.CoreV1().PersistentVolumeClaims("a").Create(t.Context(), aClaim("second", "1Gi", named("one")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.event(`volume "one" already bound to a different claim.`)
	w.becomes("claim", "second", "Pending one")
	// A volume that comes later is bound then.
	if _, err := w.Client.CoreV1().PersistentVolumeClaims("a").Create(t.Context(), aClaim("third", "1Gi", named("later")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.event(`volume "later", which the claim asks for, does not exist`)
	if _, err := w.Client.CoreV1().PersistentVolumes().Create(t.Context(), aVolume("later", "1Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.becomes("claim", "third", "Bound later")
}

// A class that waits for its first consumer asks for a volume when a node is chosen,
// and others at once.
func TestProvisionersAreAsked(t *testing.T) {
	waits, at := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	of := func(class string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class }
	}
	inClass := func(class string) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = class }
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "used"}}},
	}}}
	w := start(t, aClass("waits", "maker.example.com", waits), aClass("soon", "maker.example.com", at),
		aClass("people", "kubernetes.io/no-provisioner", at), pod,
		aVolume("idle", "1Gi", inClass("waits")), // only a scheduler may choose it
		aClaim("unused", "1Gi", of("waits")), aClaim("used", "1Gi", of("waits")), aClaim("soon", "1Gi", of("soon")),
		aClaim("by-hand", "1Gi", of("people")), aClaim("nowhere", "1Gi", of("gone")))
	asked := func(name string) string { return w.claim(name).Annotations[volume.AnnStorageProvisioner] }
	controllertest.Eventually(t, func() error {
		if asked("soon") != "maker.example.com" {
			return fmt.Errorf("asked: %q", asked("soon"))
		}
		return nil
	})
	for _, words := range []string{
		"waiting for first consumer", "waiting for pod p to be scheduled", "no volume plugin matched name",
		`"gone" not found`,
	} {
		w := start(t, aClass("waits", "maker.example.com", waits), aClass("people", "kubernetes.io/no-provisioner", at), pod,
			aClaim("unused", "1Gi", of("waits")), aClaim("used", "1Gi", of("waits")), aClaim("by-hand", "1Gi", of("people")),
			aClaim("nowhere", "1Gi", of("gone")))
		w.event(words)
	}
	if asked("unused") != "" || asked("used") != "" || w.state("volume", "idle") != "Available" {
		t.Error("a volume was chosen or asked for before a node was")
	}
	used := w.claim("used")
	used.Annotations[volume.AnnSelectedNode] = "n1"
	if _, err := w.Client.CoreV1().PersistentVolumeClaims("a").Update(t.Context(), used, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if asked("used") != "maker.example.com" {
			return fmt.Errorf("asked: %q", asked("used"))
		}
		return nil
	})
	made := aVolume("made", "1Gi", inClass("waits"), func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: "used", UID: used.UID}
		pv.Annotations[volume.AnnDynamicallyProvisioned] = "maker.example.com"
	})
	if _, err := w.Client.CoreV1().PersistentVolumes().Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.becomes("claim", "used", "Bound made")
	w.becomes("volume", "made", "Bound used")
}

// A claim without a class gets the default one, also where that comes later.
func TestALateDefaultClass(t *testing.T) {
	w := start(t, aClaim("c", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }))
	w.event("no storage class is set")
	late := aClass("late", "maker.example.com", storagev1.VolumeBindingImmediate)
	late.Annotations["storageclass.kubernetes.io/is-default-class"] = "true"
	if _, err := w.Client.StorageV1().StorageClasses().Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if c := w.claim("c"); ptr.Deref(c.Spec.StorageClassName, "") != "late" ||
			c.Annotations[volume.AnnStorageProvisioner] != "maker.example.com" {
			return fmt.Errorf("class %v, annotations %v", c.Spec.StorageClassName, c.Annotations)
		}
		return nil
	})
}

// What becomes of a volume whose claim is gone is the policy's matter.
func TestVolumesAreReleased(t *testing.T) {
	policy := func(p corev1.PersistentVolumeReclaimPolicy, maker string) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = p
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: pv.Name}
			if maker != "" {
				pv.Annotations[volume.AnnDynamicallyProvisioned] = maker
			}
		}
	}
	w := start(t,
		aVolume("kept", "1Gi", policy(corev1.PersistentVolumeReclaimRetain, "")), aClaim("kept", "1Gi"),
		aVolume("made", "1Gi", policy(corev1.PersistentVolumeReclaimDelete, "maker.example.com")), aClaim("made", "1Gi"),
		aVolume("orphan", "1Gi", policy(corev1.PersistentVolumeReclaimDelete, "")), aClaim("orphan", "1Gi"))
	for _, name := range []string{"kept", "made", "orphan"} {
		w.becomes("claim", name, "Bound "+name)
		w.becomes("volume", name, "Bound "+name)
	}
	for _, name := range []string{"kept", "made", "orphan"} {
		if err := w.Client.CoreV1().PersistentVolumeClaims("a").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.becomes("volume", "kept", "Released kept")
	w.becomes("volume", "made", "Released made")
	w.becomes("volume", "orphan", "Failed orphan")
	w.event("no deletable volume plugin matched")
	// A claim of the same name is another claim: it does not get the old one's data.
	if _, err := w.Client.CoreV1().PersistentVolumeClaims("a").Create(t.Context(), aClaim("kept", "1Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.event("no persistent volumes available")
	w.becomes("claim", "kept", "Pending")
	w.becomes("volume", "kept", "Released kept")
}

// A claim whose volume goes away has lost its data, and says so.
func TestALostVolume(t *testing.T) {
	w := start(t, aVolume("v", "1Gi"), aClaim("c", "1Gi"))
	w.becomes("claim", "c", "Bound v")
	if err := w.Client.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.becomes("claim", "c", "Lost v")
	w.event("Bound claim has lost its PersistentVolume. Data on the volume is lost!")
}

// The cache has not seen a claim that a volume names. Its volume is not released, for
// what is released may be destroyed.
func TestABehindCacheReleasesNothing(t *testing.T) {
	pv := aVolume("v", "1Gi", func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: "c", UID: "u"}
		pv.Status.Phase = corev1.VolumeBound
	})
	for away, want := range map[bool]corev1.PersistentVolumePhase{false: "", true: corev1.VolumeReleased} {
		p, err := planVolume(nothing{}, pv, func(*corev1.ObjectReference) (bool, error) { return away, nil })
		if err != nil || p.phase != want {
			t.Errorf("gone %t: %+v, %v", away, p, err)
		}
	}
}

// nothing is a view of an empty cluster.
type nothing struct{}

func (nothing) volume(string) (*corev1.PersistentVolume, error)    { return nil, nil }
func (nothing) volumes(string) ([]*corev1.PersistentVolume, error) { return nil, nil }
func (nothing) meant(*corev1.PersistentVolumeClaim) ([]*corev1.PersistentVolume, error) {
	return nil, nil
}
func (nothing) claim(string, string) (*corev1.PersistentVolumeClaim, error) { return nil, nil }
func (nothing) class(string) (*storagev1.StorageClass, error)               { return nil, nil }
func (nothing) defaultClass() (*storagev1.StorageClass, error)              { return nil, nil }
func (nothing) waiting(*corev1.PersistentVolumeClaim) ([]string, error)     { return nil, nil }

// Whatever there is, in the end each pair names each other, each claim has what it
// asked for, and no claim waits while a volume that fits is free.
func TestPairsAreMutual(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany}
			var objects []runtime.Object
			for i := range 8 {
				objects = append(objects, aVolume(fmt.Sprintf("v%d", i), fmt.Sprintf("%dGi", 1+r.IntN(4)), func(pv *corev1.PersistentVolume) {
					pv.Spec.AccessModes = modes[:1+r.IntN(3)]
					if r.IntN(5) == 0 {
						pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: fmt.Sprintf("c%d", r.IntN(8))}
					}
				}), aClaim(fmt.Sprintf("c%d", i), fmt.Sprintf("%dGi", 1+r.IntN(4)), func(c *corev1.PersistentVolumeClaim) {
					c.Spec.AccessModes = modes[:1+r.IntN(3)]
					if r.IntN(5) == 0 {
						c.Spec.VolumeName = fmt.Sprintf("v%d", r.IntN(8))
					}
				}))
			}
			w := start(t, objects...)
			controllertest.Eventually(t, func() error { return w.mutual(t.Context()) })
		})
	}
}

// mutual says what is wrong with the pairs.
func (w world) mutual(ctx context.Context) error {
	claims, err1 := w.Client.CoreV1().PersistentVolumeClaims("a").List(ctx, metav1.ListOptions{})
	volumes, err2 := w.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err1 != nil || err2 != nil {
		return fmt.Errorf("%w, %w", err1, err2)
	}
	byName := map[string]*corev1.PersistentVolume{}
	for i := range volumes.Items {
		byName[volumes.Items[i].Name] = &volumes.Items[i]
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		pv := byName[c.Spec.VolumeName]
		if c.Status.Phase == corev1.ClaimBound {
			if pv == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != c.UID || pv.Status.Phase != corev1.VolumeBound {
				return fmt.Errorf("%s is bound to %q, which is of another", c.Name, c.Spec.VolumeName)
			}
			continue
		}
		for _, pv := range byName {
			free := pv.Spec.ClaimRef == nil && c.Spec.VolumeName == ""
			if free && mismatch(pv, c) == "" {
				return fmt.Errorf("%s waits, and %s is free", c.Name, pv.Name)
			}
		}
	}
	for _, pv := range byName {
		bound := pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != ""
		if bound != (pv.Status.Phase == corev1.VolumeBound) {
			return fmt.Errorf("%s is %s of %v", pv.Name, pv.Status.Phase, pv.Spec.ClaimRef)
		}
	}
	return nil
}

// A claim is told how large the file system of its volume is, where that is less than
// the volume: a node then lets it grow.
func TestAVolumeWhoseFileSystemHasToGrow(t *testing.T) {
	grown := func(value string) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) {
			pv.Annotations[preResize] = value
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: pv.Name}
		}
	}
	w := start(t, aVolume("grown", "6Gi", grown("1Gi")), aVolume("odd", "6Gi", grown("large")), aClaim("grown", "6Gi"), aClaim("odd", "6Gi"))
	for name, want := range map[string]string{"grown": "1Gi", "odd": "6Gi"} {
		w.becomes("claim", name, "Bound "+name)
		controllertest.Eventually(t, func() error {
			if has := w.claim(name).Status.Capacity[corev1.ResourceStorage]; has.String() != want {
				return fmt.Errorf("claim %s has %s, want %s", name, has.String(), want)
			}
			return nil
		})
	}
}
