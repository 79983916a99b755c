// SPDX-License-Identifier: Apache-2.0

package extender_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/config/v1"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// service is an extender's server, over TLS. It records what it is asked, by verb.
type service struct {
	*httptest.Server
	asked chan string
}

// serve answers each verb with what answers has for it.
func serve(t *testing.T, answers map[string]string) *service {
	t.Helper()
	s := &service{asked: make(chan string, 16)}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %v, %v", r.Method, r.URL, r.Header, err)
		}
		verb := strings.TrimPrefix(r.URL.Path, "/scheduler/")
		s.asked <- verb + " " + string(body)
		answer, known := answers[verb]
		if !known {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s
}

// settings to reach the service, whose certificate is verified.
func (s *service) settings() extender.Settings {
	return extender.Settings{
		URLPrefix: s.URL + "/scheduler/", EnableHTTPS: true, FilterVerb: "filter", PrioritizeVerb: "prioritize", PreemptVerb: "preempt",
		BindVerb: "bind", Weight: 3, NodeCacheCapable: true,
		TLSConfig: &v1.ExtenderTLSConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})},
	}
}

func reached(t *testing.T, s extender.Settings, reach extender.Reach) *extender.Extender {
	t.Helper()
	reach.Dial = dial.Operator(nil)
	if err := extender.Check([]extender.Settings{s}); err != nil {
		t.Fatal(err)
	}
	all, err := extender.New([]extender.Settings{s}, t.TempDir(), reach)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func pod(name string, priority int32) *framework.PodInfo {
	return framework.NewPodInfo(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{Priority: &priority},
	})
}

