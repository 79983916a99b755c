// SPDX-License-Identifier: Apache-2.0

// Package gotool has the go command build and find what others publish as modules.
package gotool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Run runs the go command in a folder, without cgo, and answers its output.
func Run(ctx context.Context, dir string, args ...string) (string, error) {
	return Output(ctx, dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false"), "go", args...)
}

// Module downloads a module of which the module in dir names the version, and answers both.
func Module(ctx context.Context, dir, path string) (version, folder string, err error) {
	if _, err := Run(ctx, dir, "mod", "download", path); err != nil {
		return "", "", err
	}
	out, err := Run(ctx, dir, "list", "-m", "-f", "{{.Version}} {{.Dir}}", path)
	version, folder, _ = strings.Cut(strings.TrimSpace(out), " ")
	return version, folder, err
}

// Output is what a program prints. The error has what it complained of.
func Output(ctx context.Context, dir string, environment []string, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = environment
	if err := cmd.Run(); err != nil {
		return "", errors.Join(fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String()), ctx.Err())
	}
	return stdout.String(), nil
}
