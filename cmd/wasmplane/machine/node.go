// SPDX-License-Identifier: Apache-2.0

// Package machine runs a process's parts on its machine: a node (or a number of simulated
// ones), the routes to Services, the cluster's DNS. It also removes all of them from the
// machine.
package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/version"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/apparmor"
	"github.com/wasmplane/wasmplane/core/kubelet/containerd/bounds"
	"github.com/wasmplane/wasmplane/core/kubelet/credential"
	"github.com/wasmplane/wasmplane/core/kubelet/cri"
	"github.com/wasmplane/wasmplane/core/kubelet/csi"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/dra"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/images"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/localcsi"
	"github.com/wasmplane/wasmplane/core/kubelet/localdir"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/kubelet/podfile"
	"github.com/wasmplane/wasmplane/core/kubelet/podimage"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
	"github.com/wasmplane/wasmplane/core/kubelet/podresources"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode"
	"github.com/wasmplane/wasmplane/core/kubelet/route"
	kubeletserver "github.com/wasmplane/wasmplane/core/kubelet/server"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
	"github.com/wasmplane/wasmplane/core/kubelet/swap"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/localvolume"
	"github.com/wasmplane/wasmplane/core/run"
)

// Node is this machine as a node.
type Node struct {
	component *process.Component
	serving   Serving
	addresses []netip.Addr // the first is of the cluster's own family
	mtu       int          // of pods' links, in the network that is ours
	port      atomic.Int32 // of its server; 0 = it does not listen yet

	runtime chan *realnode.Node // the embedded runtime, once it has started
	began   chan struct{}
	ready   chan struct{}
}

// NewNode is the node that c runs, whose server has a certificate from serving.
func NewNode(c *process.Component, serving ServingOf) (*Node, error) {
	addresses, err := HostAddresses(c.Options.Config)
	if err != nil {
		return nil, err
	}
	mtu := 0
	if own := c.Options.Config.Node; own.CNIConfigDir == "" && own.CRIEndpoint == "" {
		if mtu, err = route.MTU(route.Backend(own.PodNetwork.Backend), addresses[0], own.PodNetwork.MTU,
			c.Options.Config.Cluster.PodNetworks()); err != nil {
			return nil, err
		}
	}
	with, err := serving(c.Options.Config.Node.Name, addresses)
	if err != nil {
		return nil, err
	}
	return &Node{
		component: c, serving: with, addresses: addresses, mtu: mtu,
		runtime: make(chan *realnode.Node, 1), began: make(chan struct{}), ready: make(chan struct{}),
	}, nil
}

// realNodeConfig is what the node's runtime is started with, and removed by.
func realNodeConfig(o process.Options) realnode.Config {
	c := realnode.Config{
		Cluster: o.Config.Cluster.Name, Dir: o.Dir.Node(), Registries: registries(o), Log: o.Logger,
		ReservedTCPPorts: ReservedPorts(o.Config), ReservedUDPPorts: o.Config.Node.ReservedUDPHostPorts,
	}
	c.Containerd.Limits = imageLimits(o.Config.Node.Images)
	c.Containerd.Handlers = o.Config.Node.Handlers()
	c.Containerd.Checkpoints = o.Config.Node.ContainerCheckpoints
	c.Containerd.CNIConfDir = o.Config.Path(o.Config.Node.CNIConfigDir)
	if dir := o.Config.Path(o.Config.Node.CNIBinDir); dir != "" {
		c.Containerd.CNIBinDirs = []string{dir}
	}
	return c
}

func imageLimits(b config.ImageBounds) bounds.Limits {
	return bounds.Limits{LayerBytes: b.LayerBytes, LayerFiles: b.LayerFiles, ImageBytes: b.ImageBytes, ImageFiles: b.ImageFiles}
}

