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

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

const tektonCommands = "github.com/tektoncd/pipeline/cmd/"

// tektonPrograms are the controller, the webhook, and what runs in pods beside and around the steps.
var tektonPrograms = []string{"controller", "webhook", "entrypoint", "nop", "workingdirinit"}

var tekton = published{
	name: "tekton", module: "github.com/tektoncd/pipeline", version: "v1.15.0",
	sum: "h1:ZGboFUaEdpYurZWqeGT5rn9e6qmomGL/gLSKhHp2vvQ=",
	programs: map[string]string{
		"controller": "./cmd/controller", "webhook": "./cmd/webhook", "entrypoint": "./cmd/entrypoint", "nop": "./cmd/nop",
		"workingdirinit": "./cmd/workingdirinit",
	},
}

// tektonApart are the project's examples that need more than a cluster has: a registry that says what the commands of an
// image are, a server of repositories, or a program that is not in the shell's image.
var tektonApart = []string{
	"taskruns/array-default.yaml",
	"taskruns/authenticating-git-commands.yaml",
	"taskruns/dind-sidecar.yaml",
	"taskruns/entrypoint-resolution.yaml",
	"taskruns/step-by-digest.yaml",
	"taskruns/step-script.yaml",
	"taskruns/steps-run-in-order.yaml",
	"taskruns/steptemplate-variable-interop.yaml",
	"pipelineruns/optional-workspaces.yaml",
	"pipelineruns/pipelinerun-with-final-tasks.yaml",
	"pipelineruns/pipelinerun.yaml",
	"pipelineruns/stepaction-params.yaml",
}

