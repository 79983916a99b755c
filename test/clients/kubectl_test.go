// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// kubectls are the minor versions that are asked for: the one that is part of the
// binary, and with CLIENTS=all (`make clients`) the two before it, built from
// their published modules, which takes minutes.
func kubectls(t *testing.T, c *cluster) []*kubectl {
	t.Helper()
	all := []*kubectl{{version: "v1.37", tool: &tool{cluster: c, program: c.Binary, first: []string{"kubectl"}}}}
	if os.Getenv("CLIENTS") != "all" {
		return all
	}
	for _, minor := range []string{"36", "35"} {
		version := "v1." + minor
		// A release's build tells it which version it is.
		flags := "-X k8s.io/component-base/version.gitVersion=" + version + ".0"
		all = append(all,
			&kubectl{version: version, tool: c.tool(program(t, "kubectl1"+minor, "k8s.io/kubernetes/cmd/kubectl", "-ldflags", flags))})
	}
	return all
}

// kubectl is one minor version, with the namespace that it works in.
type kubectl struct {
	*tool
	version, namespace string
}

// file writes a manifest.
func (k *kubectl) file(name, text string) string {
	k.t.Helper()
	file := filepath.Join(k.Dir, k.namespace+"-"+name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
	return file
}

// in are arguments for the namespace.
func (k *kubectl) in(args ...string) []string { return append([]string{"-n", k.namespace}, args...) }

// refuses fails the test where a command works, or fails without saying want.
func (k *kubectl) refuses(want string, args ...string) {
	k.t.Helper()
	if _, err := k.try(args...); err == nil || !strings.Contains(err.Error(), want) {
		k.t.Errorf("%s %s: %v, want %q", k.version, strings.Join(args, " "), err, want)
	}
}

// field fails the test where a field of an object is not want.
func (k *kubectl) field(want, object, path string) {
	k.t.Helper()
	if got := k.run(k.in("get", object, "-o", "jsonpath={"+path+"}")...); got != want {
		k.t.Errorf("%s: %s of %s is %q, want %q", k.version, path, object, got, want)
	}
}

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "example.org/web:%d"}]}
`

const settings = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: %s}
`

// What people do with kubectl all day works with each minor version of it, and
// what they print of the same objects is the same.
func TestKubectl(t *testing.T) {
	c := start(t)
	all := kubectls(t, c)
	for _, k := range all {
		k.namespace = "k" + strings.ReplaceAll(k.version, ".", "")
		t.Run(k.version, func(t *testing.T) {
			k.tool.cluster = &cluster{c.Cluster, t}
			k.says([]string{"created"}, "create", "namespace", k.namespace)
			harness.Eventually(t, "a default account", func() error {
				_, err := k.try(k.in("get", "serviceaccount", "default")...)
				return err
			})
			k.applies()
			k.reads()
			k.changes()
			k.rolls()
			k.asks()
			k.drains()
			k.deletes()
		})
	}
	same(t, c, all)
}

func (k *kubectl) applies() {
	k.t.Helper()
	two, three := k.file("two.yaml", fmt.Sprintf(web, 2, 1)), k.file("three.yaml", fmt.Sprintf(web, 3, 1))
	k.says([]string{"deployment.apps/web created (server dry run)"}, k.in("apply", "-f", two, "--dry-run=server")...)
	k.says([]string{"deployment.apps/web created"}, k.in("apply", "-f", two)...)
	k.says([]string{"deployment.apps/web unchanged"}, k.in("apply", "-f", two)...)
	out, err := k.try(k.in("diff", "-f", three)...)
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(out, "+  replicas: 3") {
		k.t.Errorf("diff: %v\n%s", err, out)
	}
	k.says([]string{"deployment.apps/web configured"}, k.in("apply", "-f", three)...)
	k.says([]string{"deployment.apps/web configured"}, k.in("apply", "-f", two)...)
	red, blue := k.file("red.yaml", fmt.Sprintf(settings, "red")), k.file("blue.yaml", fmt.Sprintf(settings, "blue"))
	k.says([]string{"configmap/settings serverside-applied"}, k.in("apply", "--server-side", "--field-manager=one", "-f", red)...)
	k.refuses(`conflict with "one"`, k.in("apply", "--server-side", "--field-manager=two", "-f", blue)...)
	k.says([]string{"serverside-applied"}, k.in("apply", "--server-side", "--force-conflicts", "--field-manager=two", "-f", blue)...)
	k.field("blue", "configmap/settings", ".data.colour")
	k.refuses("strict decoding error", k.in("apply", "-f", k.file("odd.yaml", fmt.Sprintf(web, 1, 1)+"  oddity: 1\n"))...)
}

