// SPDX-License-Identifier: Apache-2.0

package toolchain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is wrong with the author's source is told by itself, not with the compiler's own stack.
func TestWhatAnAuthorIsToldOfPython(t *testing.T) {
	const said = `python: exit status 1
Traceback (most recent call last):
  File "<string>", line 1, in <module>
AssertionError: Traceback (most recent call last):
  File "/1/wasmplane/glue.py", line 73, in <module>
    raise ImportError("\n" + told(e) + "\n;") from None
ImportError: 
SyntaxError: unterminated string literal (detected at line 10)
  at main.py:10:59: return deny("name an owner)
;


Caused by:
    ImportError: 
    SyntaxError: unterminated string literal (detected at line 10)
    ;`
	want := "SyntaxError: unterminated string literal (detected at line 10)\n  at main.py:10:59: return deny(\"name an owner)"
	if got := authorsError(said); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := authorsError("python: no space left on device"); got != "python: no space left on device" {
		t.Errorf("what is not about the source: %q", got)
	}
}

// python puts a python3 into the path that does what a script says.
func python(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if script != "" {
		if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\n"+script), 0o700); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":/bin:/usr/bin")
}

// A machine without python3, venv or the registry is told so, and nothing half installed is left.
func TestPythonsCompilerIsInstalledOnceOrNotAtAll(t *testing.T) {
	// makes a python that installs nothing, and says which version it has
	venv := func(version string) string {
		return `mkdir -p "$3/bin"; printf '#!/bin/sh\ncase "$2" in pip) echo installed >> "%s/installed";; *) echo componentize-py ` + version +
			`;; esac\n' "` + "$3" + `" > "$3/bin/python"; chmod +x "$3/bin/python"`
	}
	for _, c := range []struct{ script, says string }{
		{"", "python3 is missing"},
		{"echo 'ensurepip is not available'; exit 1", "python3-venv"},
		{venv("0.1.0"), `"componentize-py 0.1.0", expected version ` + ComponentizePyVersion},
		{venv(ComponentizePyVersion), ""},
	} {
		if c.script == "" {
			t.Setenv("PATH", t.TempDir())
		} else {
			python(t, c.script)
		}
		cache := t.TempDir()
		var told []string
		b, err := New(Config{Cache: cache, Progress: func(s string) { told = append(told, s) }})
		if err != nil {
			t.Fatal(err)
		}
		at, err := b.componentize(t.Context())
		if c.says != "" {
			left, readErr := os.ReadDir(cache)
			if err == nil || !strings.Contains(err.Error(), c.says) || readErr != nil || len(left) > 0 {
				t.Errorf("error %v, expected %q; %d files are left, %v", err, c.says, len(left), readErr)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.componentize(t.Context())
		if err != nil || again != at || len(told) != 1 {
			t.Errorf("%s, %v; told %q", again, err, told)
		}
		// Its Python has been removed: it is installed anew.
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		if again, err = b.componentize(t.Context()); err != nil || again != at || len(told) != 2 {
			t.Errorf("%s, %v; told %q", again, err, told)
		}
	}
}
