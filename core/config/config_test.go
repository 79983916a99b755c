// SPDX-License-Identifier: Apache-2.0

package config

import (
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
		{"list expected", head + "store:\n  endpoints: http://x\n", `c.yaml:4: store.endpoints: expected a list, found "http://x"`},
		{"node mode", head + "node:\n  mode: simulated\n", `c.yaml:4: node.mode: expected real, simulated:N or none, found "simulated"`},
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
		{"featureGates: {GenericWorklod: true}", `featureGates.GenericWorklod: expected one of [GenericWorkload `},
		{"featureGates: {TopologyAwareWorkloadScheduling: true}", "featureGates.TopologyAwareWorkloadScheduling: it needs GenericWorkload"},
		{"cluster: {name: Bad_Name}", "c.yaml:3: cluster.name: expected 1 to 24"},
		{"cluster: {podCIDR: 10.0.0.0/8, serviceCIDR: 10.96.0.0/16}", "cluster.serviceCIDR: 10.96.0.0/16 overlaps cluster.podCIDR"},
		{"cluster: {podCIDR: 10.0.0.0/25}", "cluster.podCIDR: expected an IPv4 network of /24 or larger"},
		{"cluster: {nodeCIDRMaskSize: 31}", "cluster.nodeCIDRMaskSize: expected a prefix length from 8 to 30, found 31"},
		{"cluster: {nodeCIDRMaskSize: 26}", "cluster.nodeCIDRMaskSize: a node's /26 has room for 61 pods, and node.maxPods is 110"},
		{"apiserver: {tokenWebhook: {version: v2}}", `apiserver.tokenWebhook.version: expected v1 or v1beta1, found "v2"`},
		{"apiserver: {tokenWebhook: {timeout: 5s}}", "apiserver.tokenWebhook.configFile: name the kubeconfig"},
		{"apiserver: {listen: localhost}", `apiserver.listen: expected HOST:PORT, found "localhost"`},
		{"store: {certFile: a}", "store.certFile: certFile and keyFile belong together"},
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
