// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

const (
	maps1       = "/api/v1/namespaces/" + space + "/configmaps"
	pods        = "/api/v1/namespaces/" + space + "/pods"
	deployments = "/apis/apps/v1/namespaces/" + space + "/deployments"
	tables      = "application/json;as=Table;v=v1;g=meta.k8s.io"
	partial     = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	partialList = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

func get(path string) request { return request{method: "GET", path: path} }

// lived are stories of each kind's valid object from its creation to its end.
func lived(t *testing.T) []story {
	t.Helper()
	var all []story
	for _, k := range kinds {
		valid, path := k.object(t), k.path(t)
		body := encode(t, valid)
		named := encode(t, map[string]any{
			"apiVersion": k.apiVersion(), "kind": k.kind,
			"metadata": map[string]any{"name": valid["metadata"].(map[string]any)["name"], "annotations": map[string]any{"applied": "yes"}},
		})
		meta := func(m map[string]any) string { return encode(t, replaced(valid, []any{"metadata"}, m)) }
		name := valid["metadata"].(map[string]any)["name"]
		changed := `{"metadata":{"annotations":{"patched":"yes"}}}`
		all = append(all, story{name: "life of " + k.String(), requests: []request{
			{name: "get what is missing", method: "GET", path: path},
			{name: "delete what is missing", method: "DELETE", path: path},
			{name: "patch what is missing", method: "PATCH", path: path, contentType: mergePatch, body: changed},
			{name: "put what is missing", method: "PUT", path: path + "?dryRun=All", body: body},
			{name: "put what is missing, with a revision", method: "PUT", path: path + "?dryRun=All", body: meta(map[string]any{"name": name, "resourceVersion": "1"})},
			{name: "put what is missing, with a uid", method: "PUT", path: path + "?dryRun=All", body: meta(map[string]any{"name": name, "uid": "u"})},
			{name: "create with a revision", method: "POST", path: k.collection(), body: meta(map[string]any{"name": name, "resourceVersion": "1"})},
			{name: "create without a name", method: "POST", path: k.collection(), body: meta(map[string]any{})},
			{name: "create in another namespace", method: "POST", path: k.collection(), body: meta(map[string]any{"name": name, "namespace": "other"})},
			{name: "create with bad metadata", method: "POST", path: k.collection(), body: meta(map[string]any{
				"name": name, "generateName": "Bad_", "labels": map[string]any{"bad key!": "bad value!"}, "annotations": map[string]any{"/": ""},
				"finalizers":      []any{"x", "example.com/ok"},
				"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Event", "name": "", "uid": ""}},
			})},
			{name: "create", method: "POST", path: k.collection(), body: body, keep: "rv=metadata.resourceVersion"},
			{name: "create again", method: "POST", path: k.collection(), body: body},
			{name: "get", method: "GET", path: path, keep: "uid=metadata.uid"},
			{name: "get as a table", method: "GET", path: path, accept: tables},
			{name: "get as a table with objects", method: "GET", path: path + "?includeObject=Object", accept: tables},
			{name: "get as metadata", method: "GET", path: path, accept: partial},
			{name: "get as protobuf", method: "GET", path: path, accept: protobufType},
			{name: "get as YAML", method: "GET", path: path, accept: yamlType},
			{name: "list", method: "GET", path: k.collection() + "?labelSelector=story%3Dtold"},
			{name: "list as a table", method: "GET", path: k.collection() + "?labelSelector=story%3Dtold", accept: tables},
			{name: "list as protobuf", method: "GET", path: k.collection() + "?labelSelector=story%3Dtold", accept: protobufType},
			{name: "list as metadata", method: "GET", path: k.collection() + "?labelSelector=story%3Dtold", accept: partialList},
			{name: "list by name", method: "GET", path: k.collection() + fmt.Sprintf("?fieldSelector=metadata.name%%3D%s", name)},
			{name: "list by a field that is no label", method: "GET", path: k.collection() + "?fieldSelector=spec.nothing%3Da"},
			{name: "watch", method: "GET", path: k.collection() + "?watch=true&timeoutSeconds=1&labelSelector=story%3Dtold&resourceVersion=0"},
			{name: "put without a revision", method: "PUT", path: path + "?dryRun=All", body: body},
			{name: "put with an old revision", method: "PUT", path: path, body: meta(map[string]any{"name": name, "resourceVersion": "1"})},
			{name: "put with a bad revision", method: "PUT", path: path, body: meta(map[string]any{"name": name, "resourceVersion": "x"})},
			{name: "put with another uid", method: "PUT", path: path, body: meta(map[string]any{"name": name, "resourceVersion": "${rv}", "uid": "8d8a8ca4-3d5d-4c2e-8a7c-000000000000"})},
			{name: "put under another name", method: "PUT", path: path, body: meta(map[string]any{"name": "another"})},
			{name: "put with labels", method: "PUT", path: path, body: meta(map[string]any{"name": name, "resourceVersion": "${rv}", "labels": map[string]any{"story": "told", "put": "yes"}})},
			{name: "merge patch", method: "PATCH", path: path, contentType: mergePatch, body: changed},
			{name: "strategic merge patch", method: "PATCH", path: path, contentType: strategic, body: `{"metadata":{"finalizers":["example.com/hold"],"$deleteFromPrimitiveList/finalizers":["x"]}}`},
			{name: "JSON patch", method: "PATCH", path: path, contentType: jsonPatch, body: `[{"op":"add","path":"/metadata/labels/patched","value":"yes"}]`},
			{name: "patch that changes nothing", method: "PATCH", path: path, contentType: mergePatch, body: changed},
			{name: "patch with an old revision", method: "PATCH", path: path, contentType: mergePatch, body: `{"metadata":{"resourceVersion":"1"}}`},
			{name: "patch of the name", method: "PATCH", path: path, contentType: mergePatch, body: `{"metadata":{"name":"other"}}`},
			{name: "patch of the uid", method: "PATCH", path: path, contentType: mergePatch, body: `{"metadata":{"uid":"other"}}`},
			{name: "patch of an unknown field", method: "PATCH", path: path, contentType: mergePatch, body: `{"unknown":1}`},
			{name: "strict patch of an unknown field", method: "PATCH", path: path + "?fieldValidation=Strict", contentType: mergePatch, body: `{"unknown":1}`},
			{name: "patch of a wrong type", method: "PATCH", path: path, contentType: mergePatch, body: `{"metadata":{"labels":7}}`},
			{name: "apply", method: "PATCH", path: path + "?fieldManager=applier", contentType: applyYAML, body: named},
			{name: "apply all", method: "PATCH", path: path + "?fieldManager=applier&force=true&dryRun=All", contentType: applyYAML, body: body},
			{name: "apply all without force", method: "PATCH", path: path + "?fieldManager=applier&dryRun=All", contentType: applyYAML, body: strings.ReplaceAll(body, `"told"`, `"again"`)},
			{name: "get status", method: "GET", path: path + "/status"},
			{name: "patch status", method: "PATCH", path: path + "/status?dryRun=All", contentType: mergePatch, body: `{"metadata":{"labels":{"by":"status"}},"status":{"conditions":[{"type":"Ready","status":"True","reason":"R","message":"m","lastTransitionTime":"2024-01-02T03:04:05Z"}],"unknown":1}}`},
			{name: "put status", method: "PUT", path: path + "/status?dryRun=All", body: body},
			{name: "get scale", method: "GET", path: path + "/scale"},
			{name: "patch scale", method: "PATCH", path: path + "/scale?dryRun=All", contentType: mergePatch, body: `{"spec":{"replicas":3}}`},
			{name: "patch scale below nothing", method: "PATCH", path: path + "/scale", contentType: mergePatch, body: `{"spec":{"replicas":-1}}`},
			{name: "a subresource that there is not", method: "GET", path: path + "/nothing"},
			{name: "dry delete", method: "DELETE", path: path + "?dryRun=All"},
			{name: "delete with another uid", method: "DELETE", path: path, body: `{"preconditions":{"uid":"8d8a8ca4-3d5d-4c2e-8a7c-000000000000"}}`},
			{name: "delete with another revision", method: "DELETE", path: path, body: `{"preconditions":{"resourceVersion":"1"}}`},
			{name: "delete", method: "DELETE", path: path + "?gracePeriodSeconds=0"},
			{name: "get what is being deleted", method: "GET", path: path},
			{name: "add a finalizer while it is being deleted", method: "PATCH", path: path, contentType: mergePatch, body: `{"metadata":{"finalizers":["example.com/hold","example.com/more"]}}`},
			{name: "let go", method: "PATCH", path: path, contentType: mergePatch, body: `{"metadata":{"finalizers":null}}`},
			{name: "get what is gone", method: "GET", path: path},
			{name: "delete what is left", method: "DELETE", path: path + "?gracePeriodSeconds=0"},
			{name: "delete all", method: "DELETE", path: k.collection() + "?labelSelector=story%3Dtold"},
		}})
		if k.kind == "Namespace" || k.kind == "CustomResourceDefinition" || k.kind == "APIService" {
			// What else happens to these when they change takes its own time.
			s := &all[len(all)-1]
			s.requests = slices.DeleteFunc(s.requests, func(r request) bool {
				return strings.Contains(r.name, "gone") || strings.Contains(r.name, "being deleted") || strings.Contains(r.name, "what is left")
			})
		}
	}
	return all
}

