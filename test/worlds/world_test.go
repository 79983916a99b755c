// SPDX-License-Identifier: Apache-2.0

//go:debug randseednop=0
package worlds

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	oldrand "math/rand"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	utilruntime.ErrorHandlers = nil // upstream's remembers the time of the last error, and each world begins anew
	os.Exit(m.Run())
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s is %q: a number is wanted", name, text)
	}
	return n
}

// everyDay is how many seeds are tried without WORLD_SEEDS, after a world in which nothing fails.
const everyDay = 8

// TestWorlds tries one seed after the other.
func TestWorlds(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	first, steps, seeds := number(t, "WORLD_SEED", 1), number(t, "WORLD_STEPS", 2000), number(t, "WORLD_SEEDS", 0)
	if seeds == 0 {
		seeds = everyDay
		t.Run("calm", func(t *testing.T) {
			if o := live(t, contract, plan{seed: uint64(first), steps: steps, calm: true}); len(o.wrong) > 0 {
				t.Errorf("%s\nthe last of what happened:\n  %s", strings.Join(o.wrong, "\n"), strings.Join(o.last(60), "\n  "))
			}
		})
	}
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			o := live(t, contract, plan{seed: uint64(seed), steps: steps})
			if len(o.wrong) == 0 {
				t.Logf("%d steps, %d faults, %s, history %016x", o.steps, len(o.faults), o.took.Round(time.Second), o.history)
				return
			}
			t.Logf("wrong, after %d steps and %d faults: %s", o.steps, len(o.faults), strings.Join(o.wrong, "; "))
			if os.Getenv("WORLD_SHRINK") == "0" {
				t.FailNow()
			}
			fewest := shrink(o, func(skip map[int]bool) outcome {
				return live(t, contract, plan{seed: uint64(seed), steps: steps, skip: skip})
			})
			t.Errorf("again: WORLD_SEED=%d WORLD_SEEDS=1 WORLD_STEPS=%d go test -run TestWorlds ./test/worlds\nthe faults that are needed (of %d):\n  %s\nwhat is wrong then:\n  %s\nthe last of what happened:\n  %s",
				seed, steps, len(o.faults), strings.Join(fewest.faultTexts(), "\n  "), strings.Join(fewest.wrong, "\n  "),
				strings.Join(fewest.last(60), "\n  "))
		})
	}
}

// plan is what is to happen.
type plan struct {
	seed  uint64
	steps int
	calm  bool         // nothing fails
	skip  map[int]bool // faults that are left out, by their number
	story func(*world) // what happens; nil = what the seed says
}

// outcome is what came of it.
type outcome struct {
	wrong   []string
	faults  []fault // that did happen
	steps   int
	took    time.Duration // virtual
	history uint64        // a sum over all that happened
	log     []string
}

type fault struct {
	number int
	text   string
}

func (o outcome) faultTexts() []string {
	var out []string
	for _, f := range o.faults {
		out = append(out, f.text)
	}
	return out
}

func (o outcome) last(n int) []string { return o.log[max(0, len(o.log)-n):] }

// world is one run.
type world struct {
	plan
	t        *testing.T
	ctx      context.Context //nolint:containedctx // of the whole run
	rng      *rand.Rand
	gate     *gate
	disk     *disk
	servers  []*server
	parts    []*part
	machines []*machine
	network  *simulated.Network
	user     *client.Set // who asks for things, and whom no fault touches
	asked    *asked
	begin    time.Time
	numbered int                   // faults so far
	held     map[*part]time.Time   // until when it sees the past
	stands   map[string]time.Time  // until when a watch of one resource stands still, by its calls' key
	cutOff   map[*part]time.Time   // until when it reaches nobody
	mute     map[*part]time.Time   // until when nobody answers it
	lags     map[*server]time.Time // until when it does not hear of writes
	weather  weather
	file     io.Writer      // of WORLD_LOG; nil = nobody reads it
	lost     map[string]int // creates whose answers were lost, by resource
	auditors []*auditor

	mu      sync.Mutex
	leading map[string]*life // by role
	out     outcome
	moment  time.Time // of the last call that nobody chose
	atOnce  int       // such calls in it
}

// weather is how often things happen in a world: once in so many steps.
type weather struct{ asks, disturbs, fails int }

func forecast(r *rand.Rand) weather {
	return weather{asks: pick(r, []int{20, 40, 80}), disturbs: pick(r, []int{20, 60, 60, 150}), fails: pick(r, []int{20, 60, 60, 200})}
}