func (k *kubectl) reads() {
	k.t.Helper()
	k.says([]string{"successfully rolled out"}, k.in("rollout", "status", "deployment/web", "--timeout", harness.Patience.String())...)
	k.says([]string{"NAME", "CONTAINERS", "example.org/web:1", "app=web", "2/2"}, k.in("get", "deployment", "-o", "wide")...)
	k.says([]string{"NOMINATED NODE", "Running", "simulated-"},
		k.in("get", "pods", "-l", "app=web", "-o", "wide", "--sort-by=.metadata.name")...)
	k.says([]string{"kind: Deployment", "availableReplicas: 2"}, k.in("get", "deployment/web", "-o", "yaml")...)
	k.says([]string{"IMAGE", "example.org/web:1"},
		k.in("get", "pods", "--field-selector=status.phase=Running", "-o", "custom-columns=IMAGE:.spec.containers[0].image")...)
	k.says([]string{"2 desired | 2 updated | 2 total | 2 available", "ScalingReplicaSet", "MinimumReplicasAvailable"},
		k.in("describe", "deployment", "web")...)
	k.says([]string{"FIELD: replicas <integer>", "Number of desired pods"}, "explain", "deployment.spec.replicas")
	k.says([]string{"deployments", "deploy", "apps/v1", "Deployment"}, "api-resources", "--api-group=apps")
	k.says([]string{"authentication.k8s.io/v1", "plugins.wasmplane.dev/v1"}, "api-versions")
	k.says([]string{"SuccessfulCreate", "Scheduled", "Started"}, k.in("events")...)
	k.says([]string{"this container is simulated"}, k.in("logs", "deployment/web")...)
	k.refuses("simulated", k.in("exec", "deployment/web", "--", "true")...)
	k.says([]string{"Client Version: " + k.version, "Server Version: v1.37"}, "version")
}

func (k *kubectl) changes() {
	k.t.Helper()
	k.env = []string{`KUBE_EDITOR=sed -i "s/replicas: 2/replicas: 3/"`}
	k.says([]string{"deployment.apps/web edited"}, k.in("edit", "deployment/web")...)
	k.field("3", "deployment/web", ".spec.replicas")
	for kind, p := range map[string]string{
		"strategic": `{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"BY","value":"strategic"}]}]}}}}`,
		"merge":     `{"metadata":{"annotations":{"by":"merge"}}}`,
		"json":      `[{"op":"add","path":"/metadata/labels","value":{"by":"json"}}]`,
	} {
		k.says([]string{"deployment.apps/web patched"}, k.in("patch", "deployment/web", "--type="+kind, "-p", p)...)
	}
	k.field("strategic merge json", "deployment/web", `.spec.template.spec.containers[0].env[0].value} {.metadata.annotations.by} {.metadata.labels.by`)
	k.says([]string{"patched"}, k.in("patch", "deployment/web", "--subresource=scale", "--type=merge", "-p", `{"spec":{"replicas":4}}`)...)
	k.says([]string{"scaled"}, k.in("scale", "deployment/web", "--replicas=1", "--current-replicas=4")...)
	k.says([]string{"labeled"}, k.in("label", "deployment/web", "tier=front")...)
	k.refuses("already has a value", k.in("label", "deployment/web", "tier=back")...)
	k.says([]string{"annotated"}, k.in("annotate", "deployment/web", "note=short")...)
	k.says([]string{"condition met"}, k.in("wait", "deployment/web", "--for=jsonpath={.status.replicas}=1", "--timeout",
		harness.Patience.String())...)
	k.refuses("spec.replicas: Invalid value: -1", k.in("patch", "deployment/web", "-p", `{"spec":{"replicas":-1}}`)...)
}

