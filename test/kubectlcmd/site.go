// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	_ "embed" // the driver is a file
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/gotool"
	"github.com/wasmplane/wasmplane/test/internal/harness"
	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// driver sources upstream's scripts and runs one group.
//
//go:embed driver.sh
var driver string

// configuration of the server, as upstream starts its own; the folder of the scripts
// and its own folder are filled in.
const configuration = `apiVersion: wasmplane.dev/v1alpha1
kind: Configuration
cluster: {serviceCIDR: 10.0.0.0/24}
apiserver:
  tokenFile: %[1]s/hack/testdata/auth-tokens.csv
  clientCAFiles: [%[1]s/hack/testdata/ca/ca.crt]
  authenticationConfigFile: %[2]s/authentication.yaml
  disableAdmissionPlugins:
  - ServiceAccount
  - DefaultStorageClass
  - DefaultTolerationSeconds
  - MutatingAdmissionWebhook
  - ValidatingAdmissionWebhook
  - StorageObjectInUseProtection
# Upstream's controllers divide no pod network unless they are told to.
controllers: {enabled: ['*', -node-ipam-controller], serving: {listen: %[3]s}}
`

// authentication: nobody is anonymous, as with upstream's mode AlwaysAllow.
const authentication = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: false}
jwt: []
`

// objects are what the groups find: upstream's mode AlwaysAllow, as a binding of everybody, and
// a Node without a kubelet. Its annotation lets field managers be saved, as upstream's does.
const objects = `apiVersion: v1
kind: List
items:
- apiVersion: rbac.authorization.k8s.io/v1
  kind: ClusterRoleBinding
  metadata: {name: test-cmd-everybody}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
  subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:authenticated"}
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: bob} # whom a review asks about
- apiVersion: v1
  kind: Node
  metadata: {name: 127.0.0.1, annotations: {save-managers: "true"}}
  status: {capacity: {memory: 1Gi}}
