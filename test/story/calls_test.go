// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// keepCalling is a program of the rolling story:
//
//	calls URL    ask a Service, by a new connection each time, until an interrupt
//
// It tries again once, at once, as clients do. It prints what came of it, and fails where a
// request failed twice.
func keepCalling() {
	if len(os.Args) != 2 {
		log.Fatal("usage: calls URL")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	fmt.Println("calling")
	var answered, retried, failed int
	var pause time.Duration
	last := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		_, err := fetch(client, os.Args[1])
		if err != nil {
			retried++
			_, err = fetch(client, os.Args[1])
		}
		if err != nil {
			failed++
			fmt.Printf("failed: %s: %v\n", time.Now().Format("15:04:05.000"), err)
		} else {
			now := time.Now()
			pause, last = max(pause, now.Sub(last)), now
			answered++
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	fmt.Printf("answered requests    %d\nretried              %d\nfailed twice         %d\nlongest pause        %s\n", answered, retried, failed,
		pause.Round(time.Millisecond))
	if failed > 0 {
		os.Exit(1)
	}
}