// live runs a plan to its end.
func live(t *testing.T, contract *api.Contract, p plan) (out outcome) {
	t.Helper()
	uuid.SetRand(&seeded{rand.New(rand.NewPCG(p.seed, 1))})
	defer uuid.SetRand(nil)
	utilrand.Seed(int64(p.seed))
	oldrand.Seed(int64(p.seed)) //nolint:staticcheck // jitter of upstream's loops comes from the global source
	var file io.Writer
	if name := os.Getenv("WORLD_LOG"); name != "" && p.skip == nil {
		f, err := os.Create(fmt.Sprintf("%s.%d", name, p.seed))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		file = f
	}
	story := func(w *world) {
		w.run()
		w.heal()
		w.check()
	}
	if p.story != nil {
		story = p.story
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &world{
			plan: p, t: t, ctx: ctx, rng: rand.New(rand.NewPCG(p.seed, 2)), gate: newGate(), begin: time.Now(),
			held: map[*part]time.Time{}, cutOff: map[*part]time.Time{}, lost: map[string]int{}, leading: map[string]*life{}, file: file,
			stands: map[string]time.Time{}, mute: map[*part]time.Time{}, lags: map[*server]time.Time{},
		}
		w.weather = forecast(w.rng)
		w.asked = newAsked(w)
		w.disk = newDisk(contract, w)
		if err := w.build(contract); err != nil {
			t.Error(err)
			cancel()
			return
		}
		w.warm()
		story(w)
		cancel()
		w.gate.opened(true)
		for _, part := range w.parts {
			if part.life != nil {
				<-part.done
			}
		}
		out = w.out
		out.took = time.Since(w.begin)
	})
	return out
}

// seeded makes bytes of a generator.
type seeded struct{ *rand.Rand }

func (s *seeded) Read(p []byte) (int, error) {
	var b [8]byte
	for i := range p {
		if i%8 == 0 {
			binary.LittleEndian.PutUint64(b[:], s.Uint64())
		}
		p[i] = b[i%8]
	}
	return len(p), nil
}

func (w *world) build(contract *api.Contract) error {
	for _, name := range []string{"a", "b"} {
		s, err := newServer(w.ctx, name, contract, w.disk)
		if err != nil {
			return err
		}
		w.servers = append(w.servers, s)
	}
	own, err := newServer(w.ctx, "of the user", contract, w.disk) // one that never lags
	if err != nil {
		return err
	}
	if w.user, err = own.as("user"); err != nil {
		return err
	}
	for _, name := range []string{"default", "kube-system", "kube-node-lease"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := w.user.Kube.CoreV1().Namespaces().Create(w.ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := w.asked.volumes(); err != nil {
		return err
	}
	return w.populate(3)
}

// say remembers what happened.
func (w *world) say(format string, args ...any) {
	line := fmt.Sprintf("%s %s", time.Since(w.begin).Round(time.Millisecond), fmt.Sprintf(format, args...))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out.log = append(w.out.log, line)
	if w.file != nil {
		_, _ = fmt.Fprintln(w.file, line)
	}
	h := fnv.New64a()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], w.out.history)
	_, _ = h.Write(b[:])
	_, _ = h.Write([]byte(line))
	w.out.history = h.Sum64()
}

// fail remembers what must not be.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.say("WRONG: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.out.wrong, text) {
		w.out.wrong = append(w.out.wrong, text)
	}
}

// broken says whether a fault may happen now, which has the text.
func (w *world) broken(format string, args ...any) bool {
	w.numbered++
	if w.calm || w.skip[w.numbered] {
		return false
	}
	text := fmt.Sprintf(format, args...)
	w.say("fault %d: %s", w.numbered, text)
	w.out.faults = append(w.out.faults, fault{w.numbered, fmt.Sprintf("%d (%s): %s", w.numbered, time.Since(w.begin).Round(time.Millisecond),
		text)})
	return true
}

// chance is one in n.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// warm lets everything come up before anything fails.
func (w *world) warm() {
	w.gate.opened(true)
	time.Sleep(10 * time.Second)
	synctest.Wait()
	w.gate.opened(false)
}

// run is the time in which things fail.
func (w *world) run() {
	for w.out.steps = 0; w.out.steps < w.steps && len(w.out.wrong) == 0; w.out.steps++ {
		synctest.Wait()
		w.returns()
		if w.chance(w.weather.asks) {
			w.asked.something()
			continue
		}
		if w.chance(w.weather.disturbs) {
			w.disturb()
			continue
		}
		free := w.free()
		if len(free) == 0 || w.chance(50) {
			time.Sleep(time.Duration(1+w.rng.IntN(3000)) * time.Millisecond)
			continue
		}
		w.step(pick(w.rng, free))
	}
}

// free are the calls that are not held.
func (w *world) free() []*call {
	now := time.Now()
	return slices.DeleteFunc(w.gate.calls(), func(c *call) bool {
		return now.Before(w.mute[c.life.part]) || c.watch && (now.Before(w.held[c.life.part]) || now.Before(w.stands[c.key]))
	})
}

