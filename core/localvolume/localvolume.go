// SPDX-License-Identifier: Apache-2.0

// Package localvolume has the conventions that controller, nodes and admission share for the
// storage class of the nodes' own disks: names, the form of a volume, and what each of them
// may do.
//
// The control plane makes and deletes the PersistentVolume (its controller, under an
// account of its own); the node makes what is behind it, by its CSI driver and by what
// the volume's attributes say (Wanted), and removes it when the volume is being deleted.
// A node without the driver, of an older version, makes directories (kind local); what
// was made so stays so. A node sees the volumes that are on it
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
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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
	// DirectoryAnnotation of such a node is where its volumes of kind local are.
	DirectoryAnnotation = Provisioner + "/directory"
	// DriverAnnotation of such a node, with the value "true", says that it makes volumes by
	// its CSI driver, which is called as the Provisioner.
	DriverAnnotation = Provisioner + "/driver"

	// LimitParameter of a class says what holds pods to the size of a volume of volumeMode Filesystem: LimitImage, or
	// nothing where it is not there. A block device has its size anyhow.
	LimitParameter = Provisioner + "/limit"
	// LimitImage makes the volume a file system of its own, in a file of the size that the claim asks for.
	LimitImage = "image"
	// LimitsAnnotation of a node says by what its driver can hold pods to a size: LimitImage. A driver of an older
	// version would make a directory without a limit.
	LimitsAnnotation = Provisioner + "/limits"

	sizeAttribute   = "size"   // in bytes
	sourceAttribute = "source" // what a copy is to be made of
	limitAttribute  = "limit"  // as the class says it

	// SourceVolume is, with an ID after it, a volume that a copy is made of.
	SourceVolume = "volumes/"
	// SourceSnapshot is, with an ID after it, a snapshot that a copy is made of.
	SourceSnapshot = "snapshots/"
)

// Wanted is what a node's driver is to make.
type Wanted struct {
	// ID of the volume, which is its name too.
	ID    string
	Bytes int64
	Block bool
	// Limit is "" or LimitImage.
	Limit string
	// Source is "" for an empty volume.
	Source string
}

// WantedOf is what a volume says of itself.
func WantedOf(pv *corev1.PersistentVolume) (*Wanted, error) {
	c := pv.Spec.CSI
	if !Ours(pv) || c == nil {
		return nil, fmt.Errorf("PV %s is no volume of the driver %s", pv.Name, Provisioner)
	}
	if c.VolumeHandle != pv.Name {
		return nil, fmt.Errorf("PV %s is of the volume %q, which is another's", pv.Name, c.VolumeHandle)
	}
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
	want, err := ByAttributes(pv.Name, block, c.VolumeAttributes)
	if err == nil && want == nil {
		err = fmt.Errorf("PV %s has no attribute %s, by which its node would make it", pv.Name, sizeAttribute)
	}
	return want, err
}

// ByAttributes is what a volume's attributes say; nil where they don't say that the node
// is to make it.
func ByAttributes(id string, block bool, attributes map[string]string) (*Wanted, error) {
	text, ok := attributes[sizeAttribute]
	if !ok {
		return nil, nil
	}
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil || size <= 0 {
		return nil, fmt.Errorf("attribute %s of volume %s is no number of bytes: %q", sizeAttribute, id, text)
	}
	limit, err := limitOf(attributes[limitAttribute])
	if err != nil || block {
		limit = ""
	}
	if err != nil {
		return nil, fmt.Errorf("attribute %s of volume %s: %w", limitAttribute, id, err)
	}
	return &Wanted{ID: id, Bytes: size, Block: block, Limit: limit, Source: attributes[sourceAttribute]}, nil
}

// LimitOf is what the parameters of a class say holds pods to a volume's size: "" or LimitImage.
func LimitOf(parameters map[string]string) (string, error) {
	limit, err := limitOf(parameters[LimitParameter])
	if err != nil {
		return "", fmt.Errorf("parameter %s of the class: %w", LimitParameter, err)
	}
	return limit, nil
}

