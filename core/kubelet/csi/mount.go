// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/attachment"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/kubelet/volume/fsgroup"
)

// Name implements volume.Plugin.
func (*Node) Name() string { return kind }

// Supports implements volume.Plugin.
func (*Node) Supports(v *corev1.Volume) bool { return v.CSI != nil }

// SupportsPersistent implements volume.Persistent.
func (*Node) SupportsPersistent(pv *corev1.PersistentVolume) bool { return pv.Spec.CSI != nil }

// Blocks implements volume.Blocks.
func (*Node) Blocks() {}

// RefreshAt implements volume.Refresher: then Mount publishes again, for drivers that
// want it, and asks drivers to grow what has grown.
func (n *Node) RefreshAt(volume.Request) time.Time { return time.Now().Add(n.cfg.Look) }

// work is what is being done about one volume of one pod.
type work struct {
	*Node
	r        volume.Request
	s        *source
	d        *driver
	object   *storagev1.CSIDriver // nil: there is none
	can      powers
	attached map[string]string // what the attacher says to the driver
	done     bool              // all of it was set up before
}

// Mount implements volume.Plugin.
func (n *Node) Mount(ctx context.Context, r volume.Request) (volume.Mounted, error) {
	s, err := sourceOf(r)
	if err != nil {
		return volume.Mounted{}, err
	}
	d, err := n.registry.driver(s.driver)
	if err != nil {
		return volume.Mounted{}, err
	}
	object, err := n.object(ctx, s.driver)
	if err == nil {
		err = s.check(object)
	}
	if err != nil {
		return volume.Mounted{}, err
	}
	release, err := n.turns.take(ctx, s.id)
	if err != nil {
		return volume.Mounted{}, err
	}
	defer release()
	w := &work{Node: n, r: r, s: s, d: d, object: object}
	if w.done, err = w.adopt(); err != nil {
		return volume.Mounted{}, err
	}
	if err := w.setUp(ctx); err != nil {
		return volume.Mounted{}, err
	}
	return volume.Mounted{Path: targetPath(r.Dir), ReadOnly: s.readOnly, Block: s.block}, nil
}

// object is the driver's CSIDriver; nil where there is none.
func (n *Node) object(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	o, err := n.cfg.Client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read CSIDriver %s: %w", name, err)
	}
	return o, nil
}

// adopt says whether the volume is set up already: by this process, or by one before it.
func (w *work) adopt() (bool, error) {
	have, err := readRecord(w.r.Dir)
	if err != nil || have == nil {
		return false, err
	}
	if have.id() != w.s.id {
		return false, fmt.Errorf("at %s is volume %s of driver %s still", w.r.Dir, have.Handle, have.Driver)
	}
	there, err := w.there()
	return there && have.SetUp == yes, err
}

func (w *work) record() *volumeRecord {
	r := &volumeRecord{Name: w.r.Volume.Name, Handle: w.s.handle, Driver: w.s.driver, Node: w.cfg.NodeName, Lifecycle: persistent}
	if w.s.ephemeral {
		r.Lifecycle = ephemeral
		return r
	}
	r.Name, r.Attachment = w.r.Persistent.Name, attachment.Name(w.s.driver, w.s.handle, w.cfg.NodeName)
	if attachment.Required(w.object) {
		r.Attached = yes
	}
	return r
}

// setUp brings the volume to the pod, or up to date where it is there already.
func (w *work) setUp(ctx context.Context) (err error) {
	again := w.object != nil && w.object.Spec.RequiresRepublish != nil && *w.object.Spec.RequiresRepublish
	if w.done && !again && !w.grown() {
		return nil
	}
	if w.can, err = w.d.powers(ctx); err != nil {
		return err
	}
	if w.done && !again {
		w.grow(ctx)
		return nil
	}
	rec := w.record()
	if !w.done {
		// From here on it is known that something of it may be there.
		if err := rec.write(w.r.Dir); err != nil {
			return err
		}
	}
	if rec.Attached == yes {
		if w.attached, err = w.attach(ctx); err != nil {
			return err
		}
	}
	if !w.done {
		if err := w.doStage(ctx, rec); err != nil {
			return err
		}
	}
	if err := w.publish(ctx); err != nil {
		return err
	}
	if w.done {
		w.grow(ctx)
		return nil
	}
	if err := w.doubt(ctx); err != nil {
		return err
	}
	if w.s.groups(w.object) && !w.driverGroups() {
		if err := fsgroup.Own(targetPath(w.r.Dir), w.r.Pod, false); err != nil {
			return err
		}
	}
	w.grow(ctx)
	rec.SetUp = yes
	return rec.write(w.r.Dir)
}

