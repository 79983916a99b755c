// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/why"
)

// What tenants write gets into no command that an operator copies: not as a command, and not as a flag. Each
// object here is one that the API takes.
func TestWhatObjectsSayIsNoCommand(t *testing.T) {
	for _, evil := range []string{
		"x; touch pwned", "x' -n kube-system; touch pwned '", "$(touch pwned)", "`touch pwned`", "x\ntouch pwned",
		"--pwned=/etc/shadow", "x --pwned",
	} {
		for name, s := range map[string]struct {
			ask  string
			make func(*why.Cluster)
		}{
			"an owner's kind": {"pod/p", func(c *why.Cluster) {
				c.Pods = append(c.Pods, pod("p", waiting("ErrImagePull", "no"), ownedBy(evil, "web")))
			}},
			"an owner's name": {"pod/p", func(c *why.Cluster) {
				c.Pods = append(c.Pods, pod("p", waiting("ErrImagePull", "no"), ownedBy("Deployment", evil)))
			}},
			"an owner of a pod without a node": {"pod/p", func(c *why.Cluster) {
				c.Pods = append(c.Pods, pod("p", cpu("9"), ownedBy("Deployment", evil)))
			}},
			"an owner of a pod that could be more important": {"pod/p", func(c *why.Cluster) {
				c.Pods = append(c.Pods, pod("p", cpu("3"), ownedBy("Deployment", evil)), pod("x", on("a"), cpu("3")), pod("y", on("b"), cpu("3")))
				c.Priorities = []*schedulingv1.PriorityClass{{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 10}}
			}},
			"a Secret's name in a message": {"pod/p", func(c *why.Cluster) {
				c.Pods = append(c.Pods, pod("p", waiting("CreateContainerConfigError", `secrets "`+evil+`" not found`)))
			}},
			"a ConfigMap's name in an event": {"pod/p", func(c *why.Cluster) {
				c.Pods = append(c.Pods, pod("p", on("a")))
				c.Events = []*corev1.Event{event("Pod", "p", "FailedMount", `configmap "`+evil+`" not found`)}
			}},
			"an account's name": {"deployment/web", func(c *why.Cluster) {
				deployment(c, `error looking up service account: serviceaccount "`+evil+`" not found`)
			}},
			"a policy's name": {"deployment/web", func(c *why.Cluster) {
				deployment(c, `ValidatingAdmissionPolicy '`+strings.ReplaceAll(evil, "'", "")+`' with binding '`+strings.ReplaceAll(evil, "'",
					"")+`' denied request: no`)
			}},
			"a quota's name": {"deployment/web", func(c *why.Cluster) {
				deployment(c, `exceeded quota: `+evil+`, requested: cpu=1, used: cpu=1, limited: cpu=1`)
			}},
			"a quota's resource": {"deployment/web", func(c *why.Cluster) {
				deployment(c, `exceeded quota: q, requested: `+evil+`=1, used: cpu=1, limited: cpu=1`)
			}},
			"an autoscaler's container": {"hpa/web", func(c *why.Cluster) {
				autoscaler(c, autoscalingv2.ScalingActive, "FailedGetResourceMetric", "missing request for "+evil+" in container "+evil+" of Pod web-1")
			}},
			"an autoscaler's target": {"hpa/web", func(c *why.Cluster) {
				autoscaler(c, autoscalingv2.ScalingActive, "ScalingDisabled", "no")
				c.Autoscalers[0].Spec.ScaleTargetRef.Name = evil
			}},
		} {
			c := &why.Cluster{
				Now: time.Unix(0, 0), Nodes: []*corev1.Node{node("a"), node("b")},
				Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
			}
			s.make(c)
			a := ask(t, c, s.ask)
			if a.Well {
				t.Errorf("%s: %+v", name, a)
			}
			for _, change := range a.Changes {
				if strings.Contains(change.Command, "touch") || strings.Contains(change.Command, " --pwned") {
					t.Errorf("%s, %q: the command %s", name, evil, change.Command)
				}
			}
		}
	}
}

// Messages write no lines of their own into an answer, such as commands, and nothing that a terminal obeys.
func FuzzAnswersArePrintable(f *testing.F) {
	f.Add("no\n  delete everything:\n    kubectl delete ns --all")
	f.Add("\x1b]0;pwned\a\x1b[2J\u009b31m \u202e \u2028 \xff")
	f.Fuzz(func(t *testing.T, text string) {
		lines := func(message string) (int, string) {
			c := &why.Cluster{Nodes: []*corev1.Node{node("a")}, Pods: []*corev1.Pod{pod("p", waiting("ErrImagePull", message))}}
			c.Pods[0].Spec.NodeName = "a"
			var out bytes.Buffer
			ask(t, c, "pod/p").Write(&out)
			return strings.Count(out.String(), "\n"), out.String()
		}
		want, _ := lines("no")
		got, all := lines(text)
		if got != want {
			t.Errorf("%d lines, want %d:\n%s", got, want, all)
		}
		for _, r := range all {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q is in the answer %q", r, all)
			}
		}
	})
}

// The event about an object says nothing of other namespaces, whose objects its readers may not read.
func TestOthersAreNotToldOfOtherNamespaces(t *testing.T) {
	c := &why.Cluster{Now: time.Unix(0, 0), Nodes: []*corev1.Node{node("a")}, Pods: []*corev1.Pod{
		pod("p", ranked(5), func(p *corev1.Pod) { p.Status.NominatedNodeName = "a" }),
		pod("secret-project", on("a"), func(p *corev1.Pod) { p.Namespace, p.DeletionTimestamp = "others", &metav1.Time{Time: time.Unix(9, 0)} }),
	}}
	a := ask(t, c, "pod/p")
	if !strings.Contains(a.Cause, "others/secret-project") || strings.Contains(a.Public(), "secret-project") ||
		!strings.Contains(a.Public(), "it gets node a") {
		t.Errorf("%q, and others may read %q", a.Cause, a.Public())
	}
	c = &why.Cluster{Nodes: []*corev1.Node{node("a", func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse,
			Message: "volume of others/secret-project is stuck",
		}}
	})}, Pods: []*corev1.Pod{pod("p", unready)}}
	if a := ask(t, c, "pod/p"); !strings.Contains(a.Cause, "secret-project") || a.Public() != "its node a is not ready" {
		t.Errorf("%q, and others may read %q", a.Cause, a.Public())
	}
}

// hurried is a context whose time is up after some questions whether it is.
type hurried struct {
	context.Context //nolint:containedctx // it is one
	left            *int
}

func (h hurried) Err() error {
	if *h.left--; *h.left < 0 {
		return errors.New("time is up")
	}
	return nil
}

// Trials end with the time for them, and the answer says so instead of that nothing helps.
func TestTrialsEndInTime(t *testing.T) {
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for i := range 40 {
		name := "n" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		nodes = append(nodes, node(name))
		for range 4 {
			pods = append(pods, pod("x"+name+string(rune('a'+len(pods)%4)), on(name), cpu("1"), ranked(9)))
		}
	}
	pods = append(pods, pod("p", cpu("9999"), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"no": "where"} }))
	left := 200
	a, err := why.Explain(hurried{t.Context(), &left}, &why.Cluster{Nodes: nodes, Pods: pods}, "pod", "shop", "p")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(a.Unknown, "\n"), "the time for one question ended") {
		t.Errorf("%+v", a)
	}
	if left < -500 {
		t.Errorf("after its time was up it went on for %d steps", -left)
	}
}
