// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasip2"
)

// compiled compiles a module, or the modules of a component, whose program is answered then.
func compiled(ctx context.Context, r wazero.Runtime, wasm []byte) (*link.Program, []wazero.CompiledModule, error) {
	if !binary.Is(wasm) {
		m, err := r.CompileModule(ctx, wasm)
		if err != nil {
			return nil, nil, fmt.Errorf("compile the module: %w", err)
		}
		return nil, []wazero.CompiledModule{m}, nil
	}
	c, _, err := binary.Decode(wasm)
	if err != nil {
		return nil, nil, fmt.Errorf("decode the component: %w", err)
	}
	program, err := link.Plan(c)
	if err != nil {
		return nil, nil, fmt.Errorf("plan the component: %w", err)
	}
	modules, err := program.Modules()
	if err != nil {
		return nil, nil, fmt.Errorf("read the component's modules: %w", err)
	}
	var out []wazero.CompiledModule
	for i, m := range modules {
		code, err := r.CompileModule(ctx, m)
		if err != nil {
			return nil, nil, fmt.Errorf("compile module %d of %d of the component: %w", i+1, len(modules), err)
		}
		out = append(out, code)
	}
	return program, out, nil
}

// The names of a component's entry points, after a # in the command.
const (
	asCommand = "run"
	asServer  = "handle"
)

// entryPoint is how a component is run: one that could be both is a server, if the command does not name the other.
func entryPoint(p *link.Program, named string) (string, error) {
	has := map[string]bool{asCommand: wasip2.Runs(p), asServer: wasip2.Serves(p)}
	switch {
	case has[named]:
		return named, nil
	case named != "":
		return "", fmt.Errorf("the command names %q of a component, which does not export it: #run is wasi:cli/run, #handle is wasi:http/incoming-handler", named)
	case has[asServer]:
		return asServer, nil
	case has[asCommand]:
		return asCommand, nil
	}
	return "", errors.New("the component exports neither wasi:cli/run@0.2 (a command) nor wasi:http/incoming-handler@0.2 (a server): build it for one of these worlds")
}

// component runs a component: a command to its end, or a server of HTTP until the context ends.
func (c Config) component(ctx context.Context, r wazero.Runtime, wasm []byte, export string, args, env []string, stdio Stdio) (int, error) {
	program, modules, err := compiled(ctx, r, wasm)
	if err != nil {
		return ExitCannotRun, err
	}
	as, err := entryPoint(program, export)
	if err != nil {
		return ExitCannotRun, err
	}
	l, err := link.Link(ctx, r, program, modules, wasip2.Host{})
	if err != nil {
		return ExitCannotRun, err
	}
	volumes, err := open(c.Root, c.Mounts)
	if err != nil {
		return ExitCannotRun, err
	}
	defer volumes.close()
	cfg := wasip2.Config{
		Args: args, Env: env, In: stdio.In, Out: stdio.Out, Err: stdio.Err,
		Directories: []wasip2.Directory{{Path: "/", FS: volumes.root}},
	}
	for _, v := range volumes.directories {
		cfg.Directories = append(cfg.Directories, wasip2.Directory{Path: v.path, FS: v.tree})
	}
	if as == asServer {
		return c.serve(ctx, l, cfg)
	}
	calm()
	code, err := wasip2.Run(ctx, l, cfg)
	if err != nil {
		return outcome(err)
	}
	return code, nil
}

// defaultPort is where a server listens whose container declares no port.
const defaultPort = 8080

// serve serves on the ports that the container declares.
func (c Config) serve(ctx context.Context, l *link.Linked, cfg wasip2.Config) (int, error) {
	server, err := wasip2.NewServer(ctx, l, cfg, c.Memory)
	if err != nil {
		code, err := outcome(err)
		return max(code, ExitCannotRun), err
	}
	ports := c.Listen
	if len(ports) == 0 {
		ports = []Port{{Port: defaultPort}}
	}
	var listeners []net.Listener
	for _, p := range ports {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(p.Port)))
		if err != nil {
			return ExitCannotRun, fmt.Errorf("listen on the container's port: %w", err)
		}
		defer listener.Close()
		listeners = append(listeners, listener)
	}
	if c.Serving != nil {
		c.Serving()
	}
	calm()
	if err := server.Serve(ctx, listeners...); err != nil {
		return 1, fmt.Errorf("serve HTTP: %w", err)
	}
	return 0, nil
}
