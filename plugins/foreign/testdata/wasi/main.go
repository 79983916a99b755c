// A policy that is a command of WASI. Settings as those of the policy beside it: refuse, answer, calls, exit, fresh.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"unsafe"
)

//go:wasmimport host call
func hostCall(bd unsafe.Pointer, bdLen uint32, ns unsafe.Pointer, nsLen uint32, op unsafe.Pointer, opLen uint32, p unsafe.Pointer, n uint32) uint32

type call struct {
	Namespace, Operation string
	Payload              json.RawMessage
}

type settings struct {
	Refuse string
	Answer json.RawMessage
	Calls  []call
	Exit   int
}

func at(b []byte) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.SliceData(b)), uint32(len(b))
}

func (c call) do() string {
	bd, bdLen := at([]byte("kubewarden"))
	ns, nsLen := at([]byte(c.Namespace))
	op, opLen := at([]byte(c.Operation))
	p, n := at(c.Payload)
	failed := hostCall(bd, bdLen, ns, nsLen, op, opLen, p, n)
	reply, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err.Error()
	}
	if failed != 0 {
		return "error: " + string(reply)
	}
	return string(reply)
}

var runs int // a second evaluation in one instance would show

func main() {
	runs++
	in, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "called as", os.Args)
	var out any
	if os.Args[1] == "validate-settings" {
		var s settings
		err = json.Unmarshal(in, &s)
		out = map[string]any{"valid": s.Refuse == "", "message": s.Refuse}
	} else {
		var q struct{ Settings settings }
		err = json.Unmarshal(in, &q)
		if q.Settings.Exit != 0 {
			os.Exit(q.Settings.Exit)
		}
		warnings := []string{}
		for _, c := range q.Settings.Calls {
			warnings = append(warnings, c.do())
		}
		out = map[string]any{"accepted": runs == 1, "warnings": warnings}
		if q.Settings.Answer != nil {
			out = q.Settings.Answer
		}
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
