// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func states(g *Group) string {
	var out []string
	for _, s := range g.Status() {
		out = append(out, fmt.Sprintf("%s %s", s.Name, s.State))
	}
	return strings.Join(out, ", ")
}

func TestStatusFollowsUnitsThroughTheirLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		release := make(chan struct{})
		storeReady, nodeReady := make(chan struct{}), make(chan struct{})
		g.Add(Unit{Name: "store", Ready: storeReady, Run: func(ctx context.Context) error {
			time.Sleep(3 * time.Second)
			close(storeReady)
			<-ctx.Done()
			return nil
		}})
		g.Add(Unit{Name: "node", Ready: nodeReady, Run: func(ctx context.Context) error {
			close(nodeReady)
			<-ctx.Done()
			<-release
			return errors.New("half of it is left")
		}})
		want := func(expected string) {
			t.Helper()
			synctest.Wait()
			if got := states(&g); got != expected {
				t.Errorf("%s; expected %s", got, expected)
			}
		}
		want("store waiting, node waiting")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := Go("group", func() error { return g.Run(ctx, nil) })
		want("store starting, node waiting")
		time.Sleep(4 * time.Second)
		want("store ready, node ready")
		if s := g.Status(); s[0].Took != 3*time.Second || s[0].After != "" || s[1].After != "store" || time.Since(s[0].Since) != time.Second {
			t.Errorf("%+v", s)
		}
		cancel()
		want("store ready, node stopping")
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want("store stopped, node stopped")
		if s := g.Status(); s[1].Error != "half of it is left" {
			t.Errorf("%+v", s[1])
		}
	})
}

func TestStatusNamesWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		g.Add(Unit{Name: "store", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }})
		g.Add(Unit{Name: "node", Run: func(context.Context) error { time.Sleep(time.Second); return errors.New("no disk") }})
		if err := g.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "node: no disk") {
			t.Error(err)
		}
		if got := states(&g); got != "store stopped, node failed" || g.Status()[1].Error != "no disk" {
			t.Errorf("%s: %+v", got, g.Status())
		}
	})
}
