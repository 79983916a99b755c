// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/run"
)

// watching begins a watch of ConfigMaps and answers its status; what it says is thrown away until the context ends.
func watching(ctx context.Context, t *testing.T, s *apiservertest.Server, client *http.Client, who, query string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/namespaces/default/configmaps?watch=1&"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+who)
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode == http.StatusOK {
		read := run.Go("reading a watch", func() error {
			_, _ = io.Copy(io.Discard, response.Body)
			return response.Body.Close()
		})
		t.Cleanup(func() { <-read }) // the test's context has ended then, and with it the watch
		return response.StatusCode, ""
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// Thousands of watches of one user cost what they are, and nobody else waits for them.
func TestThousandsOfWatchesOfOneUser(t *testing.T) {
	const watches, each = 5000, 100 // of one connection
	s := apiservertest.Start(t, apiservertest.Options{})
	kube := kubernetes.NewForConfigOrDie(s.Config("ann"))
	namespace(t, kube, "default")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := inUse()
	var client *http.Client
	for i := range watches {
		if i%each == 0 {
			client = httpClient(t, s)
		}
		if code, text := watching(ctx, t, s, client, "mallory", fmt.Sprintf("labelSelector=a%%3Db%d", i)); code != http.StatusOK {
			t.Fatalf("watch %d: %d %s", i, code, text)
		}
	}
	if grew := (inUse() - before) / watches; grew > 256<<10 {
		t.Errorf("a watch takes %d bytes, with its client", grew)
	}
	events, err := kube.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for i := range 20 {
		began := time.Now()
		name := fmt.Sprintf("cm%d", i)
		if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, configMap(name, "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-events.ResultChan():
		case <-time.After(time.Minute):
			t.Fatalf("%s was not seen within a minute", name)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s was seen after %s", name, took)
		}
	}
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// A watch keeps its selector, of up to a MiB, as long as it lasts, and compares it with each change.
func TestWatchesWithLargeSelectorsAreBounded(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	kube := kubernetes.NewForConfigOrDie(s.Config("ann"))
	namespace(t, kube, "default")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	large := "labelSelector=a+in+(" + strings.Repeat("b,", 300_000) + "b)"
	client := httpClient(t, s)
	for i := range 10 {
		want := http.StatusOK
		if i >= 3 {
			want = http.StatusTooManyRequests
		}
		if code, text := watching(ctx, t, s, client, "mallory", large); code != want {
			t.Errorf("watch %d: %d %s", i, code, text)
		}
	}
	for _, query := range []string{"", "labelSelector=a+in+(" + strings.Repeat("b,", 500) + "b)"} {
		if code, text := watching(ctx, t, s, client, "mallory", query); code != http.StatusOK {
			t.Errorf("an ordinary watch beside them: %d %s", code, text)
		}
	}
	if code, text := watching(ctx, t, s, client, "ann", large); code != http.StatusOK {
		t.Errorf("another user's: %d %s", code, text)
	}
	// A list does not stay, and is not refused.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/namespaces/default/configmaps?"+large, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer mallory")
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if text, err := bufio.NewReader(response.Body).ReadString('}'); response.StatusCode != http.StatusOK {
		t.Errorf("a list: %d %s %v", response.StatusCode, text, err)
	}
	// Those that end give back what they had.
	cancel()
	deadline := time.After(time.Minute)
	for {
		again, end := context.WithCancel(t.Context())
		code, text := watching(again, t, s, client, "mallory", large)
		end()
		if code == http.StatusOK {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%d %s", code, text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
