package datadir

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestASecondInstanceIsToldWhoHasTheDirectory(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Lock()
	var used *InUseError
	if !errors.As(err, &used) || used.PID != os.Getpid() || !strings.Contains(err.Error(), "wasmplane stop") {
		t.Fatalf("error %v", err)
	}
	if pid, err := d.Owner(); err != nil || pid != os.Getpid() {
		t.Fatalf("owner %d, %v", pid, err)
	}
	lock.Release()
	if pid, err := d.Owner(); err != nil || pid != 0 {
		t.Fatalf("owner %d, %v", pid, err)
	}
	if err := d.AwaitRelease(t.Context().Done()); err != nil {
		t.Fatal(err)
	}
}

func TestStateSurvives(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadState(); err == nil || !strings.Contains(err.Error(), "wasmplane up") {
		t.Fatalf("error %v", err)
	}
	want := State{Cluster: "c", Nodes: "real", Started: time.Now().UTC().Truncate(time.Second)}
	if err := d.WriteState(want); err != nil {
		t.Fatal(err)
	}
	if got, err := d.ReadState(); err != nil || got != want {
		t.Fatalf("state %+v, %v", got, err)
	}
}
