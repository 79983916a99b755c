// SPDX-License-Identifier: Apache-2.0

package customresource_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/bootstrap"
)

// status asks for a path and answers the status code and the body.
func (c *cluster) ask(verb, path, accept string) (int, string) {
	c.t.Helper()
	client, err := restClient(c)
	must(c.t, err)
	var code int
	r := client.Verb(verb).RequestURI(path).SetHeader("Accept", accept).SetHeader("Content-Type", "application/json").Do(c.t.Context())
	r.StatusCode(&code)
	data, _ := r.Raw()
	return code, string(data)
}

// The attack on this, CVE-2019-11247: rights in one namespace reached cluster-wide objects.
func TestAnObjectIsReachedInItsScopeOnly(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	c.define(planets)
	_, err := c.in("crontabs.v1.stable.example.com").Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{})
	must(t, err)
	_, err = c.dyn.Resource(gvr("planets.v1.stable.example.com")).Create(t.Context(),
		object(t, "apiVersion: stable.example.com/v1\nkind: Planet\nmetadata: {name: mars}"), metav1.CreateOptions{})
	must(t, err)
	for _, path := range []string{
		"/apis/stable.example.com/v1/namespaces/default/planets/mars", "/apis/stable.example.com/v1/namespaces/default/planets",
		"/apis/stable.example.com/v1/namespaces/default/planets/mars/status", "/apis/stable.example.com/v1/crontabs/a",
		"/apis/stable.example.com/v1/crontabs/a/status", "/apis/stable.example.com/v1/crontabs/a/scale",
	} {
		for _, verb := range []string{"GET", "PUT", "PATCH", "DELETE", "POST"} {
			if code, said := c.ask(verb, path, ""); code != http.StatusNotFound {
				t.Errorf("%s %s answers %d %s", verb, path, code, said)
			}
		}
	}
	for _, verb := range []string{"POST", "DELETE"} {
		if code, said := c.ask(verb, "/apis/stable.example.com/v1/crontabs", ""); code != http.StatusNotFound {
			t.Errorf("%s of all namespaces answers %d %s", verb, code, said)
		}
	}
	if code, _ := c.ask("GET", "/apis/stable.example.com/v1/crontabs", ""); code != http.StatusOK {
		t.Errorf("a list of all namespaces answers %d", code)
	}
}

