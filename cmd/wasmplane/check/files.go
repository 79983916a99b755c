// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// files are sections 1.1 and 4.1. There are no manifests of static pods: the control
// plane is this binary.
func files() []recommendation {
	at := func(most fs.FileMode, patterns ...string) func(context.Context, *subject) verdict {
		return func(_ context.Context, s *subject) verdict { return s.modes(most, patterns...) }
	}
	return []recommendation{
		{"1.1.1", "files of the control plane are closed (and 1.1.3, 1.1.5, 1.1.7, 1.1.9, 4.1.1, 4.1.9)", at(0o700, ".")},
		{"1.1.2", "they are owned by who runs it (and 1.1.4, 1.1.6, 1.1.8, 1.1.10, 1.1.12, 1.1.14 to 1.1.19, 4.1.2, 4.1.4, 4.1.6, 4.1.8, 4.1.10)", func(_ context.Context, s *subject) verdict { return s.owner() }},
		{"1.1.11", "etcd's directory is closed", at(0o700, "etcd")},
		{"1.1.13", "the administrators' credentials are closed", at(0o600, "kubeconfig", "break-glass.kubeconfig")},
		{"1.1.15", "the components' credentials are closed (and 1.1.17, 4.1.3, 4.1.5)", at(0o600, "components/*.kubeconfig")},
		{"1.1.20", "certificates are changed by nobody else (and 4.1.7)", at(0o644, "pki/*.crt")},
		{"1.1.21", "keys are closed", at(0o600, "pki/*.key", "pki/encryption.yaml")},
	}
}

// modes says whether the files that are there have at most these rights.
func (s *subject) modes(most fs.FileMode, patterns ...string) verdict {
	seen := 0
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(string(s.dir), p))
		if err != nil {
			return manual("", "%v", err)
		}
		for _, f := range found {
			info, err := os.Stat(f)
			if err != nil {
				return manual("run this as the user of the cluster", "%v", err)
			}
			seen++
			if mode := info.Mode().Perm(); mode&^most != 0 {
				return lacking(fmt.Sprintf("chmod %04o %s", most, f), "%s has %04o", f, mode)
			}
		}
	}
	if seen == 0 {
		return met("there are none")
	}
	return met("at most %04o", most)
}

// owner looks at the directory and what lies in it.
func (s *subject) owner() verdict {
	want := uint32(os.Geteuid())
	if info, err := os.Stat(string(s.dir)); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			want = st.Uid
		}
	}
	for _, p := range []string{"*", "pki/*", "components/*"} {
		found, err := filepath.Glob(filepath.Join(string(s.dir), p))
		if err != nil {
			return manual("", "%v", err)
		}
		for _, f := range found {
			info, err := os.Lstat(f)
			if err != nil {
				continue // it has just gone
			}
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != want && st.Uid != 0 {
				return lacking("chown it to the owner of the data directory", "%s belongs to user %d", f, st.Uid)
			}
		}
	}
	return met("all belong to user %d", want)
}
