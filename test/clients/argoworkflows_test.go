// SPDX-License-Identifier: Apache-2.0

//go:build software

package clients

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

var argoWorkflows = published{
	name: "argo-workflows", module: "github.com/argoproj/argo-workflows/v4", version: "v4.0.5",
	sum:      "h1:/1lru5oXUd+k6KEDUps6rLX5OKfi1jTfabgXTly/VFU=",
	links:    map[string]string{"workflow/executor/osspecific/signal_linux.go": "signal_darwin.go"},
	programs: map[string]string{"workflow-controller": "./cmd/workflow-controller", "argoexec": "./cmd/argoexec"},
}

// argoKustomization is the project's installation without the server of its user interface, which its module lacks, with
// the rights that its quick start gives to the account of the workflows.
const argoKustomization = `
namespace: argo
resources:
- manifests/base/workflow-controller
- manifests/cluster-install-no-crds/workflow-controller-rbac
- manifests/quick-start/base/executor/emissary/executor-role.yaml
- manifests/quick-start/base/executor-default-rolebinding.yaml
- manifests/quick-start/base/pod-manager-role.yaml
- manifests/quick-start/base/pod-manager-default-rolebinding.yaml
- manifests/quick-start/base/workflow-manager-role.yaml
- manifests/quick-start/base/workflow-manager-default-rolebinding.yaml
images:
- {name: quay.io/argoproj/workflow-controller, newTag: %[1]s}
patches:
- target: {kind: Deployment}
  patch: |
    - op: add
      path: /spec/template/spec/containers/0/args
      value: [--executor-image, "quay.io/argoproj/argoexec:%[1]s", --executor-image-pull-policy, IfNotPresent]
- target: {kind: ConfigMap}
  patch: |
    - op: add
      path: /data
      value: {config: "images: {'example.com/shell:1': {entrypoint: [argosay]}}"}
`

// argoApart are the project's examples that need more than a cluster has, or end as chance has it.
var argoApart = []string{
	// Programs that are not in the shell's image.
	"conditionals.yaml", "scripts-bash.yaml", "scripts-javascript.yaml", "volumes-emptydir.yaml",
	"dns-config.yaml",                  // a name server at an address of others
	"archive-location.yaml",            // a store of artifacts
	"gc-ttl.yaml",                      // it is gone soon after its end
	"memoize-simple.yaml",              // rights that the project's installation does not give
	"coinflip-recursive.yaml",          // it goes on until a coin shows heads
	"retry-script.yaml",                // it may fail as often as it is tried again
	"pod-spec-from-previous-step.yaml", // a node with more memory
}

var (
	argoWorkflow = regexp.MustCompile(`(?m)^kind: Workflow\b`)
	// argoElsewhere is what examples have that need a store of artifacts, or a server in the Internet.
	argoElsewhere = regexp.MustCompile(`artifacts:|https?://|workflows\.argoproj\.io/no-test`)
)

// argoExamples are those that the project's own tests run, and that need a cluster alone.
func (b *built) argoExamples(t *testing.T) []string {
	t.Helper()
	found, err := fs.Glob(os.DirFS(filepath.Join(b.files, "examples")), "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	examples := slices.DeleteFunc(found, func(name string) bool {
		text := b.read(t, path.Join("examples", name))
		return !argoWorkflow.MatchString(text) || argoElsewhere.MatchString(text) || slices.Contains(argoApart, name)
	})
	if len(examples) < 50 {
		t.Fatalf("of the examples only %d are left", len(examples))
	}
	return examples
}

// argoShell is an image for the scripts of workflows, with the program that the project's own tests have in theirs.
func (b *built) argoShell(t *testing.T) string {
	t.Helper()
	s := shellSpec("example.com/shell:1")
	s.Packages = append(s.Packages, "python3-minimal", "libpython3-stdlib")
	s.Rest = append(s.Rest,
		file{Path: "/usr/bin/argosay", Mode: 0o755, Content: []byte(b.read(t, "test/e2e/images/argosay/v2/argosay"))},
		file{Path: "/usr/bin/python", Link: "python3"},
	)
	return debianImage(t, s)
}

const (
	// baking has tasks that depend on each other, hand on what they found, and are tried again.
	baking = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: baking, namespace: argo}
