// SPDX-License-Identifier: Apache-2.0

// Package arch holds the structure of the tree by tests: who may import whom,
// which third-party modules are confined where, and that every package says what
// it is for.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/wasmplane/wasmplane/"

// mayImport is the table: a package (with everything below it, where it ends in
// "/...") and what of this module it may import. The longest match counts. A
// package that no line matches fails the test.
var mayImport = map[string]string{
	"core/object":                            "",
	"core/jsonscan":                          "",
	"core/structural":                        "",
	"core/quota":                             "core/resourcename",
	"core/resourcename":                      "",
	"core/store/...":                         "core/store/...",
	"core/store/etcd/etcdclient":             "core/store core/store/etcd/failover",
	"core/watchcache":                        "core/object core/store core/watchcache/pairs",
	"core/watchcache/pairs":                  "",
	"core/api/...":                           "core/object core/structural core/api/... core/localvolume core/jsonscan",
	"core/admission/...":                     "core/attempts core/object core/structural core/trace core/admission/... core/auth/authz core/defaultclass core/dial core/loadbalancer core/quota core/resourcename core/localvolume",
	"core/auth/...":                          "core/auth/... core/dial core/trace core/api/...",
	"core/pki":                               "core/pki/cabundle",
	"core/pki/cabundle":                      "",
	"core/pki/kubeconfig":                    "core/pki",
	"core/registry/...":                      "core/object core/api/... core/store core/watchcache core/admission core/auth/authz core/trace core/registry/...",
	"core/registry/compare":                  "core/object",
	"core/registry/options":                  "",
	"core/registry/reserve":                  "",
	"core/registry/judging":                  "core/admission core/admission/fence core/registry/turns core/store",
	"core/registry/ended":                    "",
	"core/registry/optimistic":               "core/registry/ended core/registry/turns core/store core/watchcache",
	"core/registry/objectmeta":               "core/object core/registry/compare",
	"core/registry/patch":                    "core/jsonscan",
	"core/registry/turns":                    "",
	"core/registry/wanted":                   "core/api core/api/decodedsize core/api/ownership core/api/strategic core/object core/registry/ended core/registry/objectmeta core/registry/options core/registry/patch core/registry/transient",
	"core/registry/view":                     "core/admission core/api core/object core/registry",
	"core/registry/deletion":                 "",
	"core/registry/transient":                "core/api/decodedsize",
	"core/registry/reader":                   "core/api core/object core/registry/ended core/store core/watchcache core/watchcache/pairs",
	"core/registry/allocation":               "core/api/services core/store",
	"core/registry/servicenetwork":           "core/watchcache",
	"core/registry/action":                   "core/admission core/api core/auth/authz core/object core/registry core/registry/judging",
	"core/aggregator/...":                    "core/controllers core/dial",
	"core/apiserver/...":                     "core/aggregator core/object core/api/... core/registry/... core/auth/... core/trace core/apiserver/... core/profiling core/zpages",
	"core/apiserver/health":                  "",
	"core/apiserver/held":                    "core/apiserver/share",
	"core/apiserver/share":                   "",
	"core/apiserver/requestmetrics":          "",
	"core/apiserver/body":                    "core/api/decodedsize core/apiserver/answer core/apiserver/share core/jsonscan core/object",
	"core/apiserver/answer":                  "core/lent core/object core/jsonscan core/api core/api/envelope core/api/requestoptions core/registry core/auth/audit core/watchcache",
	"core/apiserver/catalogue":               "core/aggregator core/api core/api/openapi core/apiserver/answer core/object core/registry",
	"core/apiserver/priority":                "",
	"core/apiserver/tunnel":                  "core/api core/apiserver/answer core/auth/authz core/dial core/registry",
	"core/apiserver/tunnel/podforward":       "core/apiserver/tunnel core/dial",
	"core/apiserver/tunnel/resolve":          "",
	"core/apiserver/apiservertest":           "core/api/... core/registry/... core/auth/... core/watchcache core/store/... core/apiserver",
	"core/customresource/...":                "core/customresource/... core/dial core/object core/api core/api/patterncost core/api/kindcodec core/api/kinds core/api/ownership core/registry core/watchcache core/api/pathlength",
	"core/customresource/extension":          "",
	"core/bootstrap":                         "core/api/... core/bootstrap/clusterinfo core/bootstrap/roles core/pki core/pki/cabundle",
	"core/bootstrap/clusterinfo":             "",
	"core/bootstrap/roles":                   "core/api/rbac core/auth/authz core/auth/jointoken core/bootstrap/clusterinfo core/pki",
	"core/chart/chartobject":                 "core/definition",
	"core/chart/charttest":                   "",
	"core/chart/origin":                      "core/chart/render core/dial",
	"core/chart/release":                     "",
	"core/chart/render":                      "core/chart/release core/run/confine",
	"core/client":                            "core/lent core/object",
	"core/client/...":                        "",
	"core/lent":                              "core/object",
	"core/attempts":                          "",
	"core/definition":                        "",
	"core/dial":                              "",
	"core/dial/dialtest":                     "",
	"core/defaultclass":                      "",
	"core/devicetaint":                       "",
	"core/localvolume":                       "",
	"core/attachment":                        "",
	"core/loadbalancer":                      "",
	"core/loadbalancer/neighbor":             "core/loadbalancer core/netdump",
	"core/netdump":                           "",
	"core/config":                            "core/kubelet/reservation core/kubelet/runtimehandler core/kubelet/shutdown core/kubelet/threshold core/loadbalancer core/strictyaml",
	"core/strictyaml":                        "",
	"core/run":                               "",
	"core/run/...":                           "",
	"core/manifests":                         "core/config core/run/folderwatch core/strictyaml",
	"core/airgap":                            "",
	"core/airgap/lending":                    "core/airgap core/run/folderwatch",
	"core/secureserving":                     "core/apiserver/health core/profiling core/zpages",
	"core/profiling":                         "",
	"core/zpages":                            "",
	"core/trace":                             "",
	"core/trace/journey":                     "core/trace",
	"core/trace/otlp":                        "core/trace core/trace/journey",
	"core/controllers/...":                   "core/attachment core/controllers/... core/client core/defaultclass core/devicetaint core/trace core/quota core/loadbalancer core/localvolume",
	"core/controllers/helmchart":             "core/chart/chartobject core/chart/origin core/chart/release core/chart/render core/client core/controllers core/dial core/controllers/helmchart/releaseplan",
	"core/controllers/helmchart/releaseplan": "core/chart/release",
	"core/controllers/approval":              "core/controllers core/auth/jointoken",
	"core/controllers/dnsendpoints":          "core/controllers core/dns/announce",
	"core/auth/removal":                      "",
	"core/join":                              "core/auth/jointoken core/bootstrap/clusterinfo core/client core/config core/pki core/pki/cabundle core/store core/join/handover core/join/succession",
	"core/join/balance":                      "",
	"core/join/succession":                   "core/bootstrap/clusterinfo core/pki core/pki/cabundle",
	"core/join/handover":                     "core/auth/jointoken core/auth/removal core/store",
	"core/join/peers":                        "core/join core/join/handover",
	"core/scheduler/...":                     "core/scheduler/... core/trace",
	"core/scheduler/native/devices":          "core/devicetaint core/scheduler/framework",
	"core/scheduler/extender":                "core/dial core/resourcename core/scheduler/framework",
	"core/scheduler/configfile":              "core/config core/scheduler core/scheduler/extender core/scheduler/framework core/scheduler/native core/scheduler/native/shape core/scheduler/queue core/strictyaml",
	"core/accessgraph":                       "",
	"core/why":                               "core/scheduler/... core/why/...",
	"core/why/reply":                         "core/why/facts core/why/trial",
	"core/why/netrules":                      "core/why/reply core/why/facts",
	"core/why/facts":                         "core/scheduler",
	"core/why/trial":                         "core/scheduler core/scheduler/... core/why/facts",
	"core/simulate":                          "core/scheduler core/scheduler/framework core/scheduler/queue",
	"core/simulate/comparison":               "core/simulate",
	"core/simulate/arrivals":                 "",
	"core/simulate/input":                    "core/api core/config core/object core/simulate core/simulate/arrivals core/strictyaml",
	"core/kubelet/...":                       "core/attachment core/attempts core/dial core/kubelet/... core/resourcename core/trace core/localvolume core/zpages core/netdump",
	"core/kubelet/podidentity":               "",
	"core/kubelet/runtimehandler":            "",
	"core/kubelet/userns":                    "core/run/atomicfile",
	"core/kubelet/podfile":                   "core/api core/config core/object core/strictyaml",
	"core/kubelet/allot":                     "",
	"core/kubelet/credential":                "core/config core/kubelet/podidentity core/kubelet/pull core/strictyaml",
	"core/kubelet/static":                    "core/run/folderwatch",
	"core/kubelet/fit":                       "core/kubelet/evict core/kubelet/pod core/kubelet/status",
	"core/proxy/...":                         "core/proxy/...",
	"core/netlab":                            "core/run",
	"core/networkpolicy":                     "",
	"core/networkpolicy/filter":              "core/networkpolicy",
	"core/networkpolicy/policytest":          "core/networkpolicy",
	"core/dns/...":                           "core/run",

	"plugins/abi":                   "plugins/abi/jsonpatch plugins/abi/jsonvalue",
	"plugins/abi/jsonpatch":         "plugins/abi/jsonvalue",
	"plugins/abi/jsonvalue":         "",
	"plugins/abi/settingschema":     "",
	"plugins/manifest":              "core/attempts core/config plugins/abi plugins/host plugins/rego plugins/rego/bundle core/strictyaml",
	"plugins/rego":                  "",
	"plugins/rego/bundle":           "plugins/rego",
	"plugins/policies/...":          "plugins/manifest plugins/policies/...",
	"plugins/policies/scan":         "core/admission core/run/...",
	"plugins/policies/policyobject": "core/admission/policy core/definition plugins/apiobject plugins/manifest plugins/point/admission plugins/policies/... plugins/rego plugins/rights plugins/apiobject/plugindefinition",

	"plugins/policies/gatekeeper":              "core/definition plugins/manifest plugins/policies/... plugins/rego",
	"plugins/policies/latest":                  "plugins/apiobject",
	"plugins/policies/gatekeeper/externaldata": "core/dial plugins/policies/tree",
	"plugins/policies/kyverno/celpolicy":       "core/admission/matching",
	"plugins/policies/kyverno/beyond":          "core/admission core/admission/matching core/admission/policy plugins/policies/...",
	"plugins/policies/kyverno/celgate":         "core/admission core/admission/fence core/admission/matching core/admission/policy core/dial plugins/apiobject plugins/manifest plugins/point/admission plugins/policies/... plugins/rights",
	"plugins/policies/kyverno/imagepolicy":     "core/admission core/admission/matching plugins/policies/... plugins/sign/...",
	"plugins/policies/kyverno/imagegate":       "core/admission core/admission/matching core/dial plugins/apiobject plugins/manifest plugins/point/admission plugins/policies/... plugins/rights plugins/sign/...",
	"plugins/policies/gatekeeper/gate":         "core/admission core/admission/matching core/object plugins/apiobject plugins/manifest plugins/point plugins/point/admission plugins/policies/... plugins/rights",

	"plugins/leb128":                     "",
	"plugins/fuel/...":                   "plugins/fuel/callgraph plugins/fuel/linetable plugins/fuel/survey plugins/fuel/wasm",
	"plugins/fuel/wasm":                  "plugins/leb128",
	"plugins/rights":                     "core/attempts plugins/abi plugins/manifest",
	"plugins/declared":                   "core/accessgraph plugins/abi plugins/manifest",
	"plugins/hostfn":                     "core/admission/fence core/attempts core/dial plugins/abi plugins/host plugins/manifest plugins/rights plugins/sign",
	"plugins/hostfn/keyless":             "core/attempts plugins/hostfn plugins/sign/...",
	"plugins/hostfn/backend":             "core/auth/authz core/client core/registry core/registry/view core/run/atomicfile plugins/hostfn plugins/manifest",
	"plugins/sign":                       "",
	"plugins/sign/evidence":              "core/dial",
	"plugins/sign/trust":                 "plugins/sign plugins/sign/evidence",
	"plugins/sign/trust/trusttest":       "plugins/sign/evidence plugins/sign/trust",
	"plugins/source":                     "core/attempts core/dial plugins/manifest plugins/rego/bundle plugins/sign",
	"plugins/rollout":                    "plugins/manifest",
	"plugins/apiobject":                  "core/admission core/object core/run/presence plugins/abi plugins/declared plugins/host plugins/loader plugins/manifest plugins/point plugins/rights core/strictyaml plugins/apiobject/plugindefinition",
	"plugins/apiobject/plugindefinition": "core/definition plugins/abi plugins/manifest",
	"plugins/component/...":              "plugins/component/... plugins/leb128",
	"plugins/component/componenttest":    "plugins/component/bytejoin plugins/plugintest/wat",
	"plugins/component/adapt":            "plugins/component/... plugins/plugintest/wat",
	"plugins/host/compiler":              "core/run/confine plugins/fuel plugins/fuel/... plugins/rego",
	"plugins/host/...":                   "plugins/component/... plugins/fuel/... plugins/host/... plugins/rego",
	"plugins/point/...":                  "plugins/... core/customresource/extension core/object core/trace core/admission core/auth/authz core/scheduler/framework core/scheduler/usage core/controllers",
	"plugins/loader/...":                 "plugins/... core/attempts core/dial core/admission core/auth/authz core/scheduler/framework core/controllers",
	"plugins/author/kyvernotest":         "plugins/author plugins/author/suite plugins/author/textdiff plugins/policies/... plugins/sign/evidence core/admission core/admission/matching core/admission/policy core/api core/dial",
	"plugins/author/...":                 "plugins/... sdk/... core/object core/admission core/scheduler/framework core/client",
	"plugins/toolchain/...":              "plugins/component/... plugins/host plugins/toolchain/... sdk/... plugins/leb128",
	"plugins/reviewserver":               "plugins/... core/object core/admission core/auth/authz",
	"plugins/workload/...":               "plugins/component/... plugins/workload/...",
	"plugins/foreign/...":                "plugins/... core/scheduler/framework",
	"plugins/...":                        "plugins/...",
	"sdk/...":                            "sdk/...",
	"wasm-examples/...":                  "sdk/...",
	"cmd/wasmplane-shim/...":             "core/run plugins/workload/cell",
	"cmd/wasmplane-cni/...":              "",
	"cmd/wasmplane-wasm":                 "plugins/workload plugins/workload/cell",
	"cmd/wasmplane-hello/...":            "",
	"cmd/wasmplane/...":                  "core/... plugins/... cmd/wasmplane/...",
	"configs":                            "core/config plugins/manifest",
	"docs/...":                           "plugins/...",
	"test/...":                           "core/... plugins/host/compiler cmd/... test/...",
	"test/internal/guests":               "plugins/author plugins/author/scaffold plugins/plugintest plugins/toolchain sdk",
	"test/release":                       "cmd/wasmplane/supervisor plugins/sign",
}

