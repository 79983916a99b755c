// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

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

// listPodResources asks a node who has what, as agents of monitoring do: podresources SOCKET.
func listPodResources() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range list.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				fmt.Println(p.GetName(), c.GetName(), "has", d.GetResourceName(), d.GetDeviceIds())
			}
			for _, d := range c.GetDynamicResources() {
				fmt.Println(p.GetName(), c.GetName(), "has claim", d.GetClaimName(), d.GetClaimResources()[0].GetDeviceName())
			}
			if ids := c.GetCpuIds(); len(ids) > 0 {
				fmt.Println(p.GetName(), c.GetName(), "has CPUs", ids)
			}
		}
	}
}
