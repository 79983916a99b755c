// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// programs are what this tree executes, by who provides it. On a machine with nothing but Debian's minimal system, Go, git and make
// a program of another row is missing: a test of it passes where it was written, and fails on the first try elsewhere.
var programs = map[string]string{
	"Debian's minimal system": "apt-cache apt-get awk base64 bash blkid cat chmod cmp cp cut date dd diff dpkg dpkg-deb echo env false find " +
		"fsfreeze grep head hostname id losetup ls mkdir mkfifo mktemp mount mv nsenter printf readlink rm sed seq sh sleep sort stat tail " +
		"tar tee test timeout touch tr true umount uname unshare wc xargs",
	"Go, git and make":      "go git make",
	"test/deps.sh run":      "ip bridge tc ss nft runc",
	"test/deps.sh examples": "rustc cargo npm node python3",
	"test/deps.sh test":     "dbus-daemon journalctl mkfs.ext4",
	// Where they are missing the product says so, or does without.
	"the product's user": "apparmor_parser criu kubectl modprobe mount.nfs systemctl systemd-analyze zig",
	"the test itself":    "attack beside hostiles race server twins writers", // put on PATH by it
}

// elsewhere are folders whose programs are of other jobs of test/deps.sh, which make test does not do.
var elsewhere = []string{"test/bench", "test/clients", "test/conformance", "test/fresh", "test/kubectlcmd"}

// hasProgram has the argument that is the program, of calls by these names; inLab that of calls in packages which have a netlab.Lab.
var (
	hasProgram = map[string]int{"Command": 0, "CommandContext": 1, "LookPath": 0, "lookPath": 0, "Execute": 0}
	inLab      = map[string]int{"Run": 1, "do": 0}
)

// Names that begin a command in a shell script, but for words of the shell itself; of these, those that many machines have
// and the minimal system has not.
var tempting = regexp.MustCompile(`(?:^|[|&;(!{]\s*|\b(?:do|then|else|exec|if|while|until|xargs|timeout [0-9.]+)\s+)` +
	`(bc|bzip2|curl|dig|file|free|fuser|host|iptables|jq|killall|less|lsof|man|mkfs[.a-z0-9]*|nc|nslookup|openssl|pgrep|pidof|ping|pkill|ps|` +
	`rsync|script|socat|ssh|strace|sudo|sysctl|systemd-run|time|top|unzip|uptime|vmstat|watch|wget|which|xxd|zip)\s`)

// unmistakable are words that tests have for nothing but programs, so that functions of their own that execute what they are given are
// seen through.
var unmistakable = strings.Fields("iptables jq killall lsof openssl pgrep pidof pkill rsync socat strace sysctl unzip wget xxd")

// executed are the programs that a file executes by names which it says, as far as that can be read from it.
func executed(t *testing.T, file string) (names []string) {
	t.Helper()
	if strings.HasSuffix(file, ".txtar") {
		return executedByScript(t, file)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	labs := hasLab(t, filepath.Dir(file))
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		var called string
		switch f := call.Fun.(type) {
		case *ast.Ident:
			called = f.Name
		case *ast.SelectorExpr:
			called = f.Sel.Name
		}
		for _, arg := range call.Args {
			if word, ok := literal(arg); ok && strings.HasSuffix(file, "_test.go") && slices.Contains(unmistakable, word) {
				names = append(names, word)
			}
		}
		at, ok := hasProgram[called]
		if i, there := inLab[called]; there && labs {
			at, ok = i, true
		}
		if !ok || at >= len(call.Args) {
			return true
		}
		if name, ok := literal(call.Args[at]); ok && !strings.ContainsAny(name, "/ ") {
			names = append(names, name)
			if script, _ := literal(call.Args[len(call.Args)-1]); name == "sh" || name == "bash" {
				names = append(names, inShell(script)...)
			}
		}
		return true
	})
	return names
}

// hasLab tells whether a package's files import core/netlab.
func hasLab(t *testing.T, dir string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), strconv.Quote(module+"core/netlab"))
	})
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}

// inShell are the programs of a shell script that the minimal system does not have.
func inShell(script string) (names []string) {
	for line := range strings.Lines(script) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, found := range tempting.FindAllStringSubmatch(strings.TrimSpace(line)+" ", -1) {
			names = append(names, found[1])
		}
	}
	return names
}

var (
	storyExec = regexp.MustCompile(`^(?:! )?exec (?:nsenter \S+ )?(?:timeout [0-9]+ )?([a-z][a-z0-9._-]*)(?: (.*))?$`)
	storyFile = regexp.MustCompile(`^-- (\S+) --$`)
)

func executedByScript(t *testing.T, file string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	within := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := storyFile.FindStringSubmatch(line); m != nil {
			within = m[1]
			continue
		}
		if strings.HasSuffix(within, ".sh") {
			names = append(names, inShell(line)...)
		}
		if m := storyExec.FindStringSubmatch(line); m != nil && within == "" {
			names = append(names, m[1])
			if _, script, ok := strings.Cut(m[2], "-c '"); ok && strings.HasSuffix(m[1], "sh") {
				names = append(names, inShell(script)...)
			}
		}
	}
	return names
}

// TestEveryProgramIsProvided: a test may not need what is only where it was written.
func TestEveryProgramIsProvided(t *testing.T) {
	provided := map[string]bool{}
	for _, row := range programs {
		for _, name := range strings.Fields(row) {
			provided[name] = true
		}
	}
	used := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := filepath.ToSlash(strings.TrimPrefix(path, "../../"))
		switch {
		case d.IsDir() && (slices.Contains(elsewhere, at) || slices.Contains([]string{".git", "build", "bin", "node_modules"}, d.Name())),
			d.IsDir() && d.Name() == "testdata" && !strings.HasPrefix(at, "test/story"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(at, ".go") && !strings.HasSuffix(at, ".txtar"):
			return nil
		}
		names := executed(t, path)
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			used[name] = true
			if !provided[name] {
				t.Errorf("%s executes %s, which a new machine does not have: do without it (the kernel's files in /proc have most), or have "+
					"test/deps.sh install it and list it here", at, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(used) < 25 {
		t.Errorf("only %v are executed; the test looks at the wrong folder", slices.Sorted(maps.Keys(used)))
	}
}

// TestProgramsAreRead has one of each form.
func TestProgramsAreRead(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"a_test.go": {
			`package a
import "github.com/wasmplane/wasmplane/core/netlab"
func f() {
	exec.Command("one", "x")
	exec.CommandContext(ctx, "two")
	l.Run("node", "three", "x")
	t.Run("a test", func() {})
	harness.Execute("sh", "-c", "cd x && curl y; printf z | jq .")
	exec.Command("/bin/four", "x")
	exec.Command(five)
	l.node("sysctl", "-w")
}
`, "curl jq one sh sysctl three two",
		},
		"a.txtar": {
			`# exec none x
exec one x
! exec nsenter $IN_b two x
exec nsenter $IN_b timeout 9 sh -c 'for i in $(seq 3); do ss -x | grep "a|b" && pgrep x; done'
exec place/wp x
kubectl exec three -- cat x
-- a.sh --
# ps x
until sysctl x; do :; done
x=$(openssl y)
-- b --
exec four x
`, "one openssl pgrep sh sysctl two",
		},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := executed(t, file)
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s executes %v, want %s", name, got, c.want)
		}
	}
}