// tektonExamples are all others.
func (b *built) tektonExamples(t *testing.T) []string {
	t.Helper()
	examples := []string{}
	for _, kind := range []string{"taskruns", "pipelineruns"} {
		found, err := fs.Glob(os.DirFS(filepath.Join(b.files, "examples", "v1")), kind+"/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, found...)
	}
	all := len(examples)
	examples = slices.DeleteFunc(examples, func(name string) bool { return slices.Contains(tektonApart, name) })
	if len(examples) != all-len(tektonApart) || len(examples) < 70 {
		t.Fatalf("of %d examples %d are left", all, len(examples))
	}
	return examples
}

const (
	greet = `
apiVersion: tekton.dev/v1beta1
kind: Task
metadata: {name: greet}
spec:
  params: [{name: whom, type: string}]
  results: [{name: greeting}]
  steps:
  - name: write
    image: example.com/shell:1
    resources: {requests: {cpu: 10m}}
    script: echo -n "hello $(params.whom)" > /workspace/greeting
  - name: read
    image: example.com/shell:1
    command: [sh, -c, 'tee $(results.greeting.path) < /workspace/greeting']
`
	greetRun = `
apiVersion: tekton.dev/v1
kind: TaskRun
metadata: {name: %s}
spec:
  timeout: %s
  taskRef: {name: %s}
  params: [{name: whom, value: world}]
`
	endless = `
apiVersion: tekton.dev/v1
kind: Task
metadata: {name: endless}
spec:
  params: [{name: whom, type: string}]
  steps:
  - {name: waits, image: "example.com/shell:1", command: [sleep, "3600"]}
  - {name: never, image: "example.com/shell:1", command: ["true"]}
`
)

// TestTekton: Tekton Pipelines, by its project's manifests, runs the steps of tasks in their order in
// one pod, with results, workspaces and sidecars, and tasks after each other; ends what takes too
// long or is cancelled; and converts, completes and refuses objects by webhooks whose certificate it makes.
func TestTekton(t *testing.T) {
	b := tekton.build(t)
	c := startHere(t)
	for _, program := range tektonPrograms {
		c.importHere(b.image(t, "example.com/tekton/"+program+":"+b.version, program, "/ko-app/"+program, "65532"))
	}
	c.importHere(debianImage(t, shellSpec("example.com/shell:1")))
	c.explained("tekton-pipelines", "default")
	c.apply(b.tektonManifest(t))
	c.rolledOut("tekton-pipelines", "tekton-pipelines-controller", "tekton-pipelines-webhook")
	harness.Eventually(t, "a certificate for all webhooks", func() error {
		out, err := c.try("get", "crd/tasks.tekton.dev", "validatingwebhookconfiguration/validation.webhook.pipeline.tekton.dev",
			"mutatingwebhookconfiguration/webhook.pipeline.tekton.dev",
			"-o", "jsonpath={range .items[*]}{.spec.conversion.webhook.clientConfig.caBundle}{.webhooks[0].clientConfig.caBundle} {end}")
		if err == nil && len(strings.Fields(out)) != 3 {
			err = fmt.Errorf("of three have theirs %d", len(strings.Fields(out)))
		}
		return err
	})

	// A task of an older version, which the webhook converts, in one way for the store and in the other for its client.
	c.soon("apply", "-f", c.file("greet.yaml", greet))
	c.prints("10m", "get", "tasks.v1.tekton.dev", "greet", "-o", "jsonpath={.spec.steps[0].computeResources.requests.cpu}")
	c.prints("10m", "get", "tasks.v1beta1.tekton.dev", "greet", "-o", "jsonpath={.spec.steps[0].resources.requests.cpu}")
	c.refuses(`missing field(s): spec.steps`, "{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: empty}, spec: {}}")

	c.kubectl("create", "-f", c.file("run.yaml", fmt.Sprintf(greetRun, "greeting", "1m", "greet")))
	c.prints("default", "get", "taskrun", "greeting", "-o", "jsonpath={.spec.serviceAccountName}")
	c.succeeded("default")
	c.prints("hello world", "get", "taskrun", "greeting", "-o", "jsonpath={.status.results[0].value}")
	c.prints("write 0 read 0", "get", "taskrun", "greeting", "-o",
		"jsonpath={range .status.steps[*]}{.name} {.terminated.exitCode} {end}")
	if out := c.kubectl("logs", "greeting-pod", "-c", "step-read"); out != "hello world" {
		t.Errorf("the second step printed %q", out)
	}

	c.kubectl("apply", "-f", c.file("endless.yaml", endless))
	c.kubectl("create", "-f", c.file("run.yaml", fmt.Sprintf(greetRun, "late", "15s", "endless")))
	c.kubectl("create", "-f", c.file("run.yaml", fmt.Sprintf(greetRun, "cancelled", "1h", "endless")))
	c.prints("Running", "get", "pod", "cancelled-pod", "-o", "jsonpath={.status.phase}")
	c.kubectl("patch", "taskrun", "cancelled", "--type=merge", "-p", `{"spec":{"status":"TaskRunCancelled"}}`)
	const reason = "jsonpath={.status.conditions[0].status} {.status.conditions[0].reason}"
	c.prints("False TaskRunCancelled", "get", "taskrun", "cancelled", "-o", reason)
	c.prints("False TaskRunTimeout", "get", "taskrun", "late", "-o", reason)
	c.prints("greeting-pod", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")

	var namespaces []string
	examples := b.tektonExamples(t)
	for i, example := range examples {
		namespace := fmt.Sprintf("example-%d", i)
		namespaces = append(namespaces, namespace)
		c.kubectl("create", "namespace", namespace)
		c.soon("-n", namespace, "get", "serviceaccount", "default")
		text := imageLine.ReplaceAllString(b.read(t, path.Join("examples/v1", example)), "image: example.com/shell:1")
		c.kubectl("-n", namespace, "create", "-f", c.file("example.yaml", text))
	}
	for i, example := range examples {
		t.Run(example, func(t *testing.T) {
			c := &cluster{c.Cluster, t}
			c.explained(namespaces[i])
			c.succeeded(namespaces[i])
		})
	}
	c.kubectl(append([]string{"delete", "namespace", "--timeout", harness.Patience.String()}, namespaces...)...)
}

var imageLine = regexp.MustCompile(`image: \S+`)

// succeeded waits until all runs of a namespace have.
func (c *cluster) succeeded(namespace string) {
	c.t.Helper()
	harness.Eventually(c.t, "the runs of "+namespace+" succeed", func() error {
		out, err := c.try("-n", namespace, "get", "taskruns,pipelineruns", "-o", "jsonpath="+
			`{range .items[*]}{.metadata.name} {range .status.conditions[*]}{.status} {.reason}: {.message}{end}{"\n"}{end}`)
		for line := range strings.Lines(out) {
			switch words := strings.Fields(line); {
			case len(words) > 1 && words[1] == "False":
				c.t.Fatalf("in %s: %s", namespace, line)
			case len(words) < 2 || words[1] != "True":
				return fmt.Errorf("not yet:\n%s", out)
			}
		}
		if err == nil && out == "" {
			err = fmt.Errorf("there is none")
		}
		return err
	})
}

// tektonManifest is what the project's release has in a file, without the part that sends cloud events,
// and without the part that fetches tasks from elsewhere.
func (b *built) tektonManifest(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := fs.WalkDir(os.DirFS(b.files), "config", func(name string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && entry.Name() == "resolvers" {
			return fs.SkipDir
		}
		if path.Ext(name) == ".yaml" && entry.Name() != "events.yaml" {
			fmt.Fprintf(&all, "---\n%s\n", b.read(t, name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	manifest := all.String()
	for _, program := range tektonPrograms {
		manifest = strings.ReplaceAll(manifest, "ko://"+tektonCommands+program, "example.com/tekton/"+program+":"+b.version)
	}
	return regexp.MustCompile(`cgr.dev/chainguard/busybox@sha256:\w+`).ReplaceAllString(manifest, "example.com/shell:1")
}

// shellSpec is an image in which people write scripts.
func shellSpec(name string) spec {
	return spec{
		Names:    []string{name},
		Packages: []string{"base-files", "bash", "coreutils", "sed", "grep", "findutils", "procps", "hostname"},
		Base: []file{
			{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
			{Path: "/root", Mode: os.ModeDir | 0o700},
			{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/bin/sh\n")},
		},
		Rest:   []file{{Path: "/bin/sh", Link: "bash"}, {Path: "/bin/ash", Link: "bash"}},
		Config: v1.Config{Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}},
	}
}
