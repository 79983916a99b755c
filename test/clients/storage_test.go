// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// sidecars are built once, from their published modules, and the driver beside which they stand.
func sidecars(t *testing.T) string {
	t.Helper()
	dir := t.TempDir() + string(filepath.Separator)
	for _, args := range [][]string{
		{
			"-C", "sidecars", "-o", dir, "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
			"github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
		},
		{"-C", "provisioner", "-o", dir, "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"},
		{"-o", dir, "./driver"},
	} {
		if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("build the sidecars: %v\n%s", err, out)
		}
	}
	return dir
}

const storage = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: disk.example}
spec: {attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disks}
provisioner: disk.example
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: disks
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 1000, fsGroup: 2000}
  containers:
  - name: c
    image: wasmplane.local/toolbox:1
    command: [sleep, "3600"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// TestStorageSidecars: a claim becomes a volume that a pod of a real node writes to, grows
// with the pod at work, and goes, and a claim of the node's own class has a snapshot, all by
// the sidecars that drivers' projects publish.
func TestStorageSidecars(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this has a real node and needs root: `make clients` asks for it")
	}
	built := sidecars(t)
	// Paths of sockets are short.
	parent, err := os.MkdirTemp("", "wpclients") //nolint:usetesting // as said
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(parent); err != nil {
			t.Error(err)
		}
	})
	c := &cluster{harness.NewFor(t, harness.Binary(t), parent), t}
	if _, err := c.Up("--node-name", "here", "--log-level", "warn"); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(parent, "toolbox.tar")
	if err := harness.Toolbox(parent, archive); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(c.Binary, "image", "import", archive, "--data-dir", c.Data).CombinedOutput(); err != nil {
		t.Fatalf("import the image: %v\n%s", err, out)
	}
	kubelet, volumes := filepath.Join(c.Data, "node", "kubelet"), filepath.Join(c.Dir, "volumes")
	stop := c.run(nil, "driver", filepath.Join(built, "driver"), "--attach", kubelet, "here", volumes)
	if _, err := c.Process("driver").AwaitLine(regexp.MustCompile("registered: true")); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(kubelet, "plugins", "disk.example", "csi.sock")
	for _, name := range []string{"csi-provisioner", "csi-attacher", "csi-resizer"} {
		c.run(nil, name, filepath.Join(built, name), "--csi-address="+socket, "--kubeconfig="+c.Kubeconfig(), "--leader-election=false")
	}
	c.apply(storage)
	c.kubectl("wait", "--for=condition=Ready", "pod/user", "--timeout", harness.Patience.String())
	c.kubectl("exec", "user", "--", "touch", "/data/kept")
	volume := c.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	if _, err := os.Stat(filepath.Join(volumes, volume, "kept")); err != nil {
		t.Errorf("what the pod wrote: %v", err)
	}
	c.prints("true disk.example here", "get", "volumeattachments", "-o", "jsonpath={range .items[*]}{.status.attached} {.spec.attacher} {.spec.nodeName}{end}")
	c.kubectl("patch", "pvc", "data", "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	c.prints("2Gi 2Gi", "get", "pvc", "data", "-o", "jsonpath={.spec.resources.requests.storage} {.status.capacity.storage}")
	c.kubectl("delete", "pod", "user", "--timeout", harness.Patience.String())
	c.kubectl("delete", "pvc", "data", "--timeout", harness.Patience.String())
	c.prints("", "get", "volumeattachments,pv", "-o", "name")
	harness.Eventually(t, "the volume's directory is gone", func() error {
		if _, err := os.Stat(filepath.Join(volumes, volume)); err == nil {
			return fmt.Errorf("%s is there", volume)
		}
		return nil
	})
	stop()
	c.snapshots(built, kubelet)
}

const localClaim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec:
  storageClassName: local
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
  dataSource: SOURCE
---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: wasmplane.local/toolbox:1
    command: [sleep, "3600"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}]
`

const aSnapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: local}
driver: local.wasmplane.io
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: before}
spec: {volumeSnapshotClassName: local, source: {persistentVolumeClaimName: first}}
`

// snapshots: of a claim of the class local, by the snapshot controller and its sidecar as
// they are published; a claim that is made of one has what was there then.
func (c *cluster) snapshots(built, kubelet string) {
	c.t.Helper()
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8")
	list.Dir = "sidecars"
	module, err := list.Output()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		c.kubectl("apply", "--server-side", "-f", filepath.Join(strings.TrimSpace(string(module)), "config", "crd", "snapshot.storage.k8s.io_"+kind+".yaml"))
		c.kubectl("wait", "--for=condition=Established", "crd/"+kind+".snapshot.storage.k8s.io", "--timeout", harness.Patience.String())
	}
	c.run(nil, "snapshot-controller", filepath.Join(built, "snapshot-controller"), "--kubeconfig="+c.Kubeconfig())
	socket := filepath.Join(kubelet, "plugins", "local.wasmplane.io", "csi.sock")
	c.run(nil, "csi-snapshotter", filepath.Join(built, "csi-snapshotter"), "--csi-address="+socket, "--kubeconfig="+c.Kubeconfig())
	claim := func(name, source string) {
		c.apply(strings.NewReplacer("NAME", name, "SOURCE", source).Replace(localClaim))
		c.kubectl("wait", "--for=condition=Ready", "pod/"+name, "--timeout", harness.Patience.String())
	}
	claim("first", "null")
	c.kubectl("exec", "first", "--", "touch", "/data/then")
	c.apply(aSnapshot)
	c.kubectl("wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/before", "--timeout", harness.Patience.String())
	c.kubectl("exec", "first", "--", "touch", "/data/later")
	claim("restored", "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before}")
	c.prints("then", "exec", "restored", "--", "ls", "/data")
	c.kubectl("delete", "pod", "first", "restored", "--timeout", harness.Patience.String())
	c.kubectl("delete", "pvc", "first", "restored", "--timeout", harness.Patience.String())
	c.kubectl("delete", "volumesnapshot", "before", "--timeout", harness.Patience.String())
	c.prints("", "get", "volumesnapshotcontents,pv", "-o", "name")
	left, err := filepath.Glob(filepath.Join(c.Data, "node", "disk", "*", "*"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range left {
		if base := filepath.Base(filepath.Dir(path)); base == "volumes" || base == "snapshots" {
			c.t.Errorf("%s is there still", path)
		}
	}
}