// kit are the packages that everything in core, plugins and cmd may use besides what
// its line says.
const kit = "core/run core/run/atomicfile core/run/logfile"

// confined names third-party packages and the only places that may import them.
var confined = map[string]string{
	"k8s.io/kubernetes/": "core/api/...",
	// plugins/component is a library of its own, which makes instances of components on the engine.
	"github.com/tetratelabs/wazero":           "plugins/host/... plugins/component/... plugins/workload/...",
	"github.com/gorilla/mux":                  "core/apiserver/...",
	"go.etcd.io/etcd/":                        "core/store/etcd/...",
	"github.com/containerd/":                  "core/kubelet/... cmd/wasmplane-shim/...",
	"github.com/containernetworking/":         "core/kubelet/... cmd/wasmplane-cni/...",
	"github.com/container-storage-interface/": "core/kubelet/...",
	"k8s.io/cri-api/":                         "core/kubelet/...",
	"github.com/godbus/dbus":                  "core/kubelet/logind",
	"helm.sh/helm/":                           "core/chart/render",
	"github.com/fluxcd/cli-utils":             "core/controllers/helmchart",
	"github.com/spf13/viper":                  "cmd/wasmplane/...",
	"github.com/coredns/":                     "core/dns/... test/internal/nameserver",
	"sigs.k8s.io/knftables":                   "core/proxy/... core/networkpolicy/... core/kubelet/... cmd/wasmplane-cni/...",
	"k8s.io/apiserver/pkg/server":             "core/zpages", // of it the pages alone
	"k8s.io/apiserver/pkg/endpoints/handlers": "",
	"k8s.io/apiserver/pkg/registry/generic":   "",
	"k8s.io/apiserver/pkg/storage/etcd3":      "",
	"k8s.io/apiserver/pkg/storage/cacher":     "",
	"k8s.io/kubernetes/pkg/scheduler":         "",
	"k8s.io/kubernetes/pkg/kubelet":           "",
	"k8s.io/kubernetes/pkg/controller":        "",
	"k8s.io/kubernetes/pkg/proxy":             "",
	"k8s.io/kubernetes/pkg/controlplane":      "",
	"k8s.io/kubernetes/cmd":                   "",
}

