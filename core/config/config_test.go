// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const head = "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\n"

func TestWrongDocumentsNameFileLineFieldAndExpectation(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"empty", "", "c.yaml: the document is empty"},
		{"other kind", "apiVersion: v1\nkind: Pod\n", `c.yaml:1: expected apiVersion: wasmplane.dev/v1alpha1 and kind: Configuration, found "v1" and "Pod"`},
		{"unknown field", head + "node:\n  mod: real\n", "c.yaml:4: node.mod: unknown field; known here: CRI"},
		{"wrong type", head + "node:\n  maxPods: many\n", `c.yaml:4: node.maxPods: expected a whole number, found "many"`},
		{"wrong duration", head + "apiserver:\n  eventTTL: 5\n", `c.yaml:4: apiserver.eventTTL: expected a duration such as 30s or 5m, found "5"`},
		{"wrong duration in a map", head + "node:\n  evictionSoftGracePeriod: {memory.available: 90}\n", `c.yaml:4: node.evictionSoftGracePeriod: expected a duration such as 30s or 5m, found "90"`},
		{"list expected", head + "store:\n  endpoints: http://x\n", `c.yaml:4: store.endpoints: expected a list, found "http://x"`},
		{"node mode", head + "node:\n  mode: simulated\n", `c.yaml:4: node.mode: expected real, simulated:N or none, found "simulated"`},
		{"many simulated nodes", head + "node:\n  mode: 'simulated:20001'\n", "c.yaml:4: node.mode: expected simulated:N with N from 1 to 20000, found \"simulated:20001\""},
		{"no simulated nodes", head + "node:\n  mode: 'simulated:0'\n", "c.yaml:4: node.mode: expected simulated:N with N from 1"},
		{"twice", head + "cluster: {}\ncluster: {}\n", "cluster"},
		{"nested list", head + "node:\n  registries:\n  - host: a\n    mirror: b\n", "c.yaml:6: node.registries[0].mirror: unknown field"},
		{"two documents", head + "---\n" + head, "c.yaml: expected one document, found several"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load("c.yaml", []byte(c.doc))
			want := strings.ReplaceAll(c.want, "known here: CRI", "known here: ")
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("error %v, want one with %q", err, want)
			}
		})
	}
}

