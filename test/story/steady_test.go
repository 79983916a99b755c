// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// keepWriting is a program of the servers story:
//
//	steady [-patient] KUBECONFIG SERVER...
//	                              create ConfigMaps in namespace default, through one server
//	                              after the other, until an interrupt; then look for each that was acknowledged
//
// A client tries again once, at the next server, as one behind a balancer does. It prints what came
// of it, and fails where a request failed twice or an acknowledged write is lost. With -patient
// it tries again for as long as anybody has patience.
func keepWriting() {
	s := &steady{}
	if len(os.Args) > 1 && os.Args[1] == "-patient" {
		s.patient, os.Args = true, os.Args[1:]
	}
	if len(os.Args) < 3 {
		log.Fatal("usage: steady [-patient] KUBECONFIG SERVER...")
	}
	for _, server := range os.Args[2:] {
		cfg, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		cfg.Host, cfg.ServerName, cfg.QPS, cfg.Timeout = "https://"+server, "kubernetes", -1, 20*time.Second
		set, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			log.Fatal(err)
		}
		s.servers = append(s.servers, set.CoreV1().ConfigMaps(metav1.NamespaceDefault))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Println("writing")
	var all sync.WaitGroup
	for i := range steadyWriters {
		all.Go(func() { s.write(ctx, i) })
	}
	all.Wait()
	lost, err := s.lost()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("acknowledged writes  %d\n  of them lost       %d\nretried              %d\nfailed twice         %d\nlongest pause        %s\n",
		len(s.done), lost, s.retried, len(s.failed), s.pause.Round(time.Millisecond))
	for _, err := range s.failed {
		fmt.Println("failed:", err)
	}
	if lost+len(s.failed) > 0 {
		os.Exit(1)
	}
}

const steadyWriters = 3

type steady struct {
	servers []typedcorev1.ConfigMapInterface
	patient bool

	mu      sync.Mutex
	done    []string
	retried int
	failed  []error
	last    time.Time     // of a write that was acknowledged
	pause   time.Duration // in which none was
}

func (s *steady) write(ctx context.Context, writer int) {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		name := fmt.Sprintf("steady-%d-%d", writer, n)
		tries, err := s.create(name, writer+n)
		s.mu.Lock()
		s.retried += tries - 1
		if err != nil {
			s.failed = append(s.failed, fmt.Errorf("%s: %w", time.Now().Format("15:04:05.000"), err))
		} else {
			now := time.Now()
			if !s.last.IsZero() {
				s.pause = max(s.pause, now.Sub(s.last))
			}
			s.last, s.done = now, append(s.done, name)
		}
		s.mu.Unlock()
	}
}

// create asks one server and, if that fails, once the next.
func (s *steady) create(name string, first int) (tries int, err error) {
	until := time.Now().Add(harness.Patience)
	for tries = 1; tries <= 2 || s.patient && time.Now().Before(until); tries++ {
		_, err = s.servers[(first+tries)%len(s.servers)].Create(context.Background(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) { // the first try was done, and not said to be
			return tries, nil
		}
		if s.patient {
			<-time.After(100 * time.Millisecond)
		}
	}
	return tries, err
}

// lost counts the acknowledged writes that are not there, asking a server that answers.
func (s *steady) lost() (lost int, err error) {
	var found *corev1.ConfigMapList
	for _, server := range s.servers {
		if found, err = server.List(context.Background(), metav1.ListOptions{}); err == nil {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	there := map[string]bool{}
	for i := range found.Items {
		there[found.Items[i].Name] = true
	}
	for _, name := range s.done {
		if !there[name] {
			lost++
		}
	}
	return lost, nil
}
