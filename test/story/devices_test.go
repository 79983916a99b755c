// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/core/kubelet/dra/dratest"
)

// serveDevices is a driver of devices: devices KUBELET NODE KUBECONFIG DEVICE...
func serveDevices() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	err = dratest.Serve(ctx, dratest.Config{
		Name: "gpu.example.com", Kubelet: os.Args[1], Node: os.Args[2], CDI: "/var/run/cdi", Devices: os.Args[4:],
		Client: kubernetes.NewForConfigOrDie(config),
	}, os.Stdout)
	if err != nil {
		log.Fatal(err)
	}
}
