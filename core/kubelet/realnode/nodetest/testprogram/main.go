// SPDX-License-Identifier: Apache-2.0

// Command testprogram is what the containers of tests run: one static program that
// does what a test needs of a shell.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `testprogram serve ADDRESS | fetch URL | echo WORD... | fail CODE | cat | env NAME | sleep DURATION | stubborn | memory MiB | sh SCRIPT | stat FILE | write FILE WORD...`

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{"serve", ":80"}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	arg := strings.Join(args[1:], " ")
	switch args[0] {
	case "serve":
		return serve(ctx, arg)
	case "fetch":
		return fetch(ctx, arg)
	case "echo":
		_, err := fmt.Fprintln(os.Stdout, arg)
		return err
	case "fail":
		code, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "failing with", code)
		os.Exit(code)
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "env":
		_, err := fmt.Fprintln(os.Stdout, os.Getenv(arg))
		return err
	case "sleep":
		return sleep(ctx, arg)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Fprintln(os.Stdout, "ignoring signals")
		select {}
	case "memory":
		return memory(ctx, arg)
	case "sh":
		return sh(ctx, arg)
	case "stat":
		return stat(arg)
	case "write":
		return os.WriteFile(args[1], []byte(strings.Join(args[2:], " ")), 0o644)
	}
	return fmt.Errorf("unknown %q; %s", args[0], usage)
}

func serve(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "serving on", l.Addr())
	name, _ := os.Hostname()
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s\n", name, r.URL.Path, r.RemoteAddr)
	})}
	context.AfterFunc(ctx, func() { s.Close() })
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

func fetch(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}

func sleep(ctx context.Context, arg string) error {
	d, err := time.ParseDuration(arg)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return nil
}

// memory takes MiB after MiB and keeps them.
func memory(ctx context.Context, arg string) error {
	n, err := strconv.Atoi(arg)
	if err != nil {
		return err
	}
	kept := make([][]byte, 0, n)
	for range n {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = 1
		}
		kept = append(kept, b)
	}
	fmt.Fprintln(os.Stdout, "have", len(kept), "MiB")
	<-ctx.Done()
	return nil
}

func stat(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(data)
	return err
}

// sh runs the little of the shell's language that the suite of engines speaks:
// statements in a row, of echo, exit, sleep, true and trap, and one endless loop.
func sh(ctx context.Context, script string) error {
	if before, body, loops := strings.Cut(script, "while :; do "); loops {
		if err := sh(ctx, before); err != nil {
			return err
		}
		for {
			if err := sh(context.WithoutCancel(ctx), strings.TrimSuffix(body, "done")); err != nil {
				return err
			}
		}
	}
	for s := range strings.SplitSeq(script, ";") {
		words := strings.Fields(s)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "true":
		case "trap":
			signal.Ignore(syscall.SIGTERM)
		case "exit":
			code, err := strconv.Atoi(words[1])
			if err != nil {
				return err
			}
			os.Exit(code)
		case "sleep":
			if err := sleep(ctx, words[1]+"s"); err != nil {
				return err
			}
		case "echo":
			text, errors := strings.CutSuffix(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(s), "echo")), " >&2")
			to := os.Stdout
			if errors {
				to = os.Stderr
			}
			if _, err := fmt.Fprintln(to, text); err != nil {
				return err
			}
		default:
			return fmt.Errorf("no such command: %s", words[0])
		}
	}
	return nil
}
