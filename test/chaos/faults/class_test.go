// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"
)

// topology is the kind of cluster that a class breaks.
type topology struct {
	name             string
	servers, workers int
	// clock: the machines' wall clocks are stepped (CHAOS_CLOCK_BIN).
	clock bool
	// spares are machines that no cluster is on yet, and servers once they join. Where there are some, no server has pods.
	spares int
}

var (
	// alone is one machine that is server and node.
	alone = topology{name: "one", servers: 1}
	// many is three servers and two workers. What serves is on the workers, and the
	// Service's client on the last one, which no class touches.
	many = topology{name: "three", servers: 3, workers: 2}
	// Those with clocks of their own.
	clocked     = topology{name: "clock", servers: 1, clock: true}
	manyClocked = topology{name: "clocks", servers: 3, workers: 2, clock: true}
	// growing begins with one server and a worker, and four further servers can join.
	growing = topology{name: "growing", servers: 1, workers: 1, spares: 4}
)

// class is one kind of fault.
type class struct {
	name string
	// does says in a sentence what breaks and how it is mended.
	does string
	on   topology
	// smoke has `make test` run it too.
	smoke bool
	// run breaks and mends. What it finds amiss besides the bounds, such as an error that does not
	// say what to do, is its error.
	run func(*world) error
	// may is what clients may notice.
	may bounds
}

// bounds are what clients may notice at the most. Zero is what all should have.
type bounds struct {
	// failed is how many writes may fail, though they were tried twice; unbounded: any number.
	failed int
	// calls is how many requests to the Service may fail, though they were tried twice.
	calls int
	// writes, service: the longest time in which no write, no request to the Service succeeds. 0: the usual.
	writes, service time.Duration
	// goesOn is the longest until a pod is bound, or a Deployment's change seen. 0: the usual.
	goesOn time.Duration
	// restarts is how many containers may be started again or pods replaced.
	restarts int
}

const (
	unbounded = -1
	// usualWrites is the aim for writes, usualGoesOn that for scheduler and controllers.
	usualWrites, usualGoesOn = 2 * time.Second, 5 * time.Second
	// usualService is what a busy test machine makes of "at once".
	usualService = time.Second
)

// oneContainer is what clients may notice when a container dies that serves. A connection to it is refused until the service
// proxy leaves it out: a request may meet it twice, and the usual pause of the Service bounds for how long.
var oneContainer = bounds{restarts: 1, calls: unbounded}

// slack is what times are multiplied with. `make test` measures nothing: other packages' tests run beside it.
var slack = map[bool]time.Duration{true: 5, false: 1}[os.Getenv("CHAOS_CLASSES") == ""]

func (b bounds) complete() bounds {
	if b.writes == 0 {
		b.writes = usualWrites
	}
	if b.goesOn == 0 {
		b.goesOn = usualGoesOn
	}
	if b.service == 0 {
		b.service = usualService
	}
	return b
}

// breaches are how a result is worse than its class may be.
func (b bounds) breaches(r result) (found []string) {
	b = b.complete()
	more := func(what string, is, may int) {
		if may != unbounded && is > may {
			found = append(found, fmt.Sprintf("%s: %d, and %d are allowed", what, is, may))
		}
	}
	longer := func(what string, is seconds, may time.Duration) {
		if may *= slack; time.Duration(is) > may {
			found = append(found, fmt.Sprintf("%s: %s, and %s is allowed", what, is, may))
		}
	}
	more("acknowledged writes lost", r.Lost, 0)
	more("wrong watches", r.WrongWatches, 0)
	more("failed writes", r.Failed, b.failed)
	more("failed requests to the Service", r.CallsFailed, b.calls)
	more("containers started again or pods replaced", r.Restarts, b.restarts)
	longer("pause of writes", r.Writes, b.writes)
	longer("pause of the scheduler", r.Scheduler, b.goesOn)
	longer("pause of the controllers", r.Controllers, b.goesOn)
	longer("pause of the Service", r.Service, b.service)
	return found
}

// chosen are the classes of a topology that are to be run: those of the smoke, or what CHAOS_CLASSES matches.
func chosen(t *testing.T, on topology) (classes []class) {
	t.Helper()
	text := os.Getenv("CHAOS_CLASSES")
	pattern, err := regexp.Compile(text)
	if err != nil {
		t.Fatalf("CHAOS_CLASSES: %v", err)
	}
	for _, c := range catalogue() {
		if c.on == on && (text == "" && c.smoke || text != "" && pattern.MatchString(c.id())) {
			classes = append(classes, c)
		}
	}
	return classes
}

// id names a class among all.
func (c class) id() string { return c.on.name + "/" + c.name }

// catalogue is every class, in the order in which they are run: those that leave least behind come first.
func catalogue() []class {
	var all []class
	for _, some := range [][]class{
		machineClasses(), limitClasses(), diskClasses(), clockClasses(), serverClasses(), networkClasses(), workerClasses(),
		upkeepClasses(), growthClasses(),
	} {
		all = append(all, some...)
	}
	return all
}

func TestClassesHaveNamesOfTheirOwn(t *testing.T) {
	seen, form := map[string]bool{}, regexp.MustCompile(`^(one|three|clock|clocks|growing)/[a-z0-9]+(-[a-z0-9]+)*$`)
	for _, c := range catalogue() {
		if seen[c.id()] || !form.MatchString(c.id()) || c.does == "" || c.run == nil {
			t.Errorf("%q is no class by itself, or says nothing", c.id())
		}
		seen[c.id()] = true
	}
	t.Logf("%d classes", len(seen))
}

func TestWhatBreachesBounds(t *testing.T) {
	second := seconds(slack * time.Second)
	for _, c := range []struct {
		name  string
		may   bounds
		is    result
		wants int
	}{
		{"nothing happened", bounds{}, result{}, 0},
		{"a lost write is never allowed", bounds{failed: unbounded}, result{Lost: 1}, 1},
		{"nor is a wrong watch", bounds{failed: unbounded}, result{WrongWatches: 1}, 1},
		{"any number may fail", bounds{failed: unbounded}, result{Failed: 1000}, 0},
		{"one may fail, two did", bounds{failed: 1, calls: 1}, result{Failed: 2, CallsFailed: 2}, 2},
		{"too long", bounds{}, result{Writes: 3 * second, Scheduler: 6 * second, Controllers: 6 * second, Service: 2 * second}, 4},
		{
			"long, and allowed",
			bounds{writes: time.Minute, goesOn: time.Minute, service: time.Minute},
			result{Writes: 30 * second, Scheduler: 30 * second, Controllers: 30 * second, Service: 30 * second},
			0,
		},
		{"started again", bounds{restarts: 1}, result{Restarts: 2}, 1},
	} {
		if found := c.may.breaches(c.is); len(found) != c.wants {
			t.Errorf("%s: %q", c.name, found)
		}
	}
}
