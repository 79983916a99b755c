// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/profiles"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/configfile"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// policy is a configuration to be tried, with its plugins loaded.
type policy struct {
	simulate.Policy
	logger *slog.Logger
	loader *loader.Loader // nil: it has no plugins
}

func (p *policy) close(ctx context.Context) {
	if p.loader != nil {
		_ = p.loader.Close(ctx) // the process ends
	}
}

// policies of the configurations; none = the defaults.
func (o *options) policies(ctx context.Context, s *shell.Shell) (out []*policy, err error) {
	logger := slog.New(slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	defer func() {
		if err != nil {
			for _, p := range out {
				p.close(context.WithoutCancel(ctx))
			}
		}
	}()
	if len(o.configs) == 0 {
		p, err := newPolicy(ctx, "default", config.Default(), logger)
		return []*policy{p}, err
	}
	for _, file := range o.configs {
		cfg, err := load(file)
		if err != nil {
			return out, err
		}
		if err := cfg.Complete(); err != nil {
			return out, err
		}
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		if slices.ContainsFunc(out, func(p *policy) bool { return p.Name == name }) {
			name = file
		}
		p, err := newPolicy(ctx, name, cfg, logger)
		if err != nil {
			return out, err
		}
		out = append(out, p)
	}
	return out, nil
}

// load a configuration; a KubeSchedulerConfiguration stands for one that names it.
func load(file string) (*config.Configuration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	var head struct {
		Kind string `yaml:"kind"`
	}
	if yaml.Unmarshal(data, &head) == nil && head.Kind == configfile.Kind {
		cfg := config.Default()
		cfg.Scheduler.ConfigFile = file
		return cfg, nil
	}
	return config.Load(file, data)
}

func newPolicy(ctx context.Context, name string, cfg *config.Configuration, logger *slog.Logger) (*policy, error) {
	entries, err := manifest.OfFile(cfg)
	if err != nil {
		return nil, err
	}
	p := &policy{logger: logger}
	if len(entries) > 0 {
		for i := range entries {
			// Fuel is counted alike everywhere; how busy this machine is decides nothing.
			entries[i].Limits.Deadline = manifest.Duration(time.Minute)
			if entries[i].Grants.Clock || entries[i].Grants.Random {
				logger.WarnContext(ctx, "a plugin may read the real clock or draw lots: the same seed need not give the same output", "plugin", entries[i].Name)
			}
		}
		if p.loader, err = loader.New(ctx, loader.Config{
			Entries: entries, Dir: filepath.Dir(cfg.File), Points: abi.SchedulingPoints(), Logger: logger,
		}); err != nil {
			return nil, err
		}
		if err := p.loader.Load(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", cfg.File, err), p.loader.Close(ctx))
		}
	}
	p.Policy = simulate.Policy{Name: name, Profiles: func(inf informers.SharedInformerFactory) ([]scheduler.Profile, queue.Config, error) {
		_, allowed := cfg.Egress.Networks()
		policy, err := profiles.Of(cfg, p.wasm(), native.Config{Informers: inf}, extender.Reach{
			Dial: dial.Operator(allowed), Trial: true, Logger: logger,
		})
		return policy.Profiles, queue.Config{Backoff: policy.Queue}, err
	}}
	return p, nil
}

// wasm are the plugins of the configuration that take part in scheduling.
func (p *policy) wasm() (out []scheduler.Weighted) {
	if p.loader == nil {
		return nil
	}
	for _, w := range p.loader.SchedulerPlugins() {
		out = append(out, scheduler.Weighted{Plugin: w.Plugin, Weight: w.Weight})
	}
	return out
}
