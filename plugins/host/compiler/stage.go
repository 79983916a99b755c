// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/unix"
)

// Stage hands artifacts to an engine. The engine finds code in a directory of files,
// without a question of where they come from; so the directory is one that this
// process made for itself, and a file is in it only while the engine takes it over.
type Stage struct {
	dir     string
	version string // the folder that this engine looks into
	cache   wazero.CompilationCache

	mu   sync.Mutex
	busy map[string]*turn // files that are being taken over
}

// turn is for one file at a time: the engine shows a module to others before it has taken it
// over, and they would find half of it.
type turn struct {
	sync.Mutex
	users int
}

// stagePrefix begins the names of stages; the number of their process follows.
const stagePrefix = "stage-"

// NewStage makes a stage in a directory ("" = the system's for temporary files), and
// removes those of processes that have gone. Config has an engine made with it find the code.
func NewStage(in string) (*Stage, error) {
	if in != "" {
		removeStale(in)
	}
	dir, err := os.MkdirTemp(in, fmt.Sprintf("%s%d-", stagePrefix, os.Getpid())) // 0700
	if err != nil {
		return nil, fmt.Errorf("make a directory for compiled plugins: %w", err)
	}
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	folders, err := filepath.Glob(filepath.Join(dir, "wazero-*"))
	if err != nil || len(folders) != 1 {
		return nil, errors.Join(fmt.Errorf("the engine made %d folders in its directory: %w", len(folders), err), os.RemoveAll(dir))
	}
	return &Stage{dir: dir, version: filepath.Base(folders[0]), cache: cache, busy: map[string]*turn{}}, nil
}

// Config has an engine take its code from the stage.
func (s *Stage) Config(c wazero.RuntimeConfig) wazero.RuntimeConfig {
	return c.WithCompilationCache(s.cache)
}

// Version names engine and machine. Code of another version is of no use.
func (s *Stage) Version() string { return s.version }

// Adopt has the engine take an artifact over.
func (s *Stage) Adopt(ctx context.Context, r wazero.Runtime, a *Artifact) (wazero.CompiledModule, error) {
	defer s.take(a.Name)()
	if a.Name != "" {
		if err := s.put(a); err != nil {
			return nil, err
		}
		defer func() { _ = os.Remove(filepath.Join(s.dir, a.Name)) }()
	}
	return Adopt(ctx, r, a.Metered)
}

// take waits until nobody else takes a file over.
func (s *Stage) take(name string) (done func()) {
	s.mu.Lock()
	t := s.busy[name]
	if t == nil {
		t = &turn{}
		s.busy[name] = t
	}
	t.users++
	s.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(s.busy, name)
		}
	}
}

func (s *Stage) put(a *Artifact) error {
	if filepath.Dir(a.Name) != s.version || !codeName.MatchString(a.Name) {
		return ErrNotCompiled // by another version of the engine
	}
	if err := os.MkdirAll(filepath.Join(s.dir, s.version), 0o700); err != nil { // whoever cleans up may have taken it
		return fmt.Errorf("hand compiled code to the engine: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, a.Name), a.Code, 0o600); err != nil {
		return fmt.Errorf("hand compiled code to the engine: %w", err)
	}
	return nil
}

// Close frees the engine's code, when its runtimes are closed.
func (s *Stage) Close(ctx context.Context) error {
	return errors.Join(s.cache.Close(ctx), os.RemoveAll(s.dir))
}

// removeStale removes the stages of processes that were killed.
func removeStale(in string) {
	found, _ := filepath.Glob(filepath.Join(in, stagePrefix+"*")) // the pattern is a good one
	for _, dir := range found {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), stagePrefix), "-")
		if pid, err := strconv.Atoi(number); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}
