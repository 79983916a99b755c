// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdtest"
)

// writerEnv turns the test binary into a process that writes until it is killed.
const writerEnv = "WASMPLANE_TEST_WRITE_TO"

// writeUntilKilled writes from several goroutines, and prints a line only once
// its write was acknowledged.
func writeUntilKilled() {
	ctx := context.Background()
	srv, err := etcd.Start(ctx, etcd.ServerConfig{Dir: os.Getenv(writerEnv)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("/registry/w%d-%d-%d", os.Getpid(), w, i)
				rev, err := srv.Store().Put(ctx, key, []byte(key), 0, 0)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Println(key, rev)
			}
		})
	}
	wg.Wait()
}

// A process is killed with -9 in the middle of writing, several times on the
// same directory; every write that it was told of is there afterwards.
func TestKillLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[string]int64{}
	for range 4 {
		for key, rev := range writeAndKill(t, dir) {
			acknowledged[key] = rev
		}
	}
	s := etcdtest.Start(t, etcd.ServerConfig{Dir: dir}).Store()
	for key, rev := range acknowledged {
		kv, err := s.Get(t.Context(), key)
		if err != nil || kv.ModRevision != rev || string(kv.Value) != key {
			t.Fatalf("acknowledged %s at %d, found %+v, %v", key, rev, kv, err)
		}
	}
	t.Logf("%d acknowledged writes, all there", len(acknowledged))
}

func writeAndKill(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acked := map[string]int64{}
	var kill *time.Timer
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var key string
		var rev int64
		if _, err := fmt.Sscanf(lines.Text(), "%s %d", &key, &rev); err != nil {
			continue // cut off by the kill
		}
		acked[key] = rev
		if kill == nil {
			kill = time.AfterFunc(time.Duration(100+rand.IntN(400))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait()
	if len(acked) == 0 {
		t.Fatalf("the writer wrote nothing: %s", stderr.String())
	}
	return acked
}
