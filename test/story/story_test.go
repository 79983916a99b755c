// SPDX-License-Identifier: Apache-2.0

package story

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wasmplane/wasmplane/plugins/toolchain"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// built is what TestMain prepares for all stories.
var built struct {
	*harness.Build
	toolbox string // an image's archive
	cache   string // the folder of toolchains
	runc    string // the folder of a runc that gives pods users of their own: the machine's, unless test/deps.sh has built one
	module  string // testdata/module, compiled
}

func TestMain(m *testing.M) {
	testscript.Main(prepared{m}, map[string]func(){
		"driver":       serveDriver,
		"gadgets":      serveGadgets,
		"devices":      serveDevices,
		"etcd":         serveEtcd,
		"registry":     serveRegistry,
		"podresources": listPodResources,
		"writers":      writeMany,
		"steady":       keepWriting,
		"calls":        keepCalling,
		"beside":       besideHostiles,
		"extension":    serveExtension,
		"converter":    serveConverter,
		"extender":     serveExtender,
		"hooks":        serveHooks,
		"modules":      serveModules,
		"wasm":         serveWasm,
		"provider":     serveProvider,
		"again":        serveAgain,
		"race":         raceCreates,
		"supervise":    serveUnit,
		"inventory":    takeInventory,
		"hostiles":     loadHostiles,
		"attack":       attackServer,
		"twins":        writeTwins,
	})
}

// prepared builds what the stories need before it runs them. The programs that
// testscript starts from this binary don't come here.
type prepared struct{ m *testing.M }

// lanesEach is how many stories run beside one another on each processor, unless -parallel says how many. A story waits for about a third
// of its time: for leases, for periods of the node, for containers that start and end.
const lanesEach = 2

// Run implements testscript.TestingM.
func (p prepared) Run() int {
	if !flag.Parsed() {
		if err := flag.Set("test.parallel", strconv.Itoa(lanesEach*runtime.GOMAXPROCS(0))); err != nil {
			fmt.Fprintln(os.Stderr, "set how many stories run at a time:", err)
			return 1
		}
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the stories:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(built.Dir) }()
	return p.m.Run()
}

func prepare() (err error) {
	if built.Build, err = harness.Prepare("wpstory"); err != nil {
		return err
	}
	built.toolbox = filepath.Join(built.Dir, "toolbox.tar")
	if err := harness.Toolbox(built.Dir, built.toolbox); err != nil {
		return err
	}
	cache, err := toolchain.Cache()
	if err != nil {
		return err
	}
	built.cache, built.runc = cache, filepath.Join(cache, "runc-1.5.2")
	if _, err := os.Stat(built.runc); err != nil {
		built.runc = "/usr/sbin"
	}
	built.module = filepath.Join(built.Dir, "module.wasm")
	return compileModule(built.Root, built.module)
}

func TestStories(t *testing.T) { tell(t, "testdata") }

// TestFormer tells what becomes of a cluster that a former release has made: that of WASMPLANE_FORMER, a file
// (`make upgrades` builds some), or by default this tree under an older version.
func TestFormer(t *testing.T) { tell(t, filepath.Join("testdata", "former")) }

func tell(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			return newStage(e)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"up":              on((*stage).up),
			"start":           on((*stage).start),
			"release":         on((*stage).release),
			"former":          on((*stage).former),
			"objects":         on((*stage).objects),
			"ahead":           on((*stage).ahead),
			"certauthority":   on((*stage).certauthority),
			"machines":        on((*stage).machines),
			"page":            on((*stage).page),
			"crash":           on((*stage).crash),
			"interrupt":       on((*stage).interrupt),
			"kubectl":         on((*stage).kubectl),
			"wasmplane":       on((*stage).wasmplane),
			"apply":           on((*stage).apply),
			"replace":         on((*stage).replace),
			"assemble":        on((*stage).assemble),
			"components":      on((*stage).components),
			"await-trace":     on((*stage).awaitTrace),
			"follow":          on((*stage).follow),
			"fill":            on((*stage).fill),
			"containers":      on((*stage).containers),
			"await":           on((*stage).await),
			"await-http":      on((*stage).awaitHTTP),
			"await-log":       on((*stage).awaitLog),
			"env-from-stdout": on((*stage).setFromStdout),
			"disk":            on((*stage).smallDisk),
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