// driverGroups: the driver gives the volume to the pod's fsGroup as it mounts it.
func (w *work) driverGroups() bool {
	return w.can.has(spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
}

func (w *work) group() string {
	if sc := w.r.Pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil && w.driverGroups() {
		return strconv.FormatInt(*sc.FSGroup, 10)
	}
	return ""
}

func (w *work) stages() bool {
	return !w.s.ephemeral && w.can.has(spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

// staging is the path at which the volume is staged, as the driver sees it; "" where it isn't.
func (w *work) staging() string {
	if !w.stages() {
		return ""
	}
	return w.cfg.seen(stagePath(w.cfg.stage(w.s.id)))
}

// doStage stages the volume for the node, once in the life of this process: called
// again, a driver has nothing to do.
func (w *work) doStage(ctx context.Context, rec *volumeRecord) error {
	if !w.stages() || w.staged.has(w.s.id) {
		return nil
	}
	dir := w.cfg.stage(w.s.id)
	if err := rec.write(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(stagePath(dir), 0o750); err != nil {
		return fmt.Errorf("make the place where a volume is staged: %w", err)
	}
	secrets, err := w.secrets(ctx, w.s.stageSecret)
	if err != nil {
		return err
	}
	_, err = ask(ctx, w.d, "NodeStageVolume", func(ctx context.Context, c spec.NodeClient) (*spec.NodeStageVolumeResponse, error) {
		return c.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{
			VolumeId: w.s.handle, PublishContext: w.attached, StagingTargetPath: w.staging(),
			VolumeCapability: w.s.capability(w.can, w.group()), Secrets: secrets, VolumeContext: w.s.attributes,
		})
	})
	if err != nil {
		return fmt.Errorf("MountVolume.MountDevice failed: %w", err)
	}
	w.staged.put(w.s.id, true)
	return nil
}

func (w *work) publish(ctx context.Context) error {
	secrets, err := w.secrets(ctx, w.s.publishSecret)
	if err != nil {
		return err
	}
	attributes := map[string]string{}
	maps.Copy(attributes, w.s.attributes)
	if w.object != nil && w.object.Spec.PodInfoOnMount != nil && *w.object.Spec.PodInfoOnMount {
		maps.Copy(attributes, podInfo(w.r.Pod, w.s.ephemeral))
	}
	tokens, err := w.podTokens(ctx)
	if err != nil {
		return err
	}
	if tokens != "" {
		to := attributes
		if in := w.object.Spec.ServiceAccountTokenInSecrets; in != nil && *in {
			to = secrets
		}
		to["csi.storage.k8s.io/serviceAccount.tokens"] = tokens
	}
	_, err = ask(ctx, w.d, "NodePublishVolume", func(ctx context.Context, c spec.NodeClient) (*spec.NodePublishVolumeResponse, error) {
		return c.NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{
			VolumeId: w.s.handle, PublishContext: w.attached, StagingTargetPath: w.staging(), TargetPath: w.cfg.seen(targetPath(w.r.Dir)),
			VolumeCapability: w.s.capability(w.can, w.group()), Readonly: w.s.readOnly, Secrets: secrets, VolumeContext: attributes,
		})
	})
	return err
}

// there tells whether something is mounted at the target, or a device is.
func (w *work) there() (bool, error) {
	if !w.s.block {
		return volume.IsMount(targetPath(w.r.Dir))
	}
	info, err := os.Stat(targetPath(w.r.Dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a volume's device: %w", err)
	}
	return info.Mode().Type() == fs.ModeDevice, nil
}

// doubt warns where a driver has mounted nothing: what the pod writes would be on the
// node's own disk, and go with the pod. Without its device, a pod is not begun.
func (w *work) doubt(ctx context.Context) error {
	target := targetPath(w.r.Dir)
	there, err := w.there()
	if err != nil || there {
		return err
	}
	if w.s.block {
		return fmt.Errorf("driver %s answered that it has published the volume, and there is no block device at %s: "+
			"see the driver's logs on this node", w.s.driver, target)
	}
	w.cfg.Logger.WarnContext(ctx, "a CSI driver answered that it has published a volume, and nothing is mounted", "driver", w.s.driver,
		"volume", w.s.handle, "path", target)
	w.rec.Eventf(w.r.Pod, corev1.EventTypeWarning, "VolumeNotMounted", "driver %s answered that it has published volume %q, and nothing is mounted there: what the pod writes stays on the node's disk and goes with the pod", w.s.driver, w.r.Volume.Name)
	return nil
}

// podInfo is what drivers learn of a pod that ask for it.
func podInfo(p *corev1.Pod, ephemeral bool) map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name": p.Name, "csi.storage.k8s.io/pod.namespace": p.Namespace, "csi.storage.k8s.io/pod.uid": string(p.UID),
		"csi.storage.k8s.io/serviceAccount.name": p.Spec.ServiceAccountName, "csi.storage.k8s.io/ephemeral": strconv.FormatBool(ephemeral),
	}
}

// podTokens are the tokens that the driver wants, by audience, as upstream encodes them;
// "" where it wants none.
func (w *work) podTokens(ctx context.Context) (string, error) {
	if w.object == nil || len(w.object.Spec.TokenRequests) == 0 {
		return "", nil
	}
	out := map[string]authenticationv1.TokenRequestStatus{}
	for _, t := range w.object.Spec.TokenRequests {
		token, expires, err := w.tokens.Get(ctx, w.r.Pod,
			&corev1.ServiceAccountTokenProjection{Audience: t.Audience, ExpirationSeconds: t.ExpirationSeconds})
		if err != nil {
			return "", err
		}
		out[t.Audience] = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return "", fmt.Errorf("encode tokens: %w", err)
	}
	return string(b), nil
}

// secrets are the data of a Secret; empty, never nil, where none is named.
func (n *Node) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	s, err := n.cfg.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s, which the volume names: %w", ref.Namespace, ref.Name, err)
	}
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}
