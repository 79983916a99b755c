// SPDX-License-Identifier: Apache-2.0

package lending

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// again is the usual Again.
	again = 30 * time.Second
	// largest offer that is read, in bytes.
	largest = 1 << 20
	// answered is how long a server may take to begin an answer.
	answered = patience + 30*time.Second
)

// Follower takes over the archives of servers.
type Follower struct {
	// Dir is this machine's folder of archives.
	Dir string
	// Client reaches one server, by its address HOST:PORT.
	Client func(address string) (*rest.Config, error)
	// Servers are the addresses of all that this machine asks, at this moment.
	Servers func(ctx context.Context) ([]string, error)
	// Check decides about an archive by its list.
	Check airgap.Check
	// Took is called after an archive has come; several come one after the other. An error is written to the log: the archive stays.
	Took func(ctx context.Context, a *airgap.Archive) error
	// Removed is called after archives were removed here, because a server says so. An error is written to the log.
	Removed func(ctx context.Context) error
	// Again is how long a server is left alone that did not answer, and how often it is looked which servers there are; 0 = half a minute.
	Again time.Duration
	Log   *slog.Logger

	mu      sync.Mutex // held while an archive is fetched and used
	refused map[string]bool
}

// Run follows all servers until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	var tasks run.Tasks
	defer tasks.Wait()
	var mu sync.Mutex
	asked := map[string]bool{}
	for {
		servers, err := f.Servers(ctx)
		if err != nil && ctx.Err() == nil {
			f.Log.DebugContext(ctx, "the servers to ask for archives are not known now", "error", err)
		}
		for _, address := range servers {
			mu.Lock()
			begun := asked[address]
			asked[address] = true
			mu.Unlock()
			if begun {
				continue
			}
			tasks.Go("archives of "+address, func() {
				err := f.follow(ctx, address)
				if ctx.Err() == nil {
					f.Log.DebugContext(ctx, "a server does not say which archives it has", "server", address, "error", err)
				}
				mu.Lock()
				defer mu.Unlock()
				delete(asked, address)
			})
		}
		if !run.Sleep(ctx, cmp.Or(f.Again, again)) {
			return nil
		}
	}
}

// follow takes over what one server has, until it no longer answers.
func (f *Follower) follow(ctx context.Context, address string) error {
	cfg, err := f.Client(address)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	s := &server{client: client, url: "https://" + address + Path, address: address}
	for tag := ""; ; {
		o, err := s.offer(ctx, tag)
		if err != nil {
			return err
		}
		f.remove(ctx, s, o.Removed)
		for _, a := range o.Archives {
			if err := f.fetch(ctx, s, a); err != nil {
				return err
			}
		}
		tag = o.tag()
	}
}

// remove takes out what a server says was removed from the cluster, and was not loaded again since.
func (f *Follower) remove(ctx context.Context, s *server, all []Taken) {
	f.mu.Lock()
	defer f.mu.Unlock()
	some := false
	for _, t := range all {
		turn, err := airgap.Turn(f.Dir, t.Name)
		if err == nil && (!airgap.IsKept(t.Name) || !airgap.IsRemoval(t.Turn) || t.Turn <= turn) {
			continue
		}
		if err == nil {
			_, missing := os.Stat(filepath.Join(f.Dir, t.Name))
			if err = airgap.Remove(f.Dir, t.Name, t.Turn); err == nil && missing == nil {
				some = true
				f.Log.InfoContext(ctx, "an archive was removed, as on a server", "server", s.address, "archive", t.Name)
			}
		}
		if err != nil {
			f.Log.ErrorContext(ctx, "an archive that is to go is still there", "server", s.address, "archive", t.Name, "error", err)
		}
	}
	if some {
		if err := f.Removed(ctx); err != nil {
			f.Log.ErrorContext(ctx, "images of an archive that was removed may stay pinned", "error", err)
		}
	}
}

// fetch takes over one archive that this machine has not.
func (f *Follower) fetch(ctx context.Context, s *server, o Offered) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused[o.Name] || !airgap.IsKept(o.Name) {
		return nil
	}
	if turn, err := airgap.Turn(f.Dir, o.Name); err != nil || airgap.IsRemoval(turn) && turn > o.Turn {
		return err // it was removed here, later than the server has it from
	}
	if _, err := os.Stat(filepath.Join(f.Dir, o.Name)); err == nil {
		return airgap.SetTurn(f.Dir, o.Name, o.Turn)
	}
	f.Log.InfoContext(ctx, "an archive of a server is taken over", "server", s.address, "archive", o.Name, "bytes", o.Size)
	a, err := airgap.Keep(ctx, f.Dir, s.archive(o), f.Check, nil)
	var no *airgap.RefusedError
	if errors.As(err, &no) {
		if f.refused == nil {
			f.refused = map[string]bool{}
		}
		f.refused[o.Name] = true
		f.Log.WarnContext(ctx, "an archive of a server is not for this machine", "server", s.address, "archive", o.Name, "error", err)
		return nil
	}
	if err != nil {
		f.Log.ErrorContext(ctx, "an archive of a server was not taken over", "server", s.address, "archive", o.Name, "error", err)
		return err
	}
	defer a.Close()
	turn, err := airgap.Turn(f.Dir, o.Name)
	if err == nil && airgap.IsRemoval(turn) && turn > o.Turn { // by an operator meanwhile
		return airgap.Remove(f.Dir, o.Name, turn)
	}
	if err = errors.Join(err, airgap.SetTurn(f.Dir, o.Name, o.Turn)); err != nil {
		return err
	}
	if err := f.Took(ctx, a); err != nil {
		f.Log.ErrorContext(ctx, "an archive is there, and not all of it could be used", "archive", o.Name, "error", err)
	}
	return nil
}

// server is one that is asked.
type server struct {
	client       *http.Client
	url, address string
}

func (s *server) offer(ctx context.Context, not string) (o Offer, err error) {
	ctx, cancel := context.WithTimeout(ctx, answered)
	defer cancel()
	resp, err := s.get(ctx, s.url+"?removals&not="+url.QueryEscape(not), 0)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if err := json.NewDecoder(io.LimitReader(resp.Body, largest)).Decode(&o); err != nil {
		return o, fmt.Errorf("read which archives there are: %w", err)
	}
	if n := max(len(o.Archives), len(o.Removed)); n > most {
		return o, fmt.Errorf("the server shows %d archives: at most %d are looked at", n, most)
	}
	return o, nil
}

// archive is one of the server's.
func (s *server) archive(o Offered) airgap.Source {
	from := func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		resp, err := s.get(ctx, s.url+"?archive="+url.QueryEscape(o.Name), offset)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	return airgap.Source{Name: o.Name + " of " + s.address, Size: o.Size, From: from}
}

// get asks for a URL from an offset on; the body is for the caller to close.
func (s *server) get(ctx context.Context, url string, offset int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	want := http.StatusOK
	if offset > 0 {
		want = http.StatusPartialContent
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) //nolint:errcheck // what could be read of it is told
		return nil, errors.Join(fmt.Errorf("the server answers %s: %s", resp.Status, strings.TrimSpace(string(text))), resp.Body.Close())
	}
	return resp, nil
}
