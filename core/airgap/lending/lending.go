// SPDX-License-Identifier: Apache-2.0

// Package lending brings the archives that one server was given to the other machines of its
// cluster. A Shelf shows a server's archives to nodes, and Follow, on every machine, takes over
// from each server what this machine has not.
//
// A machine compares what it takes over as it compares a file (core/airgap): a server that
// breaks off, or a link that damages something, leaves nothing that is used. Requests wait until
// there is something new: nothing is asked in vain.
package lending

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/run/folderwatch"
)

// Path of the API. Nodes may read it.
const Path = "/airgap"

const (
	// lookEvery is how often the folder is read though nothing was heard of it.
	lookEvery = time.Minute
	// patience of a request that waits for something new.
	patience = 4 * time.Minute
	// most archives that are shown; a server keeps few.
	most = 64
)

// Offer is what a server answers about its archives.
type Offer struct {
	// Archives by their names, the newest first.
	Archives []Offered `json:"archives"`
	// Removed are those that are to go from all machines.
	Removed []Taken `json:"removed,omitempty"`
}

// Offered is one archive.
type Offered struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // in bytes
	Turn int    `json:"turn,omitempty"`
}

// Taken is an archive that was removed. Of what two machines say of one, the larger turn counts.
type Taken struct {
	Name string `json:"name"`
	Turn int    `json:"turn"`
}

// before is what is said to a machine of a release that knows no removals: it tells two offers apart by what it reads of them.
func (o Offer) before() Offer {
	var out Offer
	for _, a := range o.Archives {
		out.Archives = append(out.Archives, Offered{Name: a.Name, Size: a.Size})
	}
	return out
}

// tag says whether two offers are of the same archives.
func (o Offer) tag() string {
	text, err := json.Marshal(o)
	if err != nil {
		return ""
	}
	return airgap.Digest(text)
}

// Shelf shows the archives of a folder.
type Shelf struct {
	Dir string
	Log *slog.Logger

	mu      sync.Mutex
	offer   Offer
	changed chan struct{} // closed at the next change; nil = nobody waits
}

// Run keeps the Shelf in step with its folder until ctx ends.
func (s *Shelf) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil { // what is there can be watched
		s.Log.WarnContext(ctx, "the folder of archives cannot be made; one that is put there is noticed late", "folder", s.Dir, "error", err)
	}
	return folderwatch.Watch{Dir: s.Dir, What: "the folder of archives", Every: lookEvery, Logger: s.Log}.Run(ctx, s.look)
}

func (s *Shelf) look(ctx context.Context) {
	files, err := airgap.Kept(s.Dir)
	if err != nil {
		s.Log.WarnContext(ctx, "archives are not shown to the other machines", "folder", s.Dir, "error", err)
		return
	}
	var o Offer
	for _, f := range files[:min(len(files), most)] {
		if info, err := os.Stat(f); err == nil {
			turn, err := airgap.Turn(s.Dir, filepath.Base(f))
			if err != nil {
				s.Log.WarnContext(ctx, "an archive is not shown to the other machines", "archive", f, "error", err)
				continue
			}
			o.Archives = append(o.Archives, Offered{filepath.Base(f), info.Size(), turn})
		}
	}
	removed, err := airgap.Removed(s.Dir)
	if err != nil {
		s.Log.WarnContext(ctx, "the other machines are not told which archives were removed", "folder", s.Dir, "error", err)
	}
	for _, name := range slices.Sorted(maps.Keys(removed)) {
		o.Removed = append(o.Removed, Taken{name, removed[name]})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.tag() == s.offer.tag() {
		return
	}
	s.offer = o
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// now is what is shown, and what is closed when that changes.
func (s *Shelf) now() (Offer, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.offer, s.changed
}

// ServeHTTP answers GET with an Offer; with ?not=TAG when it is another one than the ETag is of, or
// after some minutes; with ?removals with those that were removed, too; with ?archive=NAME with that archive, or a range of it.
func (s *Shelf) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		http.Error(w, "archives are read with GET", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if name := req.URL.Query().Get("archive"); name != "" {
		s.serveArchive(w, req, name)
		return
	}
	as := func(o Offer) Offer { return o }
	if !req.URL.Query().Has("removals") {
		as = Offer.before
	}
	o, changed := s.now()
	o = as(o)
	if req.URL.Query().Get("not") == o.tag() {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-changed:
			o, _ = s.now()
			o = as(o)
		case <-timer.C:
		case <-req.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", `"`+o.tag()+`"`)
	_ = json.NewEncoder(w).Encode(o) // who asked may have hung up
}

func (s *Shelf) serveArchive(w http.ResponseWriter, req *http.Request, name string) {
	o, _ := s.now()
	if !slices.ContainsFunc(o.Archives, func(a Offered) bool { return a.Name == name }) {
		http.Error(w, "there is no archive of this name here", http.StatusNotFound)
		return
	}
	f, err := os.Open(filepath.Join(s.Dir, name))
	if err != nil {
		s.Log.WarnContext(req.Context(), "an archive could not be read", "archive", name, "error", err)
		http.Error(w, "the archive cannot be read", http.StatusNotFound)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+strings.TrimSuffix(name, ".tar")+`"`)
	http.ServeContent(w, req, "", time.Time{}, f)
}
