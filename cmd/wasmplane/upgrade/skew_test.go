// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/store"
)

func peer(name, version, kubernetes string) peers.Peer {
	return peers.Peer{Offer: handover.Offer{Server: handover.Server{Name: name, Version: version, Kubernetes: kubernetes}}}
}

func may(t *testing.T, what string, err error, no string) {
	t.Helper()
	if no != "" {
		fails(t, what, err, no)
	} else if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestServersAreAtMostOneMinorVersionApart(t *testing.T) {
	for _, c := range []struct{ is, isK, other, otherK, no string }{
		{"v1.3.0", "v1.37.1", "v1.2.0", "v1.37.1", ""},
		{"v1.3.0", "v1.38.0", "v1.4.0", "v1.37.1", ""},
		{"v1.3.0", "v1.37.1", "v1.1.9", "v1.37.1", "server b is of wasmplane v1.1.9, and this one would be of v1.3.0: servers share a store and are at most one minor version apart, so upgrade b first"},
		{"v1.3.0", "v1.37.1", "v1.5.0", "v1.37.1", "server b is of wasmplane v1.5.0 already"},
		{"v1.3.0", "v1.39.0", "v1.3.0", "v1.37.1", "server b is of Kubernetes v1.37.1, and this one would be of v1.39.0"},
		{"1234567-dirty", "v1.37.1", "v1.1.0", "v1.37.1", ""},
	} {
		may(t, fmt.Sprintf("%+v", c), besideServers(release{c.is, c.isK}, []peers.Peer{peer("b", c.other, c.otherK)}), c.no)
	}
}

func node(name, kubelet string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: kubelet}},
	}
}

func TestServersAndKubelets(t *testing.T) {
	for _, c := range []struct{ server, kubelet, no string }{
		{"v1.38.0", "v1.37.1", ""},
		{"v1.40.0", "v1.37.1", ""},
		{"v1.41.0", "v1.37.1", "upgrade that machine first"},
		{"v1.37.0", "v1.38.0", "newer than this server would be"},
		{"v1.37.0", "fake", ""},
	} {
		may(t, fmt.Sprintf("server %+v", c), beforeKubelets(c.server, "own", []corev1.Node{node("own", "v1.30.0"), node("w", c.kubelet)}), c.no)
	}
	for _, c := range []struct{ is, isK, server, serverK, no string }{
		{"v1.2.0", "v1.37.1", "v1.2.0", "v1.37.1", ""},
		{"v1.2.0", "v1.37.1", "v1.3.0", "v1.40.0", ""},
		{"v1.3.0", "v1.37.1", "v1.2.0", "v1.37.1", "of wasmplane v1.3.0, and server b of v1.2.0: upgrade the servers first"},
		{"v1.2.0", "v1.38.0", "v1.2.0", "v1.37.1", "of Kubernetes v1.38.0, and server b of v1.37.1: upgrade the servers first"},
		{"v1.2.0", "v1.36.0", "v1.2.0", "v1.40.0", "choose a newer release"},
	} {
		may(t, fmt.Sprintf("worker %+v", c),
			afterServers(release{c.is, c.isK}, []peers.Peer{peer("a", c.is, c.isK), peer("b", c.server, c.serverK)}), c.no)
	}
}

// world is two servers: this one, at 127.0.0.1, and b at 127.0.0.2, by the same port.
type world struct {
	own, b handover.Offer
	ready  int // what b answers to who asks whether it is ready
	cfg    *rest.Config
	kube   *fake.Clientset
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{ready: http.StatusOK}
	both := []store.Member{{Name: "a", Alive: true}, {Name: "b", Alive: true}}
	w.own.Members, w.b.Members = both, both
	serve := func(address, name string, about *handover.Offer, ready *int) string {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/readyz" {
				http.Error(out, "readiness", *ready)
				return
			}
			_ = json.NewEncoder(out).Encode(about)
		}))
		_ = s.Listener.Close()
		s.Listener = l
		s.StartTLS()
		t.Cleanup(s.Close)
		about.Server = handover.Server{Name: name, Address: l.Addr().String(), Version: "v1.2.0", Kubernetes: "v1.37.1"}
		return l.Addr().String()
	}
	well := http.StatusOK
	own := serve("127.0.0.1:0", "a", &w.own, &well)
	_, port, err := net.SplitHostPort(own)
	if err != nil {
		t.Fatal(err)
	}
	serve("127.0.0.2:"+port, "b", &w.b, &w.ready)
	w.cfg = &rest.Config{Host: "https://" + own, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	w.kube = fake.NewClientset(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}, {Addresses: []string{"127.0.0.2"}}},
		Ports:      []discoveryv1.EndpointPort{{Port: ptr.To(int32(n))}},
	})
	return w
}

func TestAServerIsUpgradedOnlyWhileAllOthersAreWell(t *testing.T) {
	is := release{"v1.3.0", "v1.37.1"}
	for name, c := range map[string]struct {
		change func(*world)
		no     string
	}{
		"all is well":       {func(*world) {}, ""},
		"b is not ready":    {func(w *world) { w.ready = http.StatusServiceUnavailable }, "is not ready: one machine after the other"},
		"b's store is away": {func(w *world) { w.own.Members = []store.Member{{Name: "b"}} }, "server b does not answer, or does not vote"},
		"a light server is away": {
			func(w *world) { w.own.Light = []handover.Light{{Name: "a"}, {Name: "c", Alive: true}, {Name: "d"}} },
			"server d does not answer, or does not vote",
		},
		"light servers are well": {func(w *world) { w.own.Light = []handover.Light{{Name: "a"}, {Name: "d", Alive: true}} }, ""},
		"b is cut off from c":    {func(w *world) { w.b.Members = []store.Member{{Name: "c", Learner: true}} }, "server b does not reach the store of c"},
		"b is too old":           {func(w *world) { w.b.Server.Version = "v1.1.0" }, "upgrade b first"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(w)
			may(t, name, (&server{kube: w.kube, cfg: w.cfg}).Check(t.Context(), is), c.no)
		})
	}
}

func TestAServerIsHealthyWhenTheOthersSeeIt(t *testing.T) {
	w := newWorld(t)
	s := &server{kube: w.kube, cfg: w.cfg}
	may(t, "all is well", s.Healthy(t.Context()), "")
	w.b.Members = []store.Member{{Name: "a"}}
	may(t, "b does not see it", s.Healthy(t.Context()), "server b does not see this one's store yet")
	w.ready = http.StatusServiceUnavailable
	may(t, "b has gone meanwhile", s.Healthy(t.Context()), "")
	s.node = "a"
	may(t, "its node is gone", s.Healthy(t.Context()), "not found")
}

func TestAWorkerAsksAllServersForTheirVersion(t *testing.T) {
	w := newWorld(t)
	worker := &worker{kube: w.kube, cfg: w.cfg, member: join.Member{Node: "w"}}
	may(t, "all are of it", worker.Check(t.Context(), release{"v1.2.1", "v1.37.1"}), "")
	may(t, "none is", worker.Check(t.Context(), release{"v1.3.0", "v1.37.1"}), "upgrade the servers first")
	w.ready = http.StatusServiceUnavailable
	may(t, "one cannot say", worker.Check(t.Context(), release{"v1.2.1", "v1.37.1"}), "cannot be asked for its version")
}