spec:
  entrypoint: all
  onExit: clean
  volumeClaimTemplates:
  - metadata: {name: shared}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
  templates:
  - name: all
    dag:
      tasks:
      - {name: weigh, template: weigh}
      - name: mix
        depends: weigh
        template: mix
        arguments: {parameters: [{name: grams, value: "{{item}}"}]}
        withParam: "{{tasks.weigh.outputs.result}}"
      - {name: heat, depends: weigh, template: heat}
      - {name: burn, depends: heat, template: burn}
      - name: bake
        depends: mix && heat.Succeeded && burn.Failed
        template: bake
        arguments: {parameters: [{name: mixed, value: "{{tasks.mix.outputs.parameters.mixed}}"}]}
  - name: weigh
    script: {image: "example.com/shell:1", command: [sh], source: "echo '[100, 200, 300]'"}
  - name: mix
    inputs: {parameters: [{name: grams}]}
    outputs: {parameters: [{name: mixed, valueFrom: {path: /tmp/mixed}}]}
    container:
      image: example.com/shell:1
      command: [sh, -c, "echo {{inputs.parameters.grams}} >> /shared/mixed; echo -n $(({{inputs.parameters.grams}} * 2)) > /tmp/mixed"]
      volumeMounts: [{name: shared, mountPath: /shared}]
  - name: heat
    retryStrategy: {limit: 3}
    container: {image: "example.com/shell:1", command: [sh, -c, "test {{retries}} = 2"]}
  - name: burn
    activeDeadlineSeconds: 5
    container: {image: "example.com/shell:1", command: [sleep, "3600"]}
  - name: bake
    inputs: {parameters: [{name: mixed}]}
    outputs: {parameters: [{name: bread, globalName: bread, valueFrom: {path: /tmp/bread}}]}
    container:
      image: example.com/shell:1
      command: [sh, -c, 'sort /shared/mixed | tr "\n" " " > /tmp/bread; echo -n "{{inputs.parameters.mixed}}" >> /tmp/bread']
      volumeMounts: [{name: shared, mountPath: /shared}]
  - name: clean
    resource:
      action: create
      setOwnerReference: true
      manifest: |
        apiVersion: argoproj.io/v1alpha1
        kind: Workflow
        metadata: {name: cleaning}
        spec: {entrypoint: e, templates: [{name: e, container: {image: "example.com/shell:1", command: [echo, "{{workflow.status}}"]}}]}
`
	forEver = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: for-ever, namespace: argo}
spec:
  entrypoint: e
  podGC: {strategy: OnPodCompletion}
  templates:
  - name: e
    container: {image: "example.com/shell:1", command: [sleep, "3600"]}
    sidecars: [{name: beside, image: "example.com/shell:1", command: [sleep, "3600"]}]
`
	everyMinute = `
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: every-minute, namespace: argo}
spec:
  schedules: ["* * * * *"]
  concurrencyPolicy: Forbid
  workflowSpec: {entrypoint: e, templates: [{name: e, container: {image: "example.com/shell:1", command: [date]}}]}
`
	twoEnds = `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: two-ends, namespace: argo}
spec:
  entrypoint: e
  templates:
  - name: e
    steps: [[{name: s, template: f, withSequence: {count: "2", end: "3"}}]]
  - {name: f, container: {image: "example.com/shell:1", command: [date]}}
`
)

