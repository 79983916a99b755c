package story

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// built is what TestMain prepares for all stories.
var built struct {
	dir, wasmplane, root string
	toolbox, hello       string // image archives
}

func TestMain(m *testing.M) {
	testscript.Main(prepared{m}, map[string]func(){
		"etcd":      serveEtcd,
		"registry":  serveRegistry,
		"writers":   writeMany,
		"beside":    besideHostiles,
		"extension": serveExtension,
		"converter": serveConverter,
		"hooks":     serveHooks,
		"race":      raceCreates,
	})
}

// prepared builds what the stories need before it runs them. The programs that
// testscript starts from this binary don't come here.
type prepared struct{ m *testing.M }

// Run implements testscript.TestingM.
func (p prepared) Run() int {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the stories:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(built.dir) }()
	return p.m.Run()
}

func prepare() (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the stories have real nodes and need root; `make test` asks for it")
	}
	if built.root, err = filepath.Abs("../.."); err != nil {
		return err
	}
	// Closed to others is each data directory; the binary is for nobody too.
	if built.dir, err = os.MkdirTemp("", "wpstory"); err != nil {
		return err
	}
	if err := os.Chmod(built.dir, 0o755); err != nil {
		return err
	}
	source := os.Getenv("WASMPLANE_BIN")
	if source == "" {
		if err := execute("make", "-s", "-C", built.root, "build"); err != nil {
			return err
		}
		source = filepath.Join(built.root, "bin", "wasmplane")
	}
	built.wasmplane = filepath.Join(built.dir, "wasmplane")
	// A copy: whoever builds meanwhile doesn't change what the stories run on.
	if err := execute("cp", source, built.wasmplane); err != nil {
		return err
	}
	if err := execute("make", "-s", "-C", built.root, "examples", "hello-image"); err != nil {
		return err
	}
	built.hello = filepath.Join(built.root, "bin", "images", "hello.tar")
	built.toolbox = filepath.Join(built.dir, "toolbox.tar")
	return buildToolbox(built.dir, built.toolbox)
}

func execute(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			return newStage(e)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"up":              on((*stage).up),
			"start":           on((*stage).start),
			"crash":           on((*stage).crash),
			"interrupt":       on((*stage).interrupt),
			"kubectl":         on((*stage).kubectl),
			"wasmplane":       on((*stage).wasmplane),
			"apply":           on((*stage).apply),
			"replace":         on((*stage).replace),
			"assemble":        on((*stage).assemble),
			"await-trace":     on((*stage).awaitTrace),
			"fill":            on((*stage).fill),
			"containers":      on((*stage).containers),
			"await":           on((*stage).await),
			"await-http":      on((*stage).awaitHTTP),
			"await-log":       on((*stage).awaitLog),
			"env-from-stdout": on((*stage).setFromStdout),
			"down":            on((*stage).down),
		},
	})
}

type stageKey struct{}

// on finds the script's stage for a command.
func on(f func(*stage, *testscript.TestScript, bool, []string)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		f(ts.Value(stageKey{}).(*stage), ts, neg, args)
	}
}