func TestANameBelongsToTheFirstDefinitionThatAsksForIt(t *testing.T) {
	c := start(t, clusterOptions{})
	first := c.define(crontabs)
	second := definitionOf(t,
		strings.NewReplacer("planets", "tabs", "planet", "tab", "Planet", "CronTab", "CronTabList", "TabList").Replace(planets))
	second.Spec.Names.ShortNames = []string{"ct"}
	_, err := c.crds.Create(t.Context(), second, metav1.CreateOptions{})
	must(t, err)
	c.hasCondition(second.Name, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse, "ListKindConflict")
	c.hasCondition(second.Name, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
	if _, err := c.dyn.Resource(gvr("tabs.v1.stable.example.com")).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a definition without a name is served: %v", err)
	}
	must(t, c.crds.Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	c.hasCondition(second.Name, apiextensionsv1.Established, apiextensionsv1.ConditionTrue, "")
}

func TestADefinitionWaitsForItsObjectsAndTheirFinalizers(t *testing.T) {
	c := start(t, clusterOptions{})
	crd := c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	held := tab(t, "held", `{cronSpec: "* * * * 5"}`)
	held.SetFinalizers([]string{"example.com/held"})
	_, err := tabs.Create(t.Context(), held, metav1.CreateOptions{})
	must(t, err)
	_, err = tabs.Create(t.Context(), tab(t, "free", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{})
	must(t, err)
	must(t, c.crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	c.hasCondition(crd.Name, apiextensionsv1.Terminating, apiextensionsv1.ConditionTrue, "InstanceDeletionCheck")
	until(t, "the server knows that the definition goes", func() bool {
		_, err := tabs.Create(t.Context(), tab(t, "late", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "create not allowed while custom resource definition is terminating")
	})
	list, err := tabs.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetDeletionTimestamp() == nil {
		t.Errorf("left: %s %v", text(list), err)
	}
	_, err = tabs.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	until(t, "the definition is gone", func() bool {
		_, err := c.crds.Get(t.Context(), crd.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestBuiltInResourcesStayWhatTheyAre(t *testing.T) {
	c := start(t, clusterOptions{})
	crd := definitionOf(t,
		strings.NewReplacer("planets.stable.example.com", "networkpolicies.networking.k8s.io", "stable.example.com", "networking.k8s.io",
			"planets", "networkpolicies", "planet", "networkpolicy", "PlanetList", "PolicyList", "Planet", "Policy").Replace(planets))
	crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, a test"}
	_, err := c.crds.Create(t.Context(), crd, metav1.CreateOptions{})
	must(t, err)
	c.hasCondition(crd.Name, apiextensionsv1.KubernetesAPIApprovalPolicyConformant, apiextensionsv1.ConditionFalse, "UnapprovedAnnotation")
	must(t, c.serving.CatchUp(t.Context()))
	made, err := c.dyn.Resource(gvr("networkpolicies.v1.networking.k8s.io")).Namespace("default").Create(t.Context(),
		object(t, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: {podSelector: {}}"), metav1.CreateOptions{})
	if err != nil || at(made, "spec.policyTypes") == nil {
		t.Errorf("the built-in resource was replaced: %s %v", text(made), err)
	}
	must(t, c.crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	until(t, "the definition is gone", func() bool {
		_, err := c.crds.Get(t.Context(), crd.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if _, err := c.dyn.Resource(gvr("networkpolicies.v1.networking.k8s.io")).Namespace("default").Get(t.Context(),
		"a", metav1.GetOptions{}); err != nil {
		t.Errorf("its objects went with the definition: %v", err)
	}
}

func TestTablesHaveTheColumnsOfTheDefinition(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	const path, accept = "/apis/stable.example.com/v1/namespaces/default/crontabs", "application/json;as=Table;v=v1;g=meta.k8s.io"
	table := func(p string) metav1.Table {
		t.Helper()
		code, said := c.ask("GET", p, accept)
		var out metav1.Table
		if err := json.Unmarshal([]byte(said), &out); code != http.StatusOK || err != nil {
			t.Fatalf("%d %s", code, said)
		}
		return out
	}
	empty := table(path)
	var names []string
	for _, column := range empty.ColumnDefinitions {
		names = append(names, column.Name+" "+column.Type)
	}
	if got := strings.Join(names, ","); got != "Name string,Spec string,Replicas integer,Age date" ||
		empty.ColumnDefinitions[2].Priority != 1 {
		t.Errorf("columns %s", got)
	}
	_, err := tabs.Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5", replicas: 2}`), metav1.CreateOptions{})
	must(t, err)
	for _, p := range []string{path, path + "/a"} {
		if rows := table(p).Rows; len(rows) != 1 || rows[0].Cells[0] != "a" || rows[0].Cells[1] != "* * * * 5" || rows[0].Cells[2] != float64(2) || !strings.Contains(string(rows[0].Object.Raw), "PartialObjectMetadata") {
			t.Errorf("%s: %s", p, text(rows))
		}
	}
}

func TestSelectableFieldsSelectListsAndWatches(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	w, err := tabs.Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.image=nginx"})
	must(t, err)
	defer w.Stop()
	for name, image := range map[string]string{"a": "nginx", "b": "busybox", "c": "nginx"} {
		_, err := tabs.Create(t.Context(), tab(t, name, `{cronSpec: "* * * * 5", image: `+image+`}`), metav1.CreateOptions{})
		must(t, err)
	}
	list, err := tabs.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.image=nginx,metadata.namespace=default"})
	if err != nil || len(list.Items) != 2 {
		t.Errorf("selected %s %v", text(list), err)
	}
	for range 2 {
		if e := <-w.ResultChan(); e.Type != watch.Added || at(e.Object.(*unstructured.Unstructured), "spec.image") != "nginx" {
			t.Errorf("the watch saw %v", e)
		}
	}
	if _, err := tabs.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.cronSpec=x"}); !apierrors.IsBadRequest(err) ||
		!strings.Contains(err.Error(), "field label not supported: spec.cronSpec") {
		t.Errorf("%v", err)
	}
	must(t, tabs.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.image=nginx"}))
	if list, err = tabs.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("left %s %v", text(list), err)
	}
}

func TestInformersFollowCustomResources(t *testing.T) {
	c := start(t, clusterOptions{})
	c.define(crontabs)
	tabs := c.in("crontabs.v1.stable.example.com")
	_, err := tabs.Create(t.Context(), tab(t, "early", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{})
	must(t, err)
	md, err := metadata.NewForConfig(metadata.ConfigFor(c.srv.Config("jane", "system:masters")))
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	whole := dynamicinformer.NewDynamicSharedInformerFactory(c.dyn, 0)
	part := metadatainformer.NewSharedInformerFactory(md, 0)
	informers := map[string]cache.SharedIndexInformer{
		"dynamic":  whole.ForResource(gvr("crontabs.v1.stable.example.com")).Informer(),
		"metadata": part.ForResource(gvr("crontabs.v1.stable.example.com")).Informer(),
	}
	whole.Start(ctx.Done())
	part.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		whole.Shutdown()
		part.Shutdown()
	})
	_, err = tabs.Create(t.Context(), tab(t, "late", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{})
	must(t, err)
	for kind, i := range informers {
		until(t, "the "+kind+" informer has both", func() bool { return len(i.GetStore().List()) == 2 })
	}
	must(t, tabs.Delete(t.Context(), "early", metav1.DeleteOptions{}))
	for kind, i := range informers {
		until(t, "the "+kind+" informer has one", func() bool { return len(i.GetStore().List()) == 1 })
	}
	if code, said := c.ask("GET", "/apis/stable.example.com/v1/namespaces/default/crontabs",
		"application/vnd.kubernetes.protobuf"); code != http.StatusNotAcceptable {
		t.Errorf("protobuf of a custom resource: %d %s", code, said)
	}
	if code, _ := c.ask("GET", "/apis/stable.example.com/v1/namespaces/default/crontabs", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"); code != http.StatusOK {
		t.Errorf("its metadata in protobuf: %d", code)
	}
	if code, said := c.ask("GET", "/apis/stable.example.com/v1/namespaces/default/crontabs/late",
		"application/yaml"); code != http.StatusOK || !strings.Contains(said, "cronSpec: '* * * * 5'") {
		t.Errorf("YAML: %d %s", code, said)
	}
}

func TestOpenAPIFollowsTheDefinitions(t *testing.T) {
	c := start(t, clusterOptions{})
	disc, err := discovery.NewDiscoveryClientForConfig(c.cfg)
	must(t, err)
	paths, err := disc.OpenAPIV3().Paths()
	must(t, err)
	if _, early := paths["apis/stable.example.com/v1"]; early {
		t.Error("there is a document before there is a definition")
	}
	crd := c.define(crontabs)
	c.define(planets)
	must(t, c.serving.CatchUp(t.Context()))
	paths, err = disc.OpenAPIV3().Paths()
	must(t, err)
	first := paths["apis/stable.example.com/v1"]
	if first == nil {
		t.Fatal("the group version has no document")
	}
	data, err := first.Schema("application/json")
	must(t, err)
	for _, want := range []string{
		"com.example.stable.v1.CronTab", "com.example.stable.v1.Planet", "runs something at times",
		"/crontabs/{name}/scale", `"fieldPath":"spec.image"`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("OpenAPI v3 lacks %s", want)
		}
	}
	old := first.ServerRelativeURL()
	c.redefine(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "runs something else"
	})
	paths, err = disc.OpenAPIV3().Paths()
	must(t, err)
	next := paths["apis/stable.example.com/v1"]
	if data, err = next.Schema("application/json"); err != nil || next.ServerRelativeURL() == old || !strings.Contains(string(data), "runs something else") {
		t.Errorf("the document did not follow: %v", err)
	}
	doc, err := disc.OpenAPISchema() // v2, in protobuf
	must(t, err)
	found := map[string]int{}
	for _, d := range doc.GetDefinitions().GetAdditionalProperties() {
		found[d.Name]++
	}
	for name, want := range map[string]int{
		"com.example.stable.v1.CronTab": 1, "com.example.stable.v1.PlanetList": 1,
		"io.k8s.api.core.v1.Pod": 1, "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": 1,
	} {
		if found[name] != want {
			t.Errorf("OpenAPI v2 in protobuf has %s %d times", name, found[name])
		}
	}
	code, said := c.ask("GET", "/openapi/v2", "application/json")
	var v2 struct {
		Paths, Definitions map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(said), &v2); code != http.StatusOK || err != nil {
		t.Fatal(code, err)
	}
	if strings.Contains(string(v2.Definitions["com.example.stable.v1.CronTab"]), `"default"`) || v2.Paths["/apis/stable.example.com/v1/planets"] == nil || v2.Paths["/api/v1/nodes"] == nil {
		t.Errorf("OpenAPI v2: %s", v2.Definitions["com.example.stable.v1.CronTab"])
	}
	must(t, c.crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	until(t, "the document is without it", func() bool {
		_, said := c.ask("GET", "/openapi/v2", "application/json")
		return !strings.Contains(said, "com.example.stable.v1.CronTab")
	})
}

func TestTwoServersOnOneStoreServeWhatOneOfThemAccepted(t *testing.T) {
	one := start(t, clusterOptions{})
	two := start(t, clusterOptions{store: one.srv.Store})
	crd := one.define(crontabs)
	// No waiting: what is established is served everywhere.
	made, err := two.in("crontabs.v1.stable.example.com").Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5"}`), metav1.CreateOptions{})
	must(t, err)
	w, err := one.in("crontabs.v1.stable.example.com").Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer w.Stop()
	if e := <-w.ResultChan(); e.Object.(*unstructured.Unstructured).GetUID() != made.GetUID() {
		t.Errorf("the other server's watch saw %v", e)
	}
	for _, c := range []*cluster{one, two} {
		disc, err := discovery.NewDiscoveryClientForConfig(c.cfg)
		must(t, err)
		until(t, "discovery tells of it", func() bool {
			_, err := disc.ServerResourcesForGroupVersion("stable.example.com/v1")
			return err == nil
		})
	}
	must(t, two.crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	for _, c := range []*cluster{one, two} {
		until(t, "it is served no more", func() bool {
			_, err := c.in("crontabs.v1.stable.example.com").List(t.Context(), metav1.ListOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	if _, err := one.srv.Store.Get(t.Context(), "/registry/stable.example.com/crontabs/default/a"); err == nil {
		t.Error("the object outlived its definition")
	}
}

func TestABinaryInstallsItsOwnDefinitions(t *testing.T) {
	c := start(t, clusterOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	must(t, bootstrap.Definitions(ctx, c.crds, definitionOf(t, crontabs), definitionOf(t, planets)))
	if _, err := c.in("crontabs.v1.stable.example.com").Create(t.Context(), tab(t, "a", `{cronSpec: "* * * * 5"}`),
		metav1.CreateOptions{}); err != nil {
		t.Errorf("right after: %v", err)
	}
	const name = "crontabs.stable.example.com"
	first, err := c.crds.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	must(t, bootstrap.Definitions(ctx, c.crds, definitionOf(t, crontabs), definitionOf(t, planets)))
	second, err := c.crds.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || second.ResourceVersion != first.ResourceVersion {
		t.Errorf("installed again it was written again: %v", err)
	}
	_, err = c.crds.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"a"}}}`), metav1.PatchOptions{})
	must(t, err)
	newer := definitionOf(t, crontabs)
	newer.Spec.Names.ShortNames = []string{"ct", "tabs"}
	newer.Spec.Versions[0].AdditionalPrinterColumns = nil
	must(t, bootstrap.Definitions(ctx, c.crds, newer))
	third, err := c.crds.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || third.Labels["team"] != "a" || len(third.Spec.Names.ShortNames) != 2 ||
		len(third.Spec.Versions[0].AdditionalPrinterColumns) != 0 {
		t.Errorf("upgraded to %s %v", text(third.Spec), err)
	}
	taken := definitionOf(t, strings.NewReplacer("planets", "worlds", "planet", "world").Replace(planets))
	short, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if err := bootstrap.Definitions(short, c.crds, taken); err == nil || !strings.Contains(err.Error(),
		"its names are taken by another definition") {
		t.Errorf("%v", err)
	}
}
