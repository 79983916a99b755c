// SPDX-License-Identifier: Apache-2.0

// Command toolbox is what runs in the pods of the stories: a few programs in one
// static binary, told apart by their name, as in busybox.
//
//	serve [FILE]        answer every request on $PORT (80) with the pod's name, and $GREETING; FILE: its content instead
//	fetch URL [SECONDS] print what a URL answers, within 10 seconds or as many as are given
//	knock ADDRESS       try from the first moment on to get through to a TCP and a UDP port, and print "through"
//	listen              print from where packets come to UDP $PORT (80)
//	lookup ip4|ip6 NAME print the addresses of a family that a name has
//	name ADDRESS        print the names that an address has
//	pods                list the pods of the own namespace, as the own service account
//	count N             print N lines
//	block FILE [TEXT]   write TEXT as a device's first line, if it is given; print the device's bytes and its first line
//	owner FILE          print whose a file is: UID:GID
//	write FILE TEXT     write a file
//	cat, echo, env, exit CODE, ls, sleep SECONDS, tar, touch
//	sh -c 'exit N'      the only thing that this shell can do
package main

import (
	"archive/tar"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	tool, args := filepath.Base(os.Args[0]), os.Args[1:]
	if tool == "toolbox" && len(args) > 0 {
		tool, args = args[0], args[1:]
	}
	if err := run(tool, args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", tool, err)
		os.Exit(1)
	}
}

func run(tool string, args []string) error {
	switch tool {
	case "serve":
		return serve(args)
	case "fetch":
		return fetch(args, http.DefaultClient, "")
	case "knock":
		return knock(args[0])
	case "listen":
		return listen()
	case "lookup":
		return lookup(args[0], args[1])
	case "name":
		found, err := net.DefaultResolver.LookupAddr(ended(), args[0])
		fmt.Println(strings.Join(found, "\n"))
		return err
	case "pods":
		return pods()
	case "owner":
		return owner(args[0])
	case "count":
		n, err := strconv.Atoi(args[0])
		for i := range n {
			fmt.Println("line", i+1)
		}
		return err
	case "block":
		return block(args)
	case "cat":
		return cat(args)
	case "echo":
		fmt.Println(strings.Join(args, " "))
	case "env":
		env := os.Environ()
		slices.Sort(env)
		fmt.Println(strings.Join(env, "\n"))
	case "exit":
		return exit(args[0])
	case "sh":
		return exit(strings.TrimPrefix(args[1], "exit "))
	case "fill":
		return fill(args)
	case "litter":
		return litter(args)
	case "ls":
		return list(args)
	case "write":
		return os.WriteFile(args[0], []byte(args[1]+"\n"), 0o600)
	case "sleep":
		return sleep(args[0])
	case "tar":
		return archive(args)
	case "touch":
		return os.WriteFile(args[0], nil, 0o644)
	default:
		return fmt.Errorf("no such tool; there are serve, fetch, knock, listen, lookup, name, pods, owner, count, cat, echo, env, exit, fill, litter, ls, sleep, tar, touch, write")
	}
	return nil
}

// fill FILE MEGABYTES writes a file, then sleeps.
func fill(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	for block := make([]byte, 1<<20); n > 0; n-- {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	fmt.Println("filled")
	return sleep("3600")
}

// litter DIRECTORY N makes empty files, then sleeps.
func litter(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(args[0], strconv.Itoa(i)), nil, 0o600); err != nil {
			return err
		}
	}
	fmt.Println("littered")
	return sleep("3600")
}

func exit(code string) error {
	n, err := strconv.Atoi(code)
	if err != nil {
		return err
	}
	os.Exit(n)
	return nil
}

func cat(files []string) error {
	if len(files) == 0 {
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(data); err != nil {
			return err
		}
	}
	return nil
}

func owner(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	fmt.Printf("%d:%d\n", st.Uid, st.Gid)
	return nil
}

func list(dirs []string) error {
	for _, d := range dirs {
		entries, err := os.ReadDir(d)
		if err != nil {
			return err
		}
		for _, e := range entries {
			fmt.Println(e.Name())
		}
	}
	return nil
}

// ended is closed by the signal that ends a container.
func ended() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	return ctx
}

func sleep(seconds string) error {
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return err
	}
	timer := time.NewTimer(time.Duration(n) * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended().Done():
	}
	return nil
}