func (k *kubectl) rolls() {
	k.t.Helper()
	finish := func() {
		k.t.Helper()
		k.run(k.in("rollout", "status", "deployment/web", "--timeout", harness.Patience.String())...)
	}
	k.says([]string{"image updated"}, k.in("set", "image", "deployment/web", "web=example.org/web:2")...)
	finish()
	k.says([]string{"REVISION", "2"}, k.in("rollout", "history", "deployment/web")...)
	k.says([]string{"rolled back"}, k.in("rollout", "undo", "deployment/web")...)
	finish()
	k.field("example.org/web:1", "deployment/web", ".spec.template.spec.containers[0].image")
	k.says([]string{"restarted"}, k.in("rollout", "restart", "deployment/web")...)
	finish()
	k.says([]string{"service/web exposed"}, k.in("expose", "deployment/web", "--port=80")...)
	k.says([]string{"autoscaled"}, k.in("autoscale", "deployment/web", "--min=1", "--max=9")...)
	k.says([]string{"job.batch/once created"}, k.in("create", "job", "once", "--image=example.org/once:1")...)
	k.says([]string{"condition met"}, k.in("wait", "job/once", "--for=condition=Complete", "--timeout", harness.Patience.String())...)
}

func (k *kubectl) asks() {
	k.t.Helper()
	k.says([]string{"yes"}, k.in("auth", "can-i", "create", "pods")...)
	k.refuses("exit status 1", k.in("auth", "can-i", "create", "pods", "--as=system:serviceaccount:default:nobody")...)
	k.says([]string{"Username", "kubernetes-admin"}, "auth", "whoami")
	if token := strings.TrimSpace(k.run(k.in("create", "token", "default", "--duration=1h")...)); strings.Count(token, ".") != 2 {
		k.t.Errorf("create token: %q", token)
	}
	harness.Eventually(k.t, "what pods use", func() error {
		out, err := k.try(k.in("top", "pods")...)
		if err == nil && !strings.Contains(out, "CPU(cores)") {
			return fmt.Errorf("kubectl top says %q", out)
		}
		return err
	})
	k.refuses(`the server doesn't have a resource type "nonsense"`, "get", "nonsense")
	k.refuses(`deployments.apps "nobody" not found`, k.in("get", "deployment/nobody")...)
}

func (k *kubectl) drains() {
	k.t.Helper()
	k.says([]string{"cordoned"}, "cordon", "simulated-1")
	k.says([]string{"drained"}, "drain", "simulated-1", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout",
		harness.Patience.String())
	k.says([]string{"SchedulingDisabled"}, "get", "node", "simulated-1")
	k.says([]string{"uncordoned"}, "uncordon", "simulated-1")
	k.says([]string{"condition met"}, k.in("wait", "deployment/web", "--for=condition=Available", "--timeout", harness.Patience.String())...)
	k.says([]string{"tainted"}, "taint", "node", "simulated-2", "kept=for:NoSchedule")
	k.says([]string{"untainted"}, "taint", "node", "simulated-2", "kept-")
}

func (k *kubectl) deletes() {
	k.t.Helper()
	k.says([]string{`deployment.apps "web" deleted`}, k.in("delete", "deployment/web", "--cascade=foreground", "--wait", "--timeout", harness.Patience.String())...)
	k.refuses("NotFound", k.in("get", "deployment/web")...)
	k.says([]string{"deleted"}, "delete", "namespace", k.namespace, "--timeout", harness.Patience.String())
	k.refuses("NotFound", "get", "namespace", k.namespace)
}

// ages are what may differ between two moments.
var ages = regexp.MustCompile(`\b([0-9]+[smhd])+\b`)

// same compares what all print of the same objects.
func same(t *testing.T, c *cluster, all []*kubectl) {
	t.Helper()
	c.apply(fmt.Sprintf(web, 2, 1))
	c.kubectl("rollout", "status", "deployment/web", "--timeout", harness.Patience.String())
	for _, args := range [][]string{
		{"get", "deployments,replicasets,pods,nodes,services", "-o", "wide"},
		{"get", "deployment/web", "-o", "yaml"},
		{"get", "pods", "-o", "json"},
		{"get", "namespaces", "--show-labels"},
		{"describe", "deployment", "web"},
		{"explain", "deployment.spec.strategy", "--recursive"},
		{"api-resources", "--sort-by=name"},
		{"auth", "can-i", "--list"},
		{"get", "clusterroles,priorityclasses,flowschemas"},
	} {
		first := ""
		for i, k := range all {
			k.tool.cluster = c
			out := ages.ReplaceAllString(k.run(args...), "AGE")
			out = strings.Join(strings.Fields(out), " ") // columns are as wide as the ages
			if i == 0 {
				first = out
			} else if out != first {
				t.Errorf("kubectl %s prints\n%s\nwith %s, and with %s\n%s", strings.Join(args, " "), out, k.version, all[0].version, first)
			}
		}
	}
}
