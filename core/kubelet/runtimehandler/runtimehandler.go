// SPDX-License-Identifier: Apache-2.0

// Package runtimehandler is a runtime handler of the node's containerd: the name by which
// a RuntimeClass chooses how the containers of a pod are run, and the shim that runs them.
//
// A handler is the word of whoever configures the node: its programs run as root. It is
// never read from an object of the API. What Problem lets pass can neither break out of
// its table of containerd's configuration, nor take from the node what this relies on:
// its cgroups, and the directory where it finds its containers again.
package runtimehandler

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Runc is the type of runc, and of what has its command line (crun, youki). The node's own
// shim runs it.
const Runc = "io.containerd.runc.v2"

// Handlers that every node has.
const (
	// Default is the handler of pods without a RuntimeClass.
	Default = "runc"
	// Wasm is the one under which any image may be a WebAssembly module.
	Wasm = "wasm"
	// WasmOnly is the one under which every container of a pod is a WebAssembly module.
	WasmOnly = "wasm-only"
)

const (
	maxOptions     = 64
	maxAnnotations = 64
	maxText        = 4096
)

// Handler is one entry of containerd's table of runtimes, by containerd's own words.
type Handler struct {
	// Name is what a RuntimeClass has as its handler.
	Name string
	// Type names the shim: io.containerd.NAME.vN is containerd-shim-NAME-vN.
	Type string
	// Path of the shim; empty: it is found by its name, and for Runc it is the node's own.
	Path string
	// Options of the shim: text, whole numbers, true or false.
	Options map[string]any
	// PodAnnotations and ContainerAnnotations are patterns of annotations that the runtime is told.
	PodAnnotations, ContainerAnnotations []string
	// PrivilegedWithoutHostDevices: privileged containers don't get the machine's devices.
	PrivilegedWithoutHostDevices bool
	// BaseRuntimeSpec is a file with the OCI specification that containers begin with.
	BaseRuntimeSpec string
}

// OwnShim says whether the node's own shim serves the handler.
func (h Handler) OwnShim() bool { return h.Type == Runc && h.Path == "" }

// Builtin are the handlers that every node has.
func Builtin() []string { return []string{Default, Wasm, WasmOnly} }

var (
	typeForm   = regexp.MustCompile(`^[a-z0-9]+(\.[a-z0-9-]+)*\.[a-z0-9-]+\.v[0-9]+$`)
	optionForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)
)

// Problem is what is wrong with a handler, and of which field; empty when nothing is.
func (h Handler) Problem() (field, problem string) {
	switch {
	case len(validation.IsDNS1123Label(h.Name)) > 0:
		return "name", fmt.Sprintf("expected the handler of a RuntimeClass, up to 63 lower-case letters, digits and dashes, found %q", h.Name)
	case slices.Contains(Builtin(), h.Name):
		return "name", fmt.Sprintf("%s is the node's own; choose another name, and name that in the RuntimeClass", h.Name)
	case h.Type == "" || !typeForm.MatchString(h.Type):
		return "runtimeType", fmt.Sprintf("expected a type of containerd's, such as %s, io.containerd.runsc.v1 or io.containerd.kata.v2, found %q", Runc, h.Type)
	case h.Path != "" && !filepath.IsAbs(h.Path):
		return "runtimePath", fmt.Sprintf("expected the absolute path of a shim, found %q; without it the shim is found by the runtimeType", h.Path)
	case h.BaseRuntimeSpec != "" && !filepath.IsAbs(h.BaseRuntimeSpec):
		return "baseRuntimeSpec", fmt.Sprintf("expected the absolute path of a file, found %q", h.BaseRuntimeSpec)
	case !plain(h.Path):
		return "runtimePath", unprintable
	case !plain(h.BaseRuntimeSpec):
		return "baseRuntimeSpec", unprintable
	}
	if problem := patterns(h.PodAnnotations); problem != "" {
		return "podAnnotations", problem
	}
	if problem := patterns(h.ContainerAnnotations); problem != "" {
		return "containerAnnotations", problem
	}
	return h.optionsProblem()
}

const unprintable = "expected at most 4,096 bytes of printable characters"

