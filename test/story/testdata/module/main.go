// SPDX-License-Identifier: Apache-2.0

// Command module is the WebAssembly module of the stories' containers. Its first argument says what it does.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	args := append(os.Args, "", "", "")
	if err := do(args[1], args[2], args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func do(what, a, b string) error {
	switch what {
	case "": // says what it was given
		fmt.Println("arguments:", strings.Join(os.Args, " "))
		fmt.Println("greeting:", os.Getenv("GREETING"))
		fmt.Fprintln(os.Stderr, "to standard error")
	case "exit":
		code, err := strconv.Atoi(a)
		if err != nil {
			return err
		}
		os.Exit(code)
	case "loop":
		fmt.Println("computing")
		for n := uint64(1); n != 0; n += 2 {
		}
	case "wait":
		fmt.Println("waiting")
		time.Sleep(time.Hour)
	case "grow":
		return grow()
	case "panic":
		var p *int
		fmt.Println(*p)
	case "read":
		text, err := os.ReadFile(a)
		fmt.Println(string(text))
		return err
	case "write":
		if err := os.WriteFile(a, []byte(b), 0o644); err != nil {
			return err
		}
		return do("read", a, "")
	case "refused": // a file that cannot be written
		err := os.WriteFile(a, []byte(b), 0o644)
		if err == nil {
			return errors.New("it was written")
		}
		fmt.Println(err)
	case "escape":
		return escape()
	case "serve":
		return serve(a)
	default:
		return errors.New("unknown: " + what)
	}
	return nil
}

// grow takes memory until there is no more.
func grow() error {
	var all [][]byte
	for {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		all = append(all, b)
		fmt.Println("MiB:", len(all))
	}
}

// escape tries what a module must not reach.
func escape() error {
	for _, file := range []string{"/proc/self/mem", "/proc/self/root/etc/passwd", "/sys/kernel/notes", "/dev/zero", "/dev/null", "../../proc/version"} {
		if f, err := os.Open(file); err == nil {
			f.Close()
			return errors.New("opened " + file)
		}
	}
	if err := os.Symlink("/proc", "/link"); err == nil {
		if _, err := os.ReadFile("/link/version"); err == nil {
			return errors.New("read through a link")
		}
	}
	if c, err := net.DialTimeout("tcp", "10.96.0.1:443", time.Second); err == nil {
		c.Close()
		return errors.New("dialled")
	}
	fmt.Println("nothing escapes")
	return nil
}

// serve answers requests on the socket of the port with a name, as WASMPLANE_LISTEN says.
func serve(name string) error {
	for entry := range strings.SplitSeq(os.Getenv("WASMPLANE_LISTEN"), ",") {
		port, fd, _ := strings.Cut(entry, "=")
		if port != name {
			continue
		}
		n, err := strconv.Atoi(fd)
		if err != nil {
			return err
		}
		l, err := net.FileListener(os.NewFile(uintptr(n), name))
		if err != nil {
			return err
		}
		fmt.Println("serving", name)
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			answer(c)
		}
	}
	return errors.New("no socket of that name: " + os.Getenv("WASMPLANE_LISTEN"))
}

// answer reads a request of HTTP and says its first line.
func answer(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	first, err := r.ReadString('\n')
	if err != nil {
		return
	}
	for line := first; strings.TrimSpace(line) != ""; {
		if line, err = r.ReadString('\n'); err != nil {
			return
		}
	}
	first = strings.TrimSpace(first)
	fmt.Println(first)
	body := "a module answers " + first + "\n"
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
}
