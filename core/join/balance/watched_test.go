// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func balancer(t *testing.T, n network, servers ...string) *Balancer {
	t.Helper()
	b := New(Config{
		File: filepath.Join(t.TempDir(), "servers.json"), First: servers[0], Log: slog.New(slog.DiscardHandler), Dial: n.dial,
	})
	b.use(servers)
	return b
}

// connect is a connection by b, on which a client asks.
func connect(t *testing.T, b *Balancer) (conn net.Conn, server string) {
	t.Helper()
	conn, err := b.DialContext(t.Context(), "tcp", "anything:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, conn.(*watched).Conn.(named).server
}

// ask asks on a connection, and waits for the answer.
func ask(conn net.Conn) error {
	if _, err := conn.Write([]byte("?")); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

// A server that is stopped takes connections, and says nothing: its turn is over within seconds, and it does not come first again
// because it takes the next one, too.
func TestAServerThatIsStoppedLosesItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := network{"10.0.0.1:6443": "stopped", "10.0.0.2:6443": "answers"}
		b := balancer(t, servers, "10.0.0.1:6443", "10.0.0.2:6443")
		conn, server := connect(t, b)
		began := time.Now()
		err := ask(conn)
		var silent *SilentError
		if server != "10.0.0.1:6443" || !errors.As(err, &silent) || time.Since(began) > attempt {
			t.Errorf("server %s: %v after %s", server, err, time.Since(began))
		}
		for range 2 {
			conn, server = connect(t, b)
			if err := ask(conn); err != nil || server != "10.0.0.2:6443" {
				t.Errorf("server %s: %v", server, err)
			}
		}
	})
}

// One that is stopped later loses the connections that it has, those that wait for nothing, too.
func TestAConnectionToAServerThatIsStoppedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := network{"10.0.0.1:6443": "answers", "10.0.0.2:6443": "answers"}
		b := balancer(t, servers, "10.0.0.1:6443", "10.0.0.2:6443")
		conn, server := connect(t, b)
		if err := ask(conn); err != nil || server != "10.0.0.1:6443" {
			t.Fatalf("server %s: %v", server, err)
		}
		ended := make(chan error, 1)
		go func() { // a watch on which nothing happens
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
		time.Sleep(time.Hour)
		select {
		case err := <-ended:
			t.Fatalf("a server that answers and has nothing to say lost its connection: %v", err)
		default:
		}
		servers["10.0.0.1:6443"] = "stopped"
		began := time.Now()
		var silent *SilentError
		if err := <-ended; !errors.As(err, &silent) || time.Since(began) > quiet+attempt {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if _, server = connect(t, b); server != "10.0.0.2:6443" {
			t.Errorf("the next connection is to %s", server)
		}
	})
}

// Where all are silent, it may be this machine that is slow: each gets more time, until one answers. And where there is one
// alone, it keeps its connections.
func TestPatienceGrowsWhereAllAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := network{"10.0.0.1:6443": "stopped", "10.0.0.2:6443": "stopped"}
		b := balancer(t, servers, "10.0.0.1:6443", "10.0.0.2:6443")
		for _, want := range []time.Duration{attempt, 2 * attempt, 4 * attempt, 4 * attempt} {
			conn, _ := connect(t, b)
			began := time.Now()
			if err := ask(conn); err == nil || time.Since(began) != want {
				t.Errorf("%v after %s, want %s", err, time.Since(began), want)
			}
		}
		servers["10.0.0.1:6443"], servers["10.0.0.2:6443"] = "answers", "answers"
		conn, _ := connect(t, b)
		if err := ask(conn); err != nil || b.patience() != attempt {
			t.Errorf("%v, patience %s", err, b.patience())
		}

		alone := balancer(t, network{"10.0.0.1:6443": "stopped"}, "10.0.0.1:6443")
		conn, _ = connect(t, alone)
		ended := make(chan error, 1)
		go func() { ended <- ask(conn) }()
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			t.Errorf("the only server lost its connection: %v", err)
		default:
		}
		_ = conn.Close()
		<-ended
	})
}
