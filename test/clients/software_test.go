// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// published is a module whose programs are built with the go.mod of its authors, so that they are
// made of what the project's own releases are made of.
type published struct {
	name, module, version string
	// sum is the checksum of the module; its go.sum has those of all others.
	sum string
	// beside are modules that its go.mod replaces by folders of its repository, which a module
	// does not contain. They are published on their own, by their versions; "" is the one that go.mod names.
	beside map[string]string
	// links are symbolic links of its repository and what they point to: no module contains one.
	links map[string]string
	// programs are packages by the names of what is built from them.
	programs map[string]string
}

// built is where a module's files are, and the programs that were built from it.
type built struct {
	published
	files, programs string
}

// build answers the module's programs. They are kept in the user's cache: most take minutes.
func (p published) build(t *testing.T) *built {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	b := &built{p, p.download(t), filepath.Join(cache, "wasmplane", "clients", p.name+"-"+p.version)}
	if err := os.MkdirAll(b.programs, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, pkg := range p.programs {
		if _, err := os.Stat(b.program(name)); err == nil {
			continue
		}
		t.Logf("building %s of %s %s", name, p.module, p.version)
		b.compile(t, name, pkg)
	}
	return b
}

// download answers the folder of the module's files, which are what they were when sum was written here.
func (p published) download(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", p.module+"@"+p.version).Output()
	var info struct{ Dir, Sum, Error string }
	if wrong := json.Unmarshal(out, &info); wrong != nil || err != nil || info.Error != "" {
		t.Fatalf("download %s %s: %v %s", p.module, p.version, err, info.Error)
	}
	if info.Sum != p.sum {
		t.Fatalf("%s %s has the checksum %s, expected %s", p.module, p.version, info.Sum, p.sum)
	}
	return info.Dir
}

// compile builds one program. The module's folder is read-only, so its go.mod is used from a copy.
func (b *built) compile(t *testing.T, name, pkg string) {
	t.Helper()
	mod := filepath.Join(b.programs, "go.mod")
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(b.files, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(b.programs, file), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	from := b.files
	if len(b.links) > 0 {
		from = b.withLinks(t)
	}
	commands := [][]string{}
	for module, version := range b.beside {
		edit := []string{"mod", "edit", "-dropreplace=" + module}
		if version != "" {
			edit = append(edit, "-require="+module+"@"+version)
		}
		commands = append(commands, append(edit, mod))
	}
	part := b.program(name) + ".part" // a build that is cut off leaves no program
	commands = append(commands, []string{
		"build", "-C", from, "-modfile", mod, "-mod=mod", "-ldflags", "-s -w", "-o", part, pkg,
	})
	for _, args := range commands {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, harness.Tail(string(out), 40))
		}
	}
	if err := os.Rename(part, b.program(name)); err != nil {
		t.Fatal(err)
	}
}

// withLinks copies the module's files, and adds what it lacks.
func (b *built) withLinks(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), b.name)
	err := copyFolder(dir, os.DirFS(b.files))
	for link, to := range b.links {
		if err == nil {
			err = os.Symlink(to, filepath.Join(dir, link))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (b *built) program(name string) string { return filepath.Join(b.programs, name) }

// read answers a file of the module.
func (b *built) read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.files, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// image is an archive of an image with one of the programs, as the project's Dockerfile makes it.
func (b *built) image(t *testing.T, name, program, at, user string, more ...file) string {
	t.Helper()
	return debianImage(t, spec{
		Names: []string{name},
		Top: append([]file{
			{Path: at, Mode: 0o755, From: b.program(program)},
			{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
		}, more...),
		Config: v1.Config{Entrypoint: []string{at}, WorkingDir: "/", User: user, Env: []string{"PATH=" + path.Dir(at)}},
	})
}

// kustomize applies folders of modules, by name, in the way that kustomization says.
func (c *cluster) kustomize(kustomization string, folders map[string]string) {
	c.t.Helper()
	c.kubectl("apply", "--server-side", "-k", c.kustomization(kustomization, folders))
}

// kustomization is a new folder with a kustomization and the folders of modules, by name, that it speaks of.
func (c *cluster) kustomization(kustomization string, folders map[string]string) string {
	c.t.Helper()
	dir, err := os.MkdirTemp(c.Dir, "kustomize")
	if err != nil {
		c.t.Fatal(err)
	}
	for name, from := range folders {
		if err := copyFolder(filepath.Join(dir, name), os.DirFS(from)); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// copyFolder copies files that may be read-only into a folder that is not.
func copyFolder(to string, from fs.FS) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return os.CopyFS(to, from)
}

// rolledOut waits for Deployments, and says on a time-out what their pods wait for.
func (c *cluster) rolledOut(namespace string, deployments ...string) {
	c.t.Helper()
	for _, name := range deployments {
		if _, err := c.try("-n", namespace, "rollout", "status", "deployment/"+name, "--timeout", harness.Patience.String()); err != nil {
			c.t.Fatalf("%v\n%s", err, c.state(namespace))
		}
	}
}

// state is what a reader of a failed test asks for first: pods, events and the last lines of each log. It is asked
// for also after the end of the test, whose context is done then.
func (c *cluster) state(namespace string) string {
	var b strings.Builder
	try := func(args ...string) (string, error) {
		return c.Kubectl(context.WithoutCancel(c.t.Context()), append([]string{"-n", namespace}, args...)...)
	}
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
	} {
		out, err := try(args...)
		fmt.Fprintf(&b, "kubectl %s: %v\n%s\n", strings.Join(args, " "), err, harness.Tail(out, 30))
	}
	names, _ := try("get", "pods", "-o", "name")
	for _, pod := range strings.Fields(names) {
		out, err := try("logs", pod, "--tail=25", "--all-containers")
		fmt.Fprintf(&b, "%s: %v\n%s\n", pod, err, out)
	}
	return b.String()
}

// explained adds the state of namespaces to the report of a test that fails.
func (c *cluster) explained(namespaces ...string) {
	c.t.Cleanup(func() {
		if c.t.Failed() {
			for _, namespace := range namespaces {
				c.t.Log(c.state(namespace))
			}
		}
	})
}

// soon tries a command until it works, as people do while a webhook or a definition appears.
func (c *cluster) soon(args ...string) {
	c.t.Helper()
	harness.Eventually(c.t, "kubectl "+strings.Join(args, " "), func() error {
		_, err := c.try(args...)
		return err
	})
}

// refuses waits until a manifest is refused with words, which is tried without keeping it.
func (c *cluster) refuses(words, manifest string) {
	c.t.Helper()
	file := c.file("refused.yaml", manifest)
	harness.Eventually(c.t, "a refusal with "+words, func() error {
		out, err := c.try("create", "--dry-run=server", "-f", file)
		switch {
		case err == nil:
			return fmt.Errorf("it is accepted: %s", out)
		case !strings.Contains(err.Error(), words):
			return err
		}
		return nil
	})
}

// toolbox gives the image of small programs to this machine's node.
func (c *cluster) toolbox() {
	c.t.Helper()
	archive := filepath.Join(c.Dir, "toolbox.tar")
	if err := harness.Toolbox(c.Dir, archive); err != nil {
		c.t.Fatal(err)
	}
	c.importHere(archive)
}
