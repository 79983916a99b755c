// SPDX-License-Identifier: Apache-2.0

// Command server is an ordinary server of HTTP, on the socket whose descriptor is its argument.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

func main() {
	fd, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	// Go's runtime waits for many sockets at the same time if none of them blocks it.
	if err := syscall.SetNonblock(fd, true); err != nil {
		log.Fatal(err)
	}
	l, err := net.FileListener(os.NewFile(uintptr(fd), "http"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	http.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(body)
	})
	http.HandleFunc("/after/{time}", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.PathValue("time"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		began := time.Now()
		<-time.After(d)
		fmt.Fprintln(w, time.Since(began))
	})
	http.HandleFunc("/much/{bytes}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("bytes"))
		line := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
		for ; n > 0; n -= len(line) {
			if _, err := w.Write(line[:min(n, len(line))]); err != nil {
				return
			}
		}
	})
	log.Fatal(http.Serve(l, nil))
}
