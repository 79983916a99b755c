// SPDX-License-Identifier: Apache-2.0

// Package localvolume is what the parties of the storage class for directories of
// nodes agree on: names, what a volume looks like, and what each of them may do.
//
// The control plane makes and deletes the PersistentVolume (its controller, under an
// account of its own); the node makes the directory when the first pod comes, and
// removes it when the volume is being deleted. A node sees the volumes that are on it
// and no others (label NodeLabel), and of those it may take off one finalizer, once
// they are being deleted. Nothing a node writes makes a volume.
package localvolume

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/storage/volume"
)

const (
	// Provisioner is what a StorageClass names.
	Provisioner = "local.wasmplane.io"
	// Finalizer stays on a volume until its directory is removed.
	Finalizer = Provisioner + "/directory"
	// NodeLabel of a volume is the node that has it (LabelOf).
	NodeLabel = Provisioner + "/node"
	// Offered is the label, with the value "true", of nodes that have room for volumes.
	Offered = Provisioner + "/offered"
	// DirectoryAnnotation of such a node is where its volumes are.
	DirectoryAnnotation = Provisioner + "/directory"
)

// LabelOf is a node's name as the value of a label, which is shorter than names may be.
func LabelOf(node string) string {
	if len(validation.IsValidLabelValue(node)) == 0 {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return hex.EncodeToString(sum[:16])
}

// Ours tells whether a volume is a directory that this package's parties made.
func Ours(pv *corev1.PersistentVolume) bool {
	return pv.Annotations[volume.AnnDynamicallyProvisioned] == Provisioner && pv.Spec.Local != nil
}

// On tells whether a node has the volume.
func On(node string, pv *corev1.PersistentVolume) bool {
	return node != "" && pv.Labels[NodeLabel] == LabelOf(node)
}

// MayUpdate says why a node may not write a volume; nil = it may. All that it may is
// to say that the directory is gone.
func MayUpdate(node string, old, now *corev1.PersistentVolume) error {
	switch {
	case !On(node, old) || !Ours(old):
		return fmt.Errorf("node %q may only update volumes of class provisioner %s that are on itself", node, Provisioner)
	case old.DeletionTimestamp == nil:
		return fmt.Errorf("node %q may only update volumes that are being deleted", node)
	}
	want := slices.DeleteFunc(slices.Clone(old.Finalizers), func(f string) bool { return f == Finalizer })
	if !slices.Equal(want, now.Finalizers) || !equality.Semantic.DeepEqual(bare(old), bare(now)) {
		return fmt.Errorf("node %q may only take off the finalizer %s", node, Finalizer)
	}
	return nil
}

// bare leaves out what MayUpdate has looked at, and what changes by itself.
func bare(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv = pv.DeepCopy()
	pv.Finalizers, pv.ResourceVersion, pv.ManagedFields = nil, "", nil
	return pv
}

// Name of the volume of a claim: made again, it is the same.
func Name(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// New is the volume of a claim, on a node that has a directory for it.
func New(claim *corev1.PersistentVolumeClaim, node *corev1.Node, class string,
	reclaim corev1.PersistentVolumeReclaimPolicy,
) (*corev1.PersistentVolume, error) {
	root := node.Annotations[DirectoryAnnotation]
	if !filepath.IsAbs(root) || filepath.Clean(root) != root || root == "/" {
		return nil, fmt.Errorf("annotation %s of node %s is no directory: %q", DirectoryAnnotation, node.Name, root)
	}
	host := node.Labels[corev1.LabelHostname]
	if host == "" {
		return nil, fmt.Errorf("node %s has no label %s, by which its volumes would be found", node.Name, corev1.LabelHostname)
	}
	mode := corev1.PersistentVolumeFilesystem
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(claim), Labels: map[string]string{NodeLabel: LabelOf(node.Name)}, Finalizers: []string{Finalizer},
			Annotations: map[string]string{volume.AnnDynamicallyProvisioned: Provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes, VolumeMode: &mode,
			PersistentVolumeReclaimPolicy: reclaim, StorageClassName: class,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
				ResourceVersion: claim.ResourceVersion,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: []string{host},
				}},
			}}}},
		},
	}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: filepath.Join(root, pv.Name)}
	return pv, nil
}

// place is the name of a volume's directory in root, once it is sure that there is
// nothing else that the volume could mean.
func place(root string, pv *corev1.PersistentVolume) (string, error) {
	switch {
	case root == "":
		return "", fmt.Errorf("this node has no directory for PV %s: it offers no local volumes", pv.Name)
	case pv.Name == "" || pv.Name == "." || strings.ContainsAny(pv.Name, "/\x00") || strings.HasPrefix(pv.Name, ".."):
		return "", fmt.Errorf("PV name %q is no name of a directory", pv.Name)
	case pv.Spec.Local.Path != filepath.Join(root, pv.Name):
		return "", fmt.Errorf("PV %s is at %s, and this node's volumes are in %s: it was made when the data directory was another", pv.Name, pv.Spec.Local.Path, root)
	}
	return pv.Name, nil
}

// Root makes the directory that has the volumes'. Other users of the machine cannot
// list it, and so cannot find what is in it.
func Root(root string) error {
	if err := os.MkdirAll(root, 0o711); err != nil {
		return fmt.Errorf("make the directory of local volumes: %w", err)
	}
	if err := os.Chmod(root, 0o711); err != nil { //nolint:gosec // x alone: who knows a name may pass, which pods with user namespaces do
		return fmt.Errorf("close the directory of local volumes: %w", err)
	}
	return nil
}

// Make makes a volume's directory, unless it is there. Any user of a pod may write.
func Make(root string, pv *corev1.PersistentVolume) error {
	name, err := place(root, pv)
	if err != nil {
		return err
	}
	in, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("open the directory of local volumes: %w", err)
	}
	defer in.Close()
	info, err := in.Lstat(name)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s is there and no directory", pv.Spec.Local.Path)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look for the directory of PV %s: %w", pv.Name, err)
	}
	// Renamed into place when it is whole: a crash in between leaves nothing half made.
	half := "." + name
	if err := in.RemoveAll(half); err != nil {
		return fmt.Errorf("remove a directory that was half made: %w", err)
	}
	if err := in.Mkdir(half, 0o700); err != nil {
		return fmt.Errorf("make the directory of PV %s: %w", pv.Name, err)
	}
	if err := in.Chmod(half, 0o777); err != nil {
		return fmt.Errorf("open the directory of PV %s to pods: %w", pv.Name, err)
	}
	if err := in.Rename(half, name); err != nil {
		return fmt.Errorf("make the directory of PV %s: %w", pv.Name, err)
	}
	return nil
}

// Remove removes a volume's directory. Links in it are removed, never followed;
// called again it goes on where it stopped. Nothing may be mounted in it: whoever
// calls has to make sure.
func Remove(root string, pv *corev1.PersistentVolume) error {
	name, err := place(root, pv)
	if err != nil {
		return err
	}
	in, err := os.OpenRoot(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the directory of local volumes: %w", err)
	}
	defer in.Close()
	if err := errors.Join(in.RemoveAll(name), in.RemoveAll("."+name)); err != nil {
		return fmt.Errorf("remove the directory of PV %s: %w", pv.Name, err)
	}
	return nil
}
