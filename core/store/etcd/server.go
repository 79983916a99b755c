// SPDX-License-Identifier: Apache-2.0

// Package etcd runs etcd in this process (Start), as the only member or as one of several, and reaches one that other
// servers keep (DialMembers). It makes, restores and measures data directories. What a store does is the client's (package etcdclient).
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/clientport"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/memberdir"
	"github.com/wasmplane/wasmplane/core/store/etcd/zaplog"
)

// ServerConfig is an etcd member in this process: the only one, or one of several.
type ServerConfig struct {
	// Dir holds the data; made with mode 0700 where it does not exist.
	Dir string
	// Listen are URLs that other processes may use the store by
	// (unix:///PATH, http://127.0.0.1:PORT); none by default. They are not authenticated: only
	// sockets below a directory that is closed to others are safe.
	Listen []string
	// Quota bounds the database file in bytes; 0 = 8 GiB.
	Quota int64
	// MaxRequest bounds one write in bytes; 0 = 1.5 MiB, as etcd's own default.
	MaxRequest int
	// Timeout bounds each call that has no deadline of its own, and the start; 0 = 30 s.
	Timeout time.Duration
	// NoFsync trades durability for speed: a crash of the machine (not of the
	// process) may lose acknowledged writes. For tests and throw-away clusters.
	NoFsync bool
	// Peers lets other servers in; nil = there is no other, ever: nobody is waited for, and
	// the store elects itself in a tenth of a second.
	Peers *Peers
	// Fatal is called when the store, which was open, cannot go on, as on a disk that is full
	// or broken: acknowledged writes are on the disk, and the process has to end, as the store
	// cannot be closed any more. It must not return. nil = panic.
	Fatal func(error)
	// Progress is told what a person would wait for; it may be nil.
	Progress func(step string)
	Logger   *slog.Logger // nil = discard

	alone bool // forget all other members; see Survive
	fatal func(message string)
}

// Peers is what makes a member one of several.
type Peers struct {
	// Name of this member.
	Name string
	// PairFile holds this member's certificate with its key, CAFile the authority that vouches
	// for all members. The pair is read again for each connection.
	PairFile, CAFile string
	// Address at which the others reach this one, HOST:PORT; "" = they don't, until Open.
	Address string
	// Join are URLs of members of the cluster that this one is to join, as the learner
	// that was added there. It counts while Dir is empty.
	Join []string
	// Admit lets servers use the store that keep no part of it; nil = there are none.
	Admit clientport.Admit
}

// Server is an etcd that runs in this process.
type Server struct {
	etcd  *embed.Etcd
	store *etcdclient.Store
	lock  *os.File
	quota int64
	peers *peers // nil = there are no others
	ends  func() // what goes on beside; nil = nothing does
	// applied is the last entry of the log that the database had at the start.
	applied uint64
}

// Start opens the data directory and waits until the store can be used. Two
// processes cannot share one; the second is told which process has it.
func Start(ctx context.Context, cfg ServerConfig) (_ *Server, err error) {
	cfg, listen, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store's data directory: %w", err)
	}
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("close the store's data directory to others: %w", err)
	}
	s := &Server{quota: cfg.Quota}
	if s.lock, err = memberdir.Lock(cfg.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	var started atomic.Bool
	cfg.fatal = func(message string) {
		if started.Load() && cfg.Fatal != nil {
			cfg.Fatal(fmt.Errorf("the store in %s cannot go on: %s%s", cfg.Dir, message, memberdir.Full(cfg.Dir, message)))
		}
	}
	e := cfg.embed(listen)
	if err := s.meet(ctx, cfg, e); err != nil {
		return nil, err
	}
	if s.applied, err = memberdir.Inspect(cfg.Dir); err == nil {
		s.etcd, err = open(ctx, e)
	}
	if err != nil {
		if full := memberdir.Full(cfg.Dir, err.Error()); full != "" {
			return nil, fmt.Errorf("open the store in %s: %w%s", cfg.Dir, err, full)
		}
		return nil, fmt.Errorf("open the store in %s (if it is damaged, restore a backup, or move it away to start empty): %w", cfg.Dir, err)
	}
	started.Store(true)
	if s.peers != nil {
		s.peers.serve(s.etcd)
	}
	if err := s.await(ctx, cfg); err != nil {
		return nil, err
	}
	s.store = etcdclient.New(v3client.New(s.etcd.Server), "the store in "+cfg.Dir, cfg.Timeout)
	s.followElections(ctx)
	if err := s.promote(ctx, cfg.Progress); err != nil {
		return nil, err
	}
	if s.peers != nil && cfg.Peers.Address != "" {
		if err := s.advertise(ctx, cfg.Peers.Address); err != nil {
			return nil, err
		}
	}
	if err := s.relieve(ctx, cfg); err != nil {
		return nil, fmt.Errorf("make room in the store in %s: %w", cfg.Dir, err)
	}
	return s, nil
}