func nodes(names ...string) (out []*framework.NodeInfo) {
	for _, name := range names {
		out = append(out, framework.NewNodeInfo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	return out
}

// shape is the form of a JSON text: its keys, without the values that say nothing here.
func shape(t *testing.T, asked string) (verb string, keys map[string]json.RawMessage) {
	t.Helper()
	verb, body, _ := strings.Cut(asked, " ")
	if err := json.Unmarshal([]byte(body), &keys); err != nil {
		t.Fatalf("%s: %v", asked, err)
	}
	return verb, keys
}

// TestTheFormIsUpstreams: the keys are those that extenders in other languages read, which decode no Go types.
func TestTheFormIsUpstreams(t *testing.T) {
	s := serve(t, map[string]string{
		"filter":     `{"nodenames": ["b"], "failedNodes": {"a": "a is full"}, "FailedAndUnresolvableNodes": {"c": "c is broken", "a": "a is broken"}}`,
		"prioritize": `[{"host": "b", "score": 10}, {"Host": "a", "Score": 4}, {"host": "elsewhere", "score": 9}]`,
		"preempt":    `{"nodeNameToMetaVictims": {"a": {"pods": [{"uid": "uid-low"}]}}}`,
		"bind":       `{}`,
	})
	x := reached(t, s.settings(), extender.Reach{})
	p := pod("p", 10)
	refused, st := x.Narrow(t.Context(), p, nodes("a", "b", "c", "d"))
	if !st.IsSuccess() {
		t.Fatal(st)
	}
	got := ""
	for _, r := range refused {
		if r.IsSuccess() {
			got += "fits; "
		} else {
			got += fmt.Sprintf("%d %s; ", r.Code, r.Joined())
		}
	}
	if want := "3 a is broken; fits; 3 c is broken; 3 node(s) were left out by an extender; "; got != want {
		t.Errorf("nodes: %s\nwant   %s", got, want)
	}
	verb, keys := shape(t, <-s.asked)
	if verb != "filter" || len(keys) != 3 || string(keys["NodeNames"]) != `["a","b","c","d"]` || string(keys["Nodes"]) != "null" ||
		!strings.Contains(string(keys["Pod"]), `"uid":"uid-p"`) {
		t.Errorf("%s %s", verb, keys)
	}

	scores, st := x.Rate(t.Context(), p, nodes("a", "b", "c"))
	if !st.IsSuccess() || !slices.Equal(scores, []int64{120, 300, 0}) {
		t.Errorf("scores %v, %v", scores, st)
	}
	<-s.asked

	n := nodes("a")[0].WithPod(pod("low", 1)).WithPod(pod("lower", 0))
	snap := &framework.Snapshot{Nodes: []*framework.NodeInfo{n}, Index: map[string]int{"a": 0}}
	left, st := x.Vet(t.Context(), p, snap, []framework.Candidate{{Node: n, Victims: n.Pods, Violations: 1}})
	if !st.IsSuccess() || len(left) != 1 || len(left[0].Victims) != 1 || left[0].Victims[0].Pod.Name != "low" {
		t.Errorf("left %v, %v", left, st)
	}
	_, keys = shape(t, <-s.asked)
	if string(keys["NodeNameToVictims"]) != "null" ||
		string(keys["NodeNameToMetaVictims"]) != `{"a":{"Pods":[{"UID":"uid-low"},{"UID":"uid-lower"}],"NumPDBViolations":1}}` {
		t.Errorf("%s", keys)
	}

	how, st := x.Bind(t.Context(), nil, p, "b")
	if !st.IsSuccess() || !how.Done {
		t.Errorf("%+v, %v", how, st)
	}
	if asked := <-s.asked; asked != `bind {"PodName":"p","PodNamespace":"shop","PodUID":"uid-p","Node":"b"}` {
		t.Error(asked)
	}
}

// TestNodesAreSentWholeToWhoKeepsNone of them.
func TestNodesAreSentWholeToWhoKeepsNone(t *testing.T) {
	s := serve(t, map[string]string{
		"filter":  `{"Nodes": {"items": [{"metadata": {"name": "b"}}]}, "FailedNodes": {"a": "no"}}`,
		"preempt": `{"NodeNameToMetaVictims": {}}`,
	})
	set := s.settings()
	set.NodeCacheCapable = false
	x := reached(t, set, extender.Reach{})
	refused, st := x.Narrow(t.Context(), pod("p", 0), nodes("a", "b"))
	if !st.IsSuccess() || refused[0] == nil || refused[0].Code != framework.Unschedulable || refused[1] != nil {
		t.Errorf("%v, %v", refused, st)
	}
	_, keys := shape(t, <-s.asked)
	if string(keys["NodeNames"]) != "null" || !strings.Contains(string(keys["Nodes"]), `"items":[{"metadata":{"name":"a"`) {
		t.Errorf("%s", keys)
	}
	n := nodes("a")[0].WithPod(pod("low", 1))
	left, st := x.Vet(t.Context(), pod("p", 10), &framework.Snapshot{}, []framework.Candidate{{Node: n, Victims: n.Pods}})
	if len(left) != 0 || !st.IsSuccess() {
		t.Errorf("%v, %v", left, st)
	}
	_, keys = shape(t, <-s.asked)
	if string(keys["NodeNameToMetaVictims"]) != "null" ||
		!strings.Contains(string(keys["NodeNameToVictims"]), `{"a":{"Pods":[{"metadata":{"name":"low"`) {
		t.Errorf("%s", keys)
	}
}

// TestWrongAnswersAreErrors: none of them lets a pod onto a node.
func TestWrongAnswersAreErrors(t *testing.T) {
	for _, c := range []struct{ answer, want string }{
		{`{"Error": "down for\nmaintenance"}`, "down for maintenance"},
		{`{"NodeNames": ["z"]}`, `it lets node "z" through, about which it was not asked`},
		{`{"NodeNames": "a"}`, "read the answer of filter: json:"},
		{`{"NodeNames": ["a"]`, "read the answer of filter: unexpected end"},
		{`{"Error": "` + strings.Repeat("x", 2<<20) + `"}`, "is larger than"},
		{`nonsense`, "read the answer of filter"},
	} {
		s := serve(t, map[string]string{"filter": c.answer})
		_, st := reached(t, s.settings(), extender.Reach{}).Narrow(t.Context(), pod("p", 0), nodes("a"))
		if st.IsSuccess() || st.Code != framework.Error || !strings.Contains(st.Joined(), c.want) {
			t.Errorf("%.80s: %v, want %s", c.answer, st, c.want)
		}
	}
	s := serve(t, nil)
	if _, st := reached(t, s.settings(), extender.Reach{}).Narrow(t.Context(), pod("p", 0), nodes("a")); st.IsSuccess() ||
		!strings.Contains(st.Joined(), "filter answered 404 Not Found; expected 200 OK") {
		t.Error(st)
	}
	high := nodes("a")[0].WithPod(pod("high", 100)).WithPod(pod("low", 1))
	snap := &framework.Snapshot{Nodes: []*framework.NodeInfo{high}, Index: map[string]int{"a": 0}}
	for answer, want := range map[string]string{
		`{"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-high"}]}}}`:                    "which is not of a lower priority",
		`{"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-x"}]}}}`:                       "that is not there",
		`{"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-low"}, {"UID": "uid-low"}]}}}`: "that is not there",
		`{"NodeNameToMetaVictims": {"a": {"Pods": [null]}}}`:                                   "that is not there",
		`{"NodeNameToMetaVictims": {"a": {}}}`:                                                 "expected at least one victim",
		`{"NodeNameToMetaVictims": {"z": {"Pods": [{"UID": "uid-low"}]}}}`:                     "about which it was not asked",
	} {
		s := serve(t, map[string]string{"preempt": answer})
		x := reached(t, s.settings(), extender.Reach{})
		_, st := x.Vet(t.Context(), pod("p", 10), snap, []framework.Candidate{{Node: high, Victims: high.Pods[1:]}})
		if st.IsSuccess() || !strings.Contains(st.Joined(), want) {
			t.Errorf("%s: %v", answer, st)
		}
	}
	s = serve(t, map[string]string{"prioritize": `[{"Host": "a", "Score": 9223372036854775807}]`})
	if _, st := reached(t, s.settings(), extender.Reach{}).Rate(t.Context(), pod("p", 0), nodes("a")); st.IsSuccess() {
		t.Error("a score that overflows is taken")
	}
}

// TestReasonsAreBounded: they are written to pods.
func TestReasonsAreBounded(t *testing.T) {
	failed, names := map[string]string{}, []string{}
	for i := range 500 {
		name := fmt.Sprint("n", i)
		names, failed[name] = append(names, name), fmt.Sprint(i, strings.Repeat("!", 1000))
	}
	answer, err := json.Marshal(map[string]any{"FailedNodes": failed, "NodeNames": []string{}})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, map[string]string{"filter": string(answer)})
	refused, st := reached(t, s.settings(), extender.Reach{}).Narrow(t.Context(), pod("p", 0), nodes(names...))
	different := map[string]bool{}
	for _, r := range refused {
		different[r.Joined()] = true
		if len(r.Joined()) > 512 {
			t.Fatalf("%d bytes", len(r.Joined()))
		}
	}
	if !st.IsSuccess() || len(different) != 65 {
		t.Errorf("%d reasons, %v", len(different), st)
	}
}

// TestWhoIsSlowIsNotWaitedFor longer than the configuration says, nor once nobody waits for the answer.
func TestWhoIsSlowIsNotWaitedFor(t *testing.T) {
	waits := make(chan struct{}, 4)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // unless it is read, the server does not see that the client has gone
		waits <- struct{}{}
		<-r.Context().Done()
		http.Error(w, "late", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	s := &service{Server: server}
	set := s.settings()
	set.HTTPTimeout = metav1.Duration{Duration: time.Second}
	registry := prometheus.NewRegistry()
	metrics, err := extender.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	_, st := reached(t, set, extender.Reach{Metrics: metrics}).Narrow(t.Context(), pod("p", 0), nodes("a"))
	if st.IsSuccess() || !strings.Contains(st.Joined(), "no answer within httpTimeout, 1s: ") {
		t.Errorf("%v", st)
	}
	if n := testutil.CollectAndCount(registry, "wasmplane_scheduler_extender_duration_seconds"); n != 1 {
		t.Errorf("%d metrics", n)
	}
	for len(waits) > 0 {
		<-waits
	}
	set.HTTPTimeout = metav1.Duration{Duration: time.Minute}
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("the question is over")
	go func() { <-waits; cancel(over) }()
	if _, st := reached(t, set, extender.Reach{}).Narrow(ctx, pod("p", 0), nodes("a")); st.IsSuccess() || ctx.Err() == nil {
		t.Errorf("%v", st)
	}
}

// TestNobodyElseAnswers: not a server with another certificate, and not where a redirect leads.
func TestNobodyElseAnswers(t *testing.T) {
	other := serve(t, map[string]string{"filter": `{"NodeNames": ["a"]}`})
	set := other.settings()
	set.TLSConfig.ServerName = "extender.invalid"
	fails := func(x *extender.Extender, why string) {
		t.Helper()
		if _, st := x.Narrow(t.Context(), pod("p", 0), nodes("a")); st.IsSuccess() || !strings.Contains(st.Joined(), why) {
			t.Error(st)
		}
	}
	fails(reached(t, set, extender.Reach{}), "certificate")
	leads := &service{Server: httptest.NewTLSServer(http.RedirectHandler(other.URL+"/scheduler/filter", http.StatusTemporaryRedirect))}
	defer leads.Close()
	fails(reached(t, leads.settings(), extender.Reach{}), "307")
	if len(other.asked) != 0 {
		t.Errorf("it was asked: %s", <-other.asked)
	}
	fails(reachedBy(t, other.settings(), dial.Public(nil, nil)), "is a private address")
}

func reachedBy(t *testing.T, s extender.Settings, to dial.Policy) *extender.Extender {
	t.Helper()
	all, err := extender.New([]extender.Settings{s}, "", extender.Reach{Dial: to})
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// TestOnlyPodsWithManagedResourcesAreShown, and only to verbs that there are.
func TestOnlyPodsWithManagedResourcesAreShown(t *testing.T) {
	asks := func(list func(*corev1.Pod, corev1.ResourceList)) *framework.PodInfo {
		p := pod("p", 0).Pod
		list(p, corev1.ResourceList{"example.com/gpu": resource.MustParse("1")})
		return framework.NewPodInfo(p)
	}
	limits := asks(func(p *corev1.Pod, l corev1.ResourceList) {
		p.Spec.Containers = []corev1.Container{{}, {Resources: corev1.ResourceRequirements{Limits: l}}}
	})
	initial := asks(func(p *corev1.Pod, l corev1.ResourceList) {
		p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: l}}}
	})
	x := reached(t, extender.Settings{
		URLPrefix: "http://extender.invalid", FilterVerb: "filter", BindVerb: "bind",
		ManagedResources: []v1.ExtenderManagedResource{{Name: "example.com/gpu", IgnoredByScheduler: true}, {Name: "example.com/nic"}},
	}, extender.Reach{})
	for _, p := range []*framework.PodInfo{limits, initial} {
		if !x.Asked(framework.AtFilter, p.Pod) || !x.Asked(framework.AtBind, p.Pod) || x.Asked(framework.AtScore, p.Pod) {
			t.Errorf("%+v", p.Pod.Spec)
		}
		if x.Sign(p, &framework.Signature{}) {
			t.Error("pods share the answers of an extender")
		}
	}
	plain := pod("p", 0)
	if x.Asked(framework.AtFilter, plain.Pod) || !x.Sign(plain, &framework.Signature{}) {
		t.Error("it is asked about a pod that asks for nothing of it")
	}
	if _, st := x.Bind(t.Context(), nil, plain, "a"); st == nil || st.Code != framework.Skip {
		t.Error(st)
	}
}

