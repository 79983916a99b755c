// SPDX-License-Identifier: Apache-2.0

//go:build software

package clients

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

var (
	clusterAPI = published{
		name: "cluster-api", module: "sigs.k8s.io/cluster-api", version: "v1.14.2",
		sum:    "h1:o3GFNaeNFAOEEMpDPfhCK+2CjmV6gtQ8yLEcUwCg7bA=",
		beside: map[string]string{"sigs.k8s.io/cluster-api/api": "v1.14.2"},
		programs: map[string]string{
			"core": "./core", "bootstrap": "./bootstrap/kubeadm", "control-plane": "./controlplane/kubeadm",
		},
	}
	// clusterAPIDev is the project's provider of infrastructure for tests. Its machines are in its memory: each
	// cluster has an API and an etcd that answer, and nothing runs on the nodes.
	clusterAPIDev = published{
		name: "cluster-api-dev", module: "sigs.k8s.io/cluster-api/test", version: "v1.14.2",
		sum: "h1:nZ/Ql57cR7Huwqd7o3X+2AFSg5kcAmSTUZovLwzIhIs=",
		beside: map[string]string{
			"sigs.k8s.io/cluster-api": "v1.14.2", "sigs.k8s.io/cluster-api/api": "v1.14.2",
		},
		programs: map[string]string{"dev": "./infrastructure/docker"},
	}
)

// manager is one of the project's Deployments: its program, its image, and the prefix of its names.
type manager struct {
	from                   *built
	program, folder, image string
	prefix, user           string
}

const managerKustomization = `
resources: [default]
images:
- {name: %[1]s, newTag: %[2]s}
patches:
- target: {kind: Deployment}
  patch: '[{"op": "replace", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "IfNotPresent"}]'
`

// TestClusterAPI: Cluster API, by its project's manifests and with its provider for tests, makes a cluster of a class,
// scales it, gives it another version machine by machine, converts its objects of an older version, refuses what
// its webhooks refuse, and deletes it whole.
func TestClusterAPI(t *testing.T) {
	core, dev := clusterAPI.build(t), clusterAPIDev.build(t)
	c := startHere(t)
	const images = "gcr.io/k8s-staging-cluster-api/"
	managers := []manager{
		{core, "core", "core/config", images + "cluster-api-controller", "capi-", "65532"},
		{core, "bootstrap", "bootstrap/kubeadm/config", images + "kubeadm-bootstrap-controller", "capi-kubeadm-bootstrap-", "65532"},
		{core, "control-plane", "controlplane/kubeadm/config", images + "kubeadm-control-plane-controller", "capi-kubeadm-control-plane-", "65532"},
		{dev, "dev", "infrastructure/docker/config", images + "capd-manager", "capd-", ""},
	}
	c.explained("default")
	for _, m := range managers {
		c.explained(m.prefix + "system")
		c.importHere(m.from.image(t, m.image+":"+m.from.version, m.program, "/manager", m.user))
		c.manage(m)
	}
	for _, m := range managers {
		c.rolledOut(m.prefix+"system", m.prefix+"controller-manager")
	}

	templates := "infrastructure/docker/templates/"
	class := substituted(dev.read(t, templates+"clusterclass-in-memory.yaml"), nil)
	c.soon("apply", "-f", c.file("class.yaml", class))
	values := map[string]string{
		"CLUSTER_NAME": "one", "NAMESPACE": "default", "KUBERNETES_VERSION": "v1.35.0",
		"CONTROL_PLANE_MACHINE_COUNT": "1", "WORKER_MACHINE_COUNT": "2",
	}
	c.soon("apply", "-f", c.file("cluster.yaml", substituted(dev.read(t, templates+"cluster-template-in-memory.yaml"), values)))
	c.available("one")
	c.machines("v1.35.0", 3)

	// Its own API answers with the nodes, by the kubeconfig that is in a secret.
	data, err := base64.StdEncoding.DecodeString(c.kubectl("get", "secret", "one-kubeconfig", "-o", "jsonpath={.data.value}"))
	if err != nil {
		t.Fatal(err)
	}
	inside := c.file("inside.kubeconfig", string(data))
	c.prints("3", "get", "nodes", "--kubeconfig", inside, "-o", "go-template={{len .items}}")

	// More machines, of both kinds.
	topology := func(patch string) {
		t.Helper()
		c.soon("patch", "cluster", "one", "--type=json", "-p", patch)
	}
	topology(`[{"op": "replace", "path": "/spec/topology/controlPlane/replicas", "value": 3},
	           {"op": "replace", "path": "/spec/topology/workers/machineDeployments/0/replicas", "value": 3}]`)
	c.machines("v1.35.0", 6)
	c.prints("6", "get", "nodes", "--kubeconfig", inside, "-o", "go-template={{len .items}}")
	if out := c.kubectl("get", "cluster", "one", "-o", "wide"); !strings.Contains(out, "in-memory") || !strings.Contains(out, "CP READY") {
		t.Errorf("the cluster is printed as\n%s", out)
	}

	// Another version, and every machine is replaced: one at a time, the control plane's first.
	before := c.kubectl("get", "machines", "-o", "name")
	topology(`[{"op": "replace", "path": "/spec/topology/version", "value": "v1.36.0"}]`)
	c.machines("v1.36.0", 3, "-l", controlPlane)
	c.machines("v1.36.0", 6)
	for name := range strings.FieldsSeq(c.kubectl("get", "machines", "-o", "name")) {
		if slices.Contains(strings.Fields(before), name) {
			t.Errorf("%s was not replaced", name)
		}
	}
	c.available("one")

	// The older version of its API, by the project's webhooks of conversion, both ways.
	c.prints("v1.36.0", "get", "clusters.v1beta1.cluster.x-k8s.io", "one", "-o", "jsonpath={.spec.topology.version}")
	c.kubectl("annotate", "machinedeployments.v1beta1.cluster.x-k8s.io", "-l", "cluster.x-k8s.io/cluster-name=one", "example.org/by=v1beta1")
	c.refusesPatch("one", `[{"op": "replace", "path": "/spec/topology/version", "value": "v1.35.0"}]`, "version cannot be decreased")
	c.refusesPatch("one", `[{"op": "replace", "path": "/spec/topology/workers/machineDeployments/0/class", "value": "gone"}]`, "gone")

	// A machine that somebody deletes comes back with its node; the cluster goes with all that it has.
	worker := strings.Fields(c.kubectl("get", "machines", "-l", "!"+controlPlane, "-o", "name"))[0]
	c.kubectl("delete", worker, "--timeout", harness.Patience.String())
	c.machines("v1.36.0", 6)
	c.kubectl("delete", "cluster", "one", "--timeout", harness.Patience.String())
	c.prints("", "get", "machines,machinesets,machinedeployments,kubeadmcontrolplanes,devmachines,devclusters,kubeadmconfigs,secrets", "-o", "name")
}

