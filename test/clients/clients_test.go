// SPDX-License-Identifier: Apache-2.0

package clients

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// pythonClient is the version that the package index serves.
const pythonClient = "kubernetes==37.0.2"

//go:embed client.py
var script []byte

// javascriptClient is the newest version that Debian's Node.js runs.
const javascriptClient = "@kubernetes/client-node@1.4.0"

//go:embed client.mjs
var module []byte

const webhooks = `
apiVersion: admissionregistration.k8s.io/v1
kind: %sWebhookConfiguration
metadata: {name: operator}
webhooks:
- name: pod.example.org
  clientConfig: {url: "https://127.0.0.1:9443/%s--v1-pod", caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE, UPDATE]}]
  namespaceSelector: {matchLabels: {operator: "yes"}}
  admissionReviewVersions: [v1]
  sideEffects: None
`

const deployment = `
apiVersion: v1
kind: Namespace
metadata: {name: watched, labels: {operator: "yes"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: watched}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "example.org/web:1"}]}
`

const chaosPods = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: chaospods.chaosapps.metamagical.io}
spec:
  group: chaosapps.metamagical.io
  names: {kind: ChaosPod, listKind: ChaosPodList, plural: chaospods, singular: chaospod}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: next stop, type: string, format: date, jsonPath: .spec.nextStop}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [template]
            properties:
              nextStop: {type: string, format: date-time, nullable: true}
              template: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status:
            type: object
            properties: {lastRun: {type: string, format: date-time, nullable: true}}
`

const chaosPod = `
apiVersion: chaosapps.metamagical.io/v1
kind: ChaosPod
metadata: {name: monkey}
spec: {template: {spec: {containers: [{name: main, image: "example.org/web:1"}]}}}
`

// operators are built once, from their published module.
func operators(t *testing.T) string {
	t.Helper()
	dir := t.TempDir() + string(filepath.Separator)
	cmd := exec.Command("go", "build", "-C", "operators", "-o", dir,
		"sigs.k8s.io/controller-runtime/examples/builtins", "sigs.k8s.io/controller-runtime/examples/crd")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the operators: %v\n%s", err, out)
	}
	return dir
}

// The operators listen on the ports that their authors chose, so one after the other.
func TestOperators(t *testing.T) {
	built := operators(t)
	c := start(t)
	t.Run("webhooks and a controller of built-in kinds", func(t *testing.T) {
		temporary := filepath.Join(c.Dir, "tmp")
		bundle := base64.StdEncoding.EncodeToString(certificate(t, filepath.Join(temporary, "k8s-webhook-server", "serving-certs")))
		stop := c.run([]string{"TMPDIR=" + temporary}, "builtins", filepath.Join(built, "builtins"))
		c.apply(fmt.Sprintf(webhooks, "Mutating", "mutate", bundle) + "---" + fmt.Sprintf(webhooks, "Validating", "validate", bundle))
		c.apply(deployment)
		c.kubectl("-n", "watched", "rollout", "status", "deployment/web", "--timeout", harness.Patience.String())
		c.prints("foo foo", "-n", "watched", "get", "pods", "-o", `jsonpath={.items[*].metadata.annotations.example-mutating-admission-webhook}`)
		c.prints("world", "-n", "watched", "get", "replicasets", "-o", `jsonpath={.items[*].metadata.labels.hello}`)
		if _, err := c.try("-n", "watched", "annotate", "pod", "-l", "app=web", "--overwrite",
			"example-mutating-admission-webhook=bar"); err != nil {
			t.Errorf("what the validating webhook forbids is mended by the mutating one before: %v", err)
		}
		stop()
		_, err := c.try("-n", "watched", "run", "alone", "--image=example.org/web:1")
		if err == nil || !strings.Contains(err.Error(), `failed calling webhook "pod.example.org"`) {
			t.Errorf("a pod without its webhook: %v", err)
		}
	})
	t.Run("a controller of its own kind", func(t *testing.T) {
		c.apply(chaosPods)
		c.kubectl("wait", "--for=condition=Established", "crd/chaospods.chaosapps.metamagical.io", "--timeout", harness.Patience.String())
		defer c.run(nil, "crd", filepath.Join(built, "crd"))()
		c.apply(chaosPod)
		c.prints("ChaosPod/monkey", "get", "pod", "monkey", "-o", `jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}`)
		c.kubectl("wait", "--for=condition=Ready", "pod/monkey", "--timeout", harness.Patience.String())
		if out := c.kubectl("get", "chaospods"); !strings.Contains(out, "NEXT STOP") {
			t.Errorf("columns:\n%s", out)
		}
		c.kubectl("delete", "chaospod", "monkey", "--cascade=foreground", "--timeout", harness.Patience.String())
		c.prints("", "get", "pods", "-o", "name")
	})
}

// users is a program that keeps its downloads where the user has them.
func (c *cluster) users(program string) *tool {
	return &tool{cluster: c, program: program, env: []string{"HOME=" + os.Getenv("HOME")}}
}

// The Python client does what its users do with it.
func TestPython(t *testing.T) {
	c := start(t)
	venv := filepath.Join(c.Dir, "venv")
	file := filepath.Join(c.Dir, "client.py")
	if err := os.WriteFile(file, script, 0o600); err != nil {
		t.Fatal(err)
	}
	c.users("python3").run("-m", "venv", venv)
	c.users(filepath.Join(venv, "bin", "pip")).run("install", "-q", "--disable-pip-version-check", pythonClient)
	t.Log(c.tool(filepath.Join(venv, "bin", "python")).run(file, c.Kubeconfig()))
}

// The JavaScript client does what its users do with it. npm would wait five minutes for a
// download that stands still before it tries again.
func TestJavaScript(t *testing.T) {
	c := start(t)
	file := filepath.Join(c.Dir, "client.mjs")
	if err := os.WriteFile(file, module, 0o600); err != nil {
		t.Fatal(err)
	}
	c.users("npm").run("install", "--no-audit", "--no-fund", "--fetch-timeout=30000", "--prefix", c.Dir, javascriptClient)
	t.Log(c.tool("node").run(file, c.Kubeconfig()))
}