// TestAnIgnorableBinderIsPassedOver, and on a trial nobody binds.
func TestAnIgnorableBinderIsPassedOver(t *testing.T) {
	s := serve(t, map[string]string{"bind": `{"Error": "no"}`})
	set := s.settings()
	_, st := reached(t, set, extender.Reach{}).Bind(t.Context(), nil, pod("p", 0), "a")
	if st == nil || st.Code != framework.Error || st.Joined() != "no" {
		t.Error(st)
	}
	<-s.asked
	set.Ignorable = true
	if _, st := reached(t, set, extender.Reach{}).Bind(t.Context(), nil, pod("p", 0), "a"); st == nil || st.Code != framework.Skip {
		t.Error(st)
	}
	<-s.asked
	_, st = reached(t, set, extender.Reach{Trial: true}).Bind(t.Context(), nil, pod("p", 0), "a")
	if st == nil || st.Code != framework.Skip || len(s.asked) > 0 {
		t.Error(st)
	}
}

// TestIgnorableOnesComeLast, and two of the same URL have names of their own.
func TestIgnorableOnesComeLast(t *testing.T) {
	one := extender.Settings{URLPrefix: "http://one.invalid/", FilterVerb: "f", Ignorable: true}
	two := extender.Settings{URLPrefix: "http://two.invalid", FilterVerb: "f"}
	all, err := extender.New([]extender.Settings{one, two, one}, "", extender.Reach{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range all {
		names = append(names, x.Name())
	}
	if got := strings.Join(names, ", "); got != "extender http://two.invalid, extender http://one.invalid, extender http://one.invalid (2)" {
		t.Error(got)
	}
}
