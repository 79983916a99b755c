// SPDX-License-Identifier: Apache-2.0

package localprovision_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/controllers/localprovision"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

const selected = "volume.kubernetes.io/selected-node"

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, localvolume.Offered: "true"},
		Annotations: map[string]string{localvolume.DirectoryAnnotation: "/data/volumes"},
	}}
	n.Status.Capacity = corev1.ResourceList{"ephemeral-storage": resource.MustParse("10Gi")}
	for _, f := range change {
		f(n)
	}
	return n
}

func class(name string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	s := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: localvolume.Provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimRetain),
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func claim(name, node string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)}}
	c.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To("local"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
	}
	if node != "" {
		c.Annotations = map[string]string{selected: node}
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func deletes(s *storagev1.StorageClass) {
	s.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimDelete)
}

// withDriver is a node that makes volumes by its CSI driver.
func withDriver(n *corev1.Node) { n.Annotations[localvolume.DriverAnnotation] = "true" }

func start(t *testing.T, objects ...runtime.Object) *controllertest.Cluster {
	t.Helper()
	return startWith(t, nil, objects...)
}

func startWith(t *testing.T, snapshots []runtime.Object, objects ...runtime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(objects...)
	ctl, err := localprovision.New(c.Env(t), 2, dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), snapshots...))
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	return c
}

func event(c *controllertest.Cluster, want string) func() error {
	return func() error {
		select {
		case e := <-c.Events.Events:
			if strings.Contains(e, want) {
				return nil
			}
			return fmt.Errorf("an event says %q, want %q", e, want)
		default:
			return fmt.Errorf("no event, want %q", want)
		}
	}
}

// TestAVolumeIsMadeWhereTheSchedulerChose: as the class and the claim say, and not
// before a node is chosen.
func TestAVolumeIsMadeWhereTheSchedulerChose(t *testing.T) {
	c := start(t, node("a"), class("local"), claim("data", "a"), claim("waits", ""),
		claim("others", "a", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("other") }))
	var pv *corev1.PersistentVolume
	controllertest.Eventually(t, func() (err error) {
		pv, err = c.Client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-of-data", metav1.GetOptions{})
		return err
	})
	ref, s := pv.Spec.ClaimRef, pv.Spec
	if ref == nil || ref.Name != "data" || ref.Namespace != "default" || ref.UID != "uid-of-data" || ref.Kind != "PersistentVolumeClaim" {
		t.Errorf("claimRef %v", ref)
	}
	if s.Local == nil || s.Local.Path != "/data/volumes/pvc-uid-of-data" || s.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || s.StorageClassName != "local" || s.Capacity.Storage().String() != "1Gi" {
		t.Errorf("spec %+v", s)
	}
	if !localvolume.Ours(pv) || !localvolume.On("a", pv) || len(pv.Finalizers) != 1 || pv.Finalizers[0] != localvolume.Finalizer {
		t.Errorf("metadata %+v", pv.ObjectMeta)
	}
	if terms := s.NodeAffinity.Required.NodeSelectorTerms; len(terms) != 1 || terms[0].MatchExpressions[0].Key != "kubernetes.io/hostname" ||
		terms[0].MatchExpressions[0].Values[0] != "a" {
		t.Errorf("node affinity %v", terms)
	}
	controllertest.Eventually(t, event(c, "Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-of-data: pods may write more to it than its size"))
	all, err := c.Client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 {
		t.Errorf("%d volumes (%v), want one", len(all.Items), err)
	}
}

// TestANodeThatWillNotDoIsGivenBack: the scheduler may choose another, and the claim says why.
func TestANodeThatWillNotDoIsGivenBack(t *testing.T) {
	for want, objects := range map[string][]runtime.Object{
		"node a is not there any more":   nil,
		"node a offers no local volumes": {node("a", func(n *corev1.Node) { delete(n.Labels, localvolume.Offered) })},
		"the disk of node a is nearly full": {node("a", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}}
		})},
		"1Gi are asked for, and the disk of node a has 512Mi": {node("a", func(n *corev1.Node) {
			n.Status.Capacity["ephemeral-storage"] = resource.MustParse("512Mi")
		})},
		"is no directory": {node("a", func(n *corev1.Node) { n.Annotations[localvolume.DirectoryAnnotation] = "/" })},
	} {
		t.Run(want, func(t *testing.T) {
			c := start(t, append(objects, class("local"), claim("data", "a"))...)
			controllertest.Eventually(t, event(c, want))
			controllertest.Eventually(t, func() error {
				got, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data", metav1.GetOptions{})
				if err == nil && got.Annotations[selected] != "" {
					err = errors.New("the node is chosen still")
				}
				return err
			})
			if all, err := c.Client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) != 0 {
				t.Errorf("volumes were made: %v %v", all.Items, err)
			}
		})
	}
}

