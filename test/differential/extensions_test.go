// SPDX-License-Identifier: Apache-2.0

package differential

import "fmt"

const (
	crds    = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	widgets = "/apis/example.com/v1/namespaces/stories/widgets"
)

func definition(spec string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":` + spec + `}`
}

func withSchema(schema string) string {
	return definition(`{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `}}]}`)
}

// definitions are wrong definitions of custom resources.
func definitions() story {
	s := story{name: "definitions"}
	object := func(properties string) string {
		return `{"type":"object","properties":{"spec":{"type":"object","properties":` + properties + `}}}`
	}
	for i, schema := range []string{
		`{}`, `{"type":"string"}`, `{"type":"bad"}`, `{"type":"object","properties":{"spec":{}}}`, object(`{"a":{}}`),
		object(`{"a":{"type":"array"}}`), object(`{"a":{"type":"array","items":{}}}`),
		object(`{"a":{"type":"array","items":[{"type":"string"}]}}`), object(`{"a":{"type":"string","default":7}}`),
		object(`{"a":{"type":"string","pattern":"("}}`), object(`{"a":{"type":"string","format":"bad"}}`),
		object(`{"a":{"type":"integer","minimum":5,"maximum":3}}`), object(`{"a":{"type":"string","enum":[1,"a","a"]}}`),
		object(`{"a":{"type":"string","nullable":true,"default":null}}`),
		object(`{"a":{"type":"object","properties":{"b":{"type":"string"}},"additionalProperties":{"type":"string"}}}`), object(`{"a":{"type":"object","additionalProperties":false}}`), object(`{"a":{"x-kubernetes-int-or-string":true,"type":"string"}}`), object(`{"a":{"x-kubernetes-preserve-unknown-fields":false,"type":"object"}}`), object(`{"a":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"]}}`), object(`{"a":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"bad"}}`), object(`{"a":{"type":"array","items":{"type":"object"},"x-kubernetes-list-type":"set"}}`), object(`{"a":{"type":"array","items":{"type":"object"},"x-kubernetes-list-type":"map"}}`), object(`{"a":{"type":"object","x-kubernetes-map-type":"bad"}}`), object(`{"a":{"type":"object","x-kubernetes-embedded-resource":true}}`),
		object(`{"a":{"oneOf":[{"type":"string"}]}}`), object(`{"a":{"type":"string","anyOf":[{"description":"x"}]}}`), object(`{"a":{"$ref":"#/x"}}`), object(`{"a":{"type":"string","uniqueItems":true,"readOnly":true}}`), object(`{"a":{"type":"array","uniqueItems":true,"items":{"type":"string"}}}`), object(`{"a":{"type":"string","minLength":-1,"maxLength":-1}}`), `{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":3},"labels":{"type":"object"}}}}}`, `{"type":"object","properties":{"apiVersion":{"type":"integer"}}}`, `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`,
		object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":"self.bad("}]}}`), object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":"self > 7"}]}}`), object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":""}]}}`), object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":"true","message":"a\nb"}]}}`), object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":"true","reason":"Bad","fieldPath":".x"}]}}`), object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":"1"}]}}`), object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":"true","messageExpression":"1"}]}}`), object(`{"a":{"type":"array","items":{"type":"array","items":{"type":"string"}},"x-kubernetes-validations":[{"rule":"self.all(x, x.all(y, self.all(z, z.all(w, w == y))))"}]}}`), object(`{"a":{"type":"array","items":{"type":"string","x-kubernetes-validations":[{"rule":"self == oldSelf"}]}}}`), object(`{"a":{"type":"string","x-kubernetes-validations":[{"rule":"oldSelf.hasValue()","optionalOldSelf":true}]}}`), object(`{"a":{"type":"object","properties":{"b":{"type":"string"}},"x-kubernetes-validations":[{"rule":"has(self.c)"},{"rule":"self.b.matches('(')"}]}}`),
		object(`{"a":{"type":"object","properties":{"b":{"type":"string","default":"x"}},"default":{"c":1}}}`), object(`{"a":{"type":"number","multipleOf":0}}`), object(`{"a":{"type":"object","required":["b","b"]}}`), object(`{"a":{"type":"object","maxProperties":-1,"patternProperties":{"a":{"type":"string"}},"dependencies":{"a":["b"]},"definitions":{"a":{}}}}`), object(`{"a":{"not":{"type":"object"}}}`), object(`{"a":{"type":"string","title":"t","example":"e","externalDocs":{"url":"u"},"id":"i","$schema":"s"}}`),
	} {
		s.requests = append(s.requests, request{
			name: fmt.Sprintf("schema %d %.150s", i, schema), method: "POST",
			path: crds + "?dryRun=All&fieldValidation=Strict", body: withSchema(schema),
		})
	}
	names := `"names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"}`
	open := `"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}`
	for i, spec := range []string{
		`{}`, `null`, `{"group":"","scope":"Bad","names":{},"versions":[]}`, `{"group":"other.com","scope":"Cluster",` + names + `,"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster","names":{"plural":"others","kind":"bad kind"},"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"versions":[{"name":"v1","served":true,"storage":false,` + open + `}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"versions":[{"name":"v1","served":true,"storage":true,` + open + `},{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"versions":[{"name":"Bad","served":false,"storage":true}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"preserveUnknownFields":true,"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"conversion":{"strategy":"Webhook"},"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"conversion":{"strategy":"Bad"},"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"conversion":{"strategy":"None","webhook":{"conversionReviewVersions":["v9"],"clientConfig":{"url":"http://x"}}},"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"versions":[{"name":"v1","served":true,"storage":true,` + open + `,"subresources":{"scale":{"specReplicasPath":"bad","statusReplicasPath":".spec.x","labelSelectorPath":".x"}}}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"versions":[{"name":"v1","served":true,"storage":true,` + open + `,"additionalPrinterColumns":[{"name":"","type":"bad","jsonPath":"bad","format":"x"}]}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"versions":[{"name":"v1","served":true,"storage":true,` + open + `,"selectableFields":[{"jsonPath":".spec.x"},{"jsonPath":"bad"}]}]}`, `{"group":"example.com","scope":"Cluster",` + names + `,"versions":[{"name":"v1","served":true,"storage":true,"deprecated":false,"deprecationWarning":"x",` + open + `}]}`, `{"group":"apps","scope":"Cluster","names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"x.k8s.io","scope":"Cluster","names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`, `{"group":"example.com","scope":"Cluster","names":{"plural":"widgets","kind":"Widget","shortNames":["Bad","a"],"categories":["Bad"]},"versions":[{"name":"v1","served":true,"storage":true,` + open + `}]}`,
	} {
		s.requests = append(s.requests,
			request{name: fmt.Sprintf("spec %d", i), method: "POST", path: crds + "?dryRun=All&fieldValidation=Strict", body: definition(spec)})
	}
	return s
}