func TestCompleteRefusesValuesThatCannotWork(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{"profile: hard", `c.yaml:3: profile: expected hardened, or nothing, found "hard"`},
		{"node: {podPidsLimit: 8}", "c.yaml:3: node.podPidsLimit: expected at least 32 (a runtime in a container takes as many), or -1 for no bound, found 8"},
		{"featureGates: {GenericWorklod: true}", `featureGates.GenericWorklod: expected one of [DRAPartitionableDevicesType `},
		{"featureGates: {TopologyAwareWorkloadScheduling: true}", "featureGates.TopologyAwareWorkloadScheduling: it needs GenericWorkload"},
		{
			"featureGates: {DRAPartitionableDevicesType: true, GenericWorkload: true}",
			"featureGates.DRAPartitionableDevicesType: it needs DRAResourcePoolStatus",
		},
		{"cluster: {name: Bad_Name}", "c.yaml:3: cluster.name: expected 1 to 24"},
		{"cluster: {podCIDR: 10.0.0.0/8, serviceCIDR: 10.96.0.0/16}", "cluster.serviceCIDR: 10.96.0.0/16 overlaps cluster.podCIDR"},
		{"cluster: {ipFamilies: [IPv5]}", `c.yaml:3: cluster.ipFamilies[0]: expected IPv4 or IPv6, each once, found "IPv5"`},
		{"cluster: {ipFamilies: [IPv6, IPv6]}", "cluster.ipFamilies[1]: expected IPv4 or IPv6, each once"},
		{"cluster: {ipFamilies: [IPv4, IPv6], podCIDR: 10.244.0.0/16}", "cluster.ipFamilies: these are [IPv4 IPv6], and the networks of cluster.podCIDR are of [IPv4]"},
		{"cluster: {podCIDR: 10.0.0.0/25}", "cluster.podCIDR: a node's part is a /24 (cluster.nodeCIDRMaskSize), and 10.0.0.0/25 is smaller"},
		{"cluster: {podCIDR: 10.0.0.300/16}", `cluster.podCIDR: expected a network such as 10.244.0.0/16 or fd00:10:244::/56, found "10.0.0.300/16"`},
		{"cluster: {podCIDR: '10.0.0.0/16,10.1.0.0/16'}", "cluster.podCIDR: expected one network, or one of each IP family"},
		{"cluster: {podCIDR: '10.0.0.0/16,fd00:1::/56,fd00:2::/56'}", "cluster.podCIDR: expected one network, or one of each IP family"},
		{"cluster: {podCIDR: '10.0.0.0/16,'}", "cluster.podCIDR: expected a network such as"},
		{"cluster: {podCIDR: '::ffff:10.0.0.0/112'}", "cluster.podCIDR: expected a network such as"},
		{"cluster: {podCIDR: 'fe80::/56'}", "cluster.podCIDR: fe80::/56 is no network that hosts can have"},
		{"cluster: {podCIDR: 'fd00:1::/80'}", "cluster.podCIDR: a node's part is a /64 (cluster.nodeCIDRMaskSizeIPv6), and fd00:1::/80 is smaller than that: take a larger network such as fd00:10:244::/56"},
		{"cluster: {podCIDR: 'fd00:1::/32'}", "cluster.nodeCIDRMaskSizeIPv6: fd00:1::/32 has more than 65536 networks of /64"},
		{"cluster: {podCIDR: 'fd00:1::/112', nodeCIDRMaskSizeIPv6: 122}", "cluster.nodeCIDRMaskSizeIPv6: expected a prefix length from 16 to 120, found 122"},
		{"cluster: {podCIDR: 'fd00:1::/112', nodeCIDRMaskSizeIPv6: 120}\nnode: {maxPods: 300}", "cluster.nodeCIDRMaskSizeIPv6: a node's /120 has room for 253 pods, and node.maxPods is 300"},
		{"cluster: {serviceCIDR: 'fd00:2::/112'}", "c.yaml:3: cluster.serviceCIDR: fd00:2::/112 is of IPv6, and pods (cluster.podCIDR 10.244.0.0/16) have no addresses of that family, so that no Service could lead to one: add such a network there, for example 10.244.0.0/16,fd00:10:244::/56"},
		{"cluster: {podCIDR: 'fd00:1::/56', serviceCIDR: 'fd00:1:0:7::/112'}", "cluster.serviceCIDR: fd00:1:0:7::/112 overlaps cluster.podCIDR fd00:1::/56"},
		{"cluster: {podCIDR: 'fd00:1::/56', serviceCIDR: 'fd00:2::/48'}", "cluster.serviceCIDR: expected an IPv6 network from /64 to /124"},
		{"node: {address: 'fe80::1'}", "node.address: expected an address that all nodes reach; fe80::1 belongs to one link"},
		{"node: {address: '192.0.2.1,192.0.2.2'}", "node.address: expected one address, or one of each IP family"},
		{"node: {address: host}", `node.address: expected an address such as 192.0.2.7 or fd00::7, found "host"`},
		{"node: {address: 10.244.1.1}", "node.address: 10.244.1.1 lies in the cluster's own network 10.244.0.0/16"},
		{"apiserver: {podRoute: node}", `c.yaml:3: apiserver.podRoute: expected direct, kubelet or nothing, found "node"`},
		{"apiserver: {virtualAddress: api}", `c.yaml:3: apiserver.virtualAddress: expected an address such as 192.0.2.7 or fd00::7, found "api"`},
		{"apiserver: {virtualAddress: 10.244.1.1}", "apiserver.virtualAddress: 10.244.1.1 lies in the cluster's own network 10.244.0.0/16"},
		{"apiserver: {virtualAddress: 10.96.0.7}", "apiserver.virtualAddress: 10.96.0.7 lies in the cluster's own network 10.96.0.0/16"},
		{"apiserver: {virtualAddress: 127.0.0.7}", "apiserver.virtualAddress: 127.0.0.7 is reached on one machine alone"},
		{"apiserver: {virtualAddress: '192.0.2.7,192.0.2.8'}", "apiserver.virtualAddress: expected one address, or one of each IP family"},
		{"apiserver: {virtualAddress: 192.0.2.7}\nnode: {address: 192.0.2.7}", "apiserver.virtualAddress: 192.0.2.7 is this machine's own address (node.address)"},
		{"cluster: {podCIDR: 'fd00:1::/56'}\nnode: {podNetwork: {mtu: 1200}}", "node.podNetwork.mtu: expected at least 1280"},
		{"cluster: {nodeCIDRMaskSize: 31}", "cluster.nodeCIDRMaskSize: expected a prefix length from 8 to 30, found 31"},
		{"cluster: {nodeCIDRMaskSize: 26}", "cluster.nodeCIDRMaskSize: a node's /26 has room for 61 pods, and node.maxPods is 110"},
		{"apiserver: {tokenWebhook: {version: v2}}", `apiserver.tokenWebhook.version: expected v1 or v1beta1, found "v2"`},
		{"apiserver: {tokenWebhook: {timeout: 5s}}", "apiserver.tokenWebhook.configFile: name the kubeconfig"},
		{"apiserver: {listen: localhost}", `apiserver.listen: expected HOST:PORT, found "localhost"`},
		{"store: {certFile: a}", "store.certFile: certFile and keyFile belong together"},
		{"leaderElection: {leaseDuration: 2s}", "leaderElection.leaseDuration: expected whole seconds from 3s to 5m0s, found 2s"},
		{"leaderElection: {leaseDuration: 1h}", "leaderElection.leaseDuration: expected whole seconds"},
		{"leaderElection: {quickLeaseDuration: 20s}", "leaderElection.quickLeaseDuration: expected whole seconds from 3s to leaseDuration, 15s, found 20s"},
		{"leaderElection: {quickLeaseDuration: 5500ms}", "leaderElection.quickLeaseDuration: expected whole seconds"},
		{"leaderElection: {leaseDuration: 3s}", "leaderElection.quickLeaseDuration: expected whole seconds from 3s to leaseDuration, 3s, found 4s"},
		{"scheduler: {profiles: [{name: a}, {name: a}]}", "c.yaml:3: scheduler.profiles[1].name"},
		{"scheduler: {topologySpread: {defaultingType: Lists}}", `scheduler.topologySpread.defaultingType: expected System or List, found "Lists"`},
		{"scheduler: {topologySpread: {defaultConstraints: [{maxSkew: 1}]}}", "scheduler.topologySpread.defaultConstraints: these need defaultingType: List"},
		{"scheduler: {topologySpread: {defaultingType: List, defaultConstraints: [{topologyKey: a}]}}", "defaultConstraints[0].maxSkew: expected at least 1, found 0"},
		{"scheduler: {topologySpread: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a b, whenUnsatisfiable: DoNotSchedule}]}}", "topologyKey: expected the name of a label"},
		{"scheduler:\n  profiles:\n  - name: a\n    topologySpread: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: never}]}", "c.yaml:6: scheduler.profiles[0].topologySpread.defaultConstraints[0].whenUnsatisfiable: expected"},
		{"scheduler: {serving: {listen: '10259'}}", `scheduler.serving.listen: expected HOST:PORT or none, found "10259"`},
		{"controllers: {serving: {keyFile: a}}", "controllers.serving.certFile: certFile and keyFile belong together"},
		{"proxy: {healthListen: '10256'}", "proxy.healthListen: expected HOST:PORT or none"},
		{"proxy: {metricsListen: '0.0.0.0:10249'}", "proxy.metricsListen: expected a loopback address"},
		{"loadBalancer: {pools: [{addresses: [192.0.2.1]}]}", "loadBalancer.pools[0].name: every pool needs a name"},
		{"loadBalancer: {pools: [{name: a}]}", "loadBalancer.pools[0].addresses: expected at least one"},
		{"loadBalancer: {pools: [{name: a, addresses: [192.0.2.9-192.0.2.1]}]}", "loadBalancer.pools[0].addresses[0]: expected a network such as"},
		{"loadBalancer: {pools: [{name: a, addresses: [192.0.2.1]}, {name: b, addresses: [10.96.7.0/24]}]}", "loadBalancer.pools[1].addresses[0]: 10.96.7.0/24 overlaps cluster.serviceCIDR"},
		{"proxy: {metricsListen: 'localhost:x'}", "proxy.metricsListen: expected a loopback address"},
		{"node: {podNetwork: {backend: wireguard}}", `node.podNetwork.backend: expected auto, routes or vxlan, found "wireguard"`},
		{"node: {podNetwork: {mtu: 100}}", "node.podNetwork.mtu: expected 576 to 65000"},
		{"node:\n  evictionSoft: {memory.available: 1Gi}", "node.evictionSoftGracePeriod: expected how long memory.available may stay below"},
		{"node:\n  evictionSoft: {memory: 1Gi}", `c.yaml:4: node.evictionSoft: unknown signal "memory": expected one of memory.available`},
		{"node:\n  evictionMinimumReclaim: {pid.available: most}", "c.yaml:4: node.evictionMinimumReclaim: pid.available: expected a percentage (10%)"},
		{"node:\n  memorySwap: {swapBehavior: UnlimitedSwap}", `node.memorySwap.swapBehavior: expected one of NoSwap, LimitedSwap, found "UnlimitedSwap"`},
		{"node:\n  evictionMaxPodGracePeriod: 100ms", "c.yaml:4: node.evictionMaxPodGracePeriod: expected whole seconds, as pods have them, found 100ms"},
		{"node:\n  evictionPressureTransitionPeriod: -1s", "c.yaml:4: node.evictionPressureTransitionPeriod: expected at least 0s, found -1s"},
		{"node:\n  kubeReserved: {cpu: 100m,\n    memory: lots}", `c.yaml:5: node.kubeReserved.memory: expected an amount such as 200m or 1Gi, found "lots"`},
		{"node:\n  systemReserved: {gpu: 1}", `c.yaml:4: node.systemReserved: unknown resource "gpu": expected one of cpu`},
		{"node:\n  imageMinimumGCAge: -1s", "c.yaml:4: node.imageMinimumGCAge: expected at least 0s, found -1s"},
		{"node:\n  imageMaximumGCAge: 2m", "c.yaml:4: node.imageMaximumGCAge: expected more than imageMinimumGCAge (2m0s), or 0s for ever, found 2m0s"},
		{"node:\n  shutdownGracePeriodCriticalPods: 10s", "c.yaml:4: node.shutdownGracePeriodCriticalPods: expected at most shutdownGracePeriod"},
		{
			"node:\n  shutdownGracePeriodByPodPriority:\n  - {priority: 0, shutdownGracePeriodSeconds: 1}\n  - {priority: 1, shutdownGracePeriodSeconds: -1}",
			"c.yaml:6: node.shutdownGracePeriodByPodPriority[1]: expected at least 0 seconds",
		},
		{"node:\n  healthzPort: 70000", "c.yaml:4: node.healthzPort: expected a port, 1 to 65535, or 0 for none, found 70000"},
		{"node:\n  enforceNodeAllocatable: [system-reserved]", "c.yaml:4: node.enforceNodeAllocatable: expected [pods] or [none]"},
		{"node:\n  runtimeHandlers:\n  - name: a\n    runtimeType: runsc", "c.yaml:6: node.runtimeHandlers[0].runtimeType: expected a type of containerd's, such as"},
		{"node: {runtimeHandlers: [{name: a, runtimeType: io.containerd.runc.v2}, {name: a, runtimeType: io.containerd.runc.v2}]}", "node.runtimeHandlers[1].name: a is given twice"},
		{"node: {runtimeHandlers: [{name: a, runtimeType: io.containerd.runc.v2, options: {SystemdCgroup: true}}]}", "c.yaml:3: node.runtimeHandlers[0].options.SystemdCgroup: expected false"},
		{"node: {criEndpoint: 'unix:///x', runtimeHandlers: [{name: a}]}", "node.runtimeHandlers: expected none with criEndpoint"},
		{"node:\n  maxPods: 0", "c.yaml:4: node.maxPods: expected at least 1"},
	} {
		cfg, err := Load("c.yaml", []byte(head+c.doc+"\n"))
		if err != nil {
			t.Fatalf("%s: %v", c.doc, err)
		}
		if err := cfg.Complete(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.doc, err, c.want)
		}
	}
}

