// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

var descheduler = published{
	name: "descheduler", module: "sigs.k8s.io/descheduler", version: "v0.36.0",
	sum:      "h1:fBemfJD1RhmbsdH94lKwGMOwQcbsrw67A5IK2c2fANA=",
	programs: map[string]string{"descheduler": "./cmd/descheduler"},
}

// crowded is what one node has while the other is closed: more than belongs there.
const crowded = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: web, image: "wasmplane.local/toolbox:1", command: [sleep, "3600"]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kept}
spec:
  replicas: 2
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: kept, image: "wasmplane.local/toolbox:1", command: [sleep, "3600"]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: kept}
spec: {minAvailable: 2, selector: {matchLabels: {app: kept}}}
---
apiVersion: v1
kind: Pod
metadata: {name: noisy}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: noisy, image: "wasmplane.local/toolbox:1", command: [sleep, "3600"]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: quiet}
spec:
  selector: {matchLabels: {app: quiet}}
  template:
    metadata: {labels: {app: quiet}}
    spec:
      terminationGracePeriodSeconds: 0
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {noise: loud}}}
      containers: [{name: quiet, image: "wasmplane.local/toolbox:1", command: [sleep, "3600"]}]
`

// TestDescheduler: the descheduler, by its project's manifests, evicts duplicates and pods whose
// anti-affinity is violated from a real node, so that they are placed on another, and leaves
// what a PodDisruptionBudget protects.
func TestDescheduler(t *testing.T) {
	b := descheduler.build(t)
	c, machines := startWithMachines(t, "full", "empty")
	toolbox := filepath.Join(c.Dir, "toolbox.tar")
	if err := harness.Toolbox(c.Dir, toolbox); err != nil {
		t.Fatal(err)
	}
	image := b.image(t, "registry.k8s.io/descheduler/descheduler:"+b.version, "descheduler", "/bin/descheduler", "1000")
	for _, m := range machines {
		m.importImage(toolbox)
		m.importImage(image)
	}
	c.explained("default", "kube-system")
	c.kubectl("cordon", "empty")
	c.apply(crowded)
	c.rolledOut("default", "web", "kept", "quiet")
	c.kubectl("wait", "--for=condition=Ready", "pod/noisy", "--timeout", harness.Patience.String())
	c.kubectl("label", "pod", "noisy", "noise=loud")
	c.prints("2/2", "get", "pdb", "kept", "-o", "jsonpath={.status.currentHealthy}/{.status.desiredHealthy}")
	kept := c.kubectl("get", "pods", "-l", "app=kept", "-o", "jsonpath={.items[*].metadata.uid}")
	c.kubectl("uncordon", "empty")

	c.kustomize("resources: [kubernetes/deployment]", map[string]string{"kubernetes": filepath.Join(b.files, "kubernetes")})
	c.rolledOut("kube-system", "descheduler")
	c.nodesOf("app=web", "empty empty full full")
	c.nodesOf("app=quiet", "empty")
	c.rolledOut("default", "web", "quiet")
	if now := c.kubectl("get", "pods", "-l", "app=kept", "-o", "jsonpath={.items[*].metadata.uid}"); now != kept {
		t.Errorf("pods that a budget protects were %s, and are %s\n%s", kept, now, c.state("default"))
	}
	harness.Eventually(t, "events of the descheduler", func() error {
		out, err := c.try("get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}")
		if err == nil && !strings.Contains(out, "sigs.k8s.io/descheduler") {
			err = fmt.Errorf("there are only\n%s", out)
		}
		return err
	})
}

// nodesOf waits until the pods with a label are on these nodes.
func (c *cluster) nodesOf(label, want string) {
	c.t.Helper()
	harness.Eventually(c.t, "the pods "+label+" on "+want, func() error {
		out, err := c.try("get", "pods", "-l", label, "--field-selector", "status.phase=Running", "-o", "jsonpath={.items[*].spec.nodeName}")
		nodes := strings.Fields(out)
		slices.Sort(nodes)
		if err == nil && strings.Join(nodes, " ") != want {
			err = fmt.Errorf("they are on %q", nodes)
		}
		return err
	})
}
