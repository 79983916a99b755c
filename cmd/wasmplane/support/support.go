// SPDX-License-Identifier: Apache-2.0

// Package support writes one archive of what somebody needs who helps with a cluster:
// versions, configuration, status, logs, objects, metrics, what is known of the machine.
// It works with the server down too, and its index says what could not be had.
//
// No secret goes into it: Secrets and other kinds that hold any are not read into the
// archive, what may hold anything (values of variables, arguments, annotations) is left
// out, and texts are searched for what looks like a secret and for the values of the
// cluster's Secrets. Each file of it is bounded, and so is the whole.
package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
)

const (
	// mostInAll bounds what the archive unpacks to, and mostInFile a file of it, in bytes.
	mostInAll  = 64 << 20
	mostInFile = 4 << 20
	// patience bounds the wait for one file.
	patience = 20 * time.Second
)

// File is one of the archive.
type File struct {
	Name, About string
	// Most bytes of it; 0 = 4 MiB.
	Most int
	// Redacted: Write has redacted it, value by value.
	Redacted bool
	// Write writes what it has; what it wrote before an error is kept.
	Write func(ctx context.Context, w io.Writer) error
}

// Options of an archive.
type Options struct {
	Dir datadir.Dir
	// Folder is the name of the folder that the archive unpacks to.
	Folder string
	// ConfigFile of the cluster; "" = it has none.
	ConfigFile string
	// Client reaches the API; with an error the archive is made without it.
	Client func() (*rest.Config, error)
	// Own are the command line's files, which come first.
	Own []File
	Now time.Time
}

// Result is what became of an archive: how many files it has, and what is not in it, in words.
type Result struct {
	Files   int
	Missing []string
}

// Write writes the archive, the index first.
func Write(ctx context.Context, to io.Writer, o Options) (Result, error) {
	api := connect(ctx, o.Client)
	secrets, err := api.secrets(ctx)
	b := &bundle{redactor: newRedactor(secrets), left: mostInAll}
	if err != nil {
		b.missing = append(b.missing, "values of Secrets could not be looked for in texts: "+b.redactor.text(err.Error()))
	}
	for _, list := range [][]File{o.Own, api.files(b.redactor), machineFiles(o, b.redactor)} {
		for _, f := range list {
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
			b.add(ctx, f)
		}
	}
	return Result{Files: len(b.entries), Missing: b.missing}, b.write(to, o)
}

// bundle is an archive that is being filled. It is kept in memory, since its index stands first.
type bundle struct {
	redactor *redactor
	left     int
	entries  []entry
	missing  []string
}

type entry struct {
	name, about string
	data        []byte
}

func (b *bundle) add(ctx context.Context, f File) {
	most := f.Most
	if most == 0 {
		most = mostInFile
	}
	most = min(most, b.left)
	out := &bounded{most: most}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := f.Write(ctx, out)
	if out.over {
		err = errors.Join(err, fmt.Errorf("cut after %d bytes", most))
	}
	if err != nil {
		why := strings.ReplaceAll(b.redactor.text(err.Error()), "\n", "; ")
		b.missing = append(b.missing, f.Name+": "+why)
	}
	data := out.whole()
	if !f.Redacted {
		data = []byte(b.redactor.text(string(data)))
	}
	if len(data) > 0 {
		b.entries = append(b.entries, entry{f.Name, f.About, data})
		b.left = max(0, b.left-len(data))
	}
}

func (b *bundle) write(to io.Writer, o Options) error {
	zipped := gzip.NewWriter(to)
	archive := tar.NewWriter(zipped)
	for _, e := range append([]entry{{"INDEX.txt", "", b.index(o)}}, b.entries...) {
		header := &tar.Header{Name: path.Join(o.Folder, e.name), Mode: 0o600, Size: int64(len(e.data)), ModTime: o.Now, Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
		if _, err := archive.Write(e.data); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// index says what each file is, and what there is not.
func (b *bundle) index(o Options) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "What somebody needs who helps with the cluster in %s, as of %s.\n", o.Dir, o.Now.UTC().Format(time.RFC3339))
	fmt.Fprintf(&out, "%s stands where something was that may be a secret.\n\n", hidden)
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	for _, e := range b.entries {
		fmt.Fprintf(w, "%s\t%d\t%s\n", e.name, len(e.data), e.about)
	}
	_ = w.Flush() // to memory
	if len(b.missing) > 0 {
		fmt.Fprintf(&out, "\nNot in here, or not whole:\n")
	}
	for _, m := range b.missing {
		fmt.Fprintln(&out, "-", m)
	}
	return out.Bytes()
}

// bounded keeps the beginning of what is written.
type bounded struct {
	buf  bytes.Buffer
	most int
	over bool
}

// Write implements io.Writer. It never fails, so that the writer goes on to its end.
func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.most-b.buf.Len())
	b.buf.Write(p[:keep])
	b.over = b.over || keep < len(p)
	return len(p), nil
}

// whole is what was kept, but for a line that was cut: half a secret is not recognized.
func (b *bounded) whole() []byte {
	data := b.buf.Bytes()
	if b.over {
		data = data[:bytes.LastIndexByte(data, '\n')+1]
	}
	return data
}
