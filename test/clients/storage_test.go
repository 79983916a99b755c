// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// sidecars are built once, from their published modules, and the driver beside which they stand.
func sidecars(t *testing.T) string {
	t.Helper()
	dir := t.TempDir() + string(filepath.Separator)
	for _, args := range [][]string{
		{"-C", "sidecars", "-o", dir, "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"},
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
// with the pod at work, and goes, all by the sidecars that drivers' projects publish.
func TestStorageSidecars(t *testing.T) {
	built := sidecars(t)
	c := startHere(t)
	archive := filepath.Join(c.Dir, "toolbox.tar")
	if err := harness.Toolbox(c.Dir, archive); err != nil {
		t.Fatal(err)
	}
	c.importHere(archive)
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
}
