// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// shellBlocks are the commands of a page, in order.
func shellBlocks(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	rest := string(page)
	for {
		_, after, ok := strings.Cut(rest, "\n```sh\n")
		if !ok {
			return script.String()
		}
		block, behind, closed := strings.Cut(after, "\n```")
		if !closed {
			t.Fatalf("%s: a block is not closed", path)
		}
		script.WriteString(block + "\n")
		rest = behind
	}
}

// shell runs a script in an empty folder, with wasmplane in the PATH, and a data
// directory, a cluster's name and an address of its own.
func shell(t *testing.T, script string, env ...string) (output, dir string) {
	t.Helper()
	dir = t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(filepath.Join(dir, "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(built.Binary, filepath.Join(bin, "wasmplane")); err != nil {
		t.Fatal(err)
	}
	cache, err := toolchain.Cache()
	if err != nil {
		t.Fatal(err)
	}
	listen, err := harness.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := harness.ClusterName()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { harness.ReturnName(cluster) })
	data := filepath.Join(dir, "data")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-eux", "-c", script)
	cmd.Dir = filepath.Join(dir, "work")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "WASMPLANE_DATA_DIR="+data, "WASMPLANE_TOOLCHAINS="+cache,
		"WASMPLANE_LISTEN="+listen, "WASMPLANE_CLUSTER_NAME="+cluster, "KUBECONFIG=")
	cmd.Env = append(cmd.Env, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	// Whatever the script left: the control plane that it started in the background.
	if said, downErr := exec.Command(built.Binary, "down", "--purge", "--data-dir", data).CombinedOutput(); downErr != nil {
		if _, gone := os.Stat(data); gone == nil {
			t.Errorf("wasmplane down --purge: %v\n%s", downErr, said)
		}
	}
	if err != nil {
		upLog, _ := os.ReadFile(filepath.Join(cmd.Dir, "up.log"))
		t.Fatalf("%v\n%s\nup.log:\n%s", err, out.String(), upLog)
	}
	return out.String(), cmd.Dir
}

// TestTheAuthorsGuide runs every command of the guide, in order.
func TestTheAuthorsGuide(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	script := shellBlocks(t, filepath.Join(built.Root, "docs", "plugins", "AUTHORS.md"))
	if n := strings.Count(script, "wasmplane plugin"); n < 15 {
		t.Fatalf("the guide has %d commands", n)
	}
	shell(t, script, "REGISTRY="+strings.TrimPrefix(server.URL, "http://"))
}

// TestTheOperatorsGuide runs every command of the guide, in order.
func TestTheOperatorsGuide(t *testing.T) {
	script := shellBlocks(t, filepath.Join(built.Root, "docs", "plugins", "OPERATORS.md"))
	if n := strings.Count(script, "wasmplane "); n < 30 {
		t.Fatalf("the guide has %d commands", n)
	}
	shell(t, script)
}

// TestEmptyFolderToLive takes every language from an empty folder to a plugin that
// decides in a cluster that runs, and prints the seconds. Compilers that come from
// npm are installed before (test/deps.sh).
func TestEmptyFolderToLive(t *testing.T) {
	var script strings.Builder
	script.WriteString(`
printf 'apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nplugins: []\n' > cluster.yaml
wasmplane up --config cluster.yaml --nodes simulated:1 > up.log 2>&1 &
until wasmplane kubectl get --raw /readyz > /dev/null 2>&1; do sleep 0.2; done
now() { date +%s%3N; }
live() { # live LANGUAGE TURN
  name=$1-$2 begin=$(now)
  wasmplane plugin init $name --language $1 > /dev/null
  wasmplane plugin build $name > /dev/null 2>&1
  printf 'apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nplugins:\n  - {name: %s, source: "file:%s/%s.wasm"}\n' \
    $name $name $name > next.yaml
  mv next.yaml cluster.yaml
  until wasmplane kubectl run x --image=nginx:1 --dry-run=server 2>&1 |
    grep -q "plugin \"$name\" denied the request: .*name an owner"; do sleep 0.05; done
  echo "LIVE $1 $2 $(($(now) - begin))"
}
`)
	for _, l := range toolchain.Languages() {
		fmt.Fprintf(&script, "live %s once\n", l)
	}
	script.WriteString("wasmplane down --purge\n")
	out, _ := shell(t, script.String())
	live := 0
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "LIVE" {
			live++
			t.Logf("%-15s %s ms", f[1], f[3])
		}
	}
	if want := len(toolchain.Languages()); live != want {
		t.Errorf("%d of %d plugins became live", live, want)
	}
}
