// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// startProcess starts a server in a process of its own on the data in dir.
func startProcess(t *testing.T, dir string) (*exec.Cmd, *rest.Config) {
	t.Helper()
	binary, err := exec.LookPath("server") // this binary, put into the path by testscript
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the server process ended at its start")
	}
	url := lines.Text()
	var ca strings.Builder
	for lines.Scan() {
		ca.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "END CERTIFICATE") {
			break
		}
	}
	return cmd, &rest.Config{
		Host: url, BearerToken: "writer", TLSClientConfig: rest.TLSClientConfig{CAData: []byte(ca.String())}, QPS: -1,
		Timeout: 20 * time.Second,
	}
}

// A server that is killed in the middle of many writes has lost none of those
// that it acknowledged.
func TestKilledServerLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[string]string{} // name to the newest acknowledged value
	for round := range 3 {
		cmd, cfg := startProcess(t, dir)
		c := kubernetes.NewForConfigOrDie(cfg)
		if round == 0 {
			namespace(t, c, "crash")
		}
		checkAcknowledged(t, c, acknowledged)
		var mu sync.Mutex
		var writers sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		enough := make(chan struct{}, 1000)
		for w := range 4 {
			writers.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					name, value := fmt.Sprintf("cm-%d-%d", w, i%20), fmt.Sprintf("%d.%d", round, i)
					if write(ctx, c, name, value) != nil {
						continue // not acknowledged: it may be there or not
					}
					mu.Lock()
					acknowledged[name] = value
					mu.Unlock()
					select {
					case enough <- struct{}{}:
					default:
					}
				}
			})
		}
		for range 150 {
			<-enough
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		cancel()
		writers.Wait()
	}
	_, cfg := startProcess(t, dir)
	checkAcknowledged(t, kubernetes.NewForConfigOrDie(cfg), acknowledged)
}

func write(ctx context.Context, c kubernetes.Interface, name, value string) error {
	maps := c.CoreV1().ConfigMaps("crash")
	cm, err := maps.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, configMap(name, value), metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	cm.Data["v"] = value
	_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	return err
}

// checkAcknowledged: what is there is what was acknowledged, or a later write of
// the same writer whose answer was lost.
func checkAcknowledged(t *testing.T, c kubernetes.Interface, acknowledged map[string]string) {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("crash").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, cm := range list.Items {
		found[cm.Name] = cm.Data["v"]
	}
	for name, value := range acknowledged {
		if later(value, found[name]) {
			t.Errorf("%s: %s was acknowledged, and after the crash it is %q", name, value, found[name])
		}
	}
}

// later says whether a was written after b.
func later(a, b string) bool {
	var ra, ia, rb, ib int
	if _, err := fmt.Sscanf(a, "%d.%d", &ra, &ia); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(b, "%d.%d", &rb, &ib); err != nil {
		return true
	}
	return ra > rb || ra == rb && ia > ib
}