// step lets one call go on, or fails it.
func (w *world) step(c *call) {
	v := pass
	if time.Now().Before(w.cutOff[c.life.part]) {
		v = refuse
		if c.watch {
			v = cut
		}
		w.gate.choose(c, v)
		return
	}
	if w.chance(w.weather.fails) {
		v = lose
		switch {
		case c.watch:
			v = cut
		case w.chance(2):
			v = refuse
		}
		if !w.broken("%s %s", v, c.key) {
			v = pass
		}
	}
	if v == pass {
		w.say("%s #%d", c.key, c.serial)
	}
	if v == lose && strings.Contains(c.key, "POST") {
		w.lost[path.Base(c.key)]++
	}
	w.gate.choose(c, v)
}

// returns has come back what is due.
func (w *world) returns() {
	now := time.Now()
	for _, p := range w.parts {
		if p.life == nil && !p.gone && now.After(p.back) {
			s := pick(w.rng, w.servers)
			w.say("%s starts, at server %s", p.name, s.name)
			w.start(p, s)
		}
	}
	for _, s := range w.servers {
		if until, lags := w.lags[s]; lags && now.After(until) {
			delete(w.lags, s)
			s.lag.hold(false)
			w.say("server %s goes on", s.name)
		}
	}
}

// disturb does one of the larger faults.
func (w *world) disturb() {
	long := time.Duration(1+w.rng.IntN(60)) * time.Second
	p := pick(w.rng, w.parts)
	switch kind := w.rng.IntN(7); {
	case kind == 0:
		w.lag(pick(w.rng, w.servers), long)
	case kind >= 5:
		w.standStill(long)
	case p.life == nil:
	case kind == 1:
		if w.broken("%s sees the past for %s", p.name, long) {
			w.held[p] = time.Now().Add(long)
		}
	case kind == 2 && w.chance(2):
		long *= 2
		if w.broken("nobody answers %s for %s", p.name, long) {
			w.mute[p] = time.Now().Add(long)
		}
	case kind == 2:
		long *= 2 // so that a node is given up
		if w.broken("%s reaches nobody for %s", p.name, long) {
			w.cutOff[p] = time.Now().Add(long)
		}
	case kind == 3 && p.isNode && w.chance(2):
		if w.broken("%s loses its power for %s", p.name, long) {
			w.kill(p)
			p.back = time.Now().Add(long)
			if err := w.power(w.machine(p)); err != nil {
				w.fail("%v", err)
			}
		}
	default:
		if w.broken("%s dies for %s", p.name, long) {
			w.kill(p)
			p.back = time.Now().Add(long)
		}
	}
}

func (w *world) lag(s *server, long time.Duration) {
	if w.broken("server %s lags for %s", s.name, long) {
		w.lags[s] = time.Now().Add(long)
		s.lag.hold(true)
	}
}

// standStill has one watch of a part show the past, and its others not: it then sees some
// objects before others that were written first.
func (w *world) standStill(long time.Duration) {
	calls := slices.DeleteFunc(w.gate.calls(), func(c *call) bool { return !c.watch })
	if len(calls) == 0 {
		return
	}
	if c := pick(w.rng, calls); w.broken("for %s no more of: %s", long, c.key) {
		w.stands[c.key] = time.Now().Add(long)
	}
}

// patience is how long everything may take to come about once nothing fails any more. A
// StatefulSet that waits for a pod in its back-off, or a garbage collector in its own, needs
// minutes.
const patience = 20 * time.Minute

// heal ends all faults, and lets everything go on until what was asked for has come about.
func (w *world) heal() {
	if len(w.out.wrong) > 0 {
		return
	}
	w.say("from here on nothing fails")
	for _, s := range w.servers {
		s.lag.hold(false)
	}
	clear(w.lags)
	clear(w.stands)
	clear(w.mute)
	clear(w.held)
	clear(w.cutOff)
	for _, p := range w.parts {
		if p.life == nil && !p.gone {
			w.start(p, w.servers[0])
		}
	}
	w.gate.opened(true)
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		missing := w.asked.missing()
		if len(missing) == 0 || len(w.out.wrong) > 0 {
			return
		}
		w.say("missing: %s", strings.Join(missing, "; "))
	}
}

// check looks whether everything has come about.
func (w *world) check() {
	if len(w.out.wrong) > 0 {
		return
	}
	for _, text := range w.asked.missing() {
		w.fail("%s after the last fault: %s", patience, text)
	}
	w.counted()
}

// unheard is a recorder of events that nobody reads.
type unheard struct{}

func (unheard) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}