func limitOf(text string) (string, error) {
	if text != "" && text != LimitImage {
		return "", fmt.Errorf("expected %q, or none at all, found %q", LimitImage, text)
	}
	return text, nil
}

// LabelOf is a node's name as the value of a label, which is shorter than names may be.
func LabelOf(node string) string {
	if len(validation.IsValidLabelValue(node)) == 0 {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return hex.EncodeToString(sum[:16])
}

// Ours tells whether this package's parties made a volume.
func Ours(pv *corev1.PersistentVolume) bool {
	return pv.Annotations[volume.AnnDynamicallyProvisioned] == Provisioner &&
		(pv.Spec.Local != nil || pv.Spec.CSI != nil && pv.Spec.CSI.Driver == Provisioner)
}

// ByDriver tells whether a node makes its volumes by the driver.
func ByDriver(node *corev1.Node) bool { return node.Annotations[DriverAnnotation] == "true" }

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

// New is the volume of a claim and its class, on a node that has room for it; source is what it is to be
// a copy of, if anything.
func New(claim *corev1.PersistentVolumeClaim, node *corev1.Node, class *storagev1.StorageClass, source string,
) (*corev1.PersistentVolume, error) {
	root := node.Annotations[DirectoryAnnotation]
	if !ByDriver(node) && (!filepath.IsAbs(root) || filepath.Clean(root) != root || root == "/") {
		return nil, fmt.Errorf("annotation %s of node %s is no directory: %q", DirectoryAnnotation, node.Name, root)
	}
	host := node.Labels[corev1.LabelHostname]
	if host == "" {
		return nil, fmt.Errorf("node %s has no label %s, by which its volumes would be found", node.Name, corev1.LabelHostname)
	}
	mode := corev1.PersistentVolumeFilesystem
	if claim.Spec.VolumeMode != nil {
		mode = *claim.Spec.VolumeMode
	}
	limit, err := LimitOf(class.Parameters)
	if err != nil {
		return nil, err
	}
	if mode == corev1.PersistentVolumeBlock {
		limit = ""
	}
	if limit != "" && node.Annotations[LimitsAnnotation] != limit {
		return nil, fmt.Errorf("node %s makes no volumes that are held to their size, as class %s wants them: its wasmplane is older", node.Name, class.Name)
	}
	reclaim := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(claim), Labels: map[string]string{NodeLabel: LabelOf(node.Name)}, Finalizers: []string{Finalizer},
			Annotations: map[string]string{volume.AnnDynamicallyProvisioned: Provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: size},
			AccessModes: claim.Spec.AccessModes, VolumeMode: &mode,
			PersistentVolumeReclaimPolicy: reclaim, StorageClassName: class.Name,
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
	switch attributes := map[string]string{sizeAttribute: strconv.FormatInt(size.Value(), 10)}; {
	case ByDriver(node):
		if source != "" {
			attributes[sourceAttribute] = source
		}
		if limit != "" {
			attributes[limitAttribute] = limit
		}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: Provisioner, VolumeHandle: pv.Name, VolumeAttributes: attributes}
	case source != "" || mode != corev1.PersistentVolumeFilesystem:
		return nil, fmt.Errorf("node %s has no driver %s, and without it all volumes are empty directories", node.Name, Provisioner)
	default:
		pv.Spec.Local = &corev1.LocalVolumeSource{Path: filepath.Join(root, pv.Name)}
	}
	return pv, nil
}

// place is the name of a volume's directory in root, once it is sure that there is
// nothing else that the volume could mean.
func place(root string, pv *corev1.PersistentVolume) (string, error) {
	switch {
	case pv.Spec.Local == nil:
		return "", fmt.Errorf("PV %s is no directory of kind local", pv.Name)
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
