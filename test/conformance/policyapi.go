// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The tests of ClusterNetworkPolicy are network-policy-api's own: a program of their own, whose results are
// those of go test.
const (
	policyAPI        = "network-policy-api"
	policyAPIModule  = "sigs.k8s.io/network-policy-api"
	policyAPIProgram = "network-policy-api.test"
)

// policyAPIDir is the folder of the module, which has the definition and the pods of its tests.
func policyAPIDir(ctx context.Context) (string, error) {
	dir, err := command(ctx, "go", "list", "-m", "-f", "{{.Dir}}", policyAPIModule)
	return strings.TrimSpace(dir), err
}

var imagePattern = regexp.MustCompile(`(?m)^\s*(?:- )?image: (\S+)$`)

// policyAPIImages are the images of those pods.
func policyAPIImages(ctx context.Context) ([]string, error) {
	dir, err := policyAPIDir(ctx)
	if err != nil {
		return nil, err
	}
	manifests, err := os.ReadFile(filepath.Join(dir, "conformance", "base", "manifests.yaml"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range imagePattern.FindAllStringSubmatch(string(manifests), -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// withoutSCTP has containers that serve SCTP do nothing instead, on a machine whose kernel has none: their pods would
// never be ready.
const withoutSCTP = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: without-sctp}
spec:
  reinvocationPolicy: Never
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  matchConditions:
  - name: serves
    expression: "object.spec.containers.exists(c, has(c.env) && c.env.exists(e, e.name.startsWith('SERVE_SCTP_PORT_')))"
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].filter(i, i < object.spec.containers.size() && has(object.spec.containers[i].env) &&
        object.spec.containers[i].env.exists(e, e.name.startsWith('SERVE_SCTP_PORT_'))).map(i,
        JSONPatch{op: "replace", path: "/spec/containers/" + string(i) + "/command", value: ["/agnhost", "pause"]})
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: without-sctp}
spec: {policyName: without-sctp}
`

func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == nil
}

// runPolicyAPI installs the definition, runs the tests and says what became of each. Failed tests are an error,
// except where this machine lacks what they ask for.
func (j *job) runPolicyAPI(ctx context.Context, c *cluster) error {
	dir, err := policyAPIDir(ctx)
	if err != nil {
		return err
	}
	apply := func(file string) error {
		_, err := command(ctx, c.wasmplane, "kubectl", "--kubeconfig", c.kubeconfig(), "apply", "--server-side", "-f", file)
		return err
	}
	definition := filepath.Join(dir, "config", "crd", "experimental", "policy.networking.k8s.io_clusternetworkpolicies.yaml")
	if err := apply(definition); err != nil {
		return err
	}
	sctp := hasSCTP()
	if !sctp {
		fmt.Fprintln(j.out, "this machine's kernel has no SCTP: what tests of it say does not count")
		file := filepath.Join(j.o.cache, "without-sctp.yaml")
		if err := errors.Join(os.WriteFile(file, []byte(withoutSCTP), 0o600), apply(file)); err != nil {
			return err
		}
	}
	args := []string{
		"-test.v", "-test.timeout=2h", "-test.run=TestConformanceProfiles", "-conformance-profiles=ClusterNetworkPolicy", "-all-features",
		"-organization=wasmplane", "-project=wasmplane", "-url=https://github.com/wasmplane/wasmplane", "-version=" + j.version,
		"-contact=https://github.com/wasmplane/wasmplane/issues",
		"-additional-info=https://github.com/wasmplane/wasmplane/blob/main/docs/NETWORKPOLICY.md", "-report-output=" + filepath.Join(j.o.cache, policyAPI+".yaml"),
	}
	cmd := exec.CommandContext(ctx, filepath.Join(j.o.cache, policyAPIProgram), args...)
	cmd.Env, cmd.Dir = append(os.Environ(), "KUBECONFIG="+c.kubeconfig()), j.o.cache
	log, err := os.Create(filepath.Join(j.o.cache, policyAPI+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	ended := cmd.Run()
	if _, err := log.Seek(0, io.SeekStart); err != nil {
		return err
	}
	t, err := readTally(log, sctp)
	if err != nil {
		return err
	}
	return t.report(j.out, ended, log.Name())
}

// tally is what became of tests without tests of their own.
type tally struct {
	passed, failed, needSCTP []string
}

var outcomePattern = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) `)

// readTally reads the output of go test. A test that failed counts as one that needs SCTP if there is none here,
// and it is in its name or in what it did last without success.
func readTally(from io.Reader, sctp bool) (t tally, err error) {
	state := map[string]string{}
	var order []string
	asked := map[string]bool{} // tests that failed to connect by SCTP
	running := ""
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := outcomePattern.FindStringSubmatch(line); m != nil {
			state[m[2]] = m[1]
			order = append(order, m[2])
			continue
		}
		for _, word := range []string{"=== RUN   ", "=== NAME  ", "=== CONT  "} {
			if name, ok := strings.CutPrefix(line, word); ok {
				running = name
			}
		}
		if strings.Contains(line, "--protocol=sctp") {
			asked[running] = true
		}
	}
	for _, name := range order {
		leaf := !slices.ContainsFunc(order, func(other string) bool { return strings.HasPrefix(other, name+"/") })
		switch {
		case !leaf || state[name] == "SKIP":
		case state[name] == "PASS":
			t.passed = append(t.passed, name)
		case !sctp && (asked[name] || strings.Contains(strings.ToUpper(name), "SCTP")):
			t.needSCTP = append(t.needSCTP, name)
		default:
			t.failed = append(t.failed, name)
		}
	}
	return t, lines.Err()
}

func (t tally) report(out io.Writer, ended error, log string) error {
	fmt.Fprintf(out, "%d passed, %d failed, %d failed that need SCTP, which this machine does not have\n", len(t.passed), len(t.failed), len(t.needSCTP))
	for _, name := range t.failed {
		fmt.Fprintln(out, "FAILED", name)
	}
	switch {
	case len(t.failed) > 0:
		return fmt.Errorf("%d tests of %s failed; %s has what they say", len(t.failed), policyAPI, log)
	case len(t.passed) == 0:
		return fmt.Errorf("no test of %s ran (%w); %s has what it says", policyAPI, errors.Join(ended, errors.New("nothing passed")), log)
	case len(t.needSCTP) == 0 && ended != nil:
		return fmt.Errorf("%s: %w; %s has what it says", policyAPI, ended, log)
	}
	return nil
}