// defaulted are creates that are stored, unlike the dry ones, with every field that
// the kind has: what was stored is what is read.
func stored(t *testing.T) []story {
	t.Helper()
	dir := apiModule(t)
	s := story{name: "what was stored is read"}
	for _, k := range kinds {
		if k.kind == "Namespace" || k.kind == "CustomResourceDefinition" || k.kind == "APIService" {
			continue
		}
		valid := k.object(t)
		full := fullObject(t, dir, k)
		for i, c := range append([]change{{"valid", valid}}, grafted(valid, full, 3)...) {
			name := k.path(t)
			s.requests = append(s.requests,
				request{name: fmt.Sprintf("%s %d: create %s", k, i, c.what), method: "POST", path: k.collection(), body: encode(t, c.object)},
				request{name: fmt.Sprintf("%s %d: get %s", k, i, c.what), method: "GET", path: name},
				request{name: fmt.Sprintf("%s %d: finalize %s", k, i, c.what), method: "PATCH", path: name, contentType: mergePatch, body: `{"metadata":{"finalizers":null}}`},
				request{name: fmt.Sprintf("%s %d: delete %s", k, i, c.what), method: "DELETE", path: name + "?gracePeriodSeconds=0"})
		}
	}
	return []story{s}
}

// oddReads are lists, gets and watches with every option wrong.
func oddReads() story {
	s := story{name: "odd reads"}
	queries := []string{
		"limit=-1", "limit=x", "limit=1", "continue=bad", "limit=1&continue=bad", "continue=bad&resourceVersion=1",
		"continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0",
		"resourceVersion=x", "resourceVersion=-1", "resourceVersion=0", "resourceVersion=1", "resourceVersion=99999999999",
		"resourceVersion=1&resourceVersionMatch=Exact",
		"resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan",
		"resourceVersion=1&resourceVersionMatch=Bad", "resourceVersion=0&resourceVersionMatch=NotOlderThan",
		"resourceVersion=1&limit=1", "resourceVersion=0&limit=1", "resourceVersionMatch=Exact&continue=x&resourceVersion=1",
		"fieldSelector=metadata.name", "fieldSelector=nothing%3Da", "fieldSelector=metadata.name%3Da,metadata.namespace!%3Db",
		"fieldSelector=,,", "fieldSelector=a%20in%20(b)", "fieldSelector=metadata.name%3D%3Dstories",
		"labelSelector=a%20in", "labelSelector=a%3D%3D%3Db", "labelSelector=!a", "labelSelector=a%20notin%20(b,c)", "labelSelector=/a",
		"labelSelector=a%20gt%201", "labelSelector=a%3E1", "labelSelector=a%3Ex", "labelSelector=Bad%20Key!%3D1",
		"labelSelector=a%3D" + strings.Repeat("x", 70),
		"timeoutSeconds=-1", "timeoutSeconds=x", "timeoutSeconds=1", "sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=x",
		"allowWatchBookmarks=true", "allowWatchBookmarks=x", "watch=false", "watch=x&timeoutSeconds=1",
		"shardSelector=x", "unknown=1", "pretty=true", "pretty=x", "includeUninitialized=true", "limit=1&limit=2",
	}
	watches := []string{
		"", "resourceVersion=x", "resourceVersion=-1", "resourceVersion=99999999999", "resourceVersionMatch=Exact",
		"resourceVersionMatch=NotOlderThan", "resourceVersion=1&resourceVersionMatch=NotOlderThan",
		"sendInitialEvents=true", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "sendInitialEvents=true&resourceVersionMatch=Exact", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=x", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "sendInitialEvents=false",
		"fieldSelector=nothing%3Da", "labelSelector=a%20in", "limit=1", "continue=x", "allowWatchBookmarks=true&resourceVersion=0",
		"fieldSelector=metadata.name%3Dnone", "resourceVersion=0",
	}
	for _, path := range []string{
		"/api/v1/namespaces/" + space + "/secrets", "/api/v1/persistentvolumes", "/apis/apps/v1/deployments",
		"/apis/batch/v1/namespaces/none/jobs",
	} {
		for _, q := range queries {
			s.requests = append(s.requests, get(path+"?"+q))
		}
		for _, q := range watches {
			s.requests = append(s.requests, get(path+"?watch=true&timeoutSeconds=1&"+q))
		}
	}
	for _, q := range []string{
		"resourceVersion=x", "resourceVersion=0", "resourceVersion=1", "resourceVersion=99999999999",
		"resourceVersion=-1", "pretty=true", "unknown=x", "includeObject=Bad",
	} {
		s.requests = append(s.requests, get("/api/v1/namespaces/"+space+"?"+q), get(maps1+"/none?"+q))
	}
	for _, q := range []string{"includeObject=Bad", "includeObject=None", "includeObject=Metadata", "includeObject=Object"} {
		s.requests = append(s.requests, request{method: "GET", path: "/api/v1/namespaces/" + space + "?" + q, accept: tables},
			request{method: "GET", path: "/api/v1/namespaces?labelSelector=a&" + q, accept: tables},
			request{method: "GET", path: "/api/v1/namespaces/" + space + "/serviceaccounts?" + q, accept: tables},
			request{method: "GET", path: "/api/v1/namespaces/" + space + "/serviceaccounts?watch=true&timeoutSeconds=1&" + q, accept: tables})
	}
	for _, accept := range []string{
		"text/plain", "application/xml", "*/*", "application/*", "application/json;as=Table", "application/json;as=Table;v=v1;g=bad",
		"application/json;as=Table;v=v9;g=meta.k8s.io", "application/json;as=Bad;v=v1;g=meta.k8s.io",
		"application/json;as=PartialObjectMetadata", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json", partial, partialList, tables, tables + ",application/json", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
		"application/yaml", "application/cbor", "application/json;q=0.1,application/yaml;q=0.9", "text/html,application/xhtml+xml,*/*;q=0.8",
		"bad", ";;", "application/json;stream=watch", "application/json;pretty=1", "application/json;charset=utf-8",
	} {
		for _, path := range []string{
			"/api/v1/namespaces/" + space, "/api/v1/namespaces?limit=1", "/api/v1/namespaces/none",
			"/api/v1/namespaces/" + space + "/configmaps?watch=true&timeoutSeconds=1", "/version", "/api", "/apis/apps/v1",
		} {
			s.requests = append(s.requests, request{name: accept + " " + path, method: "GET", path: path, accept: accept})
		}
	}
	return s
}

