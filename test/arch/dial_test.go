// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dials are the names by which a connection is made, by the package that has them: what
// connects by itself, and what makes something that connects.
var dials = map[string][]string{
	"net":                               {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialUnix", "DialIP", "Dialer"},
	"net/http":                          {"Client", "Transport", "DefaultClient", "DefaultTransport", "Get", "Head", "Post", "PostForm"},
	"crypto/tls":                        {"Dial", "DialWithDialer", "Dialer"},
	"golang.org/x/net/http2":            {"Transport"},
	"google.golang.org/grpc":            {"NewClient", "Dial", "DialContext"},
	"github.com/gorilla/websocket":      {"Dialer", "DefaultDialer"},
	"k8s.io/apiserver/pkg/util/webhook": {"LoadKubeconfig", "NewClientManager"},
	"k8s.io/client-go/rest":             {"HTTPClientFor", "TransportFor"},
	"k8s.io/client-go/tools/clientcmd":  {"BuildConfigFromFlags"},
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc": {"New"},
	"k8s.io/apiserver/plugin/pkg/audit/webhook":            {"NewBackend"},
	"github.com/google/go-containerregistry/pkg/v1/remote": {"Get", "Image", "Index", "Head", "List", "Layer", "Write", "WriteLayer", "Referrers"},
}

// dialers are the files that connect, with the reason why each may. Whatever an object
// names is dialed by a policy of core/dial, which the file is given; the rest stays on the machine or
// leads where the operator or user of this very process says.
var dialers = map[string]string{
	"core/dial/dial.go":    "is the dialer",
	"core/dial/answers.go": "is the dialer",

	"core/admission/imagereview/imagereview.go":      "by the policy",
	"core/admission/webhook/client.go":               "by the policy",
	"core/aggregator/available.go":                   "by the policy, through the transport of remote.go; no redirect is followed",
	"core/aggregator/remote.go":                      "by the policy",
	"core/join/authority.go":                         "where the machine's own operator says: the server to join",
	"core/join/server.go":                            "where the machine's own operator says, and to the stores that the server there names",
	"core/join/balance/balance.go":                   "the servers of the machine's own cluster, whose certificates are checked",
	"core/airgap/lending/follow.go":                  "the servers of the machine's own cluster, whose certificates are checked",
	"core/join/peers/peers.go":                       "the servers of the machine's own cluster, whose certificates are checked",
	"core/loadbalancer/neighbor/floating.go":         "an empty datagram on the machine's own link, where the operator says",
	"cmd/wasmplane/site/virtual.go":                  "where the operator says, and to the cluster's own servers; nothing is sent",
	"core/apiserver/tunnel/kubelet.go":               "by the policy; what clients have proxied is checked besides",
	"core/apiserver/tunnel/podforward/podforward.go": "to kubelets, by the policy",
	"core/auth/audit/audit.go":                       "by the policy",
	"core/auth/authn/structured.go":                  "by the policy",
	"core/auth/authn/webhook.go":                     "by the policy",
	"core/auth/authz/file.go":                        "by the policy",
	"core/chart/origin/origin.go":                    "by the policy of who wrote the source; redirects too",
	"core/customresource/conversion/webhook.go":      "by the policy",
	"plugins/hostfn/egress.go":                       "by the policy of the grant; redirects need a grant too",
	"plugins/hostfn/images.go":                       "by the transport of egress.go",
	"plugins/sign/registry.go":                       "by the transport of who asks",
	"plugins/sign/evidence/evidence.go":              "by the transport of who asks",
	"cmd/wasmplane/process/images.go":                "by the policy",
	"plugins/workload/wasihttp/http.go":              "from within a container, whose network is its network namespace",
	"plugins/workload/wasisockets/socket.go":         "from within a container, whose network is its network namespace",
	"plugins/source/https.go":                        "by the policy of who wrote the entry; redirects too",
	"plugins/source/follow.go":                       "by the transport of https.go, as oci.go and https.go",
	"plugins/source/oci.go":                          "by the transport of https.go",

	"core/kubelet/reach/reach.go":              "where an administrator asks who may run commands in the node's pods; no data are sent",
	"core/kubelet/server/stream.go":            "to the address of a stream that the container engine answers",
	"core/kubelet/probe/handler.go":            "by the policy; gRPC to the pod's own address",
	"core/kubelet/containerd/containerd.go":    "to the socket of the containerd that it started",
	"core/kubelet/containerd/strays.go":        "to the sockets of shims, which that containerd started",
	"core/kubelet/cri/cri.go":                  "to the socket of the container engine, which the operator names",
	"core/kubelet/pluginwatch/connect.go":      "to the sockets of plugins, which root put into the kubelet's directory",
	"core/store/etcd/etcdclient/dial.go":       "to the store, which the operator names",
	"core/store/etcd/member.go":                "to the other members of the store, which show certificates of their authority",
	"cmd/wasmplane/localsocket/forward.go":     "is a command's: to the server that the data directory names, where it has no socket",
	"cmd/wasmplane/localsocket/localsocket.go": "to the socket of this machine's cluster",
	"cmd/wasmplane/members/members.go":         "the API of the user's own cluster: does it answer where it says that it is",
	"cmd/wasmplane/members/servers.go":         "to the other servers of this machine's own cluster, whose certificates are checked",
	"cmd/wasmplane/backup/backup.go":           "to the other servers of this machine's own cluster, whose certificates are checked, and nothing is sent",
	"cmd/wasmplane/backup/place/bucket.go":     "where the configuration of the machine's operator says: the bucket of backups",
	"cmd/wasmplane/carry/origin.go":            "is a command's: to the registries of images that its user names",
	"cmd/wasmplane/supervisor/notify.go":       "to the socket of the service manager that started this process",
	"cmd/wasmplane/process/alive.go":           "to servers of its own on this machine; nothing is sent",
	"cmd/wasmplane/machine/address.go":         "asks the kernel for a route; nothing is sent",
	"cmd/wasmplane/process/tracing.go":         "to the API server, of which the kubeconfig says where it is",

	"cmd/wasmplane-hello/get.go":                         "runs in pods, with what a pod may",
	"core/kubelet/realnode/nodetest/testprogram/main.go": "runs in pods of tests",

	"plugins/author/distribution/distribution.go": "is a command of an author, who names the registry",
	"plugins/toolchain/javascript/runtime.go":     "is a command of an author, who builds a compiler's part: one file, whose digest is pinned",
	"plugins/source/push.go":                      "is a command of an author, who names the registry",
}

// connects says by which names a file connects, and where.
func connects(tree *ast.File, at func(token.Pos) int) map[int]string {
	names := map[string]string{} // what the file calls a package: its path
	for _, i := range tree.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil || dials[p] == nil {
			continue
		}
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = p
	}
	// The type behind a pointer (a parameter, a field) connects nowhere.
	pointed := map[ast.Node]bool{}
	found := map[int]string{}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StarExpr:
			pointed[n.X] = true
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && !pointed[n] && slices.Contains(dials[names[x.Name]], n.Sel.Name) {
				found[at(n.Pos())] = names[x.Name] + "." + n.Sel.Name
			}
		}
		return true
	})
	return found
}

