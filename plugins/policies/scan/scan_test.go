// SPDX-License-Identifier: Apache-2.0

package scan_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/policies/scan"
)

var pods = scan.Resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod"}

// policy has something against objects whose names begin with a letter.
type policy struct {
	name, version, against string
	fails                  bool
	takes                  time.Duration // of virtual time
	space                  string
	asked                  int
}

func (p *policy) Info() scan.Info {
	return scan.Info{
		Key: p.name, Source: "test", Policy: p.name, Severity: "high", Space: p.space,
		About: &scan.Reference{APIVersion: "example.com/v1", Kind: "Policy", Name: p.name},
	}
}
func (p *policy) Version() string                         { return p.version }
func (p *policy) About(scan.Resource) admission.Operation { return admission.Create }

func (p *policy) Judge(_ context.Context, r *admission.Request) (bool, []scan.Objection, error) {
	p.asked++
	if p.takes > 0 {
		time.Sleep(p.takes)
	}
	switch {
	case p.fails:
		return true, nil, errors.New("out of fuel")
	case r.Name == "other":
		return false, nil, nil
	case p.against != "" && strings.HasPrefix(r.Name, p.against):
		return true, []scan.Objection{{Message: p.name + " does not like " + r.Name}}, nil
	}
	return true, nil, nil
}

// world is a cluster with pods in one namespace.
type world struct {
	policies []scan.Policy
	pods     map[string]int64 // revisions by name
	uids     map[string]string
	labels   uint64
	reports  map[string]*scan.Report
	totals   map[string]string
	writes   int
	refuse   error
}

func newWorld(policies ...scan.Policy) *world {
	return &world{
		policies: policies, pods: map[string]int64{}, uids: map[string]string{}, reports: map[string]*scan.Report{}, totals: map[string]string{},
	}
}

func (w *world) Judges(context.Context) ([]scan.Policy, error) {
	return slices.Clone(w.policies), nil
}

func (w *world) Resources(context.Context) ([]scan.Resource, error) {
	return []scan.Resource{pods}, nil
}
func (w *world) Labels(string) uint64 { return w.labels }

func (w *world) Known(context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for id := range w.reports {
		out[id] = true
	}
	return out, nil
}

