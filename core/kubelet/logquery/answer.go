// SPDX-License-Identifier: Apache-2.0

package logquery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Patience is how long one answer may take, as upstream.
const Patience = 30 * time.Second

// Logs of a machine.
type Logs struct {
	// Files are the folder of logs, out of which no name leads.
	Files fs.FS
	// Journal is the command that reads the machine's journal; empty: journalctl. A machine
	// that has no such command has no journal, and only files are read.
	Journal []string
}

// File is the name below the folder of logs of the one file that is asked for; empty where
// services are. The slash before it and Windows' slashes are taken as upstream's documents
// have them.
func (q *Query) File() string {
	if len(q.Files) != 1 {
		return ""
	}
	return cmp.Or(strings.TrimPrefix(strings.ReplaceAll(q.Files[0], `\`, "/"), "/"), ".")
}

// Copy writes what services logged: first what is in the journal, then the files of services
// that log to one. What is wrong with a service is a line of the answer, as upstream: others
// of the same question have been answered by then.
func (l Logs) Copy(ctx context.Context, w io.Writer, q *Query) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	journal, files := l.split(ctx, q.Services)
	if len(journal) > 0 {
		l.copyJournal(ctx, w, q, journal)
	}
	if len(files) > 0 && !q.empty() {
		fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", files)
		return
	}
	for _, service := range files {
		l.copyFile(ctx, w, service)
	}
}

// split says which services are in the journal. journalctl itself takes an unknown one for
// one that said nothing.
func (l Logs) split(ctx context.Context, services []string) (journal, files []string) {
	out, err := l.command(ctx, "--field=_SYSTEMD_UNIT").Output()
	units := strings.Split(string(out), "\n")
	for _, s := range services {
		if err == nil && (slices.Contains(units, s+".service") || slices.Contains(units, s)) {
			journal = append(journal, s)
		} else {
			files = append(files, s)
		}
	}
	return journal, files
}

func (l Logs) command(ctx context.Context, args ...string) *exec.Cmd {
	program := l.Journal
	if len(program) == 0 {
		program = []string{"journalctl"}
	}
	cmd := exec.CommandContext(ctx, program[0], append(slices.Clone(program[1:]), args...)...)
	cmd.WaitDelay = time.Second // whoever inherited its output does not keep us
	return cmd
}

// copyJournal writes what journalctl writes. Its own words about what is wrong are part of that.
func (l Logs) copyJournal(ctx context.Context, w io.Writer, q *Query, services []string) {
	cmd := l.command(ctx, arguments(q, services)...)
	cmd.Stdout, cmd.Stderr = w, w
	err := cmd.Run()
	if ctx.Err() != nil {
		fmt.Fprintf(w, "\nerror: the answer took longer than %s; ask for less by sinceTime, tailLines or pattern\n", Patience)
		return
	}
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		fmt.Fprintf(w, "\nerror: journal output not available\n")
	}
}

// arguments of journalctl. Each is one with its value, so that no value can be another flag.
func arguments(q *Query, services []string) []string {
	const layout = time.DateTime
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if q.Since != nil {
		args = append(args, "--since="+q.Since.UTC().Format(layout)+" UTC")
	}
	if q.Until != nil {
		args = append(args, "--until="+q.Until.UTC().Format(layout)+" UTC")
	}
	if q.TailLines != nil {
		args = append(args, fmt.Sprintf("--lines=%d", *q.TailLines))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if q.Pattern != "" {
		args = append(args, "--grep="+q.Pattern)
	}
	if q.Boot != nil {
		args = append(args, fmt.Sprintf("--boot=%d", *q.Boot))
	}
	return args
}

// copyFile writes the first file that is called like the service: NAME, NAME.log, NAME/NAME.log.
func (l Logs) copyFile(ctx context.Context, w io.Writer, service string) {
	for _, name := range []string{service, service + ".log", path.Join(service, service+".log")} {
		err := l.copyNamed(ctx, w, name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			fmt.Fprintf(w, "\nerror getting log for %s: %v\n", service, plain(err))
		}
		return
	}
	fmt.Fprintf(w, "\nlog not found for %s\n", service)
}

// plain leaves the machine's paths out.
func plain(err error) error {
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		return named.Err
	}
	return err
}

func (l Logs) copyNamed(ctx context.Context, w io.Writer, name string) error {
	f, err := l.Files.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fs.ErrNotExist // logs of it may be in the folder
	}
	_, err = io.Copy(w, patient{ctx, f})
	return err
}

// patient is a reader that ends with ctx.
type patient struct {
	ctx context.Context //nolint:containedctx // it is that of the one call in which it is read
	io.Reader
}

func (p patient) Read(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	return p.Reader.Read(b)
}