`

var ready = regexp.MustCompile(`msg=ready component=`)

// site is a server with its controllers, and the folder that groups run in.
type site struct {
	dir, scripts, tools, address string
	server, controllers          *harness.Process
	pages                        *pages
}

// startSite takes the scripts and starts a server in a new temporary folder. End it.
func startSite(ctx context.Context, wasmplane, upstream, tools string) (_ *site, err error) {
	dir, err := os.MkdirTemp("", "kubectlcmd")
	if err != nil {
		return nil, err
	}
	s := &site{dir: dir, scripts: filepath.Join(dir, "kubernetes"), tools: tools}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.end())
		}
	}()
	if s.pages, err = servePages(ctx, s.scripts); err != nil {
		return nil, err
	}
	if err := takeScripts(upstream, s.scripts, s.path("tmp"), s.pages.url); err != nil {
		return nil, err
	}
	if err := s.write(); err != nil {
		return nil, err
	}
	if err := s.start(wasmplane); err != nil {
		return nil, err
	}
	return s, s.prepare(ctx)
}

// prepare has the server hold what upstream's does: a node, and no definitions of custom
// resources, of which ours has those of its plugins.
func (s *site) prepare(ctx context.Context) error {
	return errors.Join(
		s.kubectl(ctx, "create", "-f", s.path("objects.yaml")),
		s.kubectl(ctx, "delete", "customresourcedefinitions", "--all", "--timeout", "1m"))
}

// kubectl runs kubectl as the administrator.
func (s *site) kubectl(ctx context.Context, args ...string) error {
	args = append([]string{"--kubeconfig", s.path("data/kubeconfig")}, args...)
	_, err := gotool.Output(ctx, s.dir, s.environment(), filepath.Join(s.tools, "kubectl"), args...)
	return err
}

// awaitNode waits until a minute has gone by in which the node was silent and its conditions say
// so: where all groups run, that has happened long before those that look at it.
func (s *site) awaitNode(ctx context.Context) error {
	return s.kubectl(ctx, "wait", "node/127.0.0.1", "--for=condition=Ready=Unknown", "--timeout", "5m")
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// write makes the files and folders that the server and the groups need.
func (s *site) write() error {
	listen, err := harness.FreeAddress()
	if err != nil {
		return err
	}
	for _, d := range []string{"tmp", "kubernetes/_output/bin"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"driver.sh":           driver,
		"objects.yaml":        objects,
		"authentication.yaml": authentication,
		"configuration.yaml":  fmt.Sprintf(configuration, s.scripts, s.dir, listen),
	} {
		if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"kubectl", "kubectl-convert"} {
		if err := os.Symlink(filepath.Join(s.tools, name), s.path("kubernetes/_output/bin/"+name)); err != nil {
			return err
		}
	}
	return nil
}

// start starts the server and its controllers, and waits until both are ready.
func (s *site) start(wasmplane string) (err error) {
	if s.address, err = harness.FreeAddress(); err != nil {
		return err
	}
	common := []string{"--data-dir", s.path("data"), "--config", s.path("configuration.yaml")}
	if s.server, err = s.component(wasmplane, append([]string{"apiserver", "--listen", s.address}, common...)); err != nil {
		return err
	}
	// Upstream's server leaves its certificate there, and some groups read it.
	ca, err := os.ReadFile(s.path("data/pki/ca.crt"))
	if err == nil {
		err = os.WriteFile(s.path("tmp/apiserver.crt"), ca, 0o600)
	}
	if err != nil {
		return err
	}
	kubeconfig := s.path("data/components/controllers.kubeconfig")
	s.controllers, err = s.component(wasmplane, append([]string{"controllers", "--kubeconfig", kubeconfig}, common...))
	return err
}

func (s *site) component(wasmplane string, args []string) (*harness.Process, error) {
	cmd := exec.Command(wasmplane, args...) //nolint:noctx // end ends it, in order
	cmd.Dir, cmd.Env = s.dir, s.environment()
	p, err := harness.Start(cmd)
	if err != nil {
		return nil, err
	}
	if _, err := p.AwaitLine(ready); err != nil {
		return p, fmt.Errorf("wasmplane %s: %w", args[0], err)
	}
	return p, nil
}

// alive is an error once the server or its controllers have ended.
func (s *site) alive() error {
	for name, p := range map[string]*harness.Process{"apiserver": s.server, "controllers": s.controllers} {
		select {
		case <-p.Done():
			return fmt.Errorf("wasmplane %s has ended (%w) and printed last:\n%s", name, p.Err(), harness.Tail(p.Output.String(), 40))
		default:
		}
	}
	return nil
}

// end ends the processes and removes the folder.
func (s *site) end() error {
	var errs []error
	for _, p := range []*harness.Process{s.controllers, s.server} {
		if p != nil {
			errs = append(errs, p.End(syscall.SIGTERM))
		}
	}
	if s.pages != nil {
		errs = append(errs, s.pages.end())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// environment is all that scripts and servers have of the user's: nothing names a
// kubeconfig, and the home directory is in the temporary folder.
func (s *site) environment() []string {
	port := s.address[strings.LastIndexByte(s.address, ':')+1:]
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.path("home"), "TMPDIR=" + s.path("tmp"), "KUBE_TEMP=" + s.path("kube"),
		// Upstream's functions color what they print, which takes a terminal that can.
		"TERM=xterm", "LANG=C", "SECURE_API_PORT=" + port,
	}
}

// runGroup runs a group in a process of its own, which ends with everything that it
// started. What it prints goes to a file.
func (s *site) runGroup(ctx context.Context, group, log string, patience time.Duration) result {
	began := time.Now()
	if group == nodes {
		if err := s.awaitNode(ctx); err != nil {
			return result{Group: group, Message: journal.InLine(err.Error(), 3), Took: time.Since(began), At: began}
		}
	}
	err := s.drive(ctx, group, log, patience)
	r := result{Group: group, Passed: err == nil, Took: time.Since(began), At: began}
	if err == nil {
		return r
	}
	text, _ := os.ReadFile(log) //nolint:errcheck // without it there is the error
	r.Message = cmp.Or(firstFailure(string(text)), err.Error())
	if errors.Is(err, context.DeadlineExceeded) {
		r.Message = fmt.Sprintf("not done after %s; the log ends: %s", patience, journal.InLine(harness.Tail(string(text), 3), 3))
	}
	return r
}

func (s *site) drive(ctx context.Context, group, log string, patience time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, d := range []string{"home", "kube"} { // each group begins without a kubeconfig
		if err := errors.Join(os.RemoveAll(s.path(d)), os.Mkdir(s.path(d), 0o755)); err != nil {
			return err
		}
	}
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	cmd := exec.CommandContext(ctx, "bash", s.path("driver.sh"), group)
	cmd.Dir, cmd.Env = s.scripts, s.environment()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }() // what it left behind
	return errors.Join(cmd.Wait(), ctx.Err())
}