// ReservedPorts are ports of TCP by which the machine is reached and rescued: none of them
// goes to a pod or a Service.
func ReservedPorts(c *config.Configuration, more ...int32) []int32 {
	out := append(slices.Clone(c.Node.ReservedHostPorts), more...)
	for _, listen := range []string{c.APIServer.Listen, c.Node.KubeletListen} {
		if _, port, err := net.SplitHostPort(listen); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
				out = append(out, int32(n))
			}
		}
	}
	if c.Node.KubeletListen == "" {
		out = append(out, config.KubeletPort)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func registries(o process.Options) []images.Registry {
	var out []images.Registry
	for _, r := range o.Config.Node.Registries {
		out = append(out, images.Registry{
			Host: r.Host, Mirrors: r.Mirrors, PlainHTTP: r.PlainHTTP, SkipVerify: r.SkipVerify,
			CAFile: o.Config.Path(r.CAFile),
		})
	}
	return out
}

// RunRuntime runs the embedded containerd. It stays when this process ends.
func (n *Node) RunRuntime(ctx context.Context) error {
	with := realNodeConfig(n.component.Options)
	with.MTU = n.mtu
	rt, err := realnode.Start(ctx, with)
	if err != nil {
		return err
	}
	defer rt.Close()
	if rt.Adopted() {
		n.component.Options.Inform("containerd ran already; its pods go on")
	}
	n.importImages(ctx, rt)
	n.runtime <- rt
	close(n.began)
	return rt.Run(ctx)
}

// Run is the kubelet over the runtime.
func (n *Node) Run(ctx context.Context) error {
	var eng engine.Engine
	names := linuxhost.NamesOf(n.component.Options.Config.Cluster.Name)
	var rt *realnode.Node
	if endpoint := n.component.Options.Config.Node.CRIEndpoint; endpoint != "" {
		external, err := cri.New(cri.Config{Endpoint: endpoint})
		if err != nil {
			return err
		}
		defer func() { _ = external.Close() }()
		eng = external
	} else {
		select {
		case rt = <-n.runtime:
			eng = rt.Engine()
		case <-ctx.Done():
			return nil
		}
	}
	return n.serve(ctx, eng, rt, names)
}

// serve builds the kubelet and runs it with everything around it.
func (n *Node) serve(ctx context.Context, eng engine.Engine, rt *realnode.Node, names linuxhost.Names) error {
	set, err := client.New(n.component.Config)
	if err != nil {
		return err
	}
	c := n.component.Options.Config
	system, err := reservedBy(c)
	if err != nil {
		return err
	}
	var state string
	if rt != nil {
		state = filepath.Dir(rt.Socket())
	}
	g, err := linuxhost.New(linuxhost.Config{
		StateDir: state, NodeName: c.Node.Name, RootDir: kubeletRoot(n.component.Options), LogRoot: c.Node.LogDir, LinkRoot: c.Node.LogLinkDir,
		Reserve: system.settings(c), CgroupRoot: names.PodsCgroup(), NodeIPs: texts(n.addresses), MaxPods: c.Node.MaxPods, PodPIDs: c.PodPIDs(),
		Evict: c.Node.Eviction(), Swap: swap.Config{Behavior: c.Node.MemorySwap.SwapBehavior, Fail: c.Node.FailSwapOn},
		HideLogs: !c.Node.EnableSystemLogHandler, LogQueries: c.Node.EnableSystemLogQuery, Checkpoints: c.Node.ContainerCheckpoints,
		Version: version.Get().GitVersion, Logger: n.component.Options.Logger,
	})
	if err != nil {
		return err
	}
	held := objects.New(set.Kube, n.component.Options.Logger)
	if err := linkKubelet(c.Node.KubeletLink, kubeletRoot(n.component.Options)); err != nil {
		return err
	}
	drivers, err := csi.New(csi.Config{
		NodeName: c.Node.Name, RootDir: kubeletRoot(n.component.Options), SeenAs: c.Node.KubeletLink, Client: set.Kube,
		Logger: n.component.Options.Logger,
	})
	if err != nil {
		return err
	}
	refresh := make(chan struct{}, 1)
	devices, err := deviceplugin.New(deviceplugin.Config{
		RootDir: kubeletRoot(n.component.Options), Logger: n.component.Options.Logger, Changed: func() {
			select {
			case refresh <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	claimed, err := dra.New(dra.Config{
		NodeName: c.Node.Name, RootDir: kubeletRoot(n.component.Options), Client: set.Kube,
		Logger: n.component.Options.Logger,
	})
	if err != nil {
		return err
	}
	plugins, err := pluginwatch.New(pluginwatch.Config{
		RootDir: kubeletRoot(n.component.Options), Logger: n.component.Options.Logger,
		Handlers: map[string]pluginwatch.Handler{
			registration.CSIPlugin: drivers, registration.DevicePlugin: devices,
			registration.DRAPlugin: claimed,
		},
	})
	if err != nil {
		return err
	}
	volumes, err := volume.New(volume.Config{
		RootDir: kubeletRoot(n.component.Options), Client: set.Kube, Objects: held, Allocatable: allocatable(ctx, g),
		Logger: n.component.Options.Logger,
		Local:  localVolumes(n.component.Options), NodeName: c.Node.Name, Plugins: []volume.Plugin{drivers},
	})
	if err != nil {
		return err
	}
	disk, err := localcsi.New(localcsi.Config{
		Name: localvolume.Provisioner, Root: localDisk(n.component.Options),
		Node: localvolume.LabelOf(c.Node.Name), TopologyKey: localvolume.NodeLabel,
		Socket:   filepath.Join(kubeletRoot(n.component.Options), "plugins", localvolume.Provisioner, "csi.sock"),
		Registry: filepath.Join(kubeletRoot(n.component.Options), pluginwatch.Directory),
		Version:  version.Get().GitVersion, Logger: n.component.Options.Logger,
	})
	if err != nil {
		return err
	}
	keeper, err := localdir.New(localdir.Config{
		NodeName: c.Node.Name, Root: localVolumes(n.component.Options), Driver: disk, Client: set.Kube,
		Offer: c.Node.LocalVolumes, Logger: n.component.Options.Logger,
	})
	if err != nil {
		return err
	}
	held.Changed(volumes.Changed)
	measured := podmetrics.New()
	door, err := n.door(ctx, set.Kube, prometheus.Gatherers{measured.Gatherer(), volumes.Metrics(), drivers.Metrics(), ofProcess}, rt != nil)
	if err != nil {
		return err
	}
	n.port.Store(door.Port())
	eng, policies, err := n.policies(set, eng, names, rt != nil)
	if err != nil {
		return err
	}
	pods, err := staticPods(n.component.Options)
	if err != nil {
		return err
	}
	asked, err := credentials(n.component.Options, set.Kube)
	if err != nil {
		return err
	}
	pins, err := n.pinning(devices, eng, system)
	if err != nil {
		return err
	}
	down, err := shutdowns(n.component.Options)
	if err != nil {
		return err
	}
	k, err := kubelet.New(kubelet.Config{
		NodeName: c.Node.Name, Client: set.Kube, Engine: eng, Host: g, Volumes: dra.Supplied{Manager: volumes, Claims: claimed},
		Handler: probe.NewHandler(eng),
		Admitters: append([]kubelet.Admitter{
			down, apparmor.Admitter{Enabled: hostcheck.Discover().AppArmor},
		}, n.component.Plugins.NodeAdmitters()...),
		Objects: held, Static: pods, Credentials: asked,
		Devices:          dra.Equipped{Devices: pins, Claims: claimed},
		Health:           []kubelet.DeviceHealth{claimed, devices},
		Metrics:          measured,
		Node:             node.Config{Labels: c.Node.Labels, Port: door.Port(), Fresh: devices.Fresh(), Unwell: down.Unwell},
		ReservedTCPPorts: ReservedPorts(c, door.Port()), ReservedUDPPorts: c.Node.ReservedUDPHostPorts,
		ClusterDNS: texts(DNSAddresses(c)[:1]), ClusterDomain: c.Cluster.Domain, HostResolv: spec.ReadResolv("/etc/resolv.conf"),
		SeccompRoot:       filepath.Join(kubeletRoot(n.component.Options), "seccomp"),
		ParallelSandboxes: max(8, 4*goruntime.GOMAXPROCS(0)),
		Images:            imagesKept(c.Node), Logger: n.component.Options.Logger, Tracer: n.component.Tracer,
	})
	if err != nil {
		return err
	}
	defer door.Add(metered{k, volumes})()
	follow := func(ctx context.Context) error { return refreshed(ctx, refresh, k.Refresh) }
	listed := func(ctx context.Context) error {
		lister := &podresources.Server{Pods: k, Devices: devices, Pins: pins, Claims: claimed}
		return lister.Run(ctx, kubeletRoot(n.component.Options))
	}
	parts := []func(context.Context) error{
		k.Run, held.Run, volumes.Run, drivers.Run, devices.Run, pins.Run, claimed.Run, plugins.Run, listed, disk.Run,
		keeper.Run, door.Run, n.signal(k), policies, follow, n.healthz, n.oomEvents(k),
		func(ctx context.Context) error { return watchOver(ctx, down, k) },
	}
	if n.serving.Renew != nil {
		parts = append(parts, n.serving.Renew)
	}
	if rt != nil {
		parts = append(parts, n.routes(set.Kube), func(ctx context.Context) error { return n.setNetwork(ctx, set.Kube, rt, k) })
	}
	return run.Parallel(parts...)(ctx)
}

// imagesKept says when images go that nothing uses.
func imagesKept(c config.Node) pull.Limits {
	return pull.Limits{
		High: c.ImageGCHighThresholdPercent, Low: c.ImageGCLowThresholdPercent,
		MinAge: time.Duration(c.ImageMinimumGCAge), MaxAge: time.Duration(c.ImageMaximumGCAge),
	}
}

// staticPods are those of the node's folder; nil where it has none.
func staticPods(o process.Options) (kubelet.StaticPods, error) {
	dir := o.Config.Path(o.Config.Node.StaticPodPath)
	if dir == "" {
		return nil, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("node.staticPodPath: %w", err)
	}
	folder, err := static.New(static.Config{Dir: dir, NodeName: o.Config.Node.Name, Parse: podfile.Pod, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("node.staticPodPath: %w", err)
	}
	return folder, nil
}

// credentials are those of the node's providers; nil where it has none.
func credentials(o process.Options, kube kubernetes.Interface) (podimage.Credentials, error) {
	file, dir := o.Config.Path(o.Config.Node.ImageCredentialProviderConfig), o.Config.Path(o.Config.Node.ImageCredentialProviderBinDir)
	if file == "" {
		return nil, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("node.imageCredentialProviderBinDir: %w", err)
	}
	providers, err := credential.Read(file, dir)
	if err != nil {
		return nil, fmt.Errorf("node.imageCredentialProviderConfig: %w", err)
	}
	return credential.New(credential.Config{Providers: providers, BinDir: dir, Client: kube, Logger: o.Logger}), nil
}

// refreshed calls refresh for each sign until ctx ends.
func refreshed(ctx context.Context, signs <-chan struct{}, refresh func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signs:
			refresh()
		}
	}
}

// metered is the kubelet as its server sees it, with how full the pods' volumes are.
type metered struct {
	*kubelet.Kubelet
	volumes *volume.Manager
}

// VolumeUsage implements the server's VolumeMeter.
func (m metered) VolumeUsage(ctx context.Context, uid types.UID) []volume.Measured {
	return m.volumes.Measure(ctx, uid)
}

// routes lead to the pods of other machines, in the network that is ours.
func (n *Node) routes(kube kubernetes.Interface) func(context.Context) error {
	c := n.component.Options.Config
	return func(ctx context.Context) error {
		pods, err := config.ParseNetworks(c.Cluster.PodCIDR)
		if err != nil {
			return fmt.Errorf("cluster.podCIDR: %w", err)
		}
		if c.Node.CNIConfigDir != "" {
			<-ctx.Done()
			return nil
		}
		return route.Keep(ctx, route.Config{
			Client: kube, Node: c.Node.Name, Cluster: pods, Names: linuxhost.NamesOf(c.Cluster.Name),
			Backend: route.Backend(c.Node.PodNetwork.Backend), MTU: n.mtu, Log: n.component.Options.Logger,
		})
	}
}

func kubeletRoot(o process.Options) string { return filepath.Join(o.Dir.Node(), "kubelet") }

// localDisk has the volumes of the node's CSI driver.
func localDisk(o process.Options) string { return filepath.Join(o.Dir.Node(), "disk") }

// localVolumes has the directories of kind local, which nodes made before they had the driver.
func localVolumes(o process.Options) string { return filepath.Join(o.Dir.Node(), "volumes") }

func (n *Node) signal(k *kubelet.Kubelet) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-k.Ready():
			close(n.ready)
			<-ctx.Done()
		case <-ctx.Done():
		}
		return nil
	}
}

func allocatable(ctx context.Context, g *linuxhost.Host) func() corev1.ResourceList {
	return func() corev1.ResourceList {
		facts, err := g.Facts(ctx)
		if err != nil {
			return nil
		}
		return facts.Allocatable
	}
}

// door is the kubelet's server. Who may enter is asked of the API.
func (n *Node) door(ctx context.Context, kube kubernetes.Interface, measured prometheus.Gatherer, own bool) (*kubeletserver.Server, error) {
	image := ""
	if own { // another engine does not say which image its sandboxes have
		image = images.PauseImage
	}
	authenticate, authorize, err := kubeletserver.Delegate(kube, n.serving.Roots)
	if err != nil {
		return nil, err
	}
	listener, err := listenKubelet(ctx, n.component.Options.Config)
	if err != nil {
		return nil, err
	}
	return kubeletserver.New(kubeletserver.Config{
		Listener: listener, TLS: n.serving.TLS, Authenticator: authenticate, Authorizer: authorize, Logger: n.component.Options.Logger,
		Metrics: measured, SandboxImage: image, Flags: n.component.Options.Flags,
	})
}

// ofProcess are the metrics of the process and of its clients, which upstream's kubelet has beside its own. Others of the
// default registry are of parts that share the process.
var ofProcess = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather() // what could be read, though another could not
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
		return !slices.ContainsFunc([]string{"go_", "process_", "rest_client_", "kubernetes_build_info"}, func(prefix string) bool {
			return strings.HasPrefix(f.GetName(), prefix)
		})
	}), err
})

