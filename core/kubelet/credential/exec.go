// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

const (
	// mostOutput is how long an answer may be, mostWords what is read of a program's errors.
	mostOutput = 1 << 20
	mostWords  = 4 << 10
	// linger is how long output is read on once a program was ended: a child of it may hold it open.
	linger = time.Second
)

// exec runs a program once.
func (m *Manager) exec(ctx context.Context, p *provider, r *api.CredentialProviderRequest) (*api.CredentialProviderResponse, error) {
	in, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write its request: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	c := exec.CommandContext(bounded, filepath.Join(m.cfg.BinDir, p.Name), p.Args...) //nolint:gosec // the operator names it
	c.Env = os.Environ()
	for _, e := range p.Env {
		c.Env = append(c.Env, e.Name+"="+e.Value)
	}
	out, words := &limited{most: mostOutput}, &limited{most: mostWords, cut: true}
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(in), out, words
	// With those that it has started.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = linger
	err = c.Run()
	if err != nil && ctx.Err() == nil {
		m.cfg.Logger.WarnContext(ctx, "a credential provider failed", "provider", p.Name, "image", r.Image, "error", err,
			"stderr", words.got.String())
	}
	switch {
	case errors.Is(bounded.Err(), context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, fmt.Errorf("it has not answered within %s", m.cfg.Timeout)
	case out.over:
		return nil, fmt.Errorf("it answers with more than %d bytes", mostOutput)
	case err != nil:
		return nil, fmt.Errorf("%w; the node's log has what it wrote", err)
	}
	var answer api.CredentialProviderResponse
	if err := json.Unmarshal(out.got.Bytes(), &answer); err != nil {
		return nil, errors.New("its answer is no JSON of a CredentialProviderResponse")
	}
	if answer.APIVersion != p.APIVersion || answer.Kind != "CredentialProviderResponse" {
		return nil, fmt.Errorf("it answers with %q of %q: expected CredentialProviderResponse of %q, as it was asked", answer.Kind, answer.APIVersion,
			p.APIVersion)
	}
	return &answer, nil
}

// limited takes so many bytes. What is more is an error, or is cut off.
type limited struct {
	got  bytes.Buffer
	most int
	cut  bool
	over bool
}

// Write implements io.Writer.
func (l *limited) Write(data []byte) (int, error) {
	room := l.most - l.got.Len()
	if len(data) <= room {
		return l.got.Write(data)
	}
	l.over = true
	if !l.cut {
		return 0, errors.New("too much output")
	}
	_, _ = l.got.Write(data[:room])
	return len(data), nil
}
