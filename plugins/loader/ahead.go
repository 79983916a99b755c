package loader

import (
	"context"
	"sync"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// fetchedAhead is what was fetched before its turn came.
type fetchedAhead struct {
	module *source.Module
	err    error
}

// fetchesAtOnce bounds how many modules are fetched side by side.
const fetchesAtOnce = 8

// fetchAhead fetches what Apply is going to load from elsewhere, side by side: of
// several registries that do not answer, only the slowest is waited for.
func (l *Loader) fetchAhead(ctx context.Context, entries []manifest.Entry, before map[string]*slot) {
	l.ahead = map[string]fetchedAhead{}
	due := map[string]*manifest.Entry{}
	for i := range entries {
		e := &entries[i]
		s := before[e.Name]
		if e.Disabled || e.Group != nil || s != nil && s.err == nil && s.candidate.err == nil && same(s.entry, *e) || l.elsewhere(e.Points) {
			continue
		}
		for _, e := range []*manifest.Entry{e, e.CandidateEntry()} {
			if e != nil && e.Kind() != "file" {
				due[aheadKey(e)] = e
			}
		}
	}
	if len(due) < 2 {
		return
	}
	var mu sync.Mutex
	var work sync.WaitGroup
	slots := make(chan struct{}, fetchesAtOnce)
	for key, e := range due {
		work.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			m, err := l.fetch.Fetch(ctx, e)
			mu.Lock()
			defer mu.Unlock()
			l.ahead[key] = fetchedAhead{m, err}
		})
	}
	work.Wait()
}

// module is an entry's module, fetched ahead or now.
func (l *Loader) module(ctx context.Context, e *manifest.Entry) (*source.Module, error) {
	l.mu.Lock()
	f, ok := l.ahead[aheadKey(e)]
	delete(l.ahead, aheadKey(e))
	l.mu.Unlock()
	if ok {
		return f.module, f.err
	}
	return l.fetch.Fetch(ctx, e)
}

// aheadKey tells fetches apart: plugin and candidate may have the same source, and
// ask for other digests and signatures.
func aheadKey(e *manifest.Entry) string { return e.Name + " " + e.Source + " " + e.Digest }
