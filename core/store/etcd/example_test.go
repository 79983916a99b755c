// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// A write says which revision of the key it was made of: of two that read the same, one
// is refused and begins again. A watch delivers both that succeeded, in order.
func ExampleServer_Store() {
	dir, err := os.MkdirTemp("", "etcd-example-")
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
	var s store.Store = server.Store()
	const key = "/registry/configmaps/default/prices"

	begin, err := s.Revision(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	first, err := s.Put(ctx, key, []byte("bread: 2"), 0, 0) // 0: the key must not exist
	fmt.Println("created:", err)
	_, err = s.Put(ctx, key, []byte("bread: 3"), first, 0)
	fmt.Println("changed:", err)
	_, err = s.Put(ctx, key, []byte("bread: 4"), first, 0) // somebody else was faster
	var conflict *store.ConflictError
	fmt.Println("refused:", errors.As(err, &conflict))

	watch, err := s.Watch(ctx, "/registry/configmaps/", begin)
	if err != nil {
		fmt.Println(err)
		return
	}
	for seen := 0; seen < 2; {
		for _, e := range (<-watch.Batches()).Events {
			fmt.Printf("%s, before %q\n", e.KV.Value, e.Prev.Value)
			seen++
		}
	}
	// Output:
	// created: <nil>
	// changed: <nil>
	// refused: true
	// bread: 2, before ""
	// bread: 3, before "bread: 2"
}