func (w *world) Items(context.Context, scan.Resource) (out []scan.Item, err error) {
	for name, revision := range w.pods {
		out = append(out, scan.Item{Key: "/pods/red/" + name, Revision: revision, Namespace: "red", Of: name})
	}
	slices.SortFunc(out, func(a, b scan.Item) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

func (w *world) Request(_ context.Context, _ scan.Resource, item *scan.Item, _ admission.Operation) (*admission.Request, error) {
	name, _ := item.Of.(string)
	uid := w.uids[name]
	if uid == "" {
		uid = "uid-" + name
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "red", UID: types.UID(uid)}}
	return &admission.Request{
		Operation: admission.Create, Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Resource: pods.GroupVersionResource,
		Namespace: "red", Name: name, Object: object.FromVersioned(nil, pod),
	}, nil
}

func (w *world) Write(_ context.Context, r *scan.Report) error {
	if w.refuse != nil {
		return w.refuse
	}
	w.writes++
	w.reports[r.ID()] = r
	return nil
}

func (w *world) Remove(_ context.Context, id string) error {
	delete(w.reports, id)
	return nil
}

func (w *world) Totals(_ context.Context, p scan.Info, total int, first []scan.Violation) error {
	w.totals[p.Key] = fmt.Sprint(total, len(first))
	return nil
}

func (w *world) scanner(file string, reports int) *scan.Scanner {
	return scan.New(scan.Config{World: w, Sink: w, Reports: reports, File: file})
}

// pass makes a pass, and holds how often policies were asked against what is expected.
func pass(t *testing.T, s *scan.Scanner, what string, policies ...any) {
	t.Helper()
	if _, err := s.Pass(t.Context()); err != nil {
		t.Fatal(what, err)
	}
	for i := 0; i < len(policies); i += 2 {
		p, want := policies[i].(*policy), policies[i+1].(int)
		if p.asked != want {
			t.Errorf("%s: %s was asked %d times, expected %d", what, p.name, p.asked, want)
		}
		p.asked = 0
	}
}

// summary of the report about a pod.
func (w *world) summary(name string) string {
	r := w.reports["red/uid-"+name]
	if r == nil {
		return "none"
	}
	o := r.Object(scan.PolicyReports, time.Unix(0, 0)).Object
	m, _ := o["summary"].(map[string]any)
	list, _ := o["results"].([]any)
	return fmt.Sprintf("%d pass, %d fail, %d error: %d", m["pass"], m["fail"], m["error"], len(list))
}

func (w *world) expect(t *testing.T, what string, summaries map[string]string) {
	t.Helper()
	for name, want := range summaries {
		if got := w.summary(name); got != want {
			t.Errorf("%s: the report about %s: %s, expected %s", what, name, got, want)
		}
	}
}

func TestAPassCostsWhatHasChanged(t *testing.T) {
	a, b := &policy{name: "a", version: "1", against: "x"}, &policy{name: "b", version: "1"}
	w := newWorld(a, b)
	for _, name := range []string{"x1", "x2", "y1", "other"} {
		w.pods[name] = 1
	}
	s := w.scanner("", 100)
	pass(t, s, "all", a, 4, b, 4)
	w.expect(t, "all", map[string]string{
		"x1": "1 pass, 1 fail, 0 error: 1", "x2": "1 pass, 1 fail, 0 error: 1", "y1": "none", "other": "none",
	})
	if w.totals["a"] != "2 2" || w.totals["b"] != "0 0" {
		t.Errorf("totals %v", w.totals)
	}
	w.writes = 0
	pass(t, s, "nothing", a, 0, b, 0)
	if w.writes != 0 {
		t.Errorf("%d reports were written again", w.writes)
	}
	w.pods["x1"] = 2
	pass(t, s, "an object", a, 1, b, 1)
	b.version, b.against = "2", "y"
	pass(t, s, "a policy", a, 0, b, 4)
	w.expect(t, "a policy", map[string]string{"x1": "1 pass, 1 fail, 0 error: 1", "y1": "1 pass, 1 fail, 0 error: 1"})
	c := &policy{name: "aa", version: "1", against: "x1"} // between the others
	w.policies = append(w.policies, c)
	pass(t, s, "a policy more", a, 0, b, 0, c, 4)
	w.expect(t, "a policy more", map[string]string{"x1": "1 pass, 2 fail, 0 error: 2", "x2": "2 pass, 1 fail, 0 error: 1"})
	w.policies = w.policies[1:] // without a
	pass(t, s, "a policy less", b, 0, c, 0)
	w.expect(t, "a policy less", map[string]string{"x1": "1 pass, 1 fail, 0 error: 1", "x2": "none"})
	w.labels = 7
	pass(t, s, "labels of the namespace", b, 4, c, 4)
	delete(w.pods, "x1")
	delete(w.reports, "red/uid-x1") // by the collector of garbage
	pass(t, s, "an object less", b, 0, c, 0)
	delete(w.reports, "red/uid-y1") // by somebody
	pass(t, s, "a report less", b, 0, c, 0)
	w.expect(t, "a report less", map[string]string{"y1": "1 pass, 1 fail, 0 error: 1"})
	w.uids["y1"], w.pods["y1"] = "uid-y2", 9
	delete(w.reports, "red/uid-y1")
	pass(t, s, "an object anew", b, 1, c, 1)
	w.expect(t, "an object anew", map[string]string{"y1": "none", "y2": "1 pass, 1 fail, 0 error: 1"})
	w.policies = nil
	pass(t, s, "no policy")
	if len(w.reports) != 0 {
		t.Errorf("reports without policies: %v", w.reports)
	}
}

// TestWhatCannotBeAskedKeepsItsReports: a plugin that could not be loaded after a start took its reports along.
func TestWhatCannotBeAskedKeepsItsReports(t *testing.T) {
	a, b := &policy{name: "a", version: "1", against: "x"}, &policy{name: "b", version: "1"}
	w := newWorld(a, b)
	w.pods["x1"], w.pods["x2"] = 1, 1
	s := w.scanner("", 100)
	pass(t, s, "the first", a, 2, b, 2)
	shown := w.totals["a"]
	a.version = ""
	w.pods["x3"] = 1
	pass(t, s, "it cannot be asked", a, 0, b, 1)
	pass(t, s, "it still cannot", a, 0, b, 0)
	w.pods["x2"] = 2
	pass(t, s, "an object changes", a, 0, b, 1)
	w.expect(t, "it cannot be asked", map[string]string{"x1": "1 pass, 1 fail, 0 error: 1", "x2": "none", "x3": "none"})
	if w.totals["a"] != shown {
		t.Errorf("it shows %s instead of %s", w.totals["a"], shown)
	}
	a.version = "1"
	pass(t, s, "it can be asked again", a, 3, b, 0)
	w.expect(t, "it can be asked again", map[string]string{"x1": "1 pass, 1 fail, 0 error: 1", "x3": "1 pass, 1 fail, 0 error: 1"})
}

func TestWhatIsRememberedSurvivesARestart(t *testing.T) {
	a := &policy{name: "a", version: "1", against: "x"}
	w := newWorld(a)
	w.pods["x1"], w.pods["y1"] = 1, 1
	file := filepath.Join(t.TempDir(), "scan")
	ctx, stop := context.WithCancel(t.Context())
	s := w.scanner(file, 100)
	pass(t, s, "the first", a, 2)
	stop()
	if err := s.Run(ctx); err != nil { // which ends, and leaves what is known
		t.Fatal(err)
	}
	a.asked, w.writes = 0, 0
	s = w.scanner(file, 100)
	pass(t, s, "after a start", a, 0)
	if w.totals["a"] != "1 1" || w.writes != 0 {
		t.Errorf("totals %v, %d reports written", w.totals, w.writes)
	}
	// Where nothing was left, the reports that are there are taken over.
	a.against = "z"
	pass(t, w.scanner("", 100), "without the file", a, 2)
	w.expect(t, "without the file", map[string]string{"x1": "none"})
}

func TestAPolicyThatFailsIsLeftAloneForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &policy{name: "a", version: "1", fails: true}, &policy{name: "b", version: "1"}
		w := newWorld(a, b)
		for i := range 8 {
			w.pods[fmt.Sprint("x", i)] = 1
		}
		s := w.scanner("", 100)
		pass(t, s, "the first", a, 3, b, 8)
		w.expect(t, "the first", map[string]string{"x0": "1 pass, 0 fail, 1 error: 1", "x7": "none"})
		pass(t, s, "the next", a, 3, b, 0)
		a.fails = false
		pass(t, s, "when it works", a, 2, b, 0)
		time.Sleep(time.Hour) // virtual
		pass(t, s, "later", a, 6, b, 0)
		w.expect(t, "later", map[string]string{"x0": "none"})
		pass(t, s, "in the end", a, 0, b, 0)
	})
}

