// SPDX-License-Identifier: Apache-2.0

// Package manifests applies the manifests of a folder, by server-side apply under a field
// manager of its own: at the start, when they change, and again after a failure. What is
// taken out of the folder is deleted from the cluster.
//
// Of several servers one acts, the leader. What it has applied is written down in a
// ConfigMap before it is applied, so that nothing is forgotten by whoever leads next. Only
// what a server has applied from its own folder does it delete: a server whose folder
// lacks files takes nothing away when it becomes the leader.
//
// A wrong file harms no other, and what was last right in it stays.
package manifests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/folderwatch"
)

// Manager owns the fields of what is applied.
const Manager = "wasmplane-manifests"

// Name of the ConfigMap in kube-system that has what was applied, and of the leader's Lease.
const Name = "wasmplane-manifests"

// every is how often the folder is looked at though nothing was heard of it.
const every = 20 * time.Second

// Config of a Folder.
type Config struct {
	// Dir is the folder.
	Dir string
	// Server is the identity of this server among several.
	Server string
	Kube   kubernetes.Interface
	// Dynamic applies and deletes, with the rights of whom it stands for.
	Dynamic dynamic.Interface
	Mapper  meta.ResettableRESTMapper
	// Report is called with each new problem, which begins with its file and line.
	Report func(ctx context.Context, problem string)
	// Every is how often the folder is looked at though nothing was heard of it (20 s if
	// zero), and a failure tried again.
	Every  time.Duration
	Logger *slog.Logger
}

// Folder of manifests.
type Folder struct {
	cfg Config
	// done is what was applied, by object; problems are those of the last round.
	done     map[key]string
	problems []string
	seen     map[string]string // digests of the last round's files
	complete bool              // it left nothing to do
	waits    bool              // for charts that are being uninstalled
	differed string            // the last difference that was reported
}

// New makes a Folder.
func New(cfg Config) *Folder {
	if cfg.Every <= 0 {
		cfg.Every = every
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Folder{cfg: cfg}
}

func (f *Folder) watch(ctx context.Context, look func(context.Context)) error {
	return folderwatch.Watch{Dir: f.cfg.Dir, What: "the folder of manifests", Every: f.cfg.Every, Logger: f.cfg.Logger}.Run(ctx, look)
}

// Wanted waits until there is something to do for a leader: a file in the folder, or an
// object that this server has applied. Until then the server does not compete for the
// lease. False: ctx has ended.
func (f *Folder) Wanted(ctx context.Context) bool {
	waiting, found := context.WithCancel(ctx)
	defer found()
	_ = f.watch(waiting, func(ctx context.Context) {
		names, err := f.names()
		if err == nil && len(names) > 0 {
			found()
			return
		}
		if s, err := f.load(ctx); err == nil && slices.ContainsFunc(s.Objects, func(o applied) bool { return o.Server == f.cfg.Server }) {
			found()
		}
	})
	return ctx.Err() == nil
}

// Apply applies the folder, for as long as this server leads.
func (f *Folder) Apply(ctx context.Context) error {
	f.done, f.complete = map[key]string{}, false
	return f.watch(ctx, f.round)
}

// round brings the cluster to what the folder has.
func (f *Folder) round(ctx context.Context) {
	found, err := f.read()
	if err != nil { // nothing has gone because it cannot be seen
		f.report(ctx, []string{err.Error()})
		return
	}
	if f.complete && maps.Equal(found.digests(), f.seen) {
		return
	}
	problems := f.bring(ctx, found)
	if ctx.Err() != nil {
		return
	}
	f.report(ctx, problems)
	f.seen, f.complete = found.digests(), len(problems) == 0 && !f.waits
}

func (f *Folder) bring(ctx context.Context, found files) (problems []string) {
	items, wrong := found.items()
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		problems = append(problems, wrong[name].Error())
	}
	state, err := f.load(ctx)
	if err != nil {
		return append(problems, err.Error())
	}
	p := planFor(state, items, wrong, f.cfg.Server)
	next := record{Server: f.cfg.Server, Files: found.digests(), Objects: slices.Concat(p.wanted, p.kept, p.gone)}
	if err := f.save(ctx, next); err != nil {
		return append(problems, err.Error())
	}
	for _, o := range p.orphans {
		f.cfg.Logger.WarnContext(ctx, "an object was applied by another server from a file that is not here: it stays; give all servers the same files, or delete it",
			"kind", o.Kind, "namespace", o.Namespace, "name", o.Name, "file", o.File, "server", o.Server)
	}
	problems = append(problems, f.applyAll(ctx, items)...)
	left, awaited := slices.Clone(p.gone), map[string]bool{}
	for _, o := range slices.Backward(p.gone) { // what others need goes last
		if awaited[o.File] {
			continue
		}
		err := f.prune(ctx, o)
		if errors.Is(err, errUninstalling) {
			awaited[o.File] = true // the next rounds go on
			continue
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %s is no longer in it, and could not be deleted: %v", o.File, o.key(), err))
			continue
		}
		delete(f.done, o.key())
		left = slices.DeleteFunc(left, func(other applied) bool { return other == o })
	}
	next.Objects = slices.Concat(p.wanted, p.kept, left)
	if len(p.gone) > 0 {
		if err := f.save(ctx, next); err != nil {
			problems = append(problems, err.Error())
		}
	}
	f.waits = len(awaited) > 0
	return problems
}