// TestWhatADirectoryCannotBe: the claim says why it waits.
func TestWhatADirectoryCannotBe(t *testing.T) {
	for want, objects := range map[string][]runtime.Object{
		"make a class with volumeBindingMode: WaitForFirstConsumer": {claim("data", "a"), class("local", func(s *storagev1.StorageClass) { s.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate) })},
		"node a has no driver local.wasmplane.io": {class("local"), claim("data", "a", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		})},
		"accessModes may be ReadWriteOnce or ReadWriteOncePod": {class("local"), claim("data", "a", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
		})},
		"leave out spec.selector": {class("local"), claim("data", "a", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{}
		})},
		"claim other, of which it is to be a clone, does not exist": {class("local"), claim("data", "a", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		})},
	} {
		t.Run(want, func(t *testing.T) {
			c := start(t, append(objects, node("a"))...)
			controllertest.Eventually(t, event(c, want))
		})
	}
}

// released is a volume whose claim is gone.
func released(name string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv, err := localvolume.New(claim(name, "a"), node("a"), class("local", deletes), "")
	if err != nil {
		panic(err)
	}
	pv.Status.Phase = corev1.VolumeReleased
	if change != nil {
		change(pv)
	}
	return pv
}

// TestReleasedVolumesAreDeleted: those of this provisioner whose class says so. The
// finalizer stays until the node has done its part, or has left.
func TestReleasedVolumesAreDeleted(t *testing.T) {
	c := start(t, node("a"),
		released("goes", nil),
		released("kept", func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}),
		released("used", func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound }),
		released("others", func(pv *corev1.PersistentVolume) { pv.Annotations["pv.kubernetes.io/provisioned-by"] = "other" }),
		released("orphan", func(pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp, pv.Labels[localvolume.NodeLabel] = &metav1.Time{Time: metav1.Now().Time}, "left"
		}),
		released("waits", func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = &metav1.Time{Time: metav1.Now().Time} }),
	)
	volumes := c.Client.CoreV1().PersistentVolumes()
	controllertest.Eventually(t, func() error {
		// The fake removes at once what a server would mark.
		if _, err := volumes.Get(t.Context(), "pvc-uid-of-goes", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	controllertest.Eventually(t, func() error {
		pv, err := volumes.Get(t.Context(), "pvc-uid-of-orphan", metav1.GetOptions{})
		if err == nil && len(pv.Finalizers) > 0 {
			return fmt.Errorf("finalizers %v", pv.Finalizers)
		}
		return nil
	})
	for _, name := range []string{"kept", "used", "others", "waits"} {
		if pv, err := volumes.Get(t.Context(), "pvc-uid-of-"+name, metav1.GetOptions{}); err != nil || len(pv.Finalizers) != 1 {
			t.Errorf("%s: %v %v", name, pv, err)
		}
	}
}

// TestTheClassIsMadeOnce: whoever deletes it has it deleted for good.
func TestTheClassIsMadeOnce(t *testing.T) {
	c := start(t, node("a"))
	classes := c.Client.StorageV1().StorageClasses()
	marker := corev1.SchemeGroupVersion.WithResource("configmaps")
	controllertest.Eventually(t, func() error {
		_, err := c.Client.Tracker().Get(marker, "kube-system", localprovision.MarkerName)
		return err
	})
	const before = 1 // look at the marker, which was not there
	s, err := classes.Get(t.Context(), localprovision.ClassName, metav1.GetOptions{})
	if err != nil || s.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" || s.Provisioner != localvolume.Provisioner ||
		*s.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		t.Fatalf("the class: %+v %v", s, err)
	}
	if err := classes.Delete(t.Context(), localprovision.ClassName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The second of these is looked at when the first has been.
	for i, name := range []string{"b", "c"} {
		if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), node(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, func() error {
			asked := 0
			for _, a := range c.Client.Actions() {
				if a.Matches("get", "configmaps") {
					asked++
				}
			}
			if asked < before+i+1 {
				return fmt.Errorf("the marker was looked for %d times", asked)
			}
			return nil
		})
	}
	if _, err := classes.Get(t.Context(), localprovision.ClassName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the class that was deleted is there again: %v", err)
	}
}

// TestAnotherDefaultStaysTheDefault: and where no node offers room, there is no class.
func TestAnotherDefaultStaysTheDefault(t *testing.T) {
	other := class("theirs", func(s *storagev1.StorageClass) {
		s.Provisioner, s.Annotations = "theirs", map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	})
	c := start(t, node("a"), other)
	controllertest.Eventually(t, func() error {
		s, err := c.Client.StorageV1().StorageClasses().Get(t.Context(), localprovision.ClassName, metav1.GetOptions{})
		if err == nil && s.Annotations["storageclass.kubernetes.io/is-default-class"] != "false" {
			return fmt.Errorf("annotations %v", s.Annotations)
		}
		return err
	})
}