// followElections goes on until Close, whatever becomes of the context of the start.
func (s *Server) followElections(ctx context.Context) {
	if s.peers != nil {
		s.ends = s.store.FollowElections(context.WithoutCancel(ctx), s.etcd.Server.LeaderChangedNotify)
	}
}

// meet prepares for the other members.
func (s *Server) meet(ctx context.Context, cfg ServerConfig, e *embed.Config) (err error) {
	if cfg.Peers == nil {
		return nil
	}
	if s.peers, err = newPeers(*cfg.Peers); err != nil {
		return err
	}
	if cfg.Peers.Address == "" {
		return nil
	}
	if err := s.peers.listen(cfg.Peers.Address); err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(cfg.Dir, "member"))
	if !errors.Is(err, os.ErrNotExist) {
		return err //nolint:wrapcheck // nil, as a rule
	}
	if len(cfg.Peers.Join) == 0 {
		return nil
	}
	e.ClusterState = embed.ClusterStateFlagExisting
	e.InitialCluster, err = s.peers.initialCluster(ctx)
	return err
}

// await waits until the store can be used. A member of several waits as long as it takes
// for enough of the others: who starts first after a power cut is not at fault.
func (s *Server) await(ctx context.Context, cfg ServerConfig) error {
	wait := time.NewTimer(cfg.Timeout)
	defer wait.Stop()
	patience, others := wait.C, len(s.etcd.Server.Cluster().Members()) > 1
	removed := make(chan struct{})
	if s.peers != nil && others {
		watch, cancel := context.WithCancel(ctx)
		ended := run.Go("etcd removal", func() error {
			if s.watchRemoval(watch) {
				close(removed)
			}
			return nil
		})
		defer func() { cancel(); <-ended }()
	}
	for {
		select {
		case <-s.etcd.Server.ReadyNotify():
			return nil
		case <-removed:
			return store.ErrRemoved
		case <-s.etcd.Server.StopNotify():
			return s.why(ctx, fmt.Errorf("the store in %s stopped while it started", cfg.Dir))
		case <-ctx.Done():
			return fmt.Errorf("start the store in %s: %w", cfg.Dir, context.Cause(ctx))
		case <-patience:
			if !others {
				return s.notReady(cfg)
			}
			patience = nil
			cfg.Progress("waiting for the other servers: more than half of all must run; if they are lost for good, `wasmplane restore --from-this-member` goes on with this one alone")
		}
	}
}

// relieve makes a store usable again that had run full: etcd refuses writes
// from then on until somebody says that there is room, and nobody else can say
// it to an etcd that listens nowhere.
func (s *Server) relieve(ctx context.Context, cfg ServerConfig) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	alarms, err := s.store.Client().Maintenance.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("read alarms: %w", err)
	}
	if len(alarms.Alarms) == 0 {
		return nil
	}
	if err := s.etcd.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	size := s.etcd.Server.Backend().Size()
	if size >= cfg.Quota {
		cfg.Logger.ErrorContext(ctx, "the store is full and takes no writes: delete objects and start again, or raise the quota", "bytes", size, "quota", cfg.Quota)
		return nil
	}
	for _, a := range alarms.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			cfg.Logger.ErrorContext(ctx, "the store has an alarm", "alarm", a.Alarm)
			continue
		}
		if _, err := s.store.Client().Maintenance.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return fmt.Errorf("take back the alarm: %w", err)
		}
		cfg.Logger.WarnContext(ctx, "the store had been full; it has room again", "bytes", size, "quota", cfg.Quota)
	}
	return nil
}

