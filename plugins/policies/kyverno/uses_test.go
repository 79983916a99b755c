// SPDX-License-Identifier: Apache-2.0

package kyverno_test

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
)

func TestWhatOnlyKyvernosExpressionsHaveIsFound(t *testing.T) {
	for expression, want := range map[string]string{
		`resource.Get("v1", "pods", "a", "b") == null && time.now() > timestamp("2020-01-01T00:00:00Z")`: "resource.Get time.now",
		`image(object.spec.image).registry() == "a"`:                                                     "image",
		`object.spec.containers.all(image, image.startsWith("a"))`:                                       "",
		`["a"].all(resource, resource.get("a") == 1)`:                                                    "",
		`variables.images.all(i, i == "a") && object.resource.Get == 1`:                                  "",
		`images.containers.all(i, image.GetMetadata(i).config.User != "")`:                               "image.GetMetadata images",
		`variables.sha256 == sha256("a")`:                                                                "sha256",
		`http.Client("").Get("https://a.example.com").ok == true`:                                        "http.Client",
		`object.metadata.name.`:                                                                          "",
		`object.kind == "resource.Get()"`:                                                                "",
	} {
		found := kyverno.Uses(expression)
		slices.Sort(found)
		if got := strings.Join(found, " "); got != want {
			t.Errorf("%s: %q, expected %q", expression, got, want)
		}
	}
}

func TestGlobalContextEntries(t *testing.T) {
	for spec, want := range map[string]string{
		`{kubernetesResource: {group: apps, version: v1, resource: deployments}}`:                        "",
		`{apiCall: {urlPath: /apis/apps/v1/namespaces/a/deployments, refreshInterval: 30s}}`:             "",
		`{apiCall: {urlPath: /api/v1/namespaces/a}}`:                                                     "",
		`{apiCall: {method: POST, data: [{key: a, value: 1}], service: {url: "https://a.example.com"}}}`: "",
		`{}`: "one of kubernetesResource and apiCall",
		`{kubernetesResource: {version: v1, resource: pods}, projections: [{name: a, jmesPath: "[]"}]}`: "spec.projections",
		`{kubernetesResource: {resource: pods}}`:                                                        "expected a version and a resource",
		`{apiCall: {urlPath: /version}}`:                                                                "spec.apiCall.urlPath",
		`{apiCall: {urlPath: "/api/v1/pods?watch=1"}}`:                                                  "spec.apiCall.urlPath",
		`{apiCall: {urlPath: /api/v1/pods, method: POST}}`:                                              "spec.apiCall.method",
		`{apiCall: {urlPath: /api/v1/pods, refreshInterval: 1ms}}`:                                      "spec.apiCall.refreshInterval",
		`{apiCall: {urlPath: /api/v1/pods, retryLimit: 99}}`:                                            "spec.apiCall.retryLimit",
		`{apiCall: {service: {url: "ftp://a"}}}`:                                                        "spec.apiCall.service.url",
		`{apiCall: {service: {url: "https://a:b@c"}}}`:                                                  "without credentials",
		`{apiCall: {data: [{key: a, value: 1}], service: {url: "https://a.example.com"}}}`:              "spec.apiCall.data",
		`{apiCall: {urlPath: /api/v1/pods, more: 1}}`:                                                   "more",
	} {
		var o map[string]any
		if err := yaml.Unmarshal([]byte("apiVersion: kyverno.io/v2beta1\nkind: GlobalContextEntry\nmetadata: {name: a}\nspec: "+spec), &o); err != nil {
			t.Fatal(err)
		}
		_, err := kyverno.ReadGlobalEntry(o)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", spec, err, want)
		}
	}
}