// What connects past the policy reaches the machine's metadata service, or what
// listens on loopback, on behalf of somebody who may not.
func TestConnectionsAreMadeByAPolicy(t *testing.T) {
	used := map[string]bool{}
	for _, root := range []string{"core", "plugins", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
				return err
			}
			file := filepath.ToSlash(strings.TrimPrefix(p, filepath.FromSlash("../../")))
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, p, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for line, what := range connects(tree, func(at token.Pos) int { return fset.Position(at).Line }) {
				used[file] = true
				if dialers[file] == "" {
					t.Errorf("%s:%d: %s connects without a policy; be given a dial.Policy, or stand in the table with the reason", file, line, what)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(dialers)) {
		if !used[file] {
			t.Errorf("%s connects nowhere any more; delete its line", file)
		}
	}
}

// The test sees what it looks for, whatever the package is called.
func TestConnectionsAreFound(t *testing.T) {
	const source = `package p
import ("net"; web "net/http"; "k8s.io/client-go/rest")
type held struct { c *web.Client }
func f(c *web.Client) {
	_ = &web.Client{}
	var d net.Dialer
	g := web.Get
	_, _ = rest.HTTPClientFor(nil)
	_ = new(web.Transport)
}`
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := connects(tree, func(at token.Pos) int { return fset.Position(at).Line })
	if lines := slices.Sorted(maps.Keys(found)); !slices.Equal(lines, []int{5, 6, 7, 8, 9}) {
		t.Errorf("found %v", found)
	}
}
