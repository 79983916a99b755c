// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// A client lists, and watches from the revision of its list: it misses nothing and sees nothing twice. A selector is
// applied to both states of a change, so that an object that stops matching is Deleted for this watcher.
func ExampleResource_Watch() {
	dir, err := os.MkdirTemp("", "watchcache-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, err := etcd.Start(ctx, etcd.ServerConfig{Dir: dir, NoFsync: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	cache, err := watchcache.New(watchcache.Config{Store: server.Store()})
	if err != nil {
		fmt.Println(err)
		return
	}
	things, err := cache.Register("/registry/things/", decode) // decode reads JSON
	if err != nil {
		fmt.Println(err)
		return
	}
	var running sync.WaitGroup
	running.Go(func() { _ = cache.Run(ctx) })
	defer running.Wait()
	defer cancel()

	// Whoever writes to the store is seen: the cache has no way in of its own.
	put := func(color string, expect int64) int64 {
		revision, err := server.Store().Put(ctx, "/registry/things/shop/bread", value("bread", color, ""), expect, 0)
		if err != nil {
			fmt.Println(err)
		}
		return revision
	}
	written := put("red", 0)
	if err := cache.WaitFor(ctx, written); err != nil {
		fmt.Println(err)
		return
	}
	list := things.List(watchcache.ListOptions{Prefix: "/registry/things/shop/", Match: red})
	fmt.Println("listed:", len(list.Items), "as of the write:", list.Revision == written)

	watcher, err := things.Watch(ctx, watchcache.WatchOptions{From: list.Revision, Match: red})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer watcher.Stop()
	put("blue", written)
	for seen := false; !seen; {
		events, err := watcher.Next(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, e := range events {
			fmt.Println("no longer red:", e.Type == watchcache.Deleted, "last seen as", color(e.Item))
			seen = true
		}
	}
	// Output:
	// listed: 1 as of the write: true
	// no longer red: true last seen as red
}
