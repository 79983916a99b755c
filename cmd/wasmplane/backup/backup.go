// SPDX-License-Identifier: Apache-2.0

// Package backup saves the state and the keys of a cluster to files, and makes data
// directories out of them. A backup is read through before it counts, and nothing that
// is there is overwritten unless force is set; a restore keeps it under another name.
package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

// Options say which cluster it is.
type Options struct {
	Config *config.Configuration
	Dir    datadir.Dir
	Logger *slog.Logger
	// Kubeconfig of the cluster that runs and is asked for its state; "" = none is asked,
	// the store is opened here.
	Kubeconfig string
}

// Path is where a running server gives out a snapshot of its store. It holds every
// secret of the cluster: nobody but cluster-admin has a right to it.
const Path = "/backup"

// Snapshotter is a store that can be saved; encryption at rest stays in what it writes.
type Snapshotter interface {
	Backup(ctx context.Context, w io.Writer) (int64, error)
}

// Handler streams a snapshot. One that breaks off is noticed by its reader: the digest
// at its end is missing.
func Handler(from Snapshotter, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			http.Error(w, "a backup is read with GET", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Cache-Control", "no-store")
		n, err := from.Backup(req.Context(), w)
		if err != nil {
			log.ErrorContext(req.Context(), "a backup broke off", "bytes", n, "error", err)
			panic(http.ErrAbortHandler)
		}
		log.InfoContext(req.Context(), "a backup was taken", "bytes", n)
	})
}

// Save saves the store to file, which must not exist unless force is set, and
// reads what it has written through. With a kubeconfig it asks the server that runs;
// without, the store is opened here. progress is told how many bytes there are.
func Save(ctx context.Context, o Options, file string, force bool, progress func(int64)) (snapshotfile.Info, error) {
	if _, err := os.Lstat(file); err == nil && !force {
		return snapshotfile.Info{}, fmt.Errorf("%s exists; choose another name, or overwrite it with --force", file)
	}
	// A new file of nobody else's: a backup has every Secret, and the folder may be one that others write to.
	part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*.part")
	if err != nil {
		return snapshotfile.Info{}, fmt.Errorf("write the backup: %w", err)
	}
	w := &counting{w: part, progress: progress}
	if o.Kubeconfig != "" {
		err = download(ctx, o.Kubeconfig, w)
	} else {
		err = snapshotHere(ctx, o, w)
	}
	err = errors.Join(err, part.Sync(), part.Close())
	var info snapshotfile.Info
	if err == nil {
		info, err = snapshotfile.Check(part.Name())
	}
	if err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		return info, errors.Join(fmt.Errorf("back up the store: %w", err), os.Remove(part.Name()))
	}
	return info, nil
}

type counting struct {
	w        io.Writer
	n        int64
	progress func(int64)
}

// Write implements io.Writer.
func (c *counting) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	if c.progress != nil {
		c.progress(c.n)
	}
	return n, err
}

func download(ctx context.Context, kubeconfig string, w io.Writer) error {
	cfg, err := client.FromKubeconfig(kubeconfig, "backup")
	if err != nil {
		return err
	}
	cfg.Timeout = 0 // a large store takes its time
	set, err := client.New(cfg)
	if err != nil {
		return err
	}
	body, err := set.Kube.Discovery().RESTClient().Get().AbsPath(Path).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	_, err = io.Copy(w, body)
	return err
}

// snapshotHere opens the store of a cluster that does not run, or an external one.
func snapshotHere(ctx context.Context, o Options, w io.Writer) error {
	c := o.Config.Store
	if len(c.Endpoints) > 0 {
		st, err := etcdclient.Dial(ctx, etcdclient.Config{
			Endpoints: c.Endpoints, CAFile: o.Config.Path(c.CAFile), CertFile: o.Config.Path(c.CertFile),
			KeyFile: o.Config.Path(c.KeyFile),
		})
		if err != nil {
			return err
		}
		_, err = st.Backup(ctx, w)
		return errors.Join(err, st.Close())
	}
	if err := notLight(o.Dir); err != nil {
		return err
	}
	if !holdsStore(o.Dir) {
		return fmt.Errorf("%s holds no store", o.Dir)
	}
	if around, err := join.ReadServer(o.Dir.Server()); err == nil && around.Address != "" {
		return fmt.Errorf("the store in %s is kept by several servers together: back it up while they run (--kubeconfig names another server's cluster)", o.Dir)
	}
	lock, err := o.Dir.Lock()
	if err != nil {
		return err
	}
	defer lock.Release()
	server, err := etcd.Start(ctx, etcd.ServerConfig{Dir: o.Dir.Etcd(), Quota: c.HardQuota(), Logger: o.Logger})
	if err != nil {
		return err
	}
	_, err = server.Store().Backup(ctx, w)
	return errors.Join(err, server.Close())
}