func plain(s string) bool {
	return len(s) <= maxText && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func patterns(list []string) string {
	if len(list) > maxAnnotations {
		return fmt.Sprintf("expected at most %d, found %d", maxAnnotations, len(list))
	}
	for _, p := range list {
		if _, err := path.Match(p, ""); err != nil || p == "" || !plain(p) {
			return fmt.Sprintf("expected an annotation or a pattern such as io.katacontainers.*, found %q", p)
		}
	}
	return ""
}

// runcOptions are those of Runc that a node may set, with a value of their kind. The
// others are the node's.
func runcOptions() map[string]any {
	return map[string]any{"BinaryName": "", "NoPivotRoot": false, "NoNewKeyring": false, "IoUid": 0, "IoGid": 0, "SystemdCgroup": false}
}

func (h Handler) optionsProblem() (field, problem string) {
	if len(h.Options) > maxOptions {
		return "options", fmt.Sprintf("expected at most %d, found %d", maxOptions, len(h.Options))
	}
	for _, name := range slices.Sorted(maps.Keys(h.Options)) {
		at, value := "options."+name, h.Options[name]
		if !optionForm.MatchString(name) {
			return "options", fmt.Sprintf("expected names of letters, digits, _ and -, found %q", name)
		}
		if problem := valueProblem(value); problem != "" {
			return at, problem
		}
		if problem := h.runcProblem(name, value); problem != "" {
			return at, problem
		}
	}
	return "", ""
}

func valueProblem(value any) string {
	switch v := value.(type) {
	case bool, int:
		return ""
	case string:
		if !plain(v) {
			return unprintable
		}
		return ""
	default:
		return fmt.Sprintf("expected text, a whole number, true or false, found %v; what has more goes to a file, and its path to ConfigPath", value)
	}
}

// runcProblem refuses what runc's shim does not know, or what the node decides.
func (h Handler) runcProblem(name string, value any) string {
	if h.Type != Runc {
		return ""
	}
	known := runcOptions()
	kind, ok := known[name]
	switch {
	case name == "Root" || name == "ShimCgroup":
		return "the node sets it: it finds its containers there again; leave it out"
	case !ok:
		return fmt.Sprintf("unknown to %s; known: %s", Runc, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	case fmt.Sprintf("%T", kind) != fmt.Sprintf("%T", value):
		return fmt.Sprintf("expected a value as %#v, found %#v", kind, value)
	case name == "SystemdCgroup" && value == true:
		return "expected false: the node makes the cgroups of its pods itself, and systemd would look for them elsewhere"
	case name == "BinaryName" && value != "" && !filepath.IsAbs(value.(string)) && strings.Contains(value.(string), "/"):
		return fmt.Sprintf("expected an absolute path, or a name that PATH has, found %q", value)
	}
	return ""
}

// shim is the shim's program as containerd looks for it.
func (h Handler) shim() string {
	if h.Path != "" {
		return h.Path
	}
	parts := strings.Split(h.Type, ".")
	return "containerd-shim-" + parts[len(parts)-2] + "-" + parts[len(parts)-1]
}

// Find looks for the programs and files that the handler names on this machine.
func (h Handler) Find() error {
	if !h.OwnShim() {
		if _, err := exec.LookPath(h.shim()); err != nil {
			return fmt.Errorf("the shim of runtime handler %s cannot be run: %w; install it, or say in runtimePath where it is", h.Name, err)
		}
	}
	if name, _ := h.Options["BinaryName"].(string); name != "" && h.Type == Runc {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("the program of runtime handler %s (options.BinaryName) cannot be run: %w; install it, or correct the path", h.Name, err)
		}
	}
	if h.BaseRuntimeSpec != "" {
		if info, err := os.Stat(h.BaseRuntimeSpec); err != nil {
			return fmt.Errorf("the file of runtime handler %s (baseRuntimeSpec) cannot be read: %w", h.Name, err)
		} else if !info.Mode().IsRegular() {
			return fmt.Errorf("the file of runtime handler %s (baseRuntimeSpec): %s is no file", h.Name, h.BaseRuntimeSpec)
		}
	}
	return nil
}

// Check is Problem and Find of all, for who has not been through a configuration file.
func Check(handlers []Handler) error {
	var errs []error
	for i, h := range handlers {
		if field, problem := h.Problem(); problem != "" {
			errs = append(errs, fmt.Errorf("runtime handler %d: %s: %s", i, field, problem))
		} else {
			errs = append(errs, h.Find())
		}
	}
	return errors.Join(errs...)
}

// Literal is a value of Options as TOML has it.
func Literal(value any) string {
	switch v := value.(type) {
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	default:
		return strconv.Quote(fmt.Sprint(v)) // Problem lets printable text pass alone, which both write alike
	}
}