type pkg struct {
	ImportPath   string
	Name         string
	Doc          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// packages lists the module's packages for the host; guests have a target of their own.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Name,Doc,GoFiles,Imports,TestImports,XTestImports",
		module+"...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all = append(all, p)
	}
	if len(all) < 20 {
		t.Fatalf("go list found %d packages; the test looks at the wrong folder", len(all))
	}
	return all
}

func matches(pattern, p string) bool {
	base, sub := strings.CutSuffix(pattern, "/...")
	return p == base || sub && strings.HasPrefix(p, base+"/")
}

func matchesAny(patterns, p string) bool {
	for _, pattern := range strings.Fields(patterns) {
		if matches(pattern, p) {
			return true
		}
	}
	return false
}

// line is the line of the table that holds for a package: its own, or else the
// longest that matches.
func line(p string) (pattern string, ok bool) {
	if _, own := mayImport[p]; own {
		return p, true
	}
	for candidate := range mayImport {
		if matches(candidate, p) && len(candidate) > len(pattern) {
			pattern, ok = candidate, true
		}
	}
	return pattern, ok
}

func rule(p string) (allowed string, ok bool) {
	pattern, ok := line(p)
	allowed = mayImport[pattern]
	if strings.HasPrefix(p, "core/") || strings.HasPrefix(p, "plugins/") || strings.HasPrefix(p, "cmd/") {
		allowed += " " + kit
	}
	return allowed, ok
}

