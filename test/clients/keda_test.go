// SPDX-License-Identifier: Apache-2.0

//go:build software

package clients

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

var keda = published{
	name: "keda", module: "github.com/kedacore/keda/v2", version: "v2.21.0",
	sum: "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
	programs: map[string]string{
		"keda": "./cmd/operator", "keda-adapter": "./cmd/adapter", "keda-admission-webhooks": "./cmd/webhooks",
	},
}

const kedaKustomization = `
resources: [keda/default]
images:
- {name: ghcr.io/kedacore/keda, newTag: %[1]s}
- {name: ghcr.io/kedacore/keda-metrics-apiserver, newTag: %[1]s}
- {name: ghcr.io/kedacore/keda-admission-webhooks, newTag: %[1]s}
patches:
- target: {kind: Deployment}
  patch: '[{"op": "replace", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "IfNotPresent"}]'
`

// consumers work on a queue whose length the test decides, and watchers are needed at a time of the day.
const consumers = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: consumer}
spec:
  replicas: 0
  selector: {matchLabels: {app: consumer}}
  template:
    metadata: {labels: {app: consumer}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: "wasmplane.local/toolbox:1", command: [sleep, "3600"]}]
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: consumer}
spec:
  scaleTargetRef: {name: consumer}
  pollingInterval: 2
  cooldownPeriod: 5
  minReplicaCount: 0
  maxReplicaCount: 4
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
  triggers:
  - type: metrics-api
    metadata: {url: "http://%[1]s/", valueLocation: length, targetValue: "5"}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledJob
metadata: {name: batch}
spec:
  pollingInterval: 2
  maxReplicaCount: 2
  jobTargetRef:
    template:
      spec:
        restartPolicy: Never
        containers: [{name: c, image: "wasmplane.local/toolbox:1", command: [echo, done]}]
  triggers:
  - type: metrics-api
    metadata: {url: "http://%[1]s/", valueLocation: files, targetValue: "1"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: watcher}
spec:
  replicas: 1
  selector: {matchLabels: {app: watcher}}
  template:
    metadata: {labels: {app: watcher}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: "wasmplane.local/toolbox:1", command: [sleep, "3600"]}]
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: watcher}
spec:
  scaleTargetRef: {name: watcher}
  pollingInterval: 2
  minReplicaCount: 0
  maxReplicaCount: 3
  advanced: {restoreToOriginalReplicaCount: true}
  triggers:
  - type: cron
    metadata: {timezone: UTC, start: "0 %[2]d * * *", end: "0 %[3]d * * *", desiredReplicas: "3"}
`

// TestKEDA: KEDA, by its project's manifests, scales a Deployment from nothing by a metric that it asks a
// server for and serves as external.metrics.k8s.io, further by the autoscaler that it makes, and back; makes Jobs
// of what a queue has; scales by the time of the day; and refuses two masters of one Deployment.
func TestKEDA(t *testing.T) {
	b := keda.build(t)
	c := startHere(t)
	for image, program := range map[string]string{
		"keda": "keda", "keda-metrics-apiserver": "keda-adapter", "keda-admission-webhooks": "keda-admission-webhooks",
	} {
		c.importHere(b.image(t, "ghcr.io/kedacore/"+image+":"+b.version, program, "/"+program, "65532:65532"))
	}
	c.toolbox()
	c.explained("keda", "default")
	c.kustomize(fmt.Sprintf(kedaKustomization, b.version), map[string]string{"keda": filepath.Join(b.files, "config")})
	c.rolledOut("keda", "keda-operator", "keda-metrics-apiserver", "keda-admission")
	c.kubectl("wait", "--for=condition=Available", "apiservice/v1beta1.external.metrics.k8s.io", "--timeout", harness.Patience.String())

	queue, now := c.queue(), time.Now().UTC()
	manifest := fmt.Sprintf(consumers, queue.address, now.Add(-time.Hour).Hour(), now.Add(2*time.Hour).Hour())
	c.soon("apply", "-f", c.file("consumers.yaml", manifest))
	const replicas = "jsonpath={.spec.replicas} {.status.readyReplicas}"
	c.kubectl("wait", "--for=condition=Ready", "scaledobject/consumer", "scaledobject/watcher", "--timeout", harness.Patience.String())
	c.prints("3 3", "get", "deployment", "watcher", "-o", replicas)
	c.refuses("already managed by the ScaledObject 'watcher'", `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: other}
spec:
  scaleTargetRef: {name: watcher}
  triggers: [{type: cron, metadata: {timezone: UTC, start: 0 1 * * *, end: 0 2 * * *, desiredReplicas: "1"}}]
`)

	c.prints("0", "get", "deployment", "consumer", "-o", replicas)
	queue.length.Store(12) // three times the work of one
	c.prints("3 3", "get", "deployment", "consumer", "-o", replicas)
	const metric = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/s0-metric-api-length" +
		"?labelSelector=scaledobject.keda.sh%2Fname%3Dconsumer"
	if out := c.kubectl("get", "--raw", metric); !strings.Contains(out, `"value":"12"`) {
		t.Errorf("the metric is %s", out)
	}
	out := c.kubectl("get", "hpa", "keda-hpa-consumer")
	if !strings.Contains(out, "Deployment/consumer") || !strings.Contains(out, "/5 (avg)") {
		t.Errorf("the autoscaler is printed as\n%s", out)
	}
	queue.length.Store(0)
	c.prints("0", "get", "deployment", "consumer", "-o", replicas)

	queue.files.Store(2)
	harness.Eventually(t, "two Jobs are complete", func() error {
		out, err := c.try("get", "jobs", "-l", "scaledjob.keda.sh/name=batch", "-o", "jsonpath={.items[*].status.succeeded}")
		if err == nil && len(strings.Fields(out)) < 2 {
			err = fmt.Errorf("those are %q", out)
		}
		queue.files.Store(max(0, 2-int64(len(strings.Fields(out)))))
		return err
	})

	c.kubectl("delete", "scaledobject,scaledjob", "--all", "--timeout", harness.Patience.String())
	c.prints("1 1", "get", "deployment", "watcher", "-o", replicas)
	c.prints("", "get", "hpa", "-o", "name")
}

// queue is a server on this machine that tells how much there is to do.
type queue struct {
	address       string
	length, files atomic.Int64
}

func (c *cluster) queue() *queue {
	c.t.Helper()
	q := &queue{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"length": %d, "files": %d}`, q.length.Load(), q.files.Load())
	}))
	_ = server.Listener.Close()
	server.Listener = c.listener()
	server.Start()
	c.t.Cleanup(server.Close)
	q.address = server.Listener.Addr().String()
	return q
}
