// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// file and spec are what test/conformance/debianimage reads.
type (
	file struct {
		Path    string
		Mode    os.FileMode
		Link    string
		Content []byte
		From    string
		UID     int
	}
	spec struct {
		Names, Packages, Without []string
		Base, Rest, Top          []file
		Config                   v1.Config
	}
)

// postgresVersion is that of this machine's Debian.
func postgresVersion(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("apt-cache", "policy", "postgresql").Output()
	if err != nil {
		t.Fatalf("ask apt for PostgreSQL: %v", err)
	}
	found := regexp.MustCompile(`Candidate: (\d+)\+`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("apt knows no postgresql (`apt-get update`?): %s", out)
	}
	return string(found[1])
}

// postgresSpec is the PostgreSQL of this machine's Debian in the manner of the images that people
// use: its programs in the PATH, its user with a number of its own.
func postgresSpec(name, version string, user int) spec {
	world := os.ModeDir | os.ModeSticky | 0o777
	return spec{
		Names: []string{name},
		Packages: []string{
			"postgresql-" + version, "postgresql-client-" + version, "base-files", "dash", "coreutils", "sed", "grep", "findutils",
			"libc-bin", "tzdata", "hostname",
		},
		// What compiles queries, and what sets up Debian's own clusters.
		Without: []string{
			"libllvm14", "libllvm15", "libllvm16t64", "libllvm17t64", "libllvm19", "libz3-4", "locales", "locales-all", "libc-l10n", "ssl-cert",
			"postgresql-common", "postgresql-client-common", "perl-modules-5.36", "libperl5.36", "perl-modules-5.38", "libperl5.38t64",
			"perl-modules-5.40", "libperl5.40", "openssl", "cdebconf",
		},
		Base: []file{
			{Path: "/tmp", Mode: world},
			{Path: "/var/run/postgresql", Mode: world, UID: user},
			{Path: "/var/lib/postgresql", Mode: os.ModeDir | 0o755, UID: user},
			// A server that finds no compiler for queries does without.
			{Path: "/usr/lib/postgresql/" + version + "/lib/llvmjit.so", Link: "/nonexistent"},
			{Path: "/etc/passwd", Mode: 0o644, Content: fmt.Appendf(nil, "root:x:0:0:root:/root:/bin/sh\npostgres:x:%[1]d:%[1]d::/var/lib/postgresql:/bin/sh\n", user)},
			{Path: "/etc/group", Mode: 0o644, Content: fmt.Appendf(nil, "root:x:0:\npostgres:x:%d:\n", user)},
			{Path: "/etc/nsswitch.conf", Mode: 0o644, Content: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
		},
		Rest: []file{{Path: "/bin/sh", Link: "dash"}},
		Config: v1.Config{Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/" + version + "/bin", "LANG=C.UTF-8",
		}},
	}
}

// debianImage makes an archive of an image.
func debianImage(t *testing.T, s spec) string {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	in, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "-C", filepath.Join("..", "conformance"), "./debianimage", archive)
	cmd.Stdin = bytes.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make image %s: %v\n%s", s.Names[0], err, out)
	}
	return archive
}

// example is a section of a page: its commands, and the files that it shows.
type example struct {
	commands []string
	files    map[string]string
}

var block = regexp.MustCompile("(?s)\n```(sh|yaml)\n(.*?)```")

// exampleOf reads the section of a page. Files have their names in their first lines.
func exampleOf(t *testing.T, page, heading string) example {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(data), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	e := example{files: map[string]string{}}
	for _, m := range block.FindAllStringSubmatch(section, -1) {
		if m[1] == "sh" {
			e.commands = append(e.commands, m[2])
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(m[2], "# "), "\n")
		e.files[name] = m[2]
	}
	return e
}

// reader follows a page: one shell that runs its commands, in a folder with its files.
type reader struct {
	*cluster
	example
	dir  string
	past string // what defines functions and variables for later commands
	done int
}

// definition is a line of an example that later commands use.
var definition = regexp.MustCompile(`(?m)^(\w+\(\) \{.*\}|\w+=.*)$`)