// oddWrites are bodies, options and media types of every wrong kind.
func oddWrites() story {
	valid := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"odd"},"data":{"a":"b"}}`
	s := story{name: "odd writes"}
	bodies := map[string]string{
		"empty": "", "no JSON": "{", "a list": "[]", "a text": `"x"`, "null": "null", "an empty object": "{}",
		"another kind":     `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"odd"}}`,
		"an unknown kind":  `{"apiVersion":"v1","kind":"Nothing","metadata":{"name":"odd"}}`,
		"another group":    `{"apiVersion":"apps/v1","kind":"ConfigMap","metadata":{"name":"odd"}}`,
		"another version":  `{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"odd"}}`,
		"a bad apiVersion": `{"apiVersion":"a/b/c","kind":"ConfigMap","metadata":{"name":"odd"}}`, "no kind": `{"metadata":{"name":"odd"}}`,
		"duplicate keys": `{"metadata":{"name":"odd"},"data":{"a":"b","a":"c"},"data":{}}`,
		"unknown fields": `{"metadata":{"name":"odd","foo":1},"data":{"a":"b"},"bar":{"baz":[]}}`,
		"wrong types":    `{"metadata":{"name":7},"data":[]}`, "wrong case": `{"Metadata":{"Name":"odd"},"Data":{"a":"b"}}`,
		"YAML": "metadata:\n  name: odd\n", "a list kind": `{"apiVersion":"v1","kind":"ConfigMapList","items":[]}`,
		"metadata of null": `{"metadata":null}`, "metadata of a text": `{"metadata":"x"}`,
		"trailing": valid + "x", "two objects": valid + valid, "deep": `{"metadata":{"name":"odd"},"data":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}", "bad UTF-8": "{\"metadata\":{\"name\":\"odd\"},\"data\":{\"a\":\"\xff\"}}",
		"huge numbers": `{"metadata":{"name":"odd","generation":1e400}}`,
		"a bad time":   `{"metadata":{"name":"odd","creationTimestamp":"yesterday"}}`, "a bad uid": `{"metadata":{"name":"odd","uid":7}}`,
		"managed fields":      `{"metadata":{"name":"odd","managedFields":[{"manager":"m","operation":"Bad","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:x":{}}}]}}`,
		"good managed fields": `{"metadata":{"name":"odd","managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]},"data":{"a":"b"}}`,
		"generateName":        `{"metadata":{"generateName":"made-by-name-"},"data":{"a":"b"}}`, "an empty name": `{"metadata":{"name":""}}`,
		"a bad generateName":  `{"metadata":{"generateName":"Bad_"}}`,
		"a long generateName": `{"metadata":{"generateName":"` + strings.Repeat("a", 300) + `"}}`,
		"owners":              `{"metadata":{"name":"odd","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"a","uid":"1"}]}}`,
		"two controllers":     `{"metadata":{"name":"odd","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"1","controller":true},{"apiVersion":"v1","kind":"Pod","name":"b","uid":"2","controller":true}]}}`,
		"immutable":           `{"metadata":{"name":"odd"},"immutable":"yes"}`, "deletion": `{"metadata":{"name":"odd","deletionTimestamp":"2024-01-02T03:04:05Z","deletionGracePeriodSeconds":5,"selfLink":"/x","generation":7}}`,
		"large":             `{"metadata":{"name":"odd"},"data":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`,
		"large annotations": `{"metadata":{"name":"odd","annotations":{"a":"` + strings.Repeat("x", 1<<18) + `"}}}`,
	}
	for _, what := range slices.Sorted(maps.Keys(bodies)) {
		for _, q := range []string{"", "&fieldValidation=Strict", "&fieldValidation=Ignore"} {
			s.requests = append(s.requests, request{name: "post " + what + q, method: "POST", path: maps1 + "?dryRun=All" + q, body: bodies[what]})
		}
		s.requests = append(s.requests, request{name: "put " + what, method: "PUT", path: maps1 + "/odd?dryRun=All", body: bodies[what]})
		s.requests = append(s.requests, request{
			name: "post YAML " + what, method: "POST", path: maps1 + "?dryRun=All&fieldValidation=Strict",
			body: bodies[what], contentType: yamlType,
		})
		s.requests = append(s.requests, request{
			name: "post protobuf " + what, method: "POST", path: maps1 + "?dryRun=All", body: bodies[what],
			contentType: protobufType,
		})
	}
	for _, contentType := range []string{
		"text/plain", "application/xml", "bad", "application/json;charset=utf-8",
		"application/json; charset=latin1", jsonPatch, "application/x-www-form-urlencoded", "application/cbor", "*/*",
		"application/json, application/yaml",
	} {
		s.requests = append(s.requests,
			request{name: "post as " + contentType, method: "POST", path: maps1 + "?dryRun=All", body: valid, contentType: contentType},
			request{name: "patch as " + contentType, method: "PATCH", path: maps1 + "/odd?dryRun=All", body: valid, contentType: contentType},
			request{
				name: "delete as " + contentType, method: "DELETE", path: maps1 + "/odd", body: `{"kind":"DeleteOptions","apiVersion":"v1"}`,
				contentType: contentType,
			})
	}
	for _, q := range []string{
		"dryRun=all", "dryRun=", "dryRun=All&dryRun=All", "dryRun=All&dryRun=x", "fieldValidation=bad", "fieldValidation=",
		"fieldManager=" + strings.Repeat("x", 129), "fieldManager=%00", "fieldManager=a%0Ab", "fieldManager=ok", "force=true", "force=x",
		"pretty=x", "unknown=1",
		"gracePeriodSeconds=-1", "gracePeriodSeconds=x", "propagationPolicy=bad", "propagationPolicy=Orphan", "propagationPolicy=Foreground",
		"orphanDependents=true", "orphanDependents=x", "orphanDependents=true&propagationPolicy=Background", "timeout=1x", "timeout=0s",
		"timeout=-1s", "timeout=10s",
	} {
		s.requests = append(s.requests,
			request{name: "post ?" + q, method: "POST", path: maps1 + "?" + q, body: strings.ReplaceAll(valid, "odd", "odd-query")},
			request{name: "put ?" + q, method: "PUT", path: maps1 + "/odd-query?" + q, body: strings.ReplaceAll(valid, "odd", "odd-query")},
			request{name: "patch ?" + q, method: "PATCH", path: maps1 + "/odd-query?" + q, contentType: mergePatch, body: `{"data":{"c":"d"}}`},
			request{name: "apply ?" + q, method: "PATCH", path: maps1 + "/odd-query?" + q, contentType: applyYAML, body: strings.ReplaceAll(valid, "odd", "odd-query")},
			request{name: "apply by a, ?" + q, method: "PATCH", path: maps1 + "/odd-query?fieldManager=a&" + q, contentType: applyYAML, body: strings.ReplaceAll(valid, "odd", "odd-query")},
			request{name: "delete ?" + q, method: "DELETE", path: maps1 + "/odd-query?" + q},
			request{name: "delete all ?" + q, method: "DELETE", path: maps1 + "?labelSelector=a%3Dnone&" + q},
		)
	}
	for _, options := range []string{
		`{`, `[]`, `{"kind":"Pod","apiVersion":"v1"}`, `{"gracePeriodSeconds":-1}`, `{"gracePeriodSeconds":"x"}`, `{"propagationPolicy":"bad"}`,
		`{"propagationPolicy":"Orphan","orphanDependents":true}`, `{"dryRun":["bad"]}`, `{"preconditions":{"uid":"x"}}`,
		`{"preconditions":{"resourceVersion":"x"}}`,
		`{"unknown":1}`, `{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1"}`, `{"kind":"DeleteOptions","apiVersion":"apps/v1"}`,
		`{"kind":"DeleteOptions","apiVersion":"bad/v1"}`, `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`, `null`, `{}`,
	} {
		s.requests = append(s.requests,
			request{name: "stage for " + options, method: "POST", path: maps1, body: strings.ReplaceAll(valid, "odd", "odd-options")},
			request{name: "delete with " + options, method: "DELETE", path: maps1 + "/odd-options", body: options},
			request{name: "delete all with " + options, method: "DELETE", path: maps1 + "?labelSelector=a%3Dnone", body: options})
	}
	return s
}