// Policies of a namespace work as long as one policy may, however many they are, and no other's results are late.
func TestAPolicyThatTakesLongGoesOnInTheNextPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &policy{name: "policy/a", version: "1", takes: 4 * time.Second, against: "x", space: "team"}
		b := &policy{name: "policy/b", version: "1", takes: 4 * time.Second, space: "team"}
		c := &policy{name: "policy/c", version: "1", takes: time.Second, against: "x"}
		w := newWorld(a, b, c)
		for i := range 6 {
			w.pods[fmt.Sprint("x", i)] = 1
		}
		s := w.scanner("", 100)
		pass(t, s, "the first", a, 2, b, 1, c, 6)
		w.expect(t, "the first", map[string]string{"x0": "1 pass, 2 fail, 0 error: 2", "x5": "0 pass, 1 fail, 0 error: 1"})
		pass(t, s, "the second", a, 1, b, 2, c, 0)
		pass(t, s, "the third", a, 2, b, 1, c, 0)
		pass(t, s, "the fourth", a, 1, b, 2, c, 0)
		pass(t, s, "the fifth", a, 0, b, 0, c, 0)
		w.expect(t, "in the end", map[string]string{"x5": "1 pass, 2 fail, 0 error: 2"})
	})
}

// One namespace leaves room for the reports about others.
func TestANamespaceHasAShareOfTheReports(t *testing.T) {
	a := &policy{name: "a", version: "1", against: "x"}
	w := newWorld(a)
	for i := range 5 {
		w.pods[fmt.Sprint("x", i)] = 1
	}
	s := scan.New(scan.Config{World: w, Sink: w, Reports: 100, Share: 3})
	pass(t, s, "a full share", a, 5)
	if len(w.reports) != 3 || w.totals["a"] != "5 5" {
		t.Errorf("%d reports, totals %v", len(w.reports), w.totals)
	}
	a.against, a.version = "x4", "2" // those that have reports lose them
	pass(t, s, "room again", a, 5)
	pass(t, s, "room again", a, 0)
	if len(w.reports) != 1 || w.summary("x4") == "none" {
		t.Errorf("%d reports, of the last one %s", len(w.reports), w.summary("x4"))
	}
}

func TestReportsAreBounded(t *testing.T) {
	a := &policy{name: "a", version: "1", against: "x"}
	w := newWorld(a)
	for i := range 5 {
		w.pods[fmt.Sprint("x", i)] = 1
	}
	s := w.scanner("", 3)
	w.refuse = errors.New("not now")
	pass(t, s, "refused", a, 5)
	w.refuse = nil
	pass(t, s, "written later", a, 0)
	if len(w.reports) != 3 || w.totals["a"] != "5 5" {
		t.Errorf("%d reports, totals %v", len(w.reports), w.totals)
	}
	delete(w.pods, "x0")
	delete(w.reports, "red/uid-x0")
	pass(t, s, "room again", a, 0)
	pass(t, s, "room again", a, 0)
	if len(w.reports) != 3 {
		t.Errorf("%d reports where there is room for 3", len(w.reports))
	}
}
