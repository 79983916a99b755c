// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"fmt"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// A registry is asked for verbs, with the bodies that clients sent. An update names the version that it was made of, and is
// refused where another came first; a patch names none, and is applied to what the other left.
func ExampleRegistry() {
	dir, err := os.MkdirTemp("", "registry-example-")
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
	contract, err := api.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	cache, err := watchcache.New(watchcache.Config{Store: server.Store()})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The world of the tests lets everybody do everything, has room, and no plugins.
	w := &world{allow: func(authz.Attributes) bool { return true }}
	set, err := registry.New(registry.Config{
		Contract: contract, Store: server.Store(), Cache: cache, Admission: &w.plugins, Authorizer: w, Space: w,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var running sync.WaitGroup
	running.Go(func() { _ = cache.Run(ctx) })
	defer running.Wait()
	defer cancel()
	<-cache.Ready()

	maps, _ := set.For(schema.GroupResource{Resource: "configmaps"})
	created, err := maps.Create(ctx, request("shop", "", `{"metadata":{"name":"prices"},"data":{"bread":"2"}}`, &metav1.CreateOptions{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	meta, err := created.Object.Meta()
	if err != nil {
		fmt.Println(err)
		return
	}
	update := fmt.Sprintf(`{"metadata":{"name":"prices","resourceVersion":%q},"data":{"bread":"3"}}`, meta.GetResourceVersion())
	_, err = maps.Update(ctx, request("shop", "prices", update, &metav1.UpdateOptions{}))
	fmt.Println("the first update:", err)
	_, err = maps.Update(ctx, request("shop", "prices", update, &metav1.UpdateOptions{}))
	fmt.Println("another of the same version conflicts:", apierrors.IsConflict(err))
	patched, err := maps.Patch(ctx, patch("shop", "prices", types.MergePatchType, `{"data":{"milk":"1"}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	prices, err := patched.Object.Versioned()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(prices.(*corev1.ConfigMap).Data)
	// Output:
	// the first update: <nil>
	// another of the same version conflicts: true
	// map[bread:3 milk:1]
}
