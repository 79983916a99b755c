// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/events"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers/all"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// server is one apiserver. All servers share the store, and each follows it by itself.
type server struct {
	name  string
	lag   *lagging
	parts *apiserver.Server
}

func newServer(ctx context.Context, name string, contract *api.Contract, st store.Store) (*server, error) {
	log := slog.New(slog.DiscardHandler)
	s := &server{name: name, lag: newLagging(st)}
	wc, err := watchcache.New(watchcache.Config{Store: s.lag, Logger: log})
	if err != nil {
		return nil, err
	}
	regs, err := registry.New(registry.Config{Contract: contract, Store: s.lag, Cache: wc, Logger: log, Authorizer: apiservertest.Everybody{}})
	if err != nil {
		return nil, err
	}
	if s.parts, err = apiserver.New(apiserver.Config{
		Contract: contract, Registries: regs, Authorizer: apiservertest.Everybody{}, Listen: "127.0.0.1:0", Logger: log,
	}); err != nil {
		return nil, err
	}
	run.Go("watch cache", func() error { return wc.Run(ctx) })
	run.Await(ctx, wc.Ready())
	return s, nil
}

// as are the clients of a user of the server.
func (s *server) as(name string) (*client.Set, error) {
	return client.New(client.InMemory(s.parts.LocalHandler(), &user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}},
		name))
}

// lagging is the store as a server sees it whose watches may stand still.
type lagging struct {
	store.Store
	mu   sync.Mutex
	cond *sync.Cond
	held bool
}

func newLagging(s store.Store) *lagging {
	l := &lagging{Store: s}
	l.cond = sync.NewCond(&l.mu)
	return l
}

// hold has the watches stand still, or go on.
func (l *lagging) hold(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = held
	l.cond.Broadcast()
}

// Watch implements store.Store.
func (l *lagging) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := l.Store.Watch(ctx, prefix, from)
	if err != nil {
		return nil, err
	}
	out := make(chan store.Batch)
	run.Go("lagging watch", func() error {
		defer close(out)
		stop := context.AfterFunc(ctx, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.cond.Broadcast()
		})
		defer stop()
		for b := range w.Batches() {
			l.mu.Lock()
			for l.held && ctx.Err() == nil {
				l.cond.Wait()
			}
			l.mu.Unlock()
			select {
			case out <- b:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return &lagged{Watcher: w, batches: out}, nil
}

type lagged struct {
	store.Watcher
	batches chan store.Batch
}

// Batches implements store.Watcher.
func (l *lagged) Batches() <-chan store.Batch { return l.batches }

// part is a component that may die and be started again.
type part struct {
	name string
	role string // one of those of a role acts at a time; empty = it acts whenever it runs
	// begin makes and runs it as a client of a server until ctx ends.
	begin func(ctx context.Context, l *life) error

	lives  int
	life   *life   // nil = it does not run
	first  *server // that it is started at; nil = the first one
	server *server
	end    func()
	done   <-chan error
	back   time.Time // when it is started again
	gone   bool      // for good
	isNode bool
	passed func(key string) // is told of calls that nobody chose
}

// start runs the part as a client of a server.
func (w *world) start(p *part, s *server) {
	p.lives++
	l := &life{part: p, w: w, id: fmt.Sprintf("%s, life %d", p.name, p.lives), at: s, died: make(chan struct{})}
	ctx, cancel := context.WithCancel(w.ctx)
	p.life, p.server, p.end = l, s, cancel
	p.done = run.Go(p.name, func() error {
		if p.role != "" {
			return l.stand(ctx)
		}
		return p.begin(ctx, l)
	})
}

// as are clients of the life's server whose requests wait at the gate.
func (l *life) as(name string) (*client.Set, error) {
	own := client.InMemory(l.at.parts.LocalHandler(), &user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}}, name)
	return client.New(l.w.gate.through(own, l))
}

// stand competes for the role's lease, and works as long as it leads.
func (l *life) stand(ctx context.Context) error {
	set, err := l.as(l.part.role)
	if err != nil {
		return err
	}
	// Twice what servers take: the lease is not what most of the steps are to be about.
	return leader.Election{
		Client: set.Kube, Namespace: "kube-system", Name: l.part.role, Identity: l.id, Logger: slog.New(slog.DiscardHandler),
		LeaseDuration: 30 * time.Second, Quick: 10 * time.Second,
	}.Stand(ctx, l.lead)
}

// lead works, and holds who else does against it. One whose leadership has ended may still wait
// for the answer to something that it asked for without a context, as client-go's discovery
// does: that it writes nothing any more is held at each write (see acts).
func (l *life) lead(ctx context.Context) error {
	l.w.mu.Lock()
	other := l.w.leading[l.part.role]
	l.w.leading[l.part.role] = l
	l.leads = ctx
	two := other != nil && other.leads.Err() == nil
	l.w.mu.Unlock()
	l.w.say("%s leads", l.id)
	if two && !l.w.gate.isDead(other) {
		l.w.fail("two lead: %s, and %s beside it", other.id, l.id)
	}
	defer func() {
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		if l.w.leading[l.part.role] == l {
			delete(l.w.leading, l.part.role)
		}
	}()
	return l.part.begin(ctx, l)
}