// notLight refuses what needs a store of this machine's own.
func notLight(dir datadir.Dir) error {
	around, err := join.ReadServer(dir.Server())
	if errors.Is(err, join.ErrNotJoined) || err == nil && !around.Light {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("server %s is a light one: its store lies with other servers. Save it while this server runs, or there; restore it there", around.Name)
}

func holdsStore(dir datadir.Dir) bool {
	_, err := os.Stat(filepath.Join(dir.Etcd(), "member"))
	return err == nil
}

// Restore makes the data directory's store out of a snapshot. A store that is
// there stays, under another name, and only with force. It says where that is. Of several servers
// it is one, none of the others runs, and its store is of this one alone.
func Restore(ctx context.Context, o Options, file string, bump uint64, force bool) (aside string, info snapshotfile.Info, err error) {
	if len(o.Config.Store.Endpoints) > 0 {
		return "", info, fmt.Errorf("the configuration names an external etcd: with all apiservers and members stopped, run on each member's machine `wasmplane restore %s --bump %d --member NAME --initial-cluster NAME=PEER_URL,... --member-dir DIR`, and start the member with DIR", file, bump)
	}
	if err := notLight(o.Dir); err != nil {
		return "", info, err
	}
	if info, err = snapshotfile.Check(file); err != nil {
		return "", info, err
	}
	lock, err := o.Dir.Lock()
	if err != nil {
		return "", info, err
	}
	defer lock.Release()
	if holdsStore(o.Dir) && !force {
		return "", info, fmt.Errorf("%s holds a store already; --force puts it aside", o.Dir)
	}
	member, err := aloneOfSeveral(ctx, o.Dir)
	if err != nil {
		return "", info, err
	}
	next := o.Dir.Etcd() + ".restoring"
	if err := os.RemoveAll(next); err != nil { // of a restore that was broken off
		return "", info, err
	}
	if err := etcd.Restore(etcd.RestoreConfig{File: file, Dir: next, Bump: bump, Logger: o.Logger, Member: member}); err != nil {
		return "", info, errors.Join(err, os.RemoveAll(next))
	}
	if aside, err = putAside(o.Dir.Etcd()); err != nil {
		return "", info, err
	}
	return aside, info, os.Rename(next, o.Dir.Etcd())
}

// aloneOfSeveral is how a server that keeps the store together with others is its only member, by an identity of its own;
// nil = there were never others. It fails where one of them runs: they would go on as the cluster that was, under the same keys.
func aloneOfSeveral(ctx context.Context, dir datadir.Dir) (*etcd.Member, error) {
	around, err := join.ReadServer(dir.Server())
	if errors.Is(err, join.ErrNotJoined) || err == nil && around.Address == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if running := othersRunning(ctx, dir); len(running) > 0 {
		return nil, fmt.Errorf("servers of this cluster run, at %s: a restored store is this server's alone, and with them there would be two clusters. Stop all servers (`wasmplane stop` on each), restore on one, and have the others join it anew; to bring back some objects only, use --namespace or --object",
			strings.Join(running, ", "))
	}
	m := etcd.AloneAs(around.Name, around.Address)
	return &m, nil
}

// answersWithin is how long a server may take to say that it runs.
const answersWithin = 3 * time.Second

// othersRunning are those of the servers that this one knows that answer, with a certificate of the cluster.
func othersRunning(ctx context.Context, dir datadir.Dir) (running []string) {
	servers := balance.New(balance.Config{File: dir.Servers(), Log: slog.New(slog.DiscardHandler)}).Servers()
	authority, err := os.ReadFile(filepath.Join(dir.PKI(), "ca.crt"))
	trust := x509.NewCertPool()
	if err != nil || !trust.AppendCertsFromPEM(authority) {
		return nil // whoever answers is none of a cluster that this machine still has keys of
	}
	answers := make([]bool, len(servers))
	var all sync.WaitGroup
	for i, address := range servers {
		all.Go(func() {
			one, cancel := context.WithTimeout(ctx, answersWithin)
			defer cancel()
			d := tls.Dialer{Config: &tls.Config{RootCAs: trust, ServerName: join.ServerName, MinVersion: tls.VersionTLS12}}
			conn, err := d.DialContext(one, "tcp", address)
			if answers[i] = err == nil; err == nil {
				_ = conn.Close() // it was only asked whether it is there
			}
		})
	}
	all.Wait()
	for i, address := range servers {
		if answers[i] {
			running = append(running, address)
		}
	}
	return running
}

// Survive has the server of the data directory go on without the others, which are lost
// for good: a store of one member is made of what this one has. What was there stays, under
// another name.
func Survive(ctx context.Context, o Options, bump uint64) (aside string, info snapshotfile.Info, err error) {
	if err := notLight(o.Dir); err != nil {
		return "", info, err
	}
	around, err := join.ReadServer(o.Dir.Server())
	if err != nil || around.Address == "" || !holdsStore(o.Dir) {
		return "", info, errors.Join(err, fmt.Errorf("%s holds no store that several servers keep together: there is nothing to take over from", o.Dir))
	}
	lock, err := o.Dir.Lock()
	if err != nil {
		return "", info, err
	}
	defer lock.Release()
	next := o.Dir.Etcd() + ".restoring"
	if err := os.RemoveAll(next); err != nil { // of a restore that was broken off
		return "", info, err
	}
	if info, err = etcd.Survive(ctx, etcd.SurviveConfig{
		Dir: o.Dir.Etcd(), To: next, Name: around.Name, Address: around.Address, Bump: bump,
		Server: etcd.ServerConfig{Quota: o.Config.Store.HardQuota(), Logger: o.Logger},
	}); err != nil {
		return "", info, errors.Join(fmt.Errorf("go on with the store in %s alone: %w", o.Dir, err), os.RemoveAll(next))
	}
	if aside, err = putAside(o.Dir.Etcd()); err != nil {
		return "", info, err
	}
	return aside, info, os.Rename(next, o.Dir.Etcd())
}

// RestoreMember makes the data directory of one member of an external etcd out of a
// snapshot. The directory must not be there.
func RestoreMember(o Options, file, dir string, bump uint64, m etcd.Member) (info snapshotfile.Info, err error) {
	if _, err := os.Lstat(dir); err == nil {
		return info, fmt.Errorf("%s exists; name a directory that does not, or put it aside once the member has stopped", dir)
	}
	if info, err = snapshotfile.Check(file); err != nil {
		return info, err
	}
	if err := etcd.Restore(etcd.RestoreConfig{File: file, Dir: dir, Bump: bump, Logger: o.Logger, Member: &m}); err != nil {
		return info, errors.Join(err, os.RemoveAll(dir))
	}
	return info, nil
}

// putAside renames a directory; "" if there was none.
func putAside(dir string) (string, error) {
	aside := dir + ".before-" + time.Now().UTC().Format("20060102T150405.000")
	err := os.Rename(dir, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return aside, err
}

// SaveKeys writes the cluster's certificates and keys to a tar.gz that only its
// owner can read.
func SaveKeys(dir datadir.Dir, file string, force bool) error {
	pack := func(w io.Writer) error {
		z := gzip.NewWriter(w)
		t := tar.NewWriter(z)
		err := addKeys(t, dir.PKI())
		return errors.Join(err, t.Close(), z.Close())
	}
	if force { // what is there may be a link, or be readable by others
		return atomicfile.WriteFrom(file, 0o600, pack)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("save the keys: %w", err)
	}
	return errors.Join(pack(f), f.Sync(), f.Close())
}

func addKeys(t *tar.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("save the keys: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return fmt.Errorf("save the keys: %w", err)
		}
		if err := t.WriteHeader(&tar.Header{Name: e.Name(), Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// maxKeys bounds what an archive of keys may hold, in bytes.
const maxKeys = 16 << 20

// RestoreKeys unpacks what SaveKeys has packed. Keys that are there stay, under
// another name, and only with force.
func RestoreKeys(dir datadir.Dir, file string, force bool) (aside string, err error) {
	if _, err := os.Stat(filepath.Join(dir.PKI(), "ca.key")); err == nil && !force {
		return "", fmt.Errorf("%s holds keys already; --force puts them aside", dir.PKI())
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("restore the keys: %w", err)
	}
	defer func() { _ = f.Close() }()
	next := dir.PKI() + ".restoring"
	if err := errors.Join(os.RemoveAll(next), os.Mkdir(next, 0o700)); err != nil {
		return "", fmt.Errorf("restore the keys: %w", err)
	}
	if err := unpackKeys(f, next); err != nil {
		return "", errors.Join(fmt.Errorf("restore the keys from %s: %w", file, err), os.RemoveAll(next))
	}
	if aside, err = putAside(dir.PKI()); err != nil {
		return "", err
	}
	return aside, os.Rename(next, dir.PKI())
}

func unpackKeys(r io.Reader, dir string) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	t := tar.NewReader(io.LimitReader(z, maxKeys))
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		// Plain files in one folder: whatever else an archive holds was not packed by us.
		if h.Typeflag != tar.TypeReg || h.Name != filepath.Base(h.Name) || strings.HasPrefix(h.Name, ".") {
			return fmt.Errorf("unexpected entry %q: this is no archive of keys", h.Name)
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, h.Name), data, 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"ca.crt", "ca.key", "sa.key"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("it lacks %s", name)
		}
	}
	return nil
}
