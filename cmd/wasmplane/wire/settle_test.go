package wire

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

func TestProgramPagesAreTheReadOnlyOnesOfTheProgram(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-0461a000 r-xp 00000000 fe:00 10086753                           /opt/my wasmplane":           true,
		"0461a000-0964f000 r--p 0421a000 fe:00 10086753                           /opt/my wasmplane":           true,
		"0964f000-097e2000 rw-p 0924f000 fe:00 10086753                           /opt/my wasmplane":           false,
		"7f7235800000-7f7475800000 r--s 00000000 fe:00 10552098                   /data/etcd/member/snap/db":   false,
		"71390800000-71397400000 rw-p 00000000 00:00 0 ":                                                       false,
		"00400000-0461a000 r-xp 00000000 fe:00 10086753                           /opt/my wasmplane (deleted)": false,
		"nonsense": false,
	} {
		from, to, ok := programPages(line, "/opt/my wasmplane")
		if ok != want || ok && from >= to {
			t.Errorf("%s\ngot %x-%x %t, want %t", line, from, to, ok, want)
		}
	}
}

func TestUnmappedProgramRunsOn(t *testing.T) {
	before := mapped(t)
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after >= before {
		t.Errorf("%d kB of files were mapped, and now %d kB", before, after)
	}
}

// mapped is how many kB of files are in this process's memory.
func mapped(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	kb, err := strconv.Atoi(regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindStringSubmatch(string(status))[1])
	if err != nil {
		t.Fatal(err)
	}
	return kb
}
