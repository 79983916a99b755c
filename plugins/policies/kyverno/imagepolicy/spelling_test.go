// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

// An image is the same one in whatever way it is written: none of them gets it past a policy.
func TestAnImageIsOneInAllItsSpellings(t *testing.T) {
	for image, want := range map[string]string{
		"ghcr.io/acme/app:1": "", "GHCR.io/acme/app:1": "ghcr.io/acme/app:1", "ghcr.io:443/acme/app": "ghcr.io/acme/app",
		"Ghcr.IO:443/acme/app:1@sha256:" + zeros: "ghcr.io/acme/app:1@sha256:" + zeros, "nginx": "docker.io/library/nginx",
		"nginx:1": "docker.io/library/nginx:1", "acme/app": "docker.io/acme/app", "docker.io/nginx": "docker.io/library/nginx",
		"index.docker.io/library/nginx:1": "docker.io/library/nginx:1", "localhost:5000/app": "localhost:5000/app", "no image at all": "",
	} {
		got := spellings(image)
		if got[0] != image || want != "" && want != image && !slices.Contains(got, want) || (want == "" || want == image) && len(got) != 1 &&
			got[1] != want {
			t.Errorf("%s: %q, want %q besides", image, got, want)
		}
	}
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

// FuzzSpellings: what an image is called besides is the same image.
func FuzzSpellings(f *testing.F) {
	for _, image := range []string{"nginx", "GHCR.io:443/a/b:1@sha256:" + zeros, "localhost/a", "a.b/c:d", "docker.io:443/x", "[::1]:443/a"} {
		f.Add(image)
	}
	f.Fuzz(func(t *testing.T, image string) {
		all := spellings(image)
		ref, err := name.ParseReference(image)
		if err != nil {
			return
		}
		for _, one := range all[1:] {
			again, err := name.ParseReference(one)
			if err != nil {
				t.Fatalf("%q is also called %q, which is none: %v", image, one, err)
			}
			if again.Identifier() != ref.Identifier() || again.Context().RepositoryStr() != ref.Context().RepositoryStr() ||
				!strings.EqualFold(strings.TrimSuffix(again.Context().RegistryStr(), ":443"),
					strings.TrimSuffix(ref.Context().RegistryStr(), ":443")) &&
					again.Context().RegistryStr() != name.DefaultRegistry {
				t.Errorf("%q is also called %q, which is another image", image, one)
			}
		}
	})
}

// FuzzPolicies: whatever somebody writes as a policy is one with a name that is compiled, or an error.
func FuzzPolicies(f *testing.F) {
	const head = `{"apiVersion":"policies.kyverno.io/v1","kind":"ImageValidatingPolicy","metadata":{"name":"p"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},`
	for _, spec := range []string{
		`"matchImageReferences":[{"glob":"ghcr.io/{a,b}*"},{"expression":"ref.startsWith('a')"}],"attestors":[{"name":"a","cosign":{"keyless":{"identities":[{"issuer":"https://a","subjectRegExp":"(a+)+$"}]}}}],"validations":[{"expression":"images.containers.map(i, verifyImageSignatures(i, [attestors.a])).all(n, n > 0)"}]}}`,
		`"images":[{"name":"x","expression":"[object.spec.image]"}],"validations":[{"expression":"true"}],"credentials":{"secrets":["a"],"allowInsecureRegistry":true}}}`,
		`"attestations":[{"name":"s","intoto":{"type":"t"}}],"validations":[{"expression":"extractPayload(images.containers[0], attestations.s).a == 1"}],"autogen":{"podControllers":{"controllers":["jobs"]}}}}`,
	} {
		f.Add(head + spec)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var tree map[string]any
		if len(text) > 1<<14 || json.Unmarshal([]byte(text), &tree) != nil || tree == nil {
			return
		}
		p, err := Read(tree)
		if err != nil {
			_ = Broken(tree, err).Key() // what is wrong stands in the way by its name
			return
		}
		if p.Name == "" || p.timeout <= 0 || len(p.variants) == 0 {
			t.Errorf("%s: a policy without a name, an end, or anything that it is about", text)
		}
		for _, one := range p.patterns {
			if (one.glob == nil) == (one.program == nil) || strings.ContainsAny(one.registry, "*?{") {
				t.Errorf("%s: the pattern %+v", text, one)
			}
		}
	})
}
