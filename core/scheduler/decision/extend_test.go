// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// faraway is an extender that lets through and rates by the names of nodes.
type faraway struct {
	name      string
	refuses   string // nodes with names that end so
	fails     bool
	ignorable bool
	asked     *[]string // of all in a test: who was asked about how many nodes
}

func (x *faraway) Name() string                            { return x.name }
func (x *faraway) Asked(framework.Point, *corev1.Pod) bool { return true }
func (x *faraway) Ignorable() bool                         { return x.ignorable }

func (x *faraway) answer(verb string, n int) *framework.Status {
	*x.asked = append(*x.asked, fmt.Sprintf("%s %s %d", x.name, verb, n))
	if x.fails {
		return framework.NewStatus(framework.Error, "down")
	}
	return nil
}

func (x *faraway) Narrow(_ context.Context, _ *framework.PodInfo, nodes []*framework.NodeInfo) ([]*framework.Status, *framework.Status) {
	out := make([]*framework.Status, len(nodes))
	for i, n := range nodes {
		if x.refuses != "" && strings.HasSuffix(n.Node.Name, x.refuses) {
			out[i] = framework.NewStatus(framework.Unschedulable, "ends with "+x.refuses)
		}
	}
	return out, x.answer("narrow", len(nodes))
}

func (x *faraway) Rate(_ context.Context, _ *framework.PodInfo, nodes []*framework.NodeInfo) ([]int64, *framework.Status) {
	scores := make([]int64, len(nodes))
	scores[len(nodes)-1] = 1000 // the last one, by far
	if x.fails {
		return nil, framework.NewStatus(framework.Error, "down")
	}
	return scores, nil
}

func (x *faraway) Vet(_ context.Context, _ *framework.PodInfo, _ *framework.Snapshot, candidates []framework.Candidate,
) ([]framework.Candidate, *framework.Status) {
	return slices.DeleteFunc(slices.Clone(candidates), func(c framework.Candidate) bool {
		return x.refuses != "" && strings.HasSuffix(c.Node.Node.Name, x.refuses)
	}), x.answer("vet", len(candidates))
}