func TestEveryPackageImportsOnlyWhatItMay(t *testing.T) {
	for _, p := range packages(t) {
		allowed, ok := rule(p.ImportPath)
		if !ok {
			t.Errorf("%s: the may-import table has no line for this package", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			i, own := strings.CutPrefix(i, module)
			if own && i != p.ImportPath && !matchesAny(allowed, i) {
				t.Errorf("%s imports %s; the table allows: %s", p.ImportPath, i, allowed)
			}
		}
	}
}

func TestThirdPartyPackagesStayWhereTheyBelong(t *testing.T) {
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			for prefix, where := range confined {
				if strings.HasPrefix(i, prefix) && !matchesAny(where, p.ImportPath) {
					t.Errorf("%s imports %s, which belongs to: %s", p.ImportPath, i, where)
				}
			}
		}
	}
}

// imports are what a package imports; of one that consists of tests only, what its tests do.
func (p pkg) imports() []string {
	if len(p.GoFiles) > 0 {
		return p.Imports
	}
	return append(slices.Clone(p.TestImports), p.XTestImports...)
}

// An allowance that nobody uses is an invitation: the table says what is, not what was.
func TestEveryAllowanceIsUsed(t *testing.T) {
	governs, used := map[string]bool{}, map[string]bool{}
	for _, p := range packages(t) {
		governing, ok := line(p.ImportPath)
		if !ok {
			continue
		}
		governs[governing] = true
		for _, i := range p.imports() {
			i, own := strings.CutPrefix(i, module)
			if !own || i == p.ImportPath {
				continue
			}
			for _, allowance := range strings.Fields(mayImport[governing]) {
				if matches(allowance, i) {
					used[governing+" "+allowance] = true
				}
			}
		}
	}
	for _, governing := range slices.Sorted(maps.Keys(mayImport)) {
		if !governs[governing] {
			t.Errorf("%q: no package is left that this line of the may-import table holds for; delete it", governing)
			continue
		}
		for _, allowance := range strings.Fields(mayImport[governing]) {
			if !used[governing+" "+allowance] {
				t.Errorf("%q: nothing imports %q any more; delete the allowance", governing, allowance)
			}
		}
	}
}

