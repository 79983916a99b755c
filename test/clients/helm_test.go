// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// program builds one from a module that publishes it, named in a folder with a go.mod.
func program(t *testing.T, module, pkg string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(pkg))
	args := append([]string{"build", "-C", module, "-o", file}, flags...)
	if out, err := exec.Command("go", append(args, pkg)...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return file
}

// tool is a client's program with the administrator's kubeconfig and a home of its own.
type tool struct {
	*cluster
	program string
	// first are arguments that come before all others.
	first, env []string
}

func (c *cluster) tool(program string) *tool { return &tool{cluster: c, program: program} }

// try answers what the program prints.
func (h *tool) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.program, append(slices.Clone(h.first), args...)...)
	cmd.Dir, cmd.WaitDelay = h.Dir, time.Second // a child of the program may hold its output open
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+h.Kubeconfig(), "HOME="+h.Dir), h.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(h.program), strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// run answers what the program prints; that it fails fails the test.
func (h *tool) run(args ...string) string {
	h.t.Helper()
	out, err := h.try(args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// says fails the test where what the program prints lacks something.
func (h *tool) says(wants []string, args ...string) string {
	h.t.Helper()
	out := h.run(args...)
	for _, want := range wants {
		if !strings.Contains(out, want) {
			h.t.Errorf("%s %s does not print %q:\n%s", filepath.Base(h.program), strings.Join(args, " "), want, out)
		}
	}
	return out
}

// Stock Helm installs a chart with a definition and objects of it, a subchart and
// hooks, upgrades it, fails at upgrading it, goes back, tests it and takes it away.
func TestHelm(t *testing.T) {
	helm := program(t, "helm", "helm.sh/helm/v4/cmd/helm")
	chart, err := filepath.Abs(filepath.Join("testdata", "shop"))
	if err != nil {
		t.Fatal(err)
	}
	c := start(t)
	h := c.tool(helm)
	patience := "--timeout=" + harness.Patience.String()
	in := func(args ...string) []string { return append([]string{"-n", "market"}, args...) }
	state := func(want string) {
		t.Helper()
		var release struct{ Info struct{ Status string } }
		out := h.run(in("status", "shop", "-o", "json")...)
		if err := json.Unmarshal([]byte(out), &release); err != nil || release.Info.Status != want {
			t.Errorf("the release is %q (%v), want %q", release.Info.Status, err, want)
		}
	}
	get := func(want, object, path string) {
		t.Helper()
		if got := c.kubectl(in("get", object, "-o", "jsonpath={"+path+"}")...); got != want {
			t.Errorf("%s of %s is %q, want %q", path, object, got, want)
		}
	}

	h.says([]string{"shop sells in size small."}, in("install", "shop", chart, "--create-namespace", "--wait", patience)...)
	state("deployed")
	get("2", "deployment/shop", ".status.availableReplicas")
	get("1", "statefulset/shop-cache", ".status.readyReplicas")
	get("small", "size/shop", ".spec.name")
	get("1", "job/shop-pre-install", ".status.succeeded")
	get("1", "configmap/shop-told", ".data.revision")
	before := c.kubectl(in("get", "deployment/shop", "-o", "jsonpath={.spec.template.metadata.annotations.settings}")...)

	h.run(in("upgrade", "shop", chart, "--reuse-values", "--set", "image.tag=2,size=large,replicas=3,cache.enabled=false", "--wait",
		patience)...)
	state("deployed")
	get("example.org/shop:2", "deployment/shop", ".spec.template.spec.containers[0].image")
	get("3", "deployment/shop", ".status.updatedReplicas")
	get("large", "size/shop", ".spec.name")
	get("large", "configmap/shop-settings", ".data.size")
	get("1", "job/shop-pre-upgrade", ".status.succeeded")
	get("2", "configmap/shop-told", ".data.revision")
	c.prints("", in("get", "statefulsets", "-o", "name")...)

	_, err = h.try(in("upgrade", "shop", chart, "--reuse-values", "--set", "size=enormous", "--wait", patience)...)
	if err == nil || !strings.Contains(err.Error(), `Unsupported value: "enormous"`) {
		t.Errorf("an object that its definition forbids: %v", err)
	}
	state("failed")
	_, err = h.try(in("upgrade", "shop", chart, "--reuse-values", "--set", "size=large,image.tag=4,prepare.exitCode=1", "--wait", patience)...)
	if err == nil || !strings.Contains(err.Error(), "pre-upgrade") {
		t.Errorf("a hook that fails: %v", err)
	}
	get("example.org/shop:2", "deployment/shop", ".spec.template.spec.containers[0].image")

	h.run(in("rollback", "shop", "1", "--wait", patience)...)
	state("deployed")
	get("example.org/shop:1", "deployment/shop", ".spec.template.spec.containers[0].image")
	get(before, "deployment/shop", ".spec.template.metadata.annotations.settings")
	get("small", "size/shop", ".spec.name")
	get("1", "statefulset/shop-cache", ".status.readyReplicas")
	h.says([]string{"superseded", "failed", "Rollback to 1"}, in("history", "shop")...)
	h.says([]string{"shop-answers", "Succeeded"}, in("test", "shop", "--logs", patience)...)

	h.says([]string{`release "shop" uninstalled`}, in("uninstall", "shop", "--wait", patience)...)
	c.prints("", in("get", "deployments,statefulsets,services,sizes", "-o", "name")...)
	if _, err := c.try(in("get", "job", "shop-farewell")...); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("the hook before the end, which goes when it has succeeded: %v", err)
	}
	c.kubectl("get", "crd", "sizes.shop.example.org") // Helm never removes a definition
	if out := h.run(in("list", "-q")...); strings.TrimSpace(out) != "" {
		t.Errorf("releases that are left: %s", out)
	}
}