// manage applies one manager's manifests. The project has its webhooks' certificates made by cert-manager, whose programs are not
// published as modules; here the test makes them.
func (c *cluster) manage(m manager) {
	c.t.Helper()
	folders := map[string]string{}
	for _, name := range []string{"default", "crd", "rbac", "manager", "webhook", "certmanager"} {
		folders[name] = filepath.Join(m.from.files, m.folder, name)
	}
	dir := c.kustomization(fmt.Sprintf(managerKustomization, m.image, m.from.version), folders)
	namespace, service := m.prefix+"system", m.prefix+"webhook-service"
	keys := filepath.Join(c.Dir, m.prefix+"certificate")
	bundle := base64.StdEncoding.EncodeToString(certificate(c.t, keys, service+"."+namespace+".svc"))
	manifest := substituted(c.kubectl("kustomize", dir), map[string]string{"CLUSTER_TOPOLOGY": "true"})
	applied := c.file(m.prefix+"manager.yaml", withBundle(c.t, manifest, bundle))
	c.kubectl("create", "namespace", namespace)
	c.kubectl("-n", namespace, "create", "secret", "tls", m.prefix+"webhook-service-cert",
		"--cert", filepath.Join(keys, "tls.crt"), "--key", filepath.Join(keys, "tls.key"))
	c.kubectl("apply", "--server-side", "-f", applied)
}

// withBundle is a manifest without cert-manager's objects, with an authority in what cert-manager would put it into.
func withBundle(t *testing.T, manifest, bundle string) string {
	t.Helper()
	var out strings.Builder
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		var o unstructured.Unstructured
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		switch o.GroupVersionKind().Group {
		case "cert-manager.io":
			continue
		case "apiextensions.k8s.io":
			if _, found, _ := unstructured.NestedMap(o.Object, "spec", "conversion", "webhook", "clientConfig"); found {
				err = unstructured.SetNestedField(o.Object, bundle, "spec", "conversion", "webhook", "clientConfig", "caBundle")
			}
		case "admissionregistration.k8s.io":
			webhooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
			for _, webhook := range webhooks {
				err = errors.Join(err, unstructured.SetNestedField(webhook.(map[string]any), bundle, "clientConfig", "caBundle"))
			}
			err = errors.Join(err, unstructured.SetNestedSlice(o.Object, webhooks, "webhooks"))
		}
		data, wrong := json.Marshal(o.Object)
		if err := errors.Join(err, wrong); err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n" + string(data) + "\n")
	}
}

var variable = regexp.MustCompile(`\$\{(\w+)(?::=([^}]*))?\}`)

// substituted replaces ${NAME} and ${NAME:=default}, as the project's own tool does it.
func substituted(text string, values map[string]string) string {
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		parts := variable.FindStringSubmatch(found)
		if value, ok := values[parts[1]]; ok {
			return value
		}
		return parts[2]
	})
}

func (c *cluster) available(name string) {
	c.t.Helper()
	c.kubectl("wait", "--for=condition=Available", "cluster/"+name, "--timeout", harness.Patience.String())
}

// controlPlane is the label of machines of the control plane.
const controlPlane = "cluster.x-k8s.io/control-plane"

// machines waits until there are so many machines, by an option of kubectl's, and all are ready and have the version.
func (c *cluster) machines(version string, count int, option ...string) {
	c.t.Helper()
	const ready = `go-template={{range .items}}{{$ready := "no"}}{{range .status.conditions}}{{if eq .type "Ready"}}{{$ready = .status}}{{end}}{{end}}` +
		`{{if .metadata.deletionTimestamp}}goes{{else if ne $ready "True"}}comes{{else}}{{.spec.version}}{{end}} {{end}}`
	c.prints(strings.TrimSpace(strings.Repeat(version+" ", count)), append([]string{"get", "machines", "-o", ready}, option...)...)
}

// refusesPatch patches a cluster, which is refused with words.
func (c *cluster) refusesPatch(name, patch, words string) {
	c.t.Helper()
	out, err := c.try("patch", "cluster", name, "--type=json", "-p", patch, "--dry-run=server")
	if err == nil || !strings.Contains(err.Error(), words) {
		c.t.Errorf("the patch %s is answered with %s %v, expected %q", patch, out, err, words)
	}
}
