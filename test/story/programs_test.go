// SPDX-License-Identifier: Apache-2.0

package story

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// serveEtcd is an etcd server of its own: etcd DIR URL.
func serveEtcd() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s, err := etcd.Start(ctx, etcd.ServerConfig{Dir: os.Args[1], Listen: []string{os.Args[2]}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("etcd serves on", os.Args[2])
	<-ctx.Done()
	if err := s.Close(); err != nil {
		log.Fatal(err)
	}
}

// serveRegistry is an image registry on loopback that holds one image under the
// names toolbox:1, team/toolbox:1 and broken:1, and one with many files more under toolbox:bloated: registry ARCHIVE [USER PASSWORD].
func serveRegistry() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := true // to ourselves, while the image is put in
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if !open && len(os.Args) == 4 && (user != os.Args[2] || password != os.Args[3]) {
			w.Header().Set("WWW-Authenticate", `Basic realm="stories"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		fmt.Println(r.Method, r.URL.Path)
		images.ServeHTTP(w, r)
	})
	go func() { log.Fatal(http.Serve(l, guarded)) }()
	img, err := tarball.ImageFromPath(os.Args[1], nil)
	if err != nil {
		log.Fatal(err)
	}
	ref, err := name.ParseReference(l.Addr().String()+"/toolbox:1", name.Insecure)
	if err != nil {
		log.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		log.Fatal(err)
	}
	if err := remote.Write(ref.Context().Tag("bloated"), bloated(img)); err != nil {
		log.Fatal(err)
	}
	for _, other := range []string{"/team/toolbox:1", "/broken:1"} {
		same, err := name.ParseReference(l.Addr().String()+other, name.Insecure)
		if err != nil {
			log.Fatal(err)
		}
		if err := remote.Write(same, img); err != nil {
			log.Fatal(err)
		}
	}
	open = false
	fmt.Println("registry at", l.Addr())
	<-ctx.Done()
}

// bloated is an image with a layer of a thousand files that says little of its size.
func bloated(img v1.Image) v1.Image {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range 1000 {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint("many/", i), Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		log.Fatal(err)
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		log.Fatal(err)
	}
	return img
}

// clientOf is a client by a kubeconfig that sends as many requests as it likes. A program that cannot have one ends.
func clientOf(kubeconfig string) *kubernetes.Clientset {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	cfg.QPS = -1
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		log.Fatal(err)
	}
	return set
}