// kill ends a part at once: nothing that it asks for from now on happens.
func (w *world) kill(p *part) {
	w.gate.die(p.life)
	p.end()
	if err := <-p.done; err != nil && w.ctx.Err() == nil {
		w.fail("%s ended with an error: %v", p.name, err)
	}
	p.life = nil
}

func controllers(ctx context.Context, l *life) error {
	m, err := all.New(all.Config{
		Clients: func(account string) (*client.Set, error) { return l.as("system:serviceaccount:kube-system:" + account) },
	})
	if err != nil {
		return err
	}
	return m.Run(ctx)
}

func schedule(ctx context.Context, l *life) error {
	set, err := l.as("system:kube-scheduler")
	if err != nil {
		return err
	}
	inf := informers.NewSharedInformerFactory(set.Kube, 0)
	s, err := scheduler.New(scheduler.Config{
		Client: set.Kube, Informers: inf, Logger: slog.New(slog.DiscardHandler),
		Profiles: []scheduler.Profile{{Name: "default-scheduler", Plugins: native.Default(native.Config{
			Client: set.Kube, Informers: inf, Devices: devices.NewLedger(inf), Volumes: &claims.Assumed{},
		})}},
		Events: func(string) events.EventRecorder { return unheard{} },
	})
	if err != nil {
		return err
	}
	defer inf.Shutdown()
	inf.Start(ctx.Done())
	return s.Run(ctx)
}

// machine is a node: what runs on it outlives its kubelet, and ends with its power.
type machine struct {
	name   string
	engine *simulated.Engine
}

func (m *machine) kubelet(ctx context.Context, l *life) error {
	set, err := l.as("system:node:" + m.name)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	held := objects.New(set.Kube, log)
	k, err := kubelet.New(kubelet.Config{
		NodeName: m.name, Client: set.Kube, Engine: m.engine,
		Host:    simulated.NewHost(simulated.HostConfig{Name: m.name, Address: "127.0.0.1", Engine: m.engine}),
		Volumes: simulated.Volumes{}, Handler: simulated.Handler{}, Objects: held, Logger: log,
	})
	if err != nil {
		return err
	}
	return run.Parallel(k.Run, held.Run)(ctx)
}

// power gives a machine an engine on which nothing runs.
func (w *world) power(m *machine) error {
	e, err := simulated.New(simulated.Config{Network: w.network})
	m.engine = e
	return err
}

// populate makes the machines and parts.
func (w *world) populate(nodes int) error {
	var err error
	if w.network, err = simulated.NewNetwork(netip.MustParsePrefix("10.1.0.0/16")); err != nil {
		return err
	}
	w.parts = []*part{
		{name: "controllers a", role: "kube-controller-manager", begin: controllers},
		{name: "scheduler a", role: "kube-scheduler", begin: schedule},
		{name: "controllers b", role: "kube-controller-manager", begin: controllers},
		{name: "scheduler b", role: "kube-scheduler", begin: schedule},
	}
	for i, s := range w.servers {
		a := &auditor{name: "auditor " + s.name, w: w}
		w.auditors = append(w.auditors, a)
		w.parts = append(w.parts, &part{name: a.name, begin: a.run, first: w.servers[i]})
	}
	for i := range nodes {
		m := &machine{name: fmt.Sprintf("node-%d", i+1)}
		if err := w.power(m); err != nil {
			return err
		}
		w.machines = append(w.machines, m)
		w.parts = append(w.parts, &part{name: "kubelet " + m.name, begin: m.kubelet, isNode: true})
	}
	for _, p := range w.parts {
		p.passed = w.passed
		if p.first == nil {
			p.first = w.servers[0]
		}
		w.start(p, p.first)
	}
	return nil
}

// mostAtOnce is how many calls there may be in one moment of the world. Loops that answer
// each other without waiting would otherwise have time stand still.
const mostAtOnce = 20000

// passed is told of calls that nobody chose.
func (w *world) passed(key string) {
	w.mu.Lock()
	if w.file != nil {
		_, _ = fmt.Fprintln(w.file, "  free:", key)
	}
	if now := time.Now(); !now.Equal(w.moment) {
		w.moment, w.atOnce = now, 0
	}
	w.atOnce++
	many := w.atOnce > mostAtOnce
	w.mu.Unlock()
	if many {
		w.fail("loops answer each other without waiting, over and over: %d calls in one moment, as %s", mostAtOnce, key)
		time.Sleep(time.Second)
	}
}

// machine is that of a part which is a kubelet.
func (w *world) machine(p *part) *machine {
	return w.machines[slices.IndexFunc(w.machines, func(m *machine) bool { return "kubelet "+m.name == p.name })]
}