// attempts at objects whose kind or namespace is not there yet.
const attempts = 6

// applyAll applies what was not applied as it is now, in order. An object whose kind or
// namespace comes with another is tried again.
func (f *Folder) applyAll(ctx context.Context, items []item) (problems []string) {
	pause := run.Backoff{First: 100 * time.Millisecond, Longest: 2 * time.Second}
	for i := 0; ; i++ {
		var again []item
		problems = nil
		for _, it := range items {
			if f.done[it.key()] == it.digest() {
				continue
			}
			if err := f.apply(ctx, it); err != nil {
				problems = append(problems, it.wrong(err).Error())
				if soon(err) {
					again = append(again, it)
				}
				continue
			}
			f.done[it.key()] = it.digest()
			f.cfg.Logger.InfoContext(ctx, "a manifest was applied", "file", it.file, "kind", it.object.GetKind(), "namespace",
				it.object.GetNamespace(),
				"name", it.object.GetName())
		}
		if len(again) == 0 || i == attempts || !pause.Wait(ctx) {
			return problems
		}
		f.cfg.Mapper.Reset()
	}
}

// report reports the problems that were not there in the last round.
func (f *Folder) report(ctx context.Context, problems []string) {
	for _, p := range problems {
		if !slices.Contains(f.problems, p) {
			f.cfg.Logger.ErrorContext(ctx, "a manifest is not in force as it is: "+p)
			f.cfg.Report(ctx, p)
		}
	}
	f.problems = problems
}

// Compare reports, on servers that do not lead, files that differ from the leader's: those
// are not in force.
func (f *Folder) Compare(ctx context.Context) error {
	before := ""
	return f.watch(ctx, func(ctx context.Context) {
		found, err := f.read()
		if err != nil || len(found) == 0 {
			return
		}
		s, err := f.load(ctx)
		if err != nil || s.Server == "" || s.Server == f.cfg.Server {
			return
		}
		now := difference(found.digests(), s.Files)
		// A difference that stays: files are copied to servers one after the other.
		if now != "" && now == before && now != f.differed {
			problem := fmt.Sprintf("%s: differs from that of the server %s, whose files alone are applied: %s; give all servers the same", f.cfg.Dir, s.Server, now)
			f.cfg.Logger.WarnContext(ctx, problem)
			f.cfg.Report(ctx, problem)
			f.differed = now
		}
		if now == "" {
			f.differed = ""
		}
		before = now
	})
}