func (c ServerConfig) complete() (ServerConfig, []url.URL, error) {
	if c.Dir == "" {
		return c, nil, errors.New("store: no data directory given")
	}
	abs, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, nil, fmt.Errorf("store: data directory %q: %w", c.Dir, err)
	}
	c.Dir = abs
	if c.Quota == 0 {
		c.Quota = 8 << 30
	}
	if c.MaxRequest == 0 {
		c.MaxRequest = 3 << 19
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.fatal == nil {
		c.fatal = func(string) {} // and panic
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	listen := []url.URL{} // not nil: embed would fill in TCP ports
	for _, l := range c.Listen {
		u, err := url.Parse(l)
		if err != nil {
			return c, nil, fmt.Errorf("store: listen address %q: %w", l, err)
		}
		if u.Scheme != "unix" && u.Scheme != "http" {
			return c, nil, fmt.Errorf("store: listen address %q: want unix:///PATH or http://127.0.0.1:PORT", l)
		}
		listen = append(listen, *u)
	}
	return c, listen, nil
}

func (c ServerConfig) embed(listen []url.URL) *embed.Config {
	e := embed.NewConfig()
	e.Dir = c.Dir
	e.Name = "wasmplane"
	e.ListenPeerUrls, e.ListenClientUrls = []url.URL{}, listen
	// The one member needs an address in the membership, though nobody listens there.
	self := url.URL{Scheme: "http", Host: "localhost:0"}
	if c.Peers != nil && c.Peers.Address != "" {
		self = url.URL{Scheme: "https", Host: c.Peers.Address}
	}
	if c.Peers != nil {
		e.Name = c.Peers.Name
		e.PeerTLSInfo = transport.TLSInfo{
			CertFile: c.Peers.PairFile, KeyFile: c.Peers.PairFile, TrustedCAFile: c.Peers.CAFile,
			ClientCertAuth: true,
		}
	}
	e.AdvertisePeerUrls, e.AdvertiseClientUrls = []url.URL{self}, []url.URL{self}
	e.InitialCluster = e.Name + "=" + self.String()
	// One member elects itself: no reason to wait for a second. Each tick costs
	// a little, so there are as few as etcd allows.
	e.TickMs, e.ElectionMs = 20, 100
	if c.Peers != nil {
		e.TickMs, e.ElectionMs = 100, 1000 // as long as disks and networks may take
	}
	e.QuotaBackendBytes = c.Quota
	e.MaxRequestBytes = uint(c.MaxRequest)
	e.UnsafeNoFsync = c.NoFsync
	// raft keeps this many entries in memory and replays them at the next
	// start; there is no follower to catch up.
	e.SnapshotCount, e.SnapshotCatchUpEntries = 2000, 100
	if c.Peers != nil {
		e.SnapshotCatchUpEntries = 5000 // for members that were away for a moment
	}
	// A start reads every file of the log through. Those that it needs are kept in any case.
	e.MaxWalFiles = 2
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModeRevision, "0"
	e.BootstrapDefragThresholdMegabytes = 100
	e.EnableGRPCGateway, e.ForceNewCluster = false, c.alone
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zaplog.To(c.Logger, c.fatal))
	return e
}

// logFile is the size of a file of the log, where etcd has 64 MB: reading those took a tenth of a start with 50,000 objects, and
// an empty cluster has two.
const logFile = 16 << 20

func init() { wal.SegmentSizeBytes = logFile } //nolint:gochecknoinits // etcd has no other way, and reads it in goroutines of its own

const (
	// undecided is what etcd says to a member that joins while the others have no version of the
	// cluster that they agree on, or are too busy to say it. It says the same of one that they
	// have agreed on and that this member is too new or too old for.
	undecided = "incompatible with current running cluster"
	// deciding bounds how long a member waits for that: the one that leads settles the version
	// at its first look, which comes every 4 s and later on a busy machine.
	deciding = 20 * time.Second
)

// open starts etcd. A member that joins a cluster which has just begun waits until that has a version.
func open(ctx context.Context, cfg *embed.Config) (*embed.Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, deciding)
	defer cancel()
	again := run.Backoff{First: 100 * time.Millisecond, Longest: time.Second}
	for {
		e, err := openOnce(cfg)
		if err == nil || !strings.Contains(err.Error(), undecided) {
			return e, err
		}
		if !again.Wait(ctx) {
			return nil, fmt.Errorf("the other servers' stores name no version of the cluster that this one can join"+
				" (they may have just begun, or be of another version): %w", err)
		}
	}
}

// openOnce turns etcd's panics about a damaged directory into errors.
func openOnce(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, err = nil, fmt.Errorf("etcd cannot use this directory: %v", r)
		}
	}()
	return embed.StartEtcd(cfg)
}

// Store is the store that the server serves, without a network between. It
// lives until Close.
func (s *Server) Store() *etcdclient.Store { return s.store }

// Done is closed when etcd stopped, by Close, because its disk failed, or because this
// member was removed; Err then says which.
func (s *Server) Done() <-chan struct{} { return s.etcd.Server.StopNotify() }

// Err says why the store has stopped by itself.
func (s *Server) Err(ctx context.Context) error {
	return s.why(ctx, errors.New("etcd has stopped; its log says why"))
}

// handOver gives leadership to another member before this one hangs up, so that the
// others need not notice first that nobody leads.
func (s *Server) handOver() {
	if s.etcd != nil && !s.stopped() {
		_ = s.etcd.Server.TryTransferLeadershipOnShutdown() // they elect one otherwise
	}
}

func (s *Server) stopped() bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// Close ends every watch, stops etcd and releases the directory.
func (s *Server) Close() error {
	var errs []error
	if s.store != nil {
		if err := s.store.Close(); err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	if s.ends != nil {
		defer s.ends()
	}
	if s.peers != nil {
		s.handOver()
		s.peers.close()
	}
	if s.etcd != nil {
		s.etcd.Close()
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}

// notReady says why a store that has no others was not ready in time.
func (s *Server) notReady(cfg ServerConfig) error {
	if has := s.etcd.Server.CommittedIndex(); has < s.applied {
		return fmt.Errorf("the store in %s is damaged: its log ends at entry %d, and its database has what was written up to entry %d: restore a backup, or move the directory away to start empty", cfg.Dir, has, s.applied)
	}
	return fmt.Errorf("the store in %s was not ready after %v: is the disk too slow?", cfg.Dir, cfg.Timeout)
}