// patches are patches of all types on a Deployment, most of them wrong.
func patches() story {
	s := story{name: "patches"}
	path := deployments + "/patched"
	s.requests = append(s.requests, request{
		name: "stage", method: "POST", path: deployments,
		body: `{"metadata":{"name":"patched","labels":{"a":"b"}},"spec":{"selector":` + selector + `,"template":` + podTemplate + `}}`,
	})
	copies := "[" + strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/spec/replicas","value":1},`, 10001), ",") + "]"
	for i, p := range []struct{ contentType, body string }{
		{jsonPatch, ``},
		{jsonPatch, `{`},
		{jsonPatch, `{}`},
		{jsonPatch, `[]`},
		{jsonPatch, `[{}]`},
		{jsonPatch, `[{"op":"bad","path":"/spec"}]`},
		{jsonPatch, `[{"op":"add","path":"/no/way","value":1}]`},
		{jsonPatch, `[{"op":"remove","path":"/spec/nothing"}]`},
		{jsonPatch, `[{"op":"test","path":"/spec/replicas","value":7}]`},
		{jsonPatch, `[{"op":"test","path":"/spec/nothing","value":7}]`},
		{jsonPatch, `[{"op":"replace","path":"/spec/replicas","value":"x"}]`},
		{jsonPatch, `[{"op":"replace","path":"/spec/replicas","value":-1}]`},
		{jsonPatch, `[{"op":"replace","path":"","value":{}}]`},
		{jsonPatch, `[{"op":"remove","path":""}]`},
		{jsonPatch, `[{"op":"move","from":"/spec","path":"/spec/x"}]`},
		{jsonPatch, `[{"op":"copy","from":"/metadata/labels","path":"/spec/template/metadata/annotations"}]`},
		{jsonPatch, `[{"op":"add","path":"spec","value":1}]`},
		{jsonPatch, `[{"op":"replace","path":"/kind","value":"ReplicaSet"}]`},
		{jsonPatch, `[{"op":"replace","path":"/apiVersion","value":"v9"}]`},
		{jsonPatch, `[{"op":"add","path":"/spec/template/spec/containers/9","value":{}}]`},
		{jsonPatch, `[{"op":"add","path":"/spec/template/spec/containers/-","value":{"name":"c","image":"i"}}]`},
		{jsonPatch, `[{"op":"add","path":"/unknown","value":1}]`},
		{jsonPatch, `[{"op":"replace","path":"/spec/selector/matchLabels/app","value":"z"}]`},
		{jsonPatch, copies},
		{mergePatch, ``},
		{mergePatch, `{`},
		{mergePatch, `[]`},
		{mergePatch, `"x"`},
		{mergePatch, `null`},
		{mergePatch, `{}`},
		{mergePatch, `{"spec":null}`},
		{mergePatch, `{"spec":{"replicas":"x"}}`},
		{mergePatch, `{"spec":{"replicas":-1,"unknown":1}}`},
		{mergePatch, `{"kind":"Pod"}`},
		{mergePatch, `{"apiVersion":"v9"}`},
		{mergePatch, `{"metadata":null}`},
		{mergePatch, `{"metadata":{"namespace":"other"}}`},
		{mergePatch, `{"spec":{"template":{"spec":{"containers":[]}}}}`},
		{mergePatch, `{"spec":{"a":1,"a":2}}`},
		{mergePatch, `{"status":{"replicas":7}}`},
		{mergePatch, `{"metadata":{"managedFields":[{}]}}`},
		{mergePatch, `{"metadata":{"managedFields":null}}`},
		{mergePatch, `{"metadata":{"managedFields":[{"manager":"x"}]}}`},
		{mergePatch, `{"metadata":{"creationTimestamp":null,"generation":77,"uid":null,"resourceVersion":null}}`},
		{strategic, ``},
		{strategic, `{`},
		{strategic, `[]`},
		{strategic, `"x"`},
		{strategic, `{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}`},
		{strategic, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"x"}]}}}}`},
		{strategic, `{"spec":{"template":{"spec":{"containers":[{"name":"c","$patch":"bad"}]}}}}`},
		{strategic, `{"spec":{"template":{"spec":{"containers":[{"name":"d","$patch":"delete"}]}}}}`},
		{strategic, `{"$patch":"replace"}`},
		{strategic, `{"$patch":"delete"}`},
		{strategic, `{"spec":{"$retainKeys":["strategy"],"strategy":{"type":"Recreate"}}}`},
		{strategic, `{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`},
		{strategic, `{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"c"}],"containers":[{"name":"x","image":"y"}]}}}}`},
		{strategic, `{"spec":{"replicas":"x"}}`},
		{strategic, `{"spec":{"unknown":{"a":1}}}`},
		{strategic, `{"spec":{"template":{"spec":{"containers":{"a":1}}}}}`},
		{strategic, `{"spec":{"template":7}}`},
		{applyYAML, ``},
		{applyYAML, `{`},
		{applyYAML, `[]`},
		{applyYAML, `"x"`},
		{applyYAML, `{}`},
		{applyYAML, `apiVersion: apps/v1`},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: other}"},
		{applyYAML, "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: patched}"},
		{applyYAML, "apiVersion: apps/v9\nkind: Deployment\nmetadata: {name: patched}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched, managedFields: [{manager: x}]}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched, resourceVersion: '1'}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched, uid: abc}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched, namespace: other}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched}\nspec: {replicas: 5, unknown: 1}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched}\nspec: {replicas: 5, replicas: 6}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched}\nspec: {replicas: x}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched, labels: {a: c}}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched}\nspec: {template: {spec: {containers: [{image: x}]}}}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched}\nspec: {template: {spec: {containers: [{name: c, image: x}, {name: c, image: y}]}}}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched, annotations: {x: y}}\nspec: {minReadySeconds: 5}"},
		{applyYAML, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: patched}\nspec: {minReadySeconds: -5}"},
		{applyYAML, "a: &a [1,1]\nb: [*a,*a]\n"},
		{"application/apply-patch+cbor", "\xa0"},
		{"application/apply-patch+cbor", ""},
		{"application/apply-patch+json", "{}"},
		{"application/merge-patch+json;charset=utf-8", `{"metadata":{"labels":{"c":"d"}}}`},
		{"", "{}"},
	} {
		for _, q := range []string{
			"", "?fieldManager=m&force=true", "?fieldValidation=Strict&fieldManager=n&dryRun=All",
			"?fieldManager=o&fieldValidation=Ignore",
		} {
			contentType := p.contentType
			if contentType == "" {
				contentType = jsonType
			}
			body := p.body
			r := request{
				name: fmt.Sprintf("%d %s %s %.120s", i, q, contentType, body), method: "PATCH", path: path + q, contentType: contentType,
				body: body,
			}
			s.requests = append(s.requests, r)
		}
		s.requests = append(s.requests, request{name: fmt.Sprintf("%d: then", i), method: "GET", path: path},
			request{name: fmt.Sprintf("%d: status", i), method: "PATCH", path: path + "/status?fieldManager=m", contentType: cmpType(p.contentType), body: p.body},
			request{name: fmt.Sprintf("%d: scale", i), method: "PATCH", path: path + "/scale?fieldManager=m&dryRun=All", contentType: cmpType(p.contentType), body: p.body},
			request{name: fmt.Sprintf("%d: again", i), method: "PATCH", path: path + "?fieldManager=reset", contentType: mergePatch, body: `{"metadata":{"labels":{"a":"b","c":null},"annotations":null},"spec":{"replicas":1,"minReadySeconds":0}}`})
	}
	return s
}

func cmpType(contentType string) string {
	if contentType == "" {
		return jsonType
	}
	return contentType
}

// published are the documents that describe the API, and the server itself.
func published() story {
	s := story{name: "what is published"}
	aggregated := "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	for _, path := range []string{"/api", "/apis"} {
		s.requests = append(s.requests, get(path), request{name: path + " aggregated", method: "GET", path: path, accept: aggregated},
			request{name: path + " aggregated, no local peers", method: "GET", path: path, accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,application/json"},
			request{name: path + " aggregated v2beta1", method: "GET", path: path, accept: "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"},
			request{name: path + " protobuf", method: "GET", path: path, accept: protobufType},
			request{name: path + " YAML", method: "GET", path: path, accept: yamlType})
	}
	seen := map[string]bool{}
	for _, k := range kinds {
		root := "/apis/" + k.group
		if k.group == "" {
			root = "/api"
		}
		for _, path := range []string{root, root + "/" + k.version, "/openapi/v3" + root + "/" + k.version} {
			if !seen[path] && path != "/api" {
				s.requests = append(s.requests, get(path))
			}
			seen[path] = true
		}
	}
	for _, path := range []string{
		"/", "/version", "/version/", "/healthz", "/healthz/ping", "/healthz?verbose", "/livez", "/livez/ping", "/livez/none", "/readyz",
		"/readyz/ping", "/readyz?exclude=etcd", "/readyz?verbose&exclude=none", "/livez?exclude=ping", "/openapi/v2", "/openapi/v3",
		"/openapi/v3/apis", "/openapi/v3/version", "/openapi/v3/none", "/openapi", "/openapi/v1",
		"/.well-known/openid-configuration", "/openid/v1/jwks", "/apis/none", "/apis/none/v1", "/apis/apps/v9", "/api/v9", "/api/v1/none",
		"/api/v1/namespaces/x/none", "/api/v1/namespaces/x/none/y", "/apis/apps/v1/none", "/none", "/api/", "/apis/", "/apis/apps/", "/api/v1/",
		"/api/v1/pods/", "/api/v1//pods", "//api/v1", "/api/v1/../v1/pods", "/api/v1/namespaces/a%2Fb/pods", "/api/v1/namespaces/%2E%2E/pods",
		"/api/v1/namespaces/.", "/swagger.json", "/swaggerapi", "/ui", "/flagz", "/statusz", "/debug/pprof", "/metrics/none", "/logs",
		"/validate",
		"/api/v1/watch/namespaces/stories?timeoutSeconds=1", "/api/v1/watch/configmaps?timeoutSeconds=1&labelSelector=none",
		"/api/v1/watch/namespaces/stories/configmaps?timeoutSeconds=1", "/api/v1/watch/none", "/api/v1/proxy/nodes/a",
		"/api/v1/componentstatuses/none", "/api/v1/namespaces/stories/bindings", "/apis/apps/v1/namespaces/stories/deployments/none/scale",
		"/apis/apps/v1/deployments/x", "/api/v1/namespaces/stories/nodes", "/api/v1/nodes/none", "/api/v1/namespaces/stories/pods/none/log",
		"/api/v1/namespaces/stories/pods/none/exec?command=a", "/api/v1/namespaces/stories/pods/none/attach",
		"/api/v1/namespaces/stories/pods/none/portforward", "/api/v1/namespaces/stories/pods/none/proxy",
		"/api/v1/namespaces/stories/services/none/proxy", "/api/v1/namespaces/stories/services/none:80/proxy/x", "/api/v1/nodes/none/proxy",
		"/api/v1/namespaces/stories/pods/none/ephemeralcontainers", "/api/v1/namespaces/stories/pods/none/resize",
		"/api/v1/namespaces/stories/pods/none/eviction", "/api/v1/namespaces/stories/pods/none/binding",
		"/api/v1/namespaces/stories/serviceaccounts/default/token", "/api/v1/namespaces/none/finalize",
		"/apis/certificates.k8s.io/v1/certificatesigningrequests/none/approval",
		"/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication/x",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=500", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?limit=500",
		"/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
		"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
		"/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/apiregistration.k8s.io/v1/apiservices", "/api/v1/namespaces", "/api/v1/services",
		"/api/v1/endpoints", "/apis/discovery.k8s.io/v1/endpointslices", "/apis/networking.k8s.io/v1/servicecidrs",
		"/apis/networking.k8s.io/v1/ipaddresses", "/apis/coordination.k8s.io/v1/leases", "/api/v1/configmaps", "/api/v1/serviceaccounts",
		"/api/v1/secrets",
	} {
		s.requests = append(s.requests, get(path))
	}
	for _, method := range []string{"HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "CONNECT-BAD", "TRACE"} {
		for _, path := range []string{
			"/api", "/apis/apps/v1", "/version", "/healthz", "/openapi/v2", "/none", "/api/v1/namespaces",
			"/api/v1/namespaces/stories", "/api/v1/namespaces/stories/configmaps", "/api/v1/namespaces/stories/pods/none/log",
			"/api/v1/namespaces/stories/pods/none/eviction", "/apis/authorization.k8s.io/v1/subjectaccessreviews",
			"/apis/apps/v1/namespaces/stories/deployments/none/scale", "/api/v1/componentstatuses", "/metrics",
		} {
			if method == "DELETE" && (path == "/api/v1/namespaces" || strings.HasSuffix(path, "/stories") || strings.HasSuffix(path, "configmaps")) {
				continue
			}
			s.requests = append(s.requests, request{method: method, path: path})
		}
	}
	return s
}

// people are reads and writes of those who may not, of strangers and of
// those who claim to be somebody else.
func people() story {
	s := story{name: "people"}
	for _, path := range []string{
		"/api", "/apis/apps/v1", "/version", "/healthz", "/livez", "/readyz?verbose", "/openapi/v2", "/metrics",
		"/none", "/api/v1/namespaces", "/api/v1/namespaces/stories/pods/x/log", "/apis/apps/v1/namespaces/stories/deployments/d/scale",
		"/api/v1/nodes", "/apis/none.example.com/v1/things/x",
	} {
		s.requests = append(s.requests, request{name: "alice " + path, method: "GET", path: path, as: "alice"},
			request{name: "stranger " + path, method: "GET", path: path, anonymous: true},
			request{name: "bad token " + path, method: "GET", path: path, anonymous: true, header: []string{"Authorization: Bearer nonsense"}},
			request{name: "bad basic " + path, method: "GET", path: path, anonymous: true, header: []string{"Authorization: Basic eDp5"}})
	}
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "GET"} {
		path := maps1 + "/x"
		if method == "POST" {
			path = maps1
		}
		s.requests = append(s.requests, request{
			name: "alice " + method, method: method, path: path, body: `{"metadata":{"name":"x"}}`,
			contentType: map[string]string{"PATCH": mergePatch}[method], as: "alice",
		},
			request{name: "alice deletes all " + method, method: "DELETE", path: maps1 + "?x=" + method, as: "alice"},
			request{name: "account " + method, method: method, path: path, body: `{"metadata":{"name":"x"}}`, contentType: map[string]string{"PATCH": mergePatch}[method], as: "system:serviceaccount:stories:default"})
	}
	s.requests = append(s.requests, request{name: "alice watches", method: "GET", path: maps1 + "?watch=true", as: "alice"},
		request{name: "a node lists secrets", method: "GET", path: "/api/v1/secrets", as: "system:node:n", header: []string{"Impersonate-Group: system:nodes"}},
		request{name: "a node gets a pod", method: "GET", path: pods + "/none", as: "system:node:n", header: []string{"Impersonate-Group: system:nodes"}},
		request{name: "a node makes a node", method: "POST", path: "/api/v1/nodes?dryRun=All", body: `{"metadata":{"name":"other"}}`, as: "system:node:n", header: []string{"Impersonate-Group: system:nodes"}},
		request{name: "a node makes a pod", method: "POST", path: pods, body: `{"metadata":{"name":"p"},"spec":` + podSpec + `}`, as: "system:node:n", header: []string{"Impersonate-Group: system:nodes"}},
		request{
			name: "a node gets a secret", method: "GET", path: "/api/v1/namespaces/stories/secrets/s", as: "system:node:n",
			header: []string{"Impersonate-Group: system:nodes"},
		})
	for i, header := range [][]string{
		{"Impersonate-Group: g"}, {"Impersonate-Uid: u"}, {"Impersonate-Extra-A: b"}, {"Impersonate-User: bob", "Impersonate-Group: g", "Impersonate-Uid: u", "Impersonate-Extra-Scopes: a", "Impersonate-Extra-Example.com%2Fx: y"}, {"Impersonate-User: "}, {"Impersonate-User: system:serviceaccount:a:b"}, {"Impersonate-User: system:anonymous"}, {"Impersonate-User: bob", "Impersonate-Extra-: x"}, {"Impersonate-User: bob", "Impersonate-Extra-A%ZZ: x"}, {"Impersonate-User: system:serviceaccount:x", "Impersonate-Group: "},
	} {
		s.requests = append(s.requests, request{
			name: fmt.Sprintf("impersonation %d: who am I", i), method: "POST",
			path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{}`, header: header,
		},
			request{
				name: fmt.Sprintf("impersonation %d of alice's", i), method: "GET", path: "/api/v1/nodes",
				header: append([]string{"X-Nothing: alice"}, header...),
			})
	}
	return s
}