// TestArgoWorkflows: Argo Workflows, by its project's manifests, with definitions that have all their schemas, runs tasks in
// the order in which they depend on each other, hands results on, tries again, ends what takes too
// long or is stopped, and takes a workflow's claims and pods away. The project's examples succeed.
func TestArgoWorkflows(t *testing.T) {
	b := argoWorkflows.build(t)
	c := startHere(t)
	for program, user := range map[string]string{"workflow-controller": "8737", "argoexec": ""} {
		c.importHere(b.image(t, "quay.io/argoproj/"+program+":"+b.version, program, "/bin/"+program, user))
	}
	c.importHere(b.argoShell(t))
	c.explained("argo")
	c.kubectl("create", "namespace", "argo")
	definitions := filepath.Join(b.files, "manifests", "base", "crds", "full")
	files, err := filepath.Glob(filepath.Join(definitions, "argoproj.io_*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("definitions in %s: %v (%v)", definitions, files, err)
	}
	for _, file := range files { // one at a time: each has up to 2.6 MB
		c.kubectl("apply", "--server-side", "-f", file)
	}
	c.kustomize(fmt.Sprintf(argoKustomization, b.version), map[string]string{"manifests": filepath.Join(b.files, "manifests")})
	c.rolledOut("argo", "workflow-controller")

	c.refuses("only one of count or end can be defined", twoEnds)
	c.soon("create", "-f", c.file("cron.yaml", everyMinute))
	c.kubectl("create", "-f", c.file("baking.yaml", baking))
	c.kubectl("create", "-f", c.file("forever.yaml", forEver))
	c.ended("baking", "Succeeded")
	c.prints("100 200 300 [200,400,600]", "-n", "argo", "get", "workflow", "baking", "-o",
		`jsonpath={.status.outputs.parameters[?(@.name=="bread")].value}`)
	for try, phase := range []string{"Failed", "Failed", "Succeeded"} {
		c.prints(phase, "-n", "argo", "get", "pods", "-o", fmt.Sprintf(
			`jsonpath={.items[?(@.metadata.annotations.workflows\.argoproj\.io/node-name=="baking.heat(%d)")].status.phase}`, try))
	}
	c.ended("cleaning", "Succeeded")
	c.prints("", "-n", "argo", "get", "pvc", "-o", "name")
	c.kubectl("-n", "argo", "delete", "workflow", "baking", "--timeout", harness.Patience.String())
	c.prints("", "-n", "argo", "get", "pods,workflows", "-l", "workflows.argoproj.io/workflow in (baking, cleaning)", "-o", "name")
	c.prints("", "-n", "argo", "get", "workflow", "cleaning", "--ignore-not-found", "-o", "name")

	const forEvers = "workflows.argoproj.io/workflow=for-ever"
	c.prints("Running", "-n", "argo", "get", "pods", "-l", forEvers, "-o", "jsonpath={.items[*].status.phase}")
	c.kubectl("-n", "argo", "patch", "workflow", "for-ever", "--type=merge", "-p", `{"spec": {"shutdown": "Terminate"}}`)
	c.ended("for-ever", "Failed")
	c.prints("", "-n", "argo", "get", "pods", "-l", forEvers, "-o", "name")

	// The quota counts objects of a definition.
	c.kubectl("create", "namespace", "few")
	c.kubectl("-n", "few", "create", "quota", "workflows", "--hard=count/workflows.argoproj.io=1")
	few := strings.ReplaceAll(forEver, "namespace: argo", "namespace: few")
	c.prints("0", "-n", "few", "get", "quota", "workflows", "-o", `jsonpath={.status.used.count/workflows\.argoproj\.io}`)
	c.kubectl("create", "-f", c.file("few.yaml", few))
	c.refuses("exceeded quota: workflows", strings.Replace(few, "for-ever", "one-more", 1))
	c.kubectl("delete", "namespace", "few", "--timeout", harness.Patience.String())

	c.prints("Succeeded", "-n", "argo", "get", "workflows", "-l", "workflows.argoproj.io/cron-workflow=every-minute", "-o",
		"jsonpath={.items[0].status.phase}")
	c.kubectl("-n", "argo", "delete", "cronworkflow", "every-minute")
	c.argoExamples(b)
}

// argoExamples runs the project's examples, all at once.
func (c *cluster) argoExamples(b *built) {
	c.t.Helper()
	for _, needed := range []string{"examples/configmaps/simple-parameters-configmap.yaml", "examples/testvolume.yaml"} {
		c.kubectl("-n", "argo", "apply", "-f", c.file("needed.yaml", b.read(c.t, needed)))
	}
	examples := b.argoExamples(c.t)
	var all strings.Builder
	for _, example := range examples {
		fmt.Fprintf(&all, "---\n%s\n", imageLine.ReplaceAllString(b.read(c.t, path.Join("examples", example)), "image: example.com/shell:1"))
	}
	names := strings.Fields(c.kubectl("-n", "argo", "create", "-f", c.file("examples.yaml", all.String()), "-o", "name"))
	if len(names) != len(examples) {
		c.t.Fatalf("of %d examples %d workflows were made", len(examples), len(names))
	}
	for i, example := range examples {
		c.t.Run(example, func(t *testing.T) {
			(&cluster{c.Cluster, t}).ended(strings.TrimPrefix(names[i], "workflow.argoproj.io/"), "Succeeded")
		})
	}
}

// ended waits until a workflow is in a phase of those that are its end.
func (c *cluster) ended(name, phase string) {
	c.t.Helper()
	harness.Eventually(c.t, "the end of the workflow "+name, func() error {
		out, err := c.try("-n", "argo", "get", "workflow", name, "-o", "jsonpath={.status.phase}: {.status.message}")
		switch got, _, _ := strings.Cut(out, ":"); {
		case err != nil || got == phase:
			return err
		case got == "Succeeded" || got == "Failed" || got == "Error":
			c.t.Fatalf("the workflow %s is %s, expected %s", name, out, phase)
		}
		return fmt.Errorf("it is %s", out)
	})
}