func listenKubelet(ctx context.Context, c *config.Configuration) (net.Listener, error) {
	var lc net.ListenConfig
	if c.Node.KubeletListen == "" {
		l, err := lc.Listen(ctx, "tcp", fmt.Sprintf(":%d", config.KubeletPort))
		if errors.Is(err, syscall.EADDRINUSE) { // another cluster has a node on the machine
			l, err = lc.Listen(ctx, "tcp", ":0")
		}
		return l, err
	}
	l, err := lc.Listen(ctx, "tcp", c.Node.KubeletListen)
	if err != nil {
		return nil, fmt.Errorf("node.kubeletListen: %w%s; choose another port, or 0 for any", err, takenBy(c.Node.KubeletListen))
	}
	return l, nil
}

// takenBy says which process has the port of an address, where one has.
func takenBy(address string) string {
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.Atoi(text)
	if err != nil {
		return ""
	}
	if who := holder(port); who != "" {
		return "; " + who + " listens at that port: stop it if it is another kubelet"
	}
	return ""
}

// setNetwork sets the pod network up once the node has its range, and has the node
// say that it is ready as soon as the runtime has noticed.
func (n *Node) setNetwork(ctx context.Context, kube kubernetes.Interface, rt *realnode.Node, k *kubelet.Kubelet) error {
	cluster, err := config.ParseNetworks(n.component.Options.Config.Cluster.PodCIDR)
	if err != nil {
		return fmt.Errorf("cluster.podCIDR: %w", err)
	}
	return followPodCIDRs(ctx, kube, n.component.Options.Config.Node.Name, func(ctx context.Context, own []netip.Prefix) error {
		if err := rt.SetPodCIDRs(ctx, own, cluster); err != nil {
			return fmt.Errorf("set up the pod network: %w", err)
		}
		const attempts = 9 // some 3 s
		look := run.Backoff{First: 5 * time.Millisecond, Longest: 2 * time.Second}
		for n := 0; rt.Engine().Ready(ctx) != nil && n < attempts; n++ {
			if !look.Wait(ctx) {
				return nil
			}
		}
		k.Refresh()
		return nil
	})
}

