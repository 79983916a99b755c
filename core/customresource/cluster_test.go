// SPDX-License-Identifier: Apache-2.0

package customresource_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	typed "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/customresource"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/customresource/lifecycle"
	"github.com/wasmplane/wasmplane/core/store"
)

func TestMain(m *testing.M) {
	// The storage options of the types that strategies come with start one for the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// soon is how long a test waits for what has to happen: the machine may be busy.
const soon = time.Minute

// cluster is a server with custom resources and somebody who uses it.
type cluster struct {
	t       *testing.T
	srv     *apiservertest.Server
	serving *customresource.Serving
	cfg     *rest.Config
	crds    typed.CustomResourceDefinitionInterface
	dyn     dynamic.Interface
}

type clusterOptions struct {
	store     store.Store
	extension extension.Extension
	server    func(*apiserver.Config)
}

func start(t *testing.T, o clusterOptions) *cluster {
	t.Helper()
	c := &cluster{t: t}
	c.srv = apiservertest.Start(t, apiservertest.Options{Store: o.store, Server: func(s *apiserver.Config) {
		var err error
		if c.serving, err = customresource.New(customresource.Config{
			Registries: s.Registries, Contract: s.Contract,
			Extension: o.extension,
		}); err != nil {
			t.Fatal(err)
		}
		s.CatchUp = c.serving.CatchUp
		if o.server != nil {
			o.server(s)
		}
	}})
	c.cfg = c.srv.Config("jane", "system:masters")
	c.cfg.Timeout = soon
	own, err := typed.NewForConfig(c.srv.Config("system:apiserver", "system:masters"))
	must(t, err)
	c.crds = own.CustomResourceDefinitions()
	c.dyn, err = dynamic.NewForConfig(c.srv.Config("jane", "system:masters"))
	must(t, err)
	life, err := lifecycle.New(lifecycle.Config{Client: c.crds, Server: c.serving})
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = c.serving.Run(ctx) })
	running.Go(func() { _ = life.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition that something else brings about.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain until %s", what)
		case <-tick.C:
		}
	}
}

// definitionOf reads a definition in YAML.
func definitionOf(t *testing.T, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	must(t, yaml.UnmarshalStrict([]byte(text), crd))
	return crd
}

// define creates a definition and waits until it is established.
func (c *cluster) define(text string) *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	crd, err := c.crds.Create(c.t.Context(), definitionOf(c.t, text), metav1.CreateOptions{})
	must(c.t, err)
	c.hasCondition(crd.Name, apiextensionsv1.Established, apiextensionsv1.ConditionTrue, "")
	return crd
}

// redefine changes a definition.
func (c *cluster) redefine(name string, change func(*apiextensionsv1.CustomResourceDefinition)) {
	c.t.Helper()
	until(c.t, "the definition is changed", func() bool {
		crd, err := c.crds.Get(c.t.Context(), name, metav1.GetOptions{})
		must(c.t, err)
		change(crd)
		_, err = c.crds.Update(c.t.Context(), crd, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return false
		}
		must(c.t, err)
		return true
	})
	must(c.t, c.serving.CatchUp(c.t.Context()))
}

func (c *cluster) hasCondition(name string, kind apiextensionsv1.CustomResourceDefinitionConditionType,
	status apiextensionsv1.ConditionStatus, reason string,
) {
	c.t.Helper()
	until(c.t, name+" is "+string(kind)+" "+reason, func() bool {
		crd, err := c.crds.Get(c.t.Context(), name, metav1.GetOptions{})
		must(c.t, err)
		return slices.ContainsFunc(crd.Status.Conditions, func(k apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return k.Type == kind && k.Status == status && (reason == "" || k.Reason == reason)
		})
	})
}

// gvr is "resource.version.group".
func gvr(text string) schema.GroupVersionResource {
	parts := strings.SplitN(text, ".", 3)
	return schema.GroupVersionResource{Resource: parts[0], Version: parts[1], Group: parts[2]}
}

func (c *cluster) in(resource string) dynamic.ResourceInterface {
	return c.dyn.Resource(gvr(resource)).Namespace("default")
}

// object reads YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	must(t, err)
	must(t, u.UnmarshalJSON(data))
	return u
}

// at reads a field: "spec.replicas".
func at(u *unstructured.Unstructured, path string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, strings.Split(path, ".")...)
	return v
}

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

const crontabs = `
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, listKind: CronTabList, shortNames: [ct], categories: [all, mine]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    selectableFields: [{jsonPath: .spec.image}]
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        description: runs something at times
        properties:
          spec:
            type: object
            required: [cronSpec]
            x-kubernetes-validations:
            - {rule: "self.replicas <= 10", messageExpression: "self.replicas > 100 ? 'far too many' : 'at most ' + 'ten replicas'"}
            properties:
              cronSpec: {type: string, pattern: '^(\S+ ){4}\S+$', description: when to run}
              image: {type: string, default: busybox, x-kubernetes-validations: [{rule: "self == oldSelf", message: image is immutable}]}
              replicas: {type: integer, default: 1, minimum: 0}
              size: {x-kubernetes-int-or-string: true}
              note: {type: string, nullable: true}
              plain: {type: string}
              anything: {type: object, x-kubernetes-preserve-unknown-fields: true}
              pod: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
              tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}, phase: {type: string, enum: [Idle, Busy]}}
`

const planets = `
metadata: {name: planets.stable.example.com}
spec:
  group: stable.example.com
  scope: Cluster
  names: {plural: planets, singular: planet, kind: Planet, listKind: PlanetList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

func tab(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return object(t, "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: "+name+"}\nspec: "+spec+"\n")
}
