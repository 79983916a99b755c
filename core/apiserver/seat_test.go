// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

func ask(t *testing.T, s *apiservertest.Server, who, method, path, body string) int {
	t.Helper()
	return askAs(t, s, who, method, path, "application/json", body)
}

func askAs(t *testing.T, s *apiservertest.Server, who, method, path, mediaType, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+who)
	req.Header.Set("Content-Type", mediaType)
	response, err := httpClient(t, s).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode
}

const makeMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"x"}}`

// Whoever sends a head and no body keeps others from nothing.
func TestNoSeatIsHeldOverABodyThatNeverComes(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { c.MaxWrites = 1 }})
	for _, length := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
		conn := dialRaw(t, s)
		// "100 Continue" says that the server waits for the body.
		if _, err := fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer slow\r\nExpect: 100-continue\r\n%s\r\n\r\n", length); err != nil {
			t.Fatal(err)
		}
		if line, err := conn.in.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
			t.Fatalf("%q, %v", line, err)
		}
	}
	if code := ask(t, s, "fast", http.MethodPost, "/api/v1/namespaces/default/configmaps", makeMap); code != http.StatusCreated {
		t.Errorf("beside bodies that never come a write was answered %d", code)
	}
}

// A user has a bounded part of what bodies may take; others have theirs.
func TestBodiesOfOneUserAreBounded(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	waiting := 0
	for range 50 { // of 128 MiB; a body of unknown length counts as 3
		conn := dialRaw(t, s)
		if _, err := fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer slow\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		line, err := conn.in.ReadString('\n')
		switch {
		case err == nil && strings.Contains(line, "100 Continue"):
			waiting++
		case err != nil || !strings.Contains(line, "429"):
			t.Fatalf("%q, %v", line, err)
		}
	}
	if waiting != 42 {
		t.Errorf("%d bodies of one user were waited for, want 42", waiting)
	}
	if code := ask(t, s, "fast", http.MethodPost, "/api/v1/namespaces/default/configmaps", makeMap); code != http.StatusCreated {
		t.Errorf("another user was answered %d", code)
	}
}

// Whoever may not has no seat, however long it takes to find that out.
func TestWhoMayNotHasNoSeat(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := apiservertest.Start(t, apiservertest.Options{
		Authorizer: rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
			if a.GetUser().GetName() == "slow" {
				entered <- struct{}{}
				<-leave
				return authorizer.DecisionNoOpinion, "", nil
			}
			return authorizer.DecisionAllow, "", nil
		}),
		Server: func(c *apiserver.Config) { c.MaxReads = 1 },
	})
	done := make(chan int, 1)
	go func() { done <- ask(t, s, "slow", http.MethodGet, "/api/v1/namespaces", "") }()
	<-entered
	if code := ask(t, s, "fast", http.MethodGet, "/api/v1/namespaces", ""); code != http.StatusOK {
		t.Errorf("beside a refusal: %d", code)
	}
	close(leave)
	if code := <-done; code != http.StatusForbidden {
		t.Errorf("who may not was answered %d", code)
	}
}

// Authorizers that are slow for one user have a bounded number of that user's requests. The accounts of a namespace are
// as one user.
func TestRequestsThatAskWhetherTheyMayAreBounded(t *testing.T) {
	for _, slow := range [][3]string{
		{"slow", "slow", "slow"},
		{"system:serviceaccount:team:a", "system:serviceaccount:team:b", "system:serviceaccount:team:c"},
	} {
		entered, leave := make(chan struct{}), make(chan struct{})
		s := apiservertest.Start(t, apiservertest.Options{
			Authorizer: rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
				if slices.Contains(slow[:], a.GetUser().GetName()) {
					entered <- struct{}{}
					<-leave
				}
				return authorizer.DecisionAllow, "", nil
			}),
			Server: func(c *apiserver.Config) { c.MaxReads, c.MaxWrites = 4, 4 }, // two of eight are a user's
		})
		done := make(chan int, 2)
		for _, name := range slow[:2] {
			go func() { done <- ask(t, s, name, http.MethodGet, "/api/v1/namespaces", "") }()
			<-entered
		}
		if code := ask(t, s, slow[2], http.MethodGet, "/api/v1/namespaces", ""); code != http.StatusTooManyRequests {
			t.Errorf("a third request, of %s, was answered %d", slow[2], code)
		}
		for _, name := range []string{"fast", "system:serviceaccount:other:a"} {
			if code := ask(t, s, name, http.MethodGet, "/api/v1/namespaces", ""); code != http.StatusOK {
				t.Errorf("%s was answered %d", name, code)
			}
		}
		close(leave)
		for range 2 {
			if code := <-done; code != http.StatusOK {
				t.Errorf("who waited was answered %d", code)
			}
		}
	}
}

// A client that does not take what it asked for loses its seat, and then its watch
// or its answer.
func TestWhoDoesNotReadIsCutOff(t *testing.T) {
	const stall = time.Second
	var gather func() ([]*dto.MetricFamily, error)
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) {
		c.Fairness, c.WatchStall = fair(t, 6), stall
		gather = c.Gatherer.Gather
	}})
	admin := kubernetes.NewForConfigOrDie(s.Config("admin|system:masters"))
	for i := range 12 { // more than any buffer on the way holds
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)},
			Data:       map[string]string{"d": strings.Repeat("x", 1<<20)},
		}
		if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/api/v1/configmaps?watch=true", "/api/v1/configmaps"} {
		conn := dialRaw(t, s)
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer slow\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", path, response, err)
		}
		// The seat is the only one of this flow. It is free again before the answer has been read.
		for deadline := time.Now().Add(30 * time.Second); ask(t, s, "slow", http.MethodGet, "/api/v1/namespaces", "") != http.StatusOK; {
			if time.Now().After(deadline) {
				t.Fatalf("%s keeps its seat although nobody reads it", path)
			}
		}
		if strings.Contains(path, "watch") {
			for deadline := time.Now().Add(30 * time.Second); stalled(t, gather) == 0; {
				if time.Now().After(deadline) {
					t.Fatal("a watch that nobody reads is not cut off")
				}
			}
		}
		if _, err := io.Copy(io.Discard, response.Body); err == nil {
			t.Errorf("%s: the answer came whole", path)
		}
	}
}

// stalled is how many answers were cut off.
func stalled(t *testing.T, gather func() ([]*dto.MetricFamily, error)) float64 {
	t.Helper()
	families, err := gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "wasmplane_apiserver_stalled_answers_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}