func extended(t *testing.T, all ...*faraway) (*Compiled, *[]string) {
	t.Helper()
	asked := &[]string{}
	prof := Profile{Name: "extended", Plugins: []Weighted{{Plugin: rows{}}}}
	for _, x := range all {
		x.asked = asked
		prof.Plugins = append(prof.Plugins, Weighted{Plugin: x})
	}
	c, err := Compile(prof, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, asked
}

func decideBy(t *testing.T, c *Compiled, nodes int, in Circumstances) *Decision {
	t.Helper()
	in.Workers, in.Now = 1, func() time.Time { return time.Unix(0, 0) }
	pod := framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	return c.Decide(t.Context(), pod, rowsOf(nodes), in, Blind{})
}

// TestExtendersAreAskedAfterThePlugins, each about what the one before has left; what they add decides.
func TestExtendersAreAskedAfterThePlugins(t *testing.T) {
	c, asked := extended(t, &faraway{name: "first", refuses: "0"}, &faraway{name: "second", refuses: "4"})
	d := decideBy(t, c, 6, Circumstances{}) // 2 and 5 are refused by the plugin
	if got := strings.Join(*asked, ", "); got != "first narrow 4, second narrow 3" {
		t.Errorf("asked: %s", got)
	}
	if d.Node != "n003" || d.Scores["first"][1] != 1000 {
		t.Errorf("node %s, scores %v", d.Node, d.Scores)
	}
	if st := d.Statuses["n004"]; st == nil || st.Plugin != "second" || !slices.Equal(d.RefusedBy(), []string{"first", "rows", "second"}) {
		t.Errorf("refused %v by %v", st, d.RefusedBy())
	}
	if d.Effort.Asked("Filter", "second") != 3 || d.Effort.Asked("Score", "first") != 2 {
		t.Error("the questions are not counted")
	}
	if c.Interest([]string{"first"}) != framework.AnyEvent {
		t.Error("a pod that an extender refused is not tried again at any event")
	}
}

// TestAnExtenderThatFailsFailsTheTry, unless it is ignorable; it is not asked where there is no node.
func TestAnExtenderThatFailsFailsTheTry(t *testing.T) {
	c, _ := extended(t, &faraway{name: "down", fails: true})
	d := decideBy(t, c, 2, Circumstances{})
	if d.Node != "" || d.Fatal() == nil || d.Message() != "0/2 nodes are available: plugin down: down." {
		t.Errorf("node %q: %s", d.Node, d.Message())
	}
	c, _ = extended(t, &faraway{name: "down", fails: true, ignorable: true})
	d = decideBy(t, c, 2, Circumstances{})
	if d.Node == "" || len(d.Ignored) != 2 || d.Scores["down"] != nil || !strings.Contains(d.NodesLeftOut(), "ignored: plugin down: down") {
		t.Errorf("node %q, ignored %v: %s", d.Node, d.Ignored, d.NodesLeftOut())
	}
	c, asked := extended(t, &faraway{name: "x", refuses: "0"})
	if d := decideBy(t, c, 1, Circumstances{}); d.Node != "" || d.Message() != "0/1 nodes are available: 1 ends with 0." {
		t.Error(d.Message())
	}
	*asked = nil
	c, asked = extended(t, &faraway{name: "first", refuses: "0"}, &faraway{name: "second"})
	if decideBy(t, c, 1, Circumstances{}); len(*asked) != 1 {
		t.Errorf("asked about no node: %v", *asked)
	}
}

// TestAPromisedNodeIsShownToExtendersToo: where they refuse it, all nodes are looked at.
func TestAPromisedNodeIsShownToExtendersToo(t *testing.T) {
	c, asked := extended(t, &faraway{name: "x", refuses: "1"})
	d := decideBy(t, c, 2, Circumstances{Promised: "n000"})
	if d.Node != "n000" || strings.Join(*asked, ", ") != "x narrow 1" {
		t.Errorf("node %s, asked %v", d.Node, *asked)
	}
	*asked = nil
	d = decideBy(t, c, 2, Circumstances{Promised: "n001"})
	if d.Node != "n000" || strings.Join(*asked, ", ") != "x narrow 1, x narrow 2" {
		t.Errorf("node %s, asked %v", d.Node, *asked)
	}
	*asked = nil
	if d := decideBy(t, c, 1, Circumstances{Trial: true}); d.Node != "n000" || len(*asked) != 0 {
		t.Errorf("node %s on a trial, asked %v", d.Node, *asked)
	}
}

// TestExtendersAgreeToWhoGoes, one after the other.
func TestExtendersAgreeToWhoGoes(t *testing.T) {
	candidates := func() (out []framework.Candidate) {
		for _, n := range rowsOf(3).Nodes {
			out = append(out, framework.Candidate{Node: n})
		}
		return out
	}
	vet := func(all ...*faraway) ([]framework.Candidate, *framework.Status, string) {
		c, asked := extended(t, all...)
		d := &Decision{}
		left, st := (&simulator{profile: c, pod: framework.NewPodInfo(&corev1.Pod{}), d: d}).Vet(t.Context(), candidates())
		return left, st, strings.Join(*asked, ", ")
	}
	left, st, asked := vet(&faraway{name: "first", refuses: "0"}, &faraway{name: "second", refuses: "1"})
	if len(left) != 1 || left[0].Node.Node.Name != "n002" || !st.IsSuccess() || asked != "first vet 3, second vet 2" {
		t.Errorf("%v, %v, asked %s", left, st, asked)
	}
	if _, st, _ := vet(&faraway{name: "down", fails: true}); st == nil || st.Code != framework.Error {
		t.Error(st)
	}
	if left, st, _ := vet(&faraway{name: "down", fails: true, ignorable: true}); !st.IsSuccess() || len(left) != 3 {
		t.Errorf("%v, %v", left, st)
	}
	left, st, asked = vet(&faraway{name: "a", refuses: "0"}, &faraway{name: "b", refuses: "1"}, &faraway{name: "c", refuses: "2"},
		&faraway{name: "d"})
	if len(left) != 0 || st == nil || st.Joined() != "c agrees to no node" || st.Plugin != "c" || strings.Contains(asked, "d vet") {
		t.Errorf("%v, %v, asked %s", left, st, asked)
	}
}
