// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// fair is a control of some seats, with one schema for the user "slow" and
// upstream's mandatory ones for all others.
func fair(t *testing.T, seats int) flowcontrol.Interface {
	t.Helper()
	one := int32(1)
	zero := int32(0)
	client := fake.NewClientset(
		&flowcontrolv1.PriorityLevelConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "narrow", UID: "narrow-uid"},
			Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
				Type: flowcontrolv1.PriorityLevelEnablementLimited,
				Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
					NominalConcurrencyShares: &one, LendablePercent: &zero, BorrowingLimitPercent: &zero,
					LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
				},
			},
		},
		&flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: "slow", UID: "slow-uid"},
			Spec: flowcontrolv1.FlowSchemaSpec{
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "narrow"}, MatchingPrecedence: 100,
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "slow"}}},
					ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
						Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"},
						Namespaces: []string{"*"}, ClusterScope: true,
					}},
					NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
				}},
			},
		},
	)
	factory := informers.NewSharedInformerFactory(client, 0)
	control := flowcontrol.New(factory, client.FlowcontrolV1(), seats)
	ctx, stop := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- control.Run(ctx.Done()) }()
	t.Cleanup(func() {
		stop()
		<-done
		factory.Shutdown()
	})
	return control
}

// holding is a path whose requests keep their seats until leave is closed.
func holding(entered chan<- struct{}, leave <-chan struct{}) apiserver.Mount {
	return apiserver.Mount{Prefix: "/hold", Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	})}
}

func TestAFlowThatHasNoSeatLeftIsRefusedAndOthersAreNot(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := apiservertest.Start(t, apiservertest.Options{
		Server: func(c *apiserver.Config) {
			c.Fairness = fair(t, 6) // of 6 seats, one is narrow's
			c.Mounts = append(c.Mounts, holding(entered, leave))
		},
	})
	ask := func(who, path string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Error(err)
			return nil
		}
		req.Header.Set("Authorization", "Bearer "+who)
		response, err := httpClient(t, s).Do(req)
		if err != nil {
			t.Error(err)
			return nil
		}
		return response
	}
	get := func(who, path string) *http.Response {
		response := ask(who, path)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return response
	}
	// The control learns of its configuration a moment after the start.
	for deadline := time.Now().Add(time.Minute); get("slow", "/api/v1/secrets").Header.Get("X-Kubernetes-Pf-Flowschema-Uid") != "slow-uid"; {
		if time.Now().After(deadline) {
			t.Fatal("the flow schema does not take effect")
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		get("slow", "/hold")
	}()
	<-entered
	r := get("slow", "/api/v1/secrets")
	if r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") == "" ||
		r.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid") != "narrow-uid" {
		t.Errorf("answered %d, %v", r.StatusCode, r.Header)
	}
	for _, other := range []string{"fast", "admin|system:masters"} {
		if r := get(other, "/api/v1/secrets"); r.StatusCode != http.StatusOK {
			t.Errorf("%s was answered %d", other, r.StatusCode)
		}
	}
	close(leave)
	<-done
	// Watches have their seat only until they have sent what there was, which is a moment
	// after their headers; one that kept it would do so for the minute that a request may take.
	seated := func(request func() *http.Response) *http.Response {
		deadline := time.Now().Add(20 * time.Second)
		for {
			r := request()
			if r.StatusCode != http.StatusTooManyRequests || time.Now().After(deadline) {
				return r
			}
			_ = r.Body.Close()
		}
	}
	var open []io.Closer
	for range 3 {
		w := seated(func() *http.Response { return ask("slow", "/api/v1/secrets?watch=true") })
		if w.StatusCode != http.StatusOK {
			t.Fatalf("a watch was answered %d", w.StatusCode)
		}
		open = append(open, w.Body)
	}
	if r := seated(func() *http.Response { return get("slow", "/api/v1/secrets") }); r.StatusCode != http.StatusOK {
		t.Errorf("beside watches: %d", r.StatusCode)
	}
	for _, c := range open {
		_ = c.Close()
	}
}

// Whoever is refused before there is a seat learns the class as others do, and takes
// no seat from it.
func TestWhoIsRefusedLearnsTheClassAndTakesNoSeat(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := apiservertest.Start(t, apiservertest.Options{
		Authorizer: rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
			if a.GetResource() == "secrets" {
				return authorizer.DecisionNoOpinion, "", nil
			}
			return authorizer.DecisionAllow, "", nil
		}),
		Server: func(c *apiserver.Config) {
			c.Fairness = fair(t, 6) // of 6 seats, one is narrow's
			c.Mounts = append(c.Mounts, holding(entered, leave))
		},
	})
	client := httpClient(t, s)
	get := func(path string) (status int, class string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		req.Header.Set("Authorization", "Bearer slow")
		response, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return response.StatusCode, response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") + " " + response.Header.Get(
			"X-Kubernetes-Pf-Prioritylevel-Uid")
	}
	const narrow = "slow-uid narrow-uid"
	for deadline := time.Now().Add(time.Minute); ; {
		status, class := get("/api/v1/secrets")
		if status != http.StatusForbidden {
			t.Fatalf("who may not was answered %d", status)
		}
		if class == narrow {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the refusal names the class %q", class)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		get("/hold")
	}()
	<-entered // the only seat is taken: what needs one is answered 429
	if status, class := get("/api/v1/secrets"); status != http.StatusForbidden || class != narrow {
		t.Errorf("beside a taken seat who may not was answered %d, class %q", status, class)
	}
	if status, class := get("/api/v1/configmaps"); status != http.StatusTooManyRequests || class != narrow {
		t.Errorf("who may was answered %d, class %q", status, class)
	}
	close(leave)
	<-done
	if status, _ := get("/api/v1/configmaps"); status != http.StatusOK {
		t.Errorf("with a free seat: %d", status)
	}
}

// A watch that sends much at its beginning costs what a list does: it keeps its
// seat until all of that has been sent, and not until the first byte.
func TestAWatchKeepsItsSeatUntilItHasSentWhatThereWas(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { c.Fairness = fair(t, 6) }})
	admin := kubernetes.NewForConfigOrDie(s.Config("admin|system:masters"))
	const objects, size = 12, 1 << 20 // more than any buffer on the way holds
	for i := range objects {
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)},
			Data:       map[string]string{"d": strings.Repeat("x", size)},
		}
		if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	client := httpClient(t, s)
	ask := func(path string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer slow")
		response, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	get := func() *http.Response {
		response := ask("/api/v1/namespaces/default/configmaps/c0")
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return response
	}
	for deadline := time.Now().Add(time.Minute); get().Header.Get("X-Kubernetes-Pf-Flowschema-Uid") != "slow-uid"; {
		if time.Now().After(deadline) {
			t.Fatal("the flow schema does not take effect")
		}
	}
	w := ask("/api/v1/configmaps?watch=true")
	defer func() { _ = w.Body.Close() }()
	if w.StatusCode != http.StatusOK {
		t.Fatalf("the watch was answered %d", w.StatusCode)
	}
	if r := get(); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("beside a watch that has not sent what there was: %d", r.StatusCode)
	}
	events := json.NewDecoder(w.Body)
	for range objects {
		if err := events.Decode(&metav1.WatchEvent{}); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); get().StatusCode != http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatal("the watch keeps its seat although it has sent everything")
		}
	}
}
