// SPDX-License-Identifier: Apache-2.0

//go:build software

package clients

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

var gatekeeper = published{
	name: "gatekeeper", module: "github.com/open-policy-agent/gatekeeper/v3", version: "v3.23.1",
	sum:      "h1:njHTm0SJ6ZEhhEgmQTpJKTGQbc99fSs4hGiEp1OIKck=",
	programs: map[string]string{"manager": "."},
}

const unlabelled = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: bad-prod-ns}
spec: {containers: [{name: c, image: "wasmplane.local/toolbox:1"}]}
`

// owned puts a label on what is made in a namespace, and replicas is a policy in CEL, of which
// Gatekeeper makes a ValidatingAdmissionPolicy.
const (
	owned = `
apiVersion: mutations.gatekeeper.sh/v1
kind: AssignMetadata
metadata: {name: owned}
spec:
  match: {scope: Namespaced, namespaces: [bad-prod-ns], kinds: [{apiGroups: [""], kinds: [ConfigMap]}]}
  location: metadata.labels.owner
  parameters: {assign: {value: gatekeeper}}
`
	replicas = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: k8sreplicas}
spec:
  crd:
    spec:
      names: {kind: K8sReplicas}
      validation: {openAPIV3Schema: {type: object, properties: {most: {type: integer}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    code:
    - engine: K8sNativeValidation
      source:
        generateVAP: true
        validations:
        - expression: "object.spec.replicas <= variables.params.most"
          messageExpression: '"more replicas than " + string(variables.params.most)'
`
	few = `
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: K8sReplicas
metadata: {name: few}
spec:
  match: {kinds: [{apiGroups: [apps], kinds: [Deployment]}], namespaces: [bad-prod-ns]}
  parameters: {most: 3}
`
	many = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: many, namespace: bad-prod-ns}
spec:
  replicas: 4
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec: {containers: [{name: c, image: "wasmplane.local/toolbox:1"}]}
`
)

// TestGatekeeper: Gatekeeper, by its project's manifest, makes definitions of its policies, refuses
// and changes objects by its webhooks, whose certificates it makes itself, finds what was there before,
// and has a policy in CEL decided by the API server.
func TestGatekeeper(t *testing.T) {
	b := gatekeeper.build(t)
	c := startHere(t)
	c.importHere(b.image(t, "openpolicyagent/gatekeeper:"+b.version, "manager", "/manager", "65532:65532"))
	c.toolbox()
	c.explained("gatekeeper-system")
	c.apply(b.read(t, "example/resources/bad_ns_namespaceselector.yaml"))
	before := c.file("before.yaml", fmt.Sprintf(unlabelled, "before"))
	c.soon("create", "-f", before) // as soon as the namespace has its default account
	c.apply(strings.ReplaceAll(b.read(t, "deploy/gatekeeper.yaml"), "imagePullPolicy: Always", "imagePullPolicy: IfNotPresent"))
	c.rolledOut("gatekeeper-system", "gatekeeper-controller-manager", "gatekeeper-audit")

	template := c.file("template.yaml", b.read(t, "example/templates/k8srequiredlabels_template.yaml"))
	c.soon("apply", "-f", template)
	constraint := b.read(t, "example/constraints/all_pod_must_have_gatekeeper_namespaceselector.yaml")
	c.soon("apply", "-f", c.file("constraint.yaml", constraint))
	c.refuses(`[pod-must-have-gk] you must provide labels: {"gatekeeper"}`, fmt.Sprintf(unlabelled, "after"))
	labelled := strings.Replace(fmt.Sprintf(unlabelled, "labelled"), "name: labelled,", "name: labelled, labels: {gatekeeper: known},", 1)
	c.kubectl("create", "-f", c.file("labelled.yaml", labelled))

	c.soon("apply", "-f", c.file("owned.yaml", owned))
	harness.Eventually(t, "a label by the mutating webhook", func() error {
		out, err := c.try("-n", "bad-prod-ns", "create", "configmap", "m", "--dry-run=server", "-o", "jsonpath={.metadata.labels.owner}")
		if err == nil && out != "gatekeeper" {
			err = fmt.Errorf("its label is %q", out)
		}
		return err
	})

	// The audit runs every minute.
	c.prints("before", "get", "k8srequiredlabels", "pod-must-have-gk", "-o", "jsonpath={.status.violations[*].name}")

	c.soon("apply", "-f", c.file("replicas.yaml", replicas))
	c.soon("apply", "-f", c.file("few.yaml", few))
	c.soon("get", "validatingadmissionpolicy", "gatekeeper-k8sreplicas")
	c.soon("get", "validatingadmissionpolicybinding", "gatekeeper-k8sreplicas-few")
	c.refuses("ValidatingAdmissionPolicy 'gatekeeper-k8sreplicas' with binding 'gatekeeper-k8sreplicas-few' denied request", many)

	// Without its constraints all is accepted, and with its template the definition goes.
	c.kubectl("delete", "k8srequiredlabels", "pod-must-have-gk", "--timeout", harness.Patience.String())
	c.soon("create", "-f", c.file("after.yaml", fmt.Sprintf(unlabelled, "after")))
	c.kubectl("delete", "-f", template, "--timeout", harness.Patience.String())
	c.prints("", "get", "crd", "k8srequiredlabels.constraints.gatekeeper.sh", "--ignore-not-found", "-o", "name")
}