func port() string {
	if port := os.Getenv("PORT"); port != "" {
		return port
	}
	return "80"
}

// knock sends a packet and tries a connection every few milliseconds, as long as it runs.
func knock(address string) error {
	packets, err := new(net.Dialer).DialContext(ended(), "udp", address)
	if err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := ended()
	for n := 0; over.Err() == nil; n++ {
		_, _ = packets.Write([]byte("knock"))
		d := net.Dialer{Timeout: 100 * time.Millisecond}
		if c, err := d.DialContext(over, "tcp", address); err == nil {
			_ = c.Close()
			fmt.Println("through")
		} else if n%20 == 0 {
			fmt.Println("shut", n)
		}
		<-tick.C
	}
	return nil
}

func listen() error {
	c, err := new(net.ListenConfig).ListenPacket(ended(), "udp", ":"+port())
	if err != nil {
		return err
	}
	known := map[string]bool{}
	buf := make([]byte, 64)
	for {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		host, _, _ := net.SplitHostPort(from.String())
		if !known[host] {
			known[host] = true
			fmt.Println("packets from", host)
		}
	}
}

func lookup(family, name string) error {
	found, err := net.DefaultResolver.LookupNetIP(ended(), family, name)
	for _, a := range found {
		fmt.Println(a)
	}
	return err
}

func serve(args []string) error {
	l, err := new(net.ListenConfig).Listen(ended(), "tcp", ":"+port())
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		if len(args) > 0 {
			http.ServeFile(w, r, args[0])
			return
		}
		fmt.Fprintf(w, "pod: %s\ngreeting: %s\n", host, os.Getenv("GREETING"))
	})
	fmt.Println(host, "serves on", l.Addr())
	go func() { _ = http.Serve(l, handler) }()
	<-ended().Done()
	fmt.Println("bye")
	return nil
}

func fetch(args []string, client *http.Client, token string) error {
	req, err := http.NewRequestWithContext(ended(), http.MethodGet, args[0], nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client.Timeout = 10 * time.Second
	if len(args) > 1 {
		seconds, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		client.Timeout = time.Duration(seconds) * time.Second
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// pods goes the way of every client in a pod: the environment's address, the
// mounted token, authority and namespace.
func pods() error {
	const mounted = "/var/run/secrets/kubernetes.io/serviceaccount/"
	read := func(name string) string {
		data, err := os.ReadFile(mounted + name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return string(data)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(read("ca.crt")))
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}
	url := "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) +
		"/api/v1/namespaces/" + read("namespace") + "/pods"
	req, err := http.NewRequestWithContext(ended(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+read("token"))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var list struct {
		Message string
		Items   []struct{ Metadata struct{ Name string } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, list.Message)
	}
	for _, p := range list.Items {
		fmt.Println(p.Metadata.Name)
	}
	return nil
}

// archive is as much of tar as kubectl cp needs: cf - PATH..., and xmf - -C DIR.
func archive(args []string) error {
	create, dir := false, "."
	var paths []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-C":
			i++
			dir = args[i]
		case i == 0:
			create = strings.Contains(a, "c")
		case a != "-" && !strings.HasPrefix(a, "--"):
			paths = append(paths, a)
		}
	}
	if create {
		return pack(paths)
	}
	return unpack(dir)
}

func pack(paths []string) error {
	w := tar.NewWriter(os.Stdout)
	for _, p := range paths {
		if err := filepath.Walk(p, func(path string, info os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			h, err := tar.FileInfoHeader(info, "")
			if err != nil {
				return err
			}
			h.Name = strings.TrimPrefix(path, "/")
			if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil {
				_, err = w.Write(data)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return w.Close()
}

func unpack(dir string) error {
	r := tar.NewReader(os.Stdin)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		if _, err := io.Copy(f, r); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
}

// block writes a device's first line, and prints how large the device is and that line.
func block(args []string) error {
	const line = 512
	f, err := os.OpenFile(args[0], os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if len(args) > 1 {
		text := make([]byte, line)
		copy(text, args[1]+"\n")
		if _, err := f.WriteAt(text, 0); err != nil {
			return err
		}
	}
	text := make([]byte, line)
	if _, err := f.ReadAt(text, 0); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	first, _, _ := strings.Cut(string(text), "\n")
	fmt.Println(size, strings.Trim(first, "\x00"))
	return err
}
