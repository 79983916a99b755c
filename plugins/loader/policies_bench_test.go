// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// constraints are entries as a library of Gatekeeper's makes them: for each template twenty
// constraints. The first pods of them are about Pods, the others about Services.
func constraints(n, pods int) string {
	var b strings.Builder
	b.WriteString("plugins:\n")
	for i := range n {
		resource := "services"
		if i < pods {
			resource = "pods"
		}
		fmt.Fprintf(&b, `
  - name: c%d
    abi: gatekeeper
    rego:
      version: v0
      text: |
        package template%d
        violation[{"msg": msg}] {
          container := input.review.object.spec.containers[_]
          not strings.any_prefix_match(container.image, input.parameters.repos)
          msg := sprintf("container %%v has an image of another registry than %%v", [container.name, input.parameters.repos])
        }
    settings: {repos: ["example.com/", "r%d.example.com/"]}
    points: [admission.validate]
    match:
      rules: [{operations: [CREATE, UPDATE], apiGroups: [""], resources: [%s, "%[4]s/ephemeralcontainers"]}]
      conditions: [{name: namespaces, expression: 'request.namespace != "excluded-%[1]d"'}]
`, i, i/20, i, resource)
	}
	return b.String()
}

// BenchmarkPolicies is what a Pod's admission costs where a thousand policies are bound and ten
// are about Pods, beside these ten alone; and what the thousand take of memory when they are loaded, and when nobody has asked the
// others for a while.
func BenchmarkPolicies(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := entries(b, constraints(n, 10))
			debug.FreeOSMemory()
			before := resident(b)
			l, err := loader.New(b.Context(), loader.Config{InProcess: true, Dir: plugintest.Root(b), CacheDir: b.TempDir(), Entries: all})
			if err == nil {
				err = l.Load(b.Context())
			}
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := l.Close(b.Context()); err != nil {
					b.Error(err)
				}
			}()
			debug.FreeOSMemory()
			loaded := resident(b)
			chain, err := admission.NewChain(l.AdmissionPlugins()...)
			if err != nil {
				b.Fatal(err)
			}
			ask := func() time.Duration {
				r := creating(pod("example.com/a:1", nil))()
				start := time.Now()
				if !chain.Handles(r) {
					b.Fatal("nobody is asked")
				}
				if err := chain.Mutate(b.Context(), r); err != nil {
					b.Fatal(err)
				}
				if err := chain.Validate(b.Context(), r); err != nil {
					b.Fatal(err)
				}
				return time.Since(start)
			}
			first := ask()
			for b.Loop() {
				ask()
			}
			b.ReportMetric(float64(first.Microseconds())/1000, "ms/first")
			b.ReportMetric(float64(loaded-before)/(1<<20), "MiB/loaded")
		})
	}
}
