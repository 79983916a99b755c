// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// TestModulesAreMarked: by the image's platform, or by its program where the handler says that there may be
// modules; and by nothing that a pod says of itself.
func TestModulesAreMarked(t *testing.T) {
	program := func(entrypoint ...string) *engine.ImageConfig {
		c := &engine.ImageConfig{OS: "linux", Architecture: "amd64"}
		c.Config.Entrypoint = entrypoint
		return c
	}
	shown := program("/main.wasm")
	shown.Config.Labels = map[string]string{spec.WasmLabel: "wasi/wasm"}
	for _, c := range []struct {
		name          string
		image         *engine.ImageConfig
		handler       string
		command, args []string
		module        bool
		want          []string // the command that the runtime gets
	}{
		{name: "an artifact", image: &engine.ImageConfig{OS: "wasip1", Architecture: "wasm"}, module: true, want: []string{"module.wasm"}},
		{name: "an artifact with arguments", image: &engine.ImageConfig{OS: "wasip1", Architecture: "wasm"}, args: []string{"x"}, module: true, want: []string{"module.wasm"}},
		{name: "an artifact with a command", image: &engine.ImageConfig{OS: "wasip2", Architecture: "wasm"}, command: []string{"app"}, module: true, want: []string{"app"}},
		{name: "an image for wasi", image: shown, module: true},
		{name: "an image for linux", image: program("/main.wasm")},
		{name: "an image for linux with the handler", image: program("/main.wasm"), handler: spec.WasmHandler, module: true},
		{name: "a function of a module", image: program("/main.wasm#run"), handler: spec.WasmHandler, module: true},
		{name: "a module by the pod's command", image: program("/bin/sh"), handler: spec.WasmHandler, command: []string{"/main.wasm"}, module: true, want: []string{"/main.wasm"}},
		{name: "a program beside a module", image: program("/bin/sh"), handler: spec.WasmHandler, args: []string{"/main.wasm"}},
		{name: "a program in place of a module", image: program("/main.wasm"), handler: spec.WasmHandler, command: []string{"/bin/sh"}, want: []string{"/bin/sh"}},
		{name: "an engine that doesn't tell", handler: spec.WasmHandler, command: []string{"/main.wasm"}, want: []string{"/main.wasm"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "p", Namespace: "n", UID: "u", Annotations: map[string]string{spec.WasmAnnotation: "sha256:of-the-pod"},
			}}
			cfg, err := spec.Container(spec.ContainerRequest{
				Pod: pod, Container: &corev1.Container{Name: "c", Command: c.command, Args: c.args},
				ImageRef: "sha256:abc", ImageConfig: c.image, Handler: c.handler,
			})
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if c.module {
				want = "sha256:abc"
			}
			if got := cfg.Annotations[spec.WasmAnnotation]; got != want || !slices.Equal(cfg.Command, c.want) {
				t.Errorf("the annotation is %q and the command %q, want %q and %q", got, cfg.Command, want, c.want)
			}
		})
	}
}