// customs are the objects of a definition.
func customs() story {
	schema := `{"type":"object","required":["spec"],"properties":{"spec":{"type":"object","required":["size"],"properties":{
		"size":{"type":"integer","minimum":1,"maximum":10,"default":3},"name":{"type":"string","maxLength":5,"pattern":"^[a-z]*$"},"mode":{"type":"string","enum":["A","B"],"default":"A"},
		"items":{"type":"array","maxItems":3,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"type":"string","default":"d"}}}},
		"set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},"any":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"port":{"x-kubernetes-int-or-string":true},"when":{"type":"string","format":"date-time"},
		"fixed":{"type":"string","x-kubernetes-validations":[{"rule":"self == oldSelf","message":"is fixed"}]},"replicas":{"type":"integer","minimum":0},"nothing":{"type":"string","nullable":true},"map":{"type":"object","additionalProperties":{"type":"integer"}}
		},"x-kubernetes-validations":[{"rule":"self.size != 7","message":"seven is no size","reason":"FieldValueForbidden","fieldPath":".size"},{"rule":"!has(self.name) || self.name != 'bad'","messageExpression":"'it is ' + self.name"}]},
		"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},"phase":{"type":"string"}}}}}`
	body := definition(`{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList","shortNames":["wd"],"categories":["all"]},"versions":[
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `},"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}},
		 "selectableFields":[{"jsonPath":".spec.mode"}],"additionalPrinterColumns":[{"name":"Size","type":"integer","jsonPath":".spec.size"},{"name":"When","type":"date","jsonPath":".spec.when"},{"name":"Odd","type":"string","jsonPath":".spec.any","priority":1},{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]},
		{"name":"v1old","served":true,"storage":false,"deprecated":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
		{"name":"v0","served":false,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}`)
	object := func(spec string) string {
		return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":` + spec + `}`
	}
	s := story{name: "custom resources", requests: []request{
		{name: "before there is a definition", method: "GET", path: widgets},
		{name: "define", method: "POST", path: crds, body: body},
		{name: "established", method: "GET", path: crds + "/widgets.example.com", eventually: `"storedVersions":["v1"]`},
		{name: "served", method: "GET", path: widgets, eventually: "WidgetList"},
		{name: "discovered", method: "GET", path: "/apis/example.com/v1", eventually: `"widgets"`},
		{name: "discovered, old", method: "GET", path: "/apis/example.com/v1old", eventually: `"widgets"`},
		{name: "discovered group", method: "GET", path: "/apis/example.com", eventually: "v1old"},
		{name: "described", method: "GET", path: "/openapi/v3/apis/example.com/v1", eventually: "com.example.v1.Widget"},
		{name: "not served", method: "GET", path: "/apis/example.com/v0/namespaces/stories/widgets"},
	}}
	for i, spec := range []string{
		`{}`, `null`, `[]`, `{"size":0}`, `{"size":"x"}`, `{"size":1.5}`, `{"size":7}`, `{"size":11,"name":"TOOLONG","mode":"C"}`,
		`{"name":"bad"}`, `{"unknown":1,"any":{"x":{"y":1}}}`, `{"items":[{"k":"a"},{"k":"a"}]}`, `{"items":[{}]}`,
		`{"items":[{"k":"a"},{"k":"b"},{"k":"c"},{"k":"d"}]}`, `{"set":["a","a"]}`, `{"port":"x"}`, `{"port":1.5}`, `{"port":[]}`,
		`{"when":"yesterday"}`, `{"when":"2024-01-02T03:04:05Z","any":{"a":1}}`, `{"nothing":null,"mode":null}`, `{"map":{"a":1,"b":"x"}}`,
		`{"fixed":"a"}`, `{"size":null}`,
	} {
		s.requests = append(s.requests, request{
			name: fmt.Sprintf("create %d", i), method: "POST", path: widgets + "?dryRun=All",
			body: object(spec),
		},
			request{name: fmt.Sprintf("create strict %d", i), method: "POST", path: widgets + "?dryRun=All&fieldValidation=Strict", body: object(spec)},
			request{name: fmt.Sprintf("create old %d", i), method: "POST", path: "/apis/example.com/v1old/namespaces/stories/widgets?dryRun=All", body: `{"apiVersion":"example.com/v1old","kind":"Widget","metadata":{"name":"w"},"spec":` + spec + `}`})
	}
	w := widgets + "/w"
	s.requests = append(s.requests, []request{
		{name: "create", method: "POST", path: widgets, body: object(`{"fixed":"a","items":[{"k":"a"}],"unknown":1,"when":"2024-01-02T03:04:05Z"}`)},
		{name: "create again", method: "POST", path: widgets, body: object(`{}`)},
		{name: "get", method: "GET", path: w},
		{name: "table", method: "GET", path: widgets, accept: tables},
		{name: "one row", method: "GET", path: w, accept: tables},
		{name: "metadata", method: "GET", path: w, accept: partial},
		{name: "protobuf", method: "GET", path: w, accept: protobufType},
		{name: "YAML", method: "GET", path: w, accept: yamlType},
		{name: "protobuf metadata", method: "GET", path: w, accept: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"},
		{name: "old", method: "GET", path: "/apis/example.com/v1old/namespaces/stories/widgets/w"},
		{name: "old list", method: "GET", path: "/apis/example.com/v1old/namespaces/stories/widgets"},
		{name: "by mode", method: "GET", path: widgets + "?fieldSelector=spec.mode%3DA"},
		{name: "by size", method: "GET", path: widgets + "?fieldSelector=spec.size%3D3"},
		{name: "watch", method: "GET", path: widgets + "?watch=true&timeoutSeconds=1"},
		{name: "change what is fixed", method: "PATCH", path: w, contentType: mergePatch, body: `{"spec":{"fixed":"b"}}`},
		{name: "strategic", method: "PATCH", path: w, contentType: strategic, body: `{"spec":{"size":4}}`},
		{name: "merge", method: "PATCH", path: w, contentType: mergePatch, body: `{"spec":{"size":4},"status":{"phase":"x"}}`},
		{name: "JSON", method: "PATCH", path: w, contentType: jsonPatch, body: `[{"op":"replace","path":"/spec/size","value":70}]`},
		{name: "unknown", method: "PATCH", path: w + "?fieldValidation=Strict", contentType: mergePatch, body: `{"spec":{"unknown":1}}`},
		{name: "unknown, warned", method: "PATCH", path: w, contentType: mergePatch, body: `{"spec":{"unknown":1,"items":[{"k":"a","x":1}]}}`},
		{name: "name", method: "PATCH", path: w, contentType: mergePatch, body: `{"metadata":{"name":"x"}}`},
		{name: "version", method: "PATCH", path: w, contentType: mergePatch, body: `{"apiVersion":"example.com/v1old"}`},
		{name: "put without a revision", method: "PUT", path: w, body: object(`{}`)},
		{name: "put with an old one", method: "PUT", path: w, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","resourceVersion":"1"},"spec":{}}`},
		{name: "put another kind", method: "PUT", path: w, body: `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"w"}}`},
		{name: "put nothing", method: "PUT", path: w, body: `{}`},
		{name: "put anew", method: "PUT", path: widgets + "/new?dryRun=All", body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"new"},"spec":{}}`},
		{name: "status", method: "PATCH", path: w + "/status", contentType: mergePatch, body: `{"spec":{"size":9},"status":{"phase":"y","replicas":2,"selector":"a=b","unknown":1}}`},
		{name: "bad status", method: "PATCH", path: w + "/status", contentType: mergePatch, body: `{"status":{"replicas":"x"}}`},
		{name: "scale", method: "GET", path: w + "/scale"},
		{name: "set scale", method: "PATCH", path: w + "/scale", contentType: mergePatch, body: `{"spec":{"replicas":5}}`},
		{name: "bad scale", method: "PATCH", path: w + "/scale", contentType: mergePatch, body: `{"spec":{"replicas":-5}}`},
		{name: "scaled", method: "GET", path: w},
		{name: "scale again", method: "GET", path: w + "/scale"},
		{name: "apply", method: "PATCH", path: w + "?fieldManager=a", contentType: applyYAML, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":5,"items":[{"k":"b","v":"x"}]}}`},
		{name: "apply with force", method: "PATCH", path: w + "?fieldManager=a&force=true", contentType: applyYAML, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":5,"items":[{"k":"b","v":"x"}]}}`},
		{name: "apply what is unknown", method: "PATCH", path: w + "?fieldManager=a&force=true", contentType: applyYAML, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"unknown":5}}`},
		{name: "apply what is wrong", method: "PATCH", path: w + "?fieldManager=a&force=true", contentType: applyYAML, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":"x"}}`},
		{name: "apply in the old version", method: "PATCH", path: "/apis/example.com/v1old/namespaces/stories/widgets/w?fieldManager=a&force=true", contentType: applyYAML, body: `{"apiVersion":"example.com/v1old","kind":"Widget","metadata":{"name":"w"},"spec":{"mode":"B"}}`},
		{name: "applied", method: "GET", path: w},
		{name: "narrow the schema", method: "PATCH", path: crds + "/widgets.example.com", contentType: jsonPatch, body: `[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum","value":4}]`},
		{name: "await it", method: "POST", path: widgets + "?dryRun=All", body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"size":5}}`, eventually: "Invalid"},
		{name: "ratchet", method: "PATCH", path: w, contentType: mergePatch, body: `{"spec":{"name":"ab"}}`},
		{name: "beyond it", method: "PATCH", path: w, contentType: mergePatch, body: `{"spec":{"size":6}}`},
		{name: "change the scope", method: "PATCH", path: crds + "/widgets.example.com", contentType: mergePatch, body: `{"spec":{"scope":"Cluster","group":"x.com"}}`},
		{name: "drop a stored version", method: "PATCH", path: crds + "/widgets.example.com", contentType: jsonPatch, body: `[{"op":"remove","path":"/spec/versions/0"},{"op":"replace","path":"/spec/versions/0/storage","value":true}]`},
		{name: "status of the definition", method: "PATCH", path: crds + "/widgets.example.com/status?dryRun=All", contentType: mergePatch, body: `{"status":{"storedVersions":[]}}`},
		{name: "the definition", method: "GET", path: crds + "/widgets.example.com"},
		{name: "the definition as a table", method: "GET", path: crds + "/widgets.example.com", accept: tables},
		{name: "hold", method: "PATCH", path: w, contentType: mergePatch, body: `{"metadata":{"finalizers":["example.com/x"]}}`},
		{name: "delete", method: "DELETE", path: w},
		{name: "held", method: "GET", path: w},
		{name: "delete the definition", method: "DELETE", path: crds + "/widgets.example.com", quiet: true},
		{name: "let go", method: "PATCH", path: w, contentType: mergePatch, body: `{"metadata":{"finalizers":[]}}`},
		{name: "gone", method: "GET", path: w, eventually: "404"},
	}...)
	return s
}

// policies are wrong admission policies and webhooks.
func policies() story {
	s := story{name: "policies"}
	group := "/apis/admissionregistration.k8s.io/v1/"
	match := `"matchConstraints":{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["deployments"]}]}`
	for i, spec := range []string{
		`{}`, `{` + match + `}`, `{` + match + `,"validations":[]}`, `{` + match + `,"validations":[{"expression":""}]}`, `{` + match + `,"validations":[{"expression":"object.bad("}]}`, `{` + match + `,"validations":[{"expression":"object.spec.replicas > 'x'"}]}`, `{` + match + `,"validations":[{"expression":"object.nothing.here == 1"}]}`, `{` + match + `,"validations":[{"expression":"1"}]}`, `{` + match + `,"validations":[{"expression":"unknown == 1"}]}`, `{` + match + `,"validations":[{"expression":"true","messageExpression":"1"}]}`, `{` + match + `,"validations":[{"expression":"true","messageExpression":"bad("}]}`, `{` + match + `,"validations":[{"expression":"true","reason":"Bad","message":"a\nb"}]}`, `{` + match + `,"variables":[{"name":"bad name","expression":"1"},{"name":"a","expression":"variables.b"}],"validations":[{"expression":"variables.a"}]}`, `{` + match + `,"matchConditions":[{"name":"","expression":"bad("},{"name":"a","expression":"1"}],"validations":[{"expression":"true"}]}`, `{` + match + `,"auditAnnotations":[{"key":"bad key","valueExpression":"1"}]}`, `{` + match + `,"paramKind":{"apiVersion":"bad","kind":""},"validations":[{"expression":"params.x"}]}`, `{` + match + `,"failurePolicy":"Bad","validations":[{"expression":"params == null"}]}`, `{` + match + `,"validations":[{"expression":"authorizer.group('').resource('pods').check('get').allowed()"}]}`, `{` + match + `,"validations":[{"expression":"object.spec.template.spec.containers.all(c, object.spec.template.spec.containers.all(d, object.spec.template.spec.containers.all(e, c.name != d.name)))"}]}`, `{"matchConstraints":{"resourceRules":[{"apiGroups":[],"apiVersions":[],"operations":["BAD"],"resources":["a/b/c"]}],"matchPolicy":"Bad","namespaceSelector":{"matchLabels":{"bad key":"x"}}},"validations":[{"expression":"true"}]}`,
	} {
		s.requests = append(s.requests, request{
			name: fmt.Sprintf("validating %d", i), method: "POST",
			path: group + "validatingadmissionpolicies?dryRun=All&fieldValidation=Strict", body: `{"metadata":{"name":"p"},"spec":` + spec + `}`,
		})
	}
	for i, spec := range []string{
		`{}`, `{` + match + `}`, `{` + match + `,"mutations":[{}],"reinvocationPolicy":"Bad"}`, `{` + match + `,"mutations":[{"patchType":"Bad"}]}`, `{` + match + `,"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{bad"}}]}`, `{` + match + `,"reinvocationPolicy":"Never","mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"1"}}]}`, `{` + match + `,"reinvocationPolicy":"Never","mutations":[{"patchType":"JSONPatch","applyConfiguration":{"expression":"Object{}"}}]}`, `{` + match + `,"reinvocationPolicy":"Never","mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'add', path: '/x', value: 1}]"}}]}`,
	} {
		s.requests = append(s.requests, request{
			name: fmt.Sprintf("mutating %d", i), method: "POST",
			path: group + "mutatingadmissionpolicies?dryRun=All&fieldValidation=Strict", body: `{"metadata":{"name":"p"},"spec":` + spec + `}`,
		})
	}
	for i, hook := range []string{
		`{}`, `{"name":"bad"}`, `{"name":"a.example.com","clientConfig":{}}`, `{"name":"a.example.com","clientConfig":{"url":"http://x"}}`, `{"name":"a.example.com","clientConfig":{"url":"https://u:p@x?q#f"}}`, `{"name":"a.example.com","clientConfig":{"url":"https://x","service":{"namespace":"","name":""},"caBundle":"eA=="}}`, `{"name":"a.example.com","clientConfig":{"service":{"namespace":"n","name":"s","path":"bad//","port":0}},"sideEffects":"Some","admissionReviewVersions":["v9"],"timeoutSeconds":31,"failurePolicy":"Bad","matchPolicy":"Bad"}`, `{"name":"a.example.com","clientConfig":{"url":"https://x"},"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":["*","CREATE"],"apiGroups":["*","a"],"apiVersions":[""],"resources":["*/*","pods"],"scope":"Bad"}],"matchConditions":[{"name":"a","expression":"bad("}]}`, `{"name":"a.example.com","clientConfig":{"url":"https://x"},"sideEffects":"None","admissionReviewVersions":[],"reinvocationPolicy":"Bad"}`,
	} {
		for _, resource := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
			s.requests = append(s.requests, request{
				name: fmt.Sprintf("%s %d", resource, i), method: "POST", path: group + resource + "?dryRun=All",
				body: `{"metadata":{"name":"h"},"webhooks":[` + hook + `]}`,
			})
		}
	}
	only := `"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["configmaps"]}],"objectSelector":{"matchLabels":{"judged":"yes"}}}`
	s.requests = append(s.requests, []request{
		{name: "a policy", method: "POST", path: group + "validatingadmissionpolicies", body: `{"metadata":{"name":"judge.example.com"},"spec":{` + only + `,"failurePolicy":"Fail","validations":[{"expression":"object.data.a != 'bad'","messageExpression":"'a is ' + object.data.a","reason":"Forbidden"},{"expression":"object.data.b != 'bad'","message":"b is bad"},{"expression":"object.data.c == object.data.d"}],"auditAnnotations":[{"key":"seen","valueExpression":"'yes'"}]}}`},
		{name: "bind it", method: "POST", path: group + "validatingadmissionpolicybindings", body: `{"metadata":{"name":"judge.example.com"},"spec":{"policyName":"judge.example.com","validationActions":["Deny","Audit"]}}`},
		{name: "judged", method: "POST", path: maps1 + "?dryRun=All", body: `{"metadata":{"name":"j","labels":{"judged":"yes"}},"data":{"a":"bad","b":"bad","c":"","d":""}}`, eventually: "a is bad"},
		{name: "judged b", method: "POST", path: maps1 + "?dryRun=All", body: `{"metadata":{"name":"j","labels":{"judged":"yes"}},"data":{"a":"","b":"bad","c":"","d":""}}`},
		{name: "judged c", method: "POST", path: maps1 + "?dryRun=All", body: `{"metadata":{"name":"j","labels":{"judged":"yes"}},"data":{"a":"","b":"","c":"1","d":""}}`},
		{name: "judged with an error", method: "POST", path: maps1 + "?dryRun=All", body: `{"metadata":{"name":"j","labels":{"judged":"yes"}}}`},
		{name: "judged well", method: "POST", path: maps1 + "?dryRun=All", body: `{"metadata":{"name":"j","labels":{"judged":"yes"}},"data":{"a":"","b":"","c":"","d":""}}`},
		{name: "warn instead", method: "PATCH", path: group + "validatingadmissionpolicybindings/judge.example.com", contentType: mergePatch, body: `{"spec":{"validationActions":["Warn"]}}`},
		{name: "warned", method: "POST", path: maps1 + "?dryRun=All", body: `{"metadata":{"name":"j","labels":{"judged":"yes"}},"data":{"a":"bad","b":"bad","c":"1","d":""}}`, eventually: `"kind":"ConfigMap"`},
		{name: "unbind", method: "DELETE", path: group + "validatingadmissionpolicybindings/judge.example.com"},
		{name: "end it", method: "DELETE", path: group + "validatingadmissionpolicies/judge.example.com"},
		{name: "a webhook that is not there", method: "POST", path: group + "validatingwebhookconfigurations", body: `{"metadata":{"name":"down"},"webhooks":[{"name":"down.example.com","clientConfig":{"url":"https://127.0.0.1:1/x"},"sideEffects":"None","admissionReviewVersions":["v1"],"objectSelector":{"matchLabels":{"hooked":"yes"}},"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["configmaps"]}]}]}`},
		{name: "its failure", method: "POST", path: maps1 + "?dryRun=All", body: `{"metadata":{"name":"j","labels":{"hooked":"yes"}}}`, eventually: "failed calling webhook"},
		{name: "end of it", method: "DELETE", path: group + "validatingwebhookconfigurations/down"},
	}...)
	return s
}