func (c *cluster) reader(e example) *reader {
	c.t.Helper()
	r := &reader{cluster: c, example: e, dir: c.t.TempDir()}
	if err := os.Symlink(c.Binary, filepath.Join(r.dir, "wasmplane")); err != nil {
		c.t.Fatal(err)
	}
	for name, text := range e.files {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	return r
}

// next runs the page's next block of commands.
func (r *reader) next() string {
	r.t.Helper()
	script := r.commands[r.done]
	r.done++
	return r.shell(script)
}

// shell runs commands after what the page defined.
func (r *reader) shell(script string) string {
	r.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(r.t.Context(), 4*harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", r.past+script)
	cmd.Dir, cmd.WaitDelay = r.dir, time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.Kubeconfig(), "HOME="+r.dir, "PATH="+r.dir+":"+os.Getenv("PATH"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("%v\n%s\n%s%s\n%s", err, script, out.String(), errs.String(), r.servers())
	}
	r.t.Logf("%.1f s: %s", time.Since(began).Seconds(), strings.SplitN(script, "\n", 2)[0])
	for _, d := range definition.FindAllString(script, -1) {
		r.past += d + "\n"
	}
	return out.String()
}

// servers are the logs of the example's pods.
func (r *reader) servers() string {
	var all strings.Builder
	for _, pod := range []string{"postgres-0", "postgres-1", "restored"} {
		for _, previous := range []string{"true", "false"} {
			out, err := r.try("logs", pod, "--tail=15", "--previous="+previous)
			fmt.Fprintf(&all, "[%s, previous=%s: %v]\n%s\n", pod, previous, err, out)
		}
	}
	return all.String()
}

// snapshots installs what snapshots need, as their authors publish it: a controller for the
// cluster, and for each node a sidecar of its driver.
func (c *cluster) snapshots(machines []*machine) {
	c.t.Helper()
	const module = "github.com/kubernetes-csi/external-snapshotter/"
	controller := program(c.t, "sidecars", module+"v8/cmd/snapshot-controller")
	sidecar := program(c.t, "sidecars", module+"v8/cmd/csi-snapshotter")
	cmd := exec.Command("go", "list", "-C", "sidecars", "-m", "-f", "{{.Dir}}", module+"client/v8")
	dir, err := cmd.Output()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		file := "snapshot.storage.k8s.io_" + kind + ".yaml"
		c.kubectl("apply", "--server-side", "-f", filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", file))
	}
	c.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout", harness.Patience.String())
	c.apply("apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {name: local}\ndriver: local.wasmplane.io\ndeletionPolicy: Delete\n")
	c.run(nil, "snapshot-controller", controller, "--kubeconfig="+c.Kubeconfig(), "--enable-distributed-snapshotting")
	for _, m := range machines {
		socket := filepath.Join(m.data, "node", "kubelet", "plugins", "local.wasmplane.io", "csi.sock")
		c.run([]string{"NODE_NAME=" + m.name}, "csi-snapshotter-"+m.name, sidecar,
			"--kubeconfig="+c.Kubeconfig(), "--csi-address="+socket, "--node-deployment")
	}
}

// replication is what a primary knows of its replicas.
const replication = "SELECT state, sync_state FROM pg_stat_replication"

// writer is a client that writes numbers through the Service and prints those that were
// acknowledged. One that gets no answer in time gives up, and does not know.
const writer = `
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - name: writer
    image: postgres:17
    env: [{name: PGPASSWORD, valueFrom: {secretKeyRef: {name: postgres, key: password}}}]
    command:
    - sh
    - -c
    - |
      i=0
      while :; do
        i=$((i+1))
        if timeout 5 psql -qAt -h postgres-rw -U postgres -c "INSERT INTO acknowledged VALUES ($i)" 2>/tmp/complaint
        then echo "$i"
        else sleep 0.2
        fi
      done
`

// TestPostgreSQL follows docs/STORAGE.md on two nodes: a primary and its replica on claims of the
// default class, a snapshot from which another server starts, and the loss of the primary's node.
func TestPostgreSQL(t *testing.T) {
	archive := debianImage(t, postgresSpec("docker.io/library/postgres:17", postgresVersion(t), 999))
	c, machines := startWithMachines(t, "b", "c")
	for _, m := range machines {
		m.importImage(archive)
	}
	c.snapshots(machines)
	r := c.reader(exampleOf(t, "STORAGE.md", "PostgreSQL, as an example"))
	if len(r.commands) != 5 || len(r.files) != 3 {
		t.Fatalf("the example has %d blocks of commands and the files %v", len(r.commands), r.files)
	}
	r.next()
	if out := r.next(); !strings.Contains(out, "a book") || !strings.Contains(out, "postgres-1       | streaming | sync") {
		t.Errorf("data and replication: %s", out)
	}
	if out := r.next(); !strings.HasSuffix(strings.TrimSpace(out), "a book") {
		t.Errorf("what was restored: %s", out)
	}
	nodes := strings.Fields(c.kubectl("get", "pods", "postgres-0", "postgres-1", "-o", "jsonpath={.items[*].spec.nodeName}"))
	if len(nodes) != 2 || nodes[0] == nodes[1] {
		t.Fatalf("primary and replica are on %v", nodes)
	}
	primary, replica := machines[0], machines[1]
	if nodes[0] == replica.name {
		primary, replica = replica, primary
	}
	r.shell("client -h postgres-rw -c 'CREATE TABLE acknowledged (i int)'")
	c.apply(strings.ReplaceAll(writer, "%s", replica.name))
	c.acknowledged(20)

	// The primary crashes, then its pod is deleted: it comes back with its data.
	c.kubectl("exec", "postgres-0", "--", "sh", "-c", "kill -QUIT 1")
	c.acknowledged(20)
	c.kubectl("delete", "pod", "postgres-0", "--timeout", harness.Patience.String())
	c.kubectl("rollout", "status", "statefulset/postgres", "--timeout", harness.Patience.String())
	c.acknowledged(20)

	// Its node vanishes.
	primary.vanish()
	r.next()
	c.acknowledged(20)
	primary.comeBack()
	r.next()
	c.prints("streaming sync", "exec", "postgres-1", "--", "psql", "-qAtF", " ", "-U", "postgres", "-c", replication)
	c.lostNothing(r, c.acknowledged(20))

	// The cluster's processes are killed and start again.
	if err := c.Process("up").End(os.Kill); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Up("--nodes", "none", "--log-level", "warn"); err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		if err := m.Process(m.name).End(os.Kill); err != nil {
			t.Fatal(err)
		}
		m.launch("agent")
	}
	c.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout", harness.Patience.String())
	c.lostNothing(r, c.acknowledged(20))
}

// acknowledged waits for that many more writes, and answers all.
func (c *cluster) acknowledged(more int) []string {
	c.t.Helper()
	first := -1
	var lines []string
	harness.Eventually(c.t, "writes are acknowledged", func() error {
		out, err := c.try("logs", "writer")
		if err != nil {
			return err
		}
		lines = strings.Fields(out)
		if first < 0 {
			first = len(lines)
		}
		if len(lines) < first+more {
			return &tooFew{len(lines) - first, c}
		}
		return nil
	})
	return lines
}

// tooFew asks only when it is printed.
type tooFew struct {
	writes int
	*cluster
}

func (f *tooFew) Error() string {
	why := fmt.Sprintf("%d writes", f.writes)
	for _, args := range [][]string{
		{"writer", "--", "cat", "/tmp/complaint"},
		{"postgres-0", "--", "psql", "-xU", "postgres", "-c", "SELECT pid, client_addr, wait_event, query FROM pg_stat_activity WHERE state IS NOT NULL"},
		{"postgres-1", "--", "psql", "-xU", "postgres", "-c", "SELECT pid, client_addr, wait_event, query FROM pg_stat_activity WHERE state IS NOT NULL", "-c", "SELECT * FROM pg_stat_replication"},
	} {
		out, err := f.try(append([]string{"exec"}, args...)...)
		why += fmt.Sprintf("\n[on %s: %v]\n%s", args[0], err, out)
	}
	return why
}

// lostNothing compares what was acknowledged with what the primary has.
func (c *cluster) lostNothing(r *reader, acknowledged []string) {
	c.t.Helper()
	have := map[string]bool{}
	for _, i := range strings.Fields(r.shell("client -h postgres-rw -c 'SELECT i FROM acknowledged'")) {
		have[i] = true
	}
	for _, i := range acknowledged {
		if !have[i] {
			c.t.Errorf("write %s was acknowledged, and is lost", i)
		}
	}
	c.t.Logf("%d acknowledged, %d there", len(acknowledged), len(have))
}
