// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/http"
	"strconv"
	"strings"
)

// objectOf is a request that creates an object of default's.
func objectOf(what, groupVersion, resource, kind, name, rest string) hostile {
	prefix := "/apis/"
	if !strings.Contains(groupVersion, "/") {
		prefix = "/api/"
	}
	return hostile{
		what: what, method: http.MethodPost, path: prefix + groupVersion + "/namespaces/default/" + resource,
		body: `{"apiVersion":"` + groupVersion + `","kind":"` + kind + `","metadata":{"name":"` + name + `"},` + rest + `}`,
	}
}

// ofCluster is a request that creates an object without a namespace.
func ofCluster(what, groupVersion, resource, kind, name, rest string) hostile {
	h := objectOf(what, groupVersion, resource, kind, name, rest)
	h.path = strings.Replace(h.path, "/namespaces/default", "", 1)
	return h
}

func after(h hostile, before ...hostile) hostile { h.before = before; return h }

func tenants(h hostile) hostile { h.path += "?tenant"; return h }

// moreHostiles are the shapes of expressions, policies, workloads and definitions.
func moreHostiles(n int) []hostile {
	const admission, match = "admissionregistration.k8s.io/v1", `"matchConstraints":{"resourceRules":[{"apiGroups":["never.example"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]}`
	policy := func(what, name, spec string) hostile {
		return ofCluster("policy: "+what, admission, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", name, `"spec":{`+match+`,`+spec+`}`)
	}
	template := func(volumes string) string {
		return `"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"x"}]` + volumes + `}}`
	}
	crd := func(plural, schema, more string) hostile {
		return ofCluster("", "apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", plural+".bench.example",
			`"spec":{"group":"bench.example","scope":"Namespaced","names":{"plural":"`+plural+`","kind":"K`+plural+`"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":`+schema+`}`+more+`}]}`)
	}
	named := func(what string, h hostile) hostile { h.what = what; return h }
	var definitions []hostile
	for i := range min(n, 100) {
		definitions = append(definitions, crd("many"+strconv.Itoa(i), `{"type":"object","properties":{"spec":{"type":"object","properties":{`+list(n/5, `"p%d":{"type":"string"}`)+`}}}}`, ""))
	}
	chained := make([]string, 0, n)
	for i := range min(n, 60) {
		chained = append(chained, `{"name":"v`+strconv.Itoa(i+1)+`","expression":"variables.v`+strconv.Itoa(i)+` + variables.v`+strconv.Itoa(i)+`"}`)
	}
	deepRules := func(depth int) string {
		return strings.Repeat(`{"type":"object","default":{},"x-kubernetes-validations":[{"rule":"true"}],"properties":{"a":`, depth) +
			`{"type":"string"}` + strings.Repeat("}}", depth)
	}
	device := func(selectors, requests, alternatives int) string {
		cel := `{"cel":{"expression":"device.driver == 'd%[1]d' && device.attributes['d'].a%[1]d.startsWith('x')"}}`
		sub := `{"name":"s%d","deviceClassName":"c","selectors":[` + strings.ReplaceAll(list(selectors, strings.ReplaceAll(cel, "%[1]d", "%[1]d")), "%", "%%") + `]}`
		request := `{"name":"r%d","firstAvailable":[` + strings.ReplaceAll(list(alternatives, sub), "%", "%%") + `]}`
		return list(requests, request)
	}
	return []hostile{
		policy("many validations", "validations", `"validations":[`+list(n, `{"expression":"object.metadata.name != 'x%d'"}`)+`]`),
		policy("many variables", "variables", `"variables":[`+list(n, `{"name":"v%[1]d","expression":"object.metadata.name + '%[1]d'"}`)+`],"validations":[{"expression":"variables.v0 != ''"}]`),
		policy("variables that double", "doubles", `"variables":[{"name":"v0","expression":"object.metadata.name"},`+strings.Join(chained, ",")+`],"validations":[{"expression":"variables.v9 != ''"}]`),
		policy("a long expression", "longs", `"validations":[{"expression":"`+strings.Repeat("1 == 1 && ", 9*n)+`true"}]`),
		policy("an expression in parentheses", "parens", `"validations":[{"expression":"`+strings.Repeat("(", 40*n)+"true"+strings.Repeat(")", 40*n)+`"}]`),
		policy("lists in lists", "lists", `"validations":[{"expression":"`+strings.Repeat("[", 40*n)+strings.Repeat("]", 40*n)+` == []"}]`),
		policy("comprehensions in comprehensions", "comps", `"validations":[{"expression":"`+strings.Repeat("object.l.all(x, ", 5*n)+"true"+strings.Repeat(")", 5*n)+`"}]`),
		policy("macros that multiply", "macros", `"validations":[{"expression":"`+strings.Repeat("[1].map(x, ", 12)+"[1]"+strings.Repeat(")", 12)+` != []"}]`),
		policy("many annotations", "annotated", `"auditAnnotations":[`+list(n/50, `{"key":"k%d","valueExpression":"'a'"}`)+`],"validations":[{"expression":"true"}]`),
		policy("a type of the cluster's", "typed", `"matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]},"validations":[`+list(n, `{"expression":"object.spec.x%d == 1"}`)+`]`),
		ofCluster("mutations", admission, "mutatingadmissionpolicies", "MutatingAdmissionPolicy", "mutations", `"spec":{`+match+`,"reinvocationPolicy":"Never","mutations":[`+
			list(n, `{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{name: 'x%d'}}"}}`)+`]}`),
		ofCluster("a webhook of rules", admission, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", "rules", `"webhooks":[{"name":"a.b.example","sideEffects":"None",
			"admissionReviewVersions":["v1"],"failurePolicy":"Ignore","clientConfig":{"url":"https://127.0.0.1:1"},"namespaceSelector":{"matchLabels":{"no":"where"}},"rules":[`+
			list(6*n, `{"apiGroups":["g%d"],"apiVersions":["*"],"operations":["*"],"resources":["x"]}`)+`]}]`),
		ofCluster("webhooks of conditions", admission, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", "conditions", `"webhooks":[`+
			list(n/5, `{"name":"a%[1]d.b.example","sideEffects":"None","admissionReviewVersions":["v1"],"failurePolicy":"Ignore","clientConfig":{"url":"https://127.0.0.1:1"},"rules":[{"apiGroups":["never.example"],"apiVersions":["*"],"operations":["*"],"resources":["x"]}],
			"matchConditions":[{"name":"a","expression":"object.x == %[1]d"},{"name":"b","expression":"object.y == %[1]d"},{"name":"c","expression":"object.z == %[1]d"}]}`)+`]`),
		after(hostile{
			what: "rules of mine", method: http.MethodPost, path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews?tenant",
			body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`,
		},
			objectOf("", "rbac.authorization.k8s.io/v1", "roles", "Role", "huge", `"rules":[`+list(10*n, `{"verbs":["get"],"apiGroups":[""],"resources":["r%d"]}`)+`]`),
			objectOf("", "rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", "huge", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"huge"},
				"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"tenant"}]`)),
		tenants(objectOf("a review of mine among many rules", "authorization.k8s.io/v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", "", `"spec":{"user":"tenant","resourceAttributes":{"namespace":"default","verb":"x","resource":"y",
			"fieldSelector":{"requirements":[`+list(9*n, `{"key":"a%d","operator":"In","values":["a","b"]}`)+`]}}}`)),
		objectOf("a claim of expressions", "resource.k8s.io/v1", "resourceclaims", "ResourceClaim", "expressions", `"spec":{"devices":{"requests":[`+device(32, min(32, n), 8)+`]}}`),
		objectOf("a claim's template of expressions", "resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate", "expressions", `"spec":{"spec":{"devices":{"requests":[`+device(32, min(32, n), 8)+`]}}}`),
		objectOf("a claim of long expressions", "resource.k8s.io/v1", "resourceclaims", "ResourceClaim", "longs", `"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c","selectors":[`+
			list(min(32, n), `{"cel":{"expression":"`+strings.Repeat("device.driver == 'a' && ", min(400, n))+`device.driver != 'x%d'"}}`)+`]}}]}}`),
		ofCluster("a class of devices", "resource.k8s.io/v1", "deviceclasses", "DeviceClass", "long", `"spec":{"selectors":[`+
			list(min(32, n), `{"cel":{"expression":"`+strings.Repeat("device.driver == 'a' && ", min(400, n))+`device.driver != 'x%d'"}}`)+`]}`),
		objectOf("an autoscaler of metrics", "autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa", `"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"dep"},"metrics":[`+
			list(5*n, `{"type":"Pods","pods":{"metric":{"name":"m%d"},"target":{"type":"AverageValue","averageValue":"1"}}}`)+`]}`),
		objectOf("endpoints of addresses", "v1", "endpoints", "Endpoints", "many", `"subsets":[`+list(2*n, `{"addresses":[{"ip":"fd00::%[1]x"},{"ip":"fd00::1:%[1]x"}],"ports":[{"port":80,"name":"a%[1]d"}]}`)+`]`),
		after(objectOf("endpoints of a service, mirrored", "v1", "endpoints", "Endpoints", "mirror", `"subsets":[`+list(2*n, `{"addresses":[{"ip":"fd00::%[1]x"},{"ip":"fd00::1:%[1]x"}],"ports":[{"port":80,"name":"a%[1]d"},{"port":81,"name":"b%[1]d"}]}`)+`]`),
			objectOf("", "v1", "services", "Service", "mirror", `"spec":{"ports":[{"port":80}]}`)),
		objectOf("a slice of endpoints", "discovery.k8s.io/v1", "endpointslices", "EndpointSlice", "slice", `"addressType":"IPv6","ports":[`+list(min(100, n), `{"name":"p%[1]d","port":80}`)+`],"endpoints":[`+
			list(min(n, 1000), `{"addresses":["fd00::%x"],"hints":{"forZones":[{"name":"z"}]}}`)+`]`),
		objectOf("a quota of many resources", "v1", "resourcequotas", "ResourceQuota", "quota", `"spec":{"hard":{`+list(20*n, `"count/a%d.example.com":"1"`)+`}}`),
		objectOf("limits of many", "v1", "limitranges", "LimitRange", "limits", `"spec":{"limits":[`+list(10*n, `{"type":"Container","max":{"e.example/r%d":"1"}}`)+`]}`),
		objectOf("a cron job that never comes", "batch/v1", "cronjobs", "CronJob", "never", `"spec":{"schedule":"0 0 30 2 *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"x"}]}}}}}`),
		objectOf("a cron job of long lists", "batch/v1", "cronjobs", "CronJob", "lists", `"spec":{"schedule":"`+list(100*n, `0`)+` * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"x"}]}}}}}`),
		objectOf("a job of indexes", "batch/v1", "jobs", "Job", "indexed", `"spec":{"completions":100000,"parallelism":0,"completionMode":"Indexed","backoffLimitPerIndex":1,"maxFailedIndexes":1000,"podFailurePolicy":{"rules":[`+
			list(20, `{"action":"Ignore","onExitCodes":{"operator":"In","values":[`+strings.ReplaceAll(list(250, `%[1]d`), "%", "%%")+`,255]},"onPodConditions":[],"x":%d}`)+`]},`+strings.Replace(template(""), `"spec":{`, `"spec":{"restartPolicy":"Never",`, 1)+`}`),
		objectOf("projected sources", "v1", "pods", "Pod", "projected", `"spec":{"containers":[{"name":"c","image":"x"}],"volumes":[{"name":"v","projected":{"sources":[`+
			list(10*n, `{"configMap":{"name":"c%d","items":[{"key":"a","path":"p%[1]d"}]}}`)+`]}}]}`),
		objectOf("items of a volume", "v1", "pods", "Pod", "items", `"spec":{"containers":[{"name":"c","image":"x"}],"volumes":[{"name":"v","configMap":{"name":"c","items":[`+
			list(20*n, `{"key":"k%[1]d","path":"a/b/c/d%[1]d"}`)+`]}}]}`),
		objectOf("a stateful set of claims", "apps/v1", "statefulsets", "StatefulSet", "claims", `"spec":{"serviceName":"s","replicas":3,"selector":{"matchLabels":{"a":"b"}},`+template("")+`,"volumeClaimTemplates":[`+
			list(2*n, `{"metadata":{"name":"v%d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`)+`]}`),
		objectOf("an ingress of paths", "networking.k8s.io/v1", "ingresses", "Ingress", "paths", `"spec":{"rules":[{"host":"h.example","http":{"paths":[`+
			list(8*n, `{"path":"/p%d","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}`)+`]}}]}`),
		objectOf("a budget of expressions", "policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", `"spec":{"minAvailable":1,"selector":{"matchExpressions":[`+list(12*n, `{"key":"k%d","operator":"DoesNotExist"}`)+`]}}`),
		objectOf("a pod of gates", "v1", "pods", "Pod", "gates", `"spec":{"schedulingGates":[`+list(20*n, `{"name":"g%d"}`)+`],"readinessGates":[`+list(10*n, `{"conditionType":"g%d"}`)+`],"containers":[{"name":"c","image":"x"}]}`),
		objectOf("a pod of aliases", "v1", "pods", "Pod", "aliases", `"spec":{"hostAliases":[`+list(20*n, `{"ip":"fd00::%x","hostnames":["a"]}`)+`],"containers":[{"name":"c","image":"x"}]}`),
		objectOf("a pod of resources", "v1", "pods", "Pod", "resources", `"spec":{"containers":[{"name":"c","image":"x","resources":{"limits":{`+list(20*n, `"e.example/r%d":"1"`)+`}}}]}`),
		objectOf("a pod that selects nodes", "v1", "pods", "Pod", "nodeaffinity", `"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[`+
			list(8*n, `{"matchExpressions":[{"key":"k","operator":"In","values":["a%d"]}]}`)+`]}}},"containers":[{"name":"c","image":"x"}]}`),
		objectOf("owners of an object", "v1", "configmaps", "ConfigMap", "owned", `"metadata":{"name":"owned","ownerReferences":[`+list(6*n, `{"apiVersion":"v1","kind":"ConfigMap","name":"o%[1]d","uid":"00000000-0000-0000-0000-%012[1]d"}`)+`]}`),
		objectOf("managers of an object", "v1", "configmaps", "ConfigMap", "managed", `"metadata":{"name":"managed","managedFields":[`+
			list(5*n, `{"manager":"m%[1]d","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:k%[1]d":{}}}}`)+`]}`),
		after(hostile{
			what: "JSON patch: copies that double", method: http.MethodPatch, path: "/api/v1/namespaces/default/configmaps/copies", media: jsonOps,
			body: `[{"op":"add","path":"/data","value":{"a":"` + strings.Repeat("x", 10*n) + `"}},` + strings.Repeat(`{"op":"copy","from":"/data","path":"/data/b"},`, 30) + `{"op":"test","path":"/kind","value":"ConfigMap"}]`,
		},
			objectOf("", "v1", "configmaps", "ConfigMap", "copies", `"data":{}`)),
		after(hostile{
			what: "strategic merge: lists in lists", method: http.MethodPatch, path: "/api/v1/namespaces/default/pods/nested", media: strategic,
			body: `{"spec":{"containers":[` + list(min(n, 100), `{"name":"c%d","env":[`+strings.ReplaceAll(list(n/10, `{"name":"e%d"}`), "%", "%%")+`],"ports":[`+strings.ReplaceAll(list(n/20, `{"containerPort":%d}`), "%", "%%")+`]}`) + `]}}`,
		},
			objectOf("", "v1", "pods", "Pod", "nested", `"spec":{"containers":[`+list(min(n, 100), `{"name":"c%d","image":"x","env":[`+strings.ReplaceAll(list(n/10, `{"name":"x%d"}`), "%", "%%")+`]}`)+`]}`)),
		objectOf("entries of nothing in a pod", "v1", "pods", "Pod", "nothings", `"spec":{"containers":[`+strings.Repeat("{},", 1040*n)+`{}]}`),
		objectOf("entries that are wrong in a pod", "v1", "pods", "Pod", "wrongs", `"spec":{"containers":[`+strings.Repeat("1,", 1560*n)+`1]}`),
		objectOf("entries of nothing in a deployment, as many as may be", "apps/v1", "deployments", "Deployment", "nothings", `"spec":{"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[`+strings.Repeat("{},", 55*n)+`{}]}}}`),
		objectOf("entries of nothing in a policy's peers", "networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", "nothings", `"spec":{"podSelector":{},"ingress":[`+strings.Repeat("{},", 1040*n)+`{}]}`),
		after(hostile{
			what: "entries of nothing by a merge patch", method: http.MethodPatch, path: "/api/v1/namespaces/default/pods/patched", media: "application/merge-patch+json",
			body: `{"spec":{"ephemeralContainers":[` + strings.Repeat("{},", 1040*n) + `{}]}}`,
		}, objectOf("", "v1", "pods", "Pod", "patched", `"spec":{"containers":[{"name":"c","image":"x"}]}`)),
		after(hostile{
			what: "merge patch: a list of numbers", method: http.MethodPatch, path: "/api/v1/namespaces/default/configmaps/numbers", media: "application/merge-patch+json",
			body: `{"x":[` + strings.Repeat("1,", 1550*n) + `1]}`,
		}, objectOf("", "v1", "configmaps", "ConfigMap", "numbers", `"data":{}`)),
		{
			what: "apply: many lists of variables", method: http.MethodPatch, path: "/api/v1/namespaces/default/pods/lists?fieldManager=a", media: applied,
			body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"lists"},"spec":{"containers":[` +
				list(min(n, 100), `{"name":"c%d","image":"x","env":[`+strings.ReplaceAll(list(n, `{"name":"e%d"}`), "%", "%%")+`]}`) + `]}}`,
		},
		{
			what: "apply: YAML of keys", method: http.MethodPatch, path: "/api/v1/namespaces/default/configmaps/ykeys?fieldManager=a", media: applied,
			body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ykeys}\nx: {" + list(250*n, "k%d: 1") + "}",
		},
		{
			what: "entries of nothing by an apply", method: http.MethodPatch, path: "/api/v1/namespaces/default/pods/applied?fieldManager=a", media: applied,
			body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"applied"},"spec":{"tolerations":[` + strings.Repeat("{},", 1040*n) + `{}]}}`,
		},
		{
			what: "YAML: entries of nothing", method: http.MethodPost, path: "/api/v1/namespaces/default/pods", media: yamlText,
			body: "apiVersion: v1\nkind: Pod\nmetadata: {name: y}\nspec: {containers: [" + strings.Repeat("{},", 1040*n) + "{}]}",
		},
		named("definition: entries of nothing", crd("nothings", `{"type":"object","anyOf":[`+strings.Repeat("{},", 1040*n)+`{}]}`, "")),
		named("definition: entries of nothing, as many as may be", crd("nothing", `{"type":"object","properties":{"a":{"type":"string","anyOf":[`+strings.Repeat("{},", 40*n)+`{}]}}}`, "")),
		named("definition: lists in lists of a long text", crd("nestings", strings.Repeat(`{"type":"array","items":`, 50)+`{"type":"string","description":"`+strings.Repeat("x", 1000*n)+`"}`+strings.Repeat("}", 50), "")),
		{what: "deletion of what many labels select", method: http.MethodDelete, path: "/api/v1/namespaces/default/secrets?labelSelector=a+in+(" + list(60*n, "v%d") + ")"},
		objectOf("a token for many", "v1", "serviceaccounts/default/token", "TokenRequest", "", `"apiVersion":"authentication.k8s.io/v1","spec":{"audiences":[`+list(50*n, `"a%d"`)+`]}`),
		ofCluster("a level of queues", "flowcontrol.apiserver.k8s.io/v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", "queues", `"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":1,"limitResponse":{"type":"Queue","queuing":{"queues":10000000,"handSize":8,"queueLengthLimit":1000000}}}}`),
		ofCluster("a schema of flows", "flowcontrol.apiserver.k8s.io/v1", "flowschemas", "FlowSchema", "flows", `"spec":{"priorityLevelConfiguration":{"name":"global-default"},"matchingPrecedence":9000,"rules":[`+
			list(5*n, `{"subjects":[{"kind":"User","user":{"name":"u%d"}}],"resourceRules":[{"verbs":["get"],"apiGroups":["x"],"resources":["y"],"clusterScope":true}]}`)+`]}`),
		named("definition: rules and defaults in depth", crd("deeprules", deepRules(min(n/4, 100)), "")),
		named("definition: rules about fields of a wide object", crd("fieldpaths", `{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-validations":[`+
			list(n, `{"rule":"true","fieldPath":".p%d"}`)+`],"properties":{`+list(5*n, `"p%d":{"type":"string"}`)+`}}}}`, "")),
		named("definition: one wide type below many rules", crd("widebelow", strings.Repeat(`{"type":"object","x-kubernetes-validations":[{"rule":"true"}],"properties":{"a":`, min(n/4, 100))+
			`{"type":"object","properties":{`+list(5*n, `"p%d":{"type":"string"}`)+`}}`+strings.Repeat("}}", min(n/4, 100)), "")),
		named("definition: all of many", crd("allofs", `{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string"}},"allOf":[`+
			list(2*n, `{"properties":{"a":{"pattern":"x%d"}}}`)+`]}}}`, "")),
		named("definition: rules in all of many", crd("allofrules", `{"type":"object","properties":{"spec":{"type":"object","maxProperties":2,"properties":{"a":{"type":"string","maxLength":3}},"allOf":[`+
			list(n/2, `{"x-kubernetes-validations":[{"rule":"self.a != 'x%d'"}]}`)+`]}}}`, "")),
		named("definition: enums", crd("enums", `{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string","enum":[`+list(50*n, `"v%d"`)+`]}}}}}`, "")),
		named("definition: columns", crd("wide", `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`, `,"additionalPrinterColumns":[`+list(5*n, `{"name":"C%[1]d","type":"string","jsonPath":".spec.a%[1]d"}`)+`]`)),
		after(hostile{what: "columns that recur in themselves", method: http.MethodGet, path: "/apis/bench.example/v1/namespaces/default/recur", media: "table"},
			crd("recur", `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`, `,"additionalPrinterColumns":[{"name":"A","type":"string","jsonPath":".spec..*..*..*..b"}]`),
			objectOf("", "bench.example/v1", "recur", "Krecur", "x", `"spec":`+strings.Repeat(`{"a":`, min(n, 400))+`{}`+strings.Repeat(`}`, min(n, 400)))),
		after(hostile{what: "discovery of many definitions", method: http.MethodGet, path: "/apis", media: "discovery"}, definitions...),
		{what: "the schema of many definitions, v2", method: http.MethodGet, path: "/openapi/v2"},
		{what: "the schema of many definitions, v3", method: http.MethodGet, path: "/openapi/v3/apis/bench.example/v1"},
	}
}
