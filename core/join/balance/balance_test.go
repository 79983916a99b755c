// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// network is servers that accept, refuse, or never answer.
type network map[string]string

func (n network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	switch n[address] {
	case "accepts":
		a, b := net.Pipe()
		_ = b.Close()
		return named{a, address}, nil
	case "answers": // as TLS does, with an alert to whoever does not talk it
		a, b := net.Pipe()
		go func() {
			defer func() { _ = b.Close() }()
			said := make([]byte, 1<<14)
			for {
				if _, err := b.Read(said); err != nil {
					return
				}
				if said[0] == 0x16 { // a handshake
					_, _ = b.Write([]byte{0x15, 3, 3, 0, 2, 2, 40})
					return
				}
				if said[0] == '?' {
					_, _ = b.Write([]byte("!"))
				}
			}
		}()
		return named{a, address}, nil
	case "stopped":
		a, b := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, b) }()
		return named{a, address}, nil
	case "silent":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("connection refused")
}

type named struct {
	net.Conn
	server string
}

func slice(addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Ports:      []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func dialed(t *testing.T, b *Balancer) string {
	t.Helper()
	conn, err := b.DialContext(t.Context(), "tcp", "anything:1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.(*watched).Conn.(named).server
}

// Whatever becomes of the server that a machine joined by, it reaches one that lives.
func TestALivingServerIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := network{"10.0.0.1:6443": "accepts"}
		c := Config{
			File: filepath.Join(t.TempDir(), "servers.json"), First: "10.0.0.1:6443", Log: slog.New(slog.DiscardHandler),
			Dial: servers.dial,
		}
		b := New(c)
		if got := dialed(t, b); got != "10.0.0.1:6443" {
			t.Errorf("dialed %s", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		kube := fake.NewClientset(slice("10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1"))
		done := make(chan error, 1)
		go func() { done <- b.Follow(ctx, kube) }()
		synctest.Wait()
		if got, want := b.Servers(), []string{"10.0.0.1:6443", "10.0.0.2:6443", "10.0.0.3:6443"}; !slices.Equal(got, want) {
			t.Errorf("servers %q, want %q", got, want)
		}

		// One is switched off, one refuses: the third answers, within the time of one attempt, and then at once.
		servers["10.0.0.1:6443"], servers["10.0.0.2:6443"], servers["10.0.0.3:6443"] = "silent", "refuses", "accepts"
		began := time.Now()
		if got := dialed(t, b); got != "10.0.0.3:6443" {
			t.Errorf("dialed %s", got)
		}
		if took := time.Since(began); took > attempt {
			t.Errorf("it took %s", took)
		}
		began = time.Now()
		if got := dialed(t, b); got != "10.0.0.3:6443" || time.Since(began) != 0 {
			t.Errorf("dialed %s after %s", got, time.Since(began))
		}

		// The first is taken out, and stays as the last resort. The list outlives the process.
		if _, err := kube.DiscoveryV1().EndpointSlices("default").Update(ctx, slice("10.0.0.3", "10.0.0.4"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []string{"10.0.0.3:6443", "10.0.0.4:6443", "10.0.0.1:6443"}
		if got := b.Servers(); !slices.Equal(got, want) {
			t.Errorf("servers %q, want %q", got, want)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := New(c).Servers(); !slices.Equal(got, want) {
			t.Errorf("after a restart the servers are %q, want %q", got, want)
		}
	})
}

// A list without anybody is no reason to forget everybody, and a damaged file none not to start.
func TestADamagedOrEmptyListLeavesAServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers.json")
	if err := os.WriteFile(file, []byte(`["10.0.0.9:6443", "no address"`), 0o600); err != nil {
		t.Fatal(err)
	}
	b := New(Config{File: file, First: "10.0.0.1:6443", Log: slog.New(slog.DiscardHandler), Dial: network{}.dial})
	b.learn(t.Context(), slice())
	if got := b.Servers(); !slices.Equal(got, []string{"10.0.0.1:6443"}) {
		t.Errorf("servers %q", got)
	}
	if _, err := b.DialContext(t.Context(), "tcp", "x:1"); err == nil {
		t.Error("a server was reached, though there is none")
	}
}