// A confined package lives where its line says; a place that does not use it is deleted.
// A line without places is a ban, and stays.
func TestEveryConfinementIsUsed(t *testing.T) {
	used := map[string]bool{}
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			for prefix, where := range confined {
				for _, place := range strings.Fields(where) {
					if strings.HasPrefix(i, prefix) && matches(place, p.ImportPath) {
						used[prefix+" "+place] = true
					}
				}
			}
		}
	}
	for _, prefix := range slices.Sorted(maps.Keys(confined)) {
		for _, place := range strings.Fields(confined[prefix]) {
			if !used[prefix+" "+place] {
				t.Errorf("%q: nothing in %q imports it any more; delete the place", prefix, place)
			}
		}
	}
}

func TestCoreNeverImportsPlugins(t *testing.T) {
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, "core/") {
			continue
		}
		for _, i := range append(append(p.Imports, p.TestImports...), p.XTestImports...) {
			if strings.HasPrefix(i, module+"plugins") || strings.HasPrefix(i, module+"cmd") {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

// namesakes are the packages whose names are not their folders', or not theirs
// alone, with the reason.
var namesakes = map[string]string{
	"plugins/point/admission":      "the adapter of core/admission's contract, named by its point as its siblings are",
	"plugins/point/customresource": "the adapter of core/customresource's contract, named by its point as its siblings are",
	"sdk/go":                       "authors of plugins import it as wasmplane",
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	seen := map[string]string{}
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 { // tests only: go list doesn't read their comments
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		if p.Name == "main" {
			continue
		}
		if _, ok := namesakes[p.ImportPath]; ok {
			continue
		}
		if path.Base(p.ImportPath) != p.Name {
			t.Errorf("%s: the package is called %s; folder and package share one name", p.ImportPath, p.Name)
		}
		if other, taken := seen[p.Name]; taken {
			t.Errorf("%s and %s share the name %s; package names are unique in the tree", p.ImportPath, other, p.Name)
		}
		seen[p.Name] = p.ImportPath
	}
}
