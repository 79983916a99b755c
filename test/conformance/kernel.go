// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/test/conformance/internal/result"
	"github.com/wasmplane/wasmplane/test/conformance/internal/suite"
)

// need is something of the kernel's that some tests use. Without it they wait for minutes, and fail.
type need struct {
	tests *regexp.Regexp
	// met says whether the kernel of this machine has it, perhaps as a module that it loads now.
	met    func(context.Context) (bool, error)
	reason string
}

var needs = []need{
	{
		tests:  regexp.MustCompile(`\[NFS\]|\[Driver: nfs3?\]|NFSPersistentVolumes|PersistentVolumes NFS `),
		met:    func(context.Context) (bool, error) { return hasFilesystems("nfs", "nfsd") },
		reason: "not run: the kernel of this machine has no NFS (nfs, nfsd)",
	},
	{
		tests:  regexp.MustCompile(`PrivilegedPod should enable privileged commands`),
		met:    hasDummyLinks,
		reason: "not run: the kernel of this machine has no links of the type dummy",
	},
}

// hasFilesystems asks the kernel to mount nothing of each type: it then loads the module, if there is one.
func hasFilesystems(types ...string) (bool, error) {
	for _, name := range types {
		dir, err := os.MkdirTemp("", "mount")
		if err != nil {
			return false, err
		}
		err = unix.Mount("none", dir, name, 0, "")
		if err == nil {
			err = unix.Unmount(dir, 0)
		}
		if removed := os.Remove(dir); removed != nil {
			return false, removed
		}
		if errors.Is(err, unix.ENODEV) {
			return false, nil
		}
	}
	return true, nil
}

// hasDummyLinks makes such a link in a network namespace that ends with the command.
func hasDummyLinks(ctx context.Context) (bool, error) {
	var exit *exec.ExitError
	err := exec.CommandContext(ctx, "unshare", "--net", "ip", "link", "add", "probe", "type", "dummy").Run()
	if errors.As(err, &exit) {
		return false, nil
	}
	return err == nil, err
}

// fitting answers the tests that this machine's kernel can run. The others fail at once, with the reason.
func (j *job) fitting(ctx context.Context, tests []suite.Test) ([]suite.Test, error) {
	for _, n := range needs {
		met, err := n.met(ctx)
		if err != nil {
			return nil, fmt.Errorf("ask the kernel: %w", err)
		}
		if met {
			continue
		}
		var others []suite.Test
		for _, t := range tests {
			if !n.tests.MatchString(t.Name) {
				others = append(others, t)
				continue
			}
			r := result.Result{Test: t.Name, SIG: t.SIG, State: "failed", Message: n.reason, Build: j.build, At: time.Now()}
			if err := j.record(r, "kernel"); err != nil {
				return nil, err
			}
		}
		tests = others
	}
	return tests, nil
}
