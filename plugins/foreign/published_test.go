// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// asGuestVersion of the SDK that the waPC project publishes (test/deps.sh installs it).
const asGuestVersion = "0.3.1"

var published = sync.OnceValues(buildPublished)

// buildPublished builds testdata/asguest against @wapc/as-guest as npm has it.
func buildPublished() ([]byte, error) {
	cache, err := toolchain.Cache()
	if err != nil {
		return nil, err
	}
	sdk := filepath.Join(cache, "as-guest-"+asGuestVersion)
	if _, err := os.Stat(filepath.Join(sdk, "node_modules", "@wapc", "as-guest", "package.json")); err != nil {
		out, err := exec.Command("npm", "install", "--prefix", sdk, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
			"@wapc/as-guest@"+asGuestVersion).CombinedOutput()
		if err != nil {
			return nil, errors.Join(err, errors.New(string(out)))
		}
	}
	dir, err := os.MkdirTemp("", "asguest")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source, err := os.ReadFile("testdata/asguest/policy.ts")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "policy.ts"), source, 0o600); err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join(sdk, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		return nil, err
	}
	asc := filepath.Join(cache, "asc-"+toolchain.AssemblyScriptVersion, "node_modules", ".bin", "asc")
	build := exec.Command(asc, "policy.ts", "-O3", "--use", "abort=policy/abort", "--outFile", "policy.wasm")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(err, errors.New(string(out)))
	}
	return os.ReadFile(filepath.Join(dir, "policy.wasm"))
}

// TestAModuleOfSomebodyElsesSDK: not only guests of our own speak waPC here. This
// one is built with the SDK that the waPC project publishes, by its own rules.
func TestAModuleOfSomebodyElsesSDK(t *testing.T) {
	builder, err := toolchain.New(toolchain.Config{Progress: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := builder.Install(t.Context(), toolchain.AssemblyScript); err != nil {
		t.Fatal(err)
	}
	wasm, err := published()
	if err != nil {
		t.Fatal(err)
	}
	grants := "grants: {read: [{resources: [namespaces]}]}\nlimits: {deadline: 30s}\nmatch: {rules: [{apiGroups: [\"\"], resources: [pods]}]}\npoints: [admission.validate]"
	for name, c := range map[string]struct {
		more    string
		code    int32
		message string
		warning string
	}{
		"accepted":             {more: "settings: {closed: red}\n" + grants, warning: "team red is closed"},
		"rejected":             {more: "settings: {closed: blue}\n" + grants, code: 423, message: "team blue is closed"},
		"a thrown error":       {more: "settings: {closed: panic}\n" + grants, code: 500, message: "out of cheese"},
		"a read not granted":   {more: "settings: {closed: blue}\n" + strings.Replace(grants, "namespaces", "pods", 1), code: 500, message: "namespaces"},
		"that fails open":      {more: "settings: {closed: panic}\nfailurePolicy: Ignore\n" + grants},
		"in Audit, it lets go": {more: "settings: {closed: blue}\nmode: Audit\n" + grants},
	} {
		t.Run(name, func(t *testing.T) {
			r := creating()
			err := apply(t, load(t, wasm, functions(t), c.more), r)
			if c.code == 0 && err != nil {
				t.Fatal(err)
			}
			var status apierrors.APIStatus
			if c.code != 0 && (!errors.As(err, &status) || status.Status().Code != c.code || !strings.Contains(err.Error(), c.message)) {
				t.Fatalf("error %v, want %d %q", err, c.code, c.message)
			}
			if got := strings.Join(r.Warnings(), ", "); c.warning != "" && !strings.Contains(got, c.warning) {
				t.Errorf("warnings %q", got)
			}
		})
	}
	if _, err := tryLoad(t, wasm, functions(t), "settings: {open: blue}\n"+grants); err == nil || !strings.Contains(err.Error(),
		"closed is missing: the name of a team") {
		t.Errorf("settings that it refuses: %v", err)
	}
}