// ownNode has informers that see one node alone, as is a node's right.
func ownNode(kube kubernetes.Interface, name string) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}))
}

// followPodCIDRs calls set with the node's pod ranges, once it has some, and again when it
// has others: those of a node never change, but it may have been deleted and made anew. set
// works until its context ends.
func followPodCIDRs(ctx context.Context, kube kubernetes.Interface, name string, set func(context.Context, []netip.Prefix) error) error {
	inf := ownNode(kube, name)
	ranges := make(chan []string, 1)
	var last []string // of the informer's goroutine alone
	tell := func(o any) {
		node, ok := o.(*corev1.Node)
		if !ok {
			return
		}
		has := podCIDRs(node)
		if len(has) == 0 || slices.Equal(has, last) {
			return
		}
		last = has
		select {
		case <-ranges: // nobody has taken the older ones
		default:
		}
		ranges <- has
	}
	if _, err := inf.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, o any) { tell(o) },
	}); err != nil {
		return fmt.Errorf("watch node %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer inf.Shutdown()
	defer cancel()
	inf.Start(ctx.Done())
	var own []string
	select {
	case <-ctx.Done():
		return nil
	case own = <-ranges:
	}
	for own != nil {
		var err error
		if own, err = during(ctx, name, own, ranges, set); err != nil {
			return err
		}
	}
	return nil
}

// during has set work with ranges until there are others, which it returns; none where ctx has ended.
func during(ctx context.Context, name string, own []string, ranges <-chan []string,
	set func(context.Context, []netip.Prefix) error,
) ([]string, error) {
	parsed, err := config.ParseNetworks(strings.Join(own, ","))
	if err != nil {
		return nil, fmt.Errorf("spec.podCIDRs of node %s: %w", name, err)
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	done := run.Go("the pod ranges of node "+name, func() error { return set(working, parsed) })
	select {
	case <-ctx.Done():
		return nil, <-done
	case next := <-ranges:
		stop()
		return next, <-done
	case err := <-done:
		if err != nil {
			return nil, err
		}
	}
	select { // it was done at once
	case <-ctx.Done():
		return nil, nil
	case next := <-ranges:
		return next, nil
	}
}

func podCIDRs(node *corev1.Node) []string {
	if len(node.Spec.PodCIDRs) == 0 && node.Spec.PodCIDR != "" {
		return []string{node.Spec.PodCIDR}
	}
	return node.Spec.PodCIDRs
}

func texts(list []netip.Addr) (out []string) {
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}

// DNSAddresses are the tenth of each of the Services' networks, as everywhere.
func DNSAddresses(c *config.Configuration) (out []netip.Addr) {
	for _, p := range c.Cluster.ServiceNetworks() {
		a := p.Addr()
		for range 10 {
			a = a.Next()
		}
		out = append(out, a)
	}
	return out
}

// Ready is closed when the kubelet follows the API.
func (n *Node) Ready() <-chan struct{} { return n.ready }