func TestClustersOfOneHostGetNetworksOfTheirOwn(t *testing.T) {
	a, b := Default(), Default()
	a.Cluster.Name, b.Cluster.Name = "alpha", "beta"
	for _, c := range []*Configuration{a, b} {
		if err := c.Complete(); err != nil {
			t.Fatal(err)
		}
	}
	if a.Cluster.PodCIDR == b.Cluster.PodCIDR || a.Cluster.ServiceCIDR == b.Cluster.ServiceCIDR {
		t.Fatalf("alpha has %v, beta has %v", a.Cluster, b.Cluster)
	}
}

func TestNetworksOfBothFamilies(t *testing.T) {
	for _, c := range []struct{ doc, pods, services, bits string }{
		{"", "[10.244.0.0/16]", "[10.96.0.0/16]", "[24]"},
		{"cluster: {podCIDR: '10.244.0.0/16, fd00:10:244::/56'}", "[10.244.0.0/16 fd00:10:244::/56]", "[10.96.0.0/16 fd00:10:96::/112]", "[24 64]"},
		{"cluster: {ipFamilies: [IPv4, IPv6]}", "[10.244.0.0/16 fd00:10:244::/56]", "[10.96.0.0/16 fd00:10:96::/112]", "[24 64]"},
		{"cluster: {ipFamilies: [IPv6]}", "[fd00:10:244::/56]", "[fd00:10:96::/112]", "[64]"},
		{"cluster: {podCIDR: 'fd00:10:244::/56,10.244.0.0/16'}", "[fd00:10:244::/56 10.244.0.0/16]", "[fd00:10:96::/112 10.96.0.0/16]", "[64 24]"},
		{"cluster: {podCIDR: 'fd00:10:244::/112', nodeCIDRMaskSizeIPv6: 120}", "[fd00:10:244::/112]", "[fd00:10:96::/112]", "[120]"},
		{"cluster: {ipFamilies: [IPv4, IPv6]}", "[10.244.0.0/16 fd00:10:244::/56]", "[10.96.0.0/16 fd00:10:96::/112]", "[24 64]"},
		{"cluster: {ipFamilies: [IPv6]}", "[fd00:10:244::/56]", "[fd00:10:96::/112]", "[64]"},
		{"cluster: {podCIDR: 'fd00:10:244::/56,10.244.0.0/16', serviceCIDR: 10.96.0.0/16}", "[fd00:10:244::/56 10.244.0.0/16]", "[10.96.0.0/16]", "[64 24]"},
	} {
		cfg, err := Load("c.yaml", []byte(head+c.doc+"\n"))
		if err == nil {
			err = cfg.Complete()
		}
		if err != nil {
			t.Errorf("%s: %v", c.doc, err)
			continue
		}
		got := []string{fmt.Sprint(cfg.Cluster.PodNetworks()), fmt.Sprint(cfg.Cluster.ServiceNetworks()), fmt.Sprint(cfg.Cluster.NodeBits())}
		if want := []string{c.pods, c.services, c.bits}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.doc, got, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(head + "node: {mode: real}\nplugins: [{name: a}]\n"))
	f.Add([]byte(head + "cluster: &a {name: *a}\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		c, err := Load("c.yaml", data)
		if err == nil {
			_ = c.Complete()
		}
	})
}
