// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// chance makes the choices of one walker.
type chance struct{ *rand.Rand }

func one[T any](c chance, of ...T) T { return of[c.IntN(len(of))] }

// often is true n times of a hundred.
func (c chance) often(n int) bool { return c.IntN(100) < n }

func (c chance) name() string {
	return one(c, "a", "b", "c", "works", "default", "loads", "theirs", "kube-root-ca.crt", "x"+strings.Repeat("y", c.IntN(300)))
}

// namespace is mostly the tenant's own.
func (c chance) namespace() string {
	if c.often(75) {
		return tenant
	}
	return one(c, other, "kube-system", "default", "wasmplane-plugins", "", "kube-public", "made-up")
}

// kind is a resource with its path, and what an object of it looks like.
type kind struct{ prefix, resource, apiVersion, kind, spec string }

// kinds are what a tenant may write, and what it may not.
var kinds = []kind{
	{"/api/v1", "pods", "v1", "Pod", `{"spec":{"containers":[{"name":"c","image":"registry.invalid/x"}]}}`},
	{"/api/v1", "pods", "v1", "Pod", `{"spec":{"hostNetwork":true,"hostPID":true,"nodeName":"simulated-1","serviceAccountName":"default","containers":[{"name":"c","image":"x","securityContext":{"privileged":true},"ports":[{"containerPort":1,"hostPort":6443}]}],"volumes":[{"name":"h","hostPath":{"path":"/"}}]}}`},
	{"/api/v1", "configmaps", "v1", "ConfigMap", `{"data":{"k":"v"}}`},
	{"/api/v1", "secrets", "v1", "Secret", `{"type":"kubernetes.io/service-account-token","metadata":{"annotations":{"kubernetes.io/service-account.name":"default"}}}`},
	{"/api/v1", "secrets", "v1", "Secret", `{"type":"bootstrap.kubernetes.io/token","stringData":{"token-id":"abcdef","token-secret":"0123456789abcdef","usage-bootstrap-authentication":"true","auth-extra-groups":"system:masters"}}`},
	{"/api/v1", "services", "v1", "Service", `{"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}}`},
	{"/api/v1", "services", "v1", "Service", `{"spec":{"type":"LoadBalancer","externalIPs":["10.96.0.1"],"loadBalancerIP":"10.96.0.1","ports":[{"port":443}]},"status":{"loadBalancer":{"ingress":[{"ip":"10.96.0.1"}]}}}`},
	{"/api/v1", "serviceaccounts", "v1", "ServiceAccount", `{}`},
	{"/api/v1", "persistentvolumeclaims", "v1", "PersistentVolumeClaim", `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Ki"}}}}`},
	{"/api/v1", "persistentvolumes", "v1", "PersistentVolume", `{"spec":{"capacity":{"storage":"1Ki"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/"}}}`},
	{"/api/v1", "endpoints", "v1", "Endpoints", `{"subsets":[{"addresses":[{"ip":"127.0.0.1"}],"ports":[{"port":6443}]}]}`},
	{"/api/v1", "namespaces", "v1", "Namespace", `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`},
	{"/api/v1", "resourcequotas", "v1", "ResourceQuota", `{"spec":{"hard":{"pods":"1000000"}}}`},
	{"/api/v1", "limitranges", "v1", "LimitRange", `{"spec":{"limits":[]}}`},
	{"/api/v1", "nodes", "v1", "Node", `{"metadata":{"labels":{"a":"b"}}}`},
	{"/api/v1", "events", "v1", "Event", `{"involvedObject":{"namespace":"kube-system","name":"x"},"reason":"Killed","message":"by the administrator"}`},
	{"/apis/apps/v1", "deployments", "apps/v1", "Deployment", `{"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"x"}]}}}}`},
	{"/apis/apps/v1", "daemonsets", "apps/v1", "DaemonSet", `{"spec":{"selector":{"matchLabels":{"a":"d"}},"template":{"metadata":{"labels":{"a":"d"}},"spec":{"hostNetwork":true,"containers":[{"name":"c","image":"x"}]}}}}`},
	{"/apis/batch/v1", "jobs", "batch/v1", "Job", `{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"x"}]}}}}`},
	{"/apis/batch/v1", "cronjobs", "batch/v1", "CronJob", `{"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"x"}]}}}}}}`},
	{"/apis/policy/v1", "poddisruptionbudgets", "policy/v1", "PodDisruptionBudget", `{"spec":{"maxUnavailable":0,"selector":{}}}`},
	{"/apis/networking.k8s.io/v1", "ingresses", "networking.k8s.io/v1", "Ingress", `{"spec":{"defaultBackend":{"service":{"name":"a","port":{"number":80}}}}}`},
	{"/apis/networking.k8s.io/v1", "networkpolicies", "networking.k8s.io/v1", "NetworkPolicy", `{"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`},
	{"/apis/discovery.k8s.io/v1", "endpointslices", "discovery.k8s.io/v1", "EndpointSlice", `{"addressType":"IPv4","endpoints":[{"addresses":["169.254.169.254"]}]}`},
	{"/apis/rbac.authorization.k8s.io/v1", "roles", "rbac.authorization.k8s.io/v1", "Role", `{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`},
	{"/apis/rbac.authorization.k8s.io/v1", "rolebindings", "rbac.authorization.k8s.io/v1", "RoleBinding", `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","name":"tina"}]}`},
	{"/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","name":"tina"}]}`},
	{"/apis/certificates.k8s.io/v1", "certificatesigningrequests", "certificates.k8s.io/v1", "CertificateSigningRequest", `{"spec":{"request":"eA==","signerName":"kubernetes.io/kube-apiserver-client","usages":["client auth"]}}`},
	{"/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", `{"webhooks":[]}`},
	{"/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "apiextensions.k8s.io/v1", "CustomResourceDefinition", `{"spec":{}}`},
	{"/apis/plugins.wasmplane.dev/v1", "plugins", "plugins.wasmplane.dev/v1", "Plugin", `{"spec":{"source":"file:/etc/passwd"}}`},

	// A module as a container, that says of itself what only the node may say.
	{"/api/v1", "pods", "v1", "Pod", `{"metadata":{"annotations":{"kubelet.wasmplane.dev/wasm":"sha256:0","module.wasm.image/variant":"compat"}},"spec":{"containers":[{"name":"c","image":"registry.invalid/module.wasm","command":["/../../bin/sh"],"volumeMounts":[{"name":"v","mountPath":"/v","subPath":"../../etc"}]}],"volumes":[{"name":"v","emptyDir":{"medium":"Memory","sizeLimit":"1Ei"}}]}}`},
	{"/api/v1", "pods", "v1", "Pod", `{"spec":{"volumes":[{"name":"s","projected":{"sources":[{"serviceAccountToken":{"path":"t","audience":"https://kubernetes.default.svc","expirationSeconds":600}},{"clusterTrustBundle":{"name":"x","path":"b"}}]}},{"name":"d","csi":{"driver":"files.csi.wasmplane.dev","volumeAttributes":{"path":"/etc","source":"../.."},"nodePublishSecretRef":{"name":"theirs"}}}],"containers":[{"name":"c","image":"x","volumeMounts":[{"name":"s","mountPath":"/s"}]}]}}`},
	{"/api/v1", "pods", "v1", "Pod", `{"spec":{"priorityClassName":"system-node-critical","schedulerName":"nobody","schedulingGates":[{"name":"a/b"}],"tolerations":[{"operator":"Exists"}],"resourceClaims":[{"name":"g","resourceClaimName":"a"}],"containers":[{"name":"c","image":"x","resources":{"requests":{"cpu":"1000000"},"claims":[{"name":"g"}]}}]}}`},
	{"/api/v1", "pods", "v1", "Pod", `{"metadata":{"labels":{"a":"b"}},"spec":{"schedulingGroup":{"podGroupName":"a"},"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname","labelSelector":{},"namespaceSelector":{}}]}},"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule","labelSelector":{}}],"containers":[{"name":"c","image":"x"}]}}`},

	// Claims, of volumes and devices.
	{"/api/v1", "persistentvolumeclaims", "v1", "PersistentVolumeClaim", `{"spec":{"accessModes":["ReadWriteMany"],"volumeName":"theirs","storageClassName":"","dataSourceRef":{"apiGroup":"","kind":"PersistentVolumeClaim","name":"theirs","namespace":"blue"},"resources":{"requests":{"storage":"8E"}}}}`},
	{"/apis/resource.k8s.io/v1", "resourceclaims", "resource.k8s.io/v1", "ResourceClaim", `{"spec":{"devices":{"requests":[{"name":"g","exactly":{"deviceClassName":"any","adminAccess":true,"selectors":[{"cel":{"expression":"true"}}]}}]}},"status":{"reservedFor":[{"resource":"pods","name":"a","uid":"1"}]}}`},
	{"/apis/resource.k8s.io/v1", "resourceclaims", "resource.k8s.io/v1", "ResourceClaim", `{"spec":{"devices":{"requests":[{"name":"g","exactly":{"deviceClassName":"any","selectors":[{"cel":{"expression":"device.driver == \"x\""}}]}}]}}}`},
	{"/apis/resource.k8s.io/v1", "resourceclaimtemplates", "resource.k8s.io/v1", "ResourceClaimTemplate", `{"spec":{"spec":{"devices":{"requests":[{"name":"g","exactly":{"deviceClassName":"any","count":32}}],"constraints":[{"requests":["g"],"matchAttribute":"a.b/c"}]}}}}`},
	{"/apis/resource.k8s.io/v1", "resourceslices", "resource.k8s.io/v1", "ResourceSlice", `{"spec":{"driver":"gpu.example.com","nodeName":"simulated-1","pool":{"name":"p","generation":1,"resourceSliceCount":1},"devices":[{"name":"g"}]}}`},
	{"/apis/resource.k8s.io/v1", "deviceclasses", "resource.k8s.io/v1", "DeviceClass", `{"spec":{}}`},
	{"/apis/storage.k8s.io/v1", "storageclasses", "storage.k8s.io/v1", "StorageClass", `{"provisioner":"files.csi.wasmplane.dev"}`},
	{"/apis/storage.k8s.io/v1", "csidrivers", "storage.k8s.io/v1", "CSIDriver", `{"spec":{"tokenRequests":[{"audience":""}]}}`},
	{"/apis/storage.k8s.io/v1", "csinodes", "storage.k8s.io/v1", "CSINode", `{"spec":{"drivers":[]}}`},
	{"/apis/storage.k8s.io/v1", "volumeattachments", "storage.k8s.io/v1", "VolumeAttachment", `{"spec":{"attacher":"x","nodeName":"simulated-1","source":{"persistentVolumeName":"theirs"}}}`},

	// Autoscalers of what is the tenant's, of what is not, and by others' metrics.
	{"/apis/autoscaling/v2", "horizontalpodautoscalers", "autoscaling/v2", "HorizontalPodAutoscaler", `{"spec":{"maxReplicas":1000000,"minReplicas":1,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"a"},"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":1}}},{"type":"External","external":{"metric":{"name":"../../../api/v1/secrets?x=","selector":{"matchLabels":{"a":"b"}}},"target":{"type":"Value","value":"1"}}}]}}`},
	{"/apis/autoscaling/v2", "horizontalpodautoscalers", "autoscaling/v2", "HorizontalPodAutoscaler", `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"v1","kind":"Namespace","name":"blue"},"metrics":[{"type":"Object","object":{"metric":{"name":"m"},"describedObject":{"apiVersion":"v1","kind":"Namespace","name":"blue"},"target":{"type":"Value","value":"1"}}},{"type":"Pods","pods":{"metric":{"name":"m"},"target":{"type":"AverageValue","averageValue":"1m"}}}]}}`},

	{"/apis/autoscaling/v2", "horizontalpodautoscalers", "autoscaling/v2", "HorizontalPodAutoscaler", `{"spec":{"maxReplicas":9,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"a"},"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":1}}},{"type":"External","external":{"metric":{"name":"m","selector":{"matchLabels":{"namespace":"blue"}}},"target":{"type":"Value","value":"1"}}}]}}`},

	// Who may talk to whom.
	{"/apis/networking.k8s.io/v1", "networkpolicies", "networking.k8s.io/v1", "NetworkPolicy", `{"spec":{"podSelector":{"matchExpressions":[{"key":"a","operator":"Exists"}]},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"namespaceSelector":{}},{"ipBlock":{"cidr":"0.0.0.0/0","except":["10.0.0.0/8"]}}],"ports":[{"port":1,"endPort":65535,"protocol":"TCP"}]}],"egress":[{"to":[{"ipBlock":{"cidr":"169.254.169.254/32"}}]}]}}`},

	// Pods that start together.
	{"/apis/scheduling.k8s.io/v1beta1", "podgroups", "scheduling.k8s.io/v1beta1", "PodGroup", `{"spec":{"schedulingPolicy":{"gang":{"minCount":9}},"priorityClassName":"system-cluster-critical"}}`},
	{"/apis/scheduling.k8s.io/v1beta1", "podgroups", "scheduling.k8s.io/v1beta1", "PodGroup", `{"spec":{"schedulingPolicy":{"gang":{"minCount":3}}}}`},
	{"/apis/scheduling.k8s.io/v1", "priorityclasses", "scheduling.k8s.io/v1", "PriorityClass", `{"value":1000000,"globalDefault":true}`},

	// Policies of other projects: a namespace's own, and the cluster's.
	{"/apis/policies.kyverno.io/v1", "namespacedvalidatingpolicies", "policies.kyverno.io/v1", "NamespacedValidatingPolicy", `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE","UPDATE","DELETE"],"resources":["pods"]}]},"validations":[{"expression":"object.metadata.name.size() != 1","message":"one letter"}]}}`},
	{"/apis/policies.kyverno.io/v1", "namespacedvalidatingpolicies", "policies.kyverno.io/v1", "NamespacedValidatingPolicy", `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*","*/*"]}]},"validations":[{"expression":"false"}]}}`},
	{"/apis/policies.kyverno.io/v1", "namespacedmutatingpolicies", "policies.kyverno.io/v1", "NamespacedMutatingPolicy", `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE","UPDATE"],"resources":["pods"]}]},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{spec: Object.spec{hostNetwork: true}}"}}]}}`},
	{"/apis/policies.kyverno.io/v1", "namespacedmutatingpolicies", "policies.kyverno.io/v1", "NamespacedMutatingPolicy", `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["rbac.authorization.k8s.io"],"apiVersions":["v1"],"operations":["UPDATE"],"resources":["rolebindings"]}]},"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: \"add\", path: \"/subjects/-\", value: object.subjects[0]}]"}}]}}`},
	{"/apis/policies.kyverno.io/v1", "validatingpolicies", "policies.kyverno.io/v1", "ValidatingPolicy", `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]},"validations":[{"expression":"false"}]}}`},
	{"/apis/policies.kyverno.io/v1", "policyexceptions", "policies.kyverno.io/v1", "PolicyException", `{"spec":{"policyRefs":[{"kind":"ValidatingPolicy","name":"theirs"}],"matchConditions":[{"name":"all","expression":"true"}]}}`},
	{"/apis/policies.kubewarden.io/v1", "admissionpolicies", "policies.kubewarden.io/v1", "AdmissionPolicy", `{"spec":{"module":"https://169.254.169.254/x.wasm@sha256:0000000000000000000000000000000000000000000000000000000000000000","rules":[{"operations":["CREATE"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}],"mutating":true,"contextAwareResources":[{"apiVersion":"v1","kind":"Secret"}]}}`},
	{"/apis/templates.gatekeeper.sh/v1", "constrainttemplates", "templates.gatekeeper.sh/v1", "ConstraintTemplate", `{"spec":{"crd":{"spec":{"names":{"kind":"Some"}}},"targets":[{"target":"admission.k8s.gatekeeper.sh","rego":"package a\nviolation[{\"msg\": \"x\"}] { true }"}]}}`},
	{"/apis/wgpolicyk8s.io/v1alpha2", "policyreports", "wgpolicyk8s.io/v1alpha2", "PolicyReport", `{"summary":{"pass":1000000},"results":[{"policy":"theirs","result":"pass"}]}`},
}

// verdicts are what a tenant's plugin answers: what it may, what it may not, and rubbish.
var verdicts = []string{
	`{"allowed":true}`, `{"allowed":false,"message":"no"}`, `{"allowed":false,"code":200}`, `{}`, `null`, `[]`, `"`,
	`{"patch":[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]}`,
	`{"patch":[{"op":"add","path":"/metadata/labels","value":{"pod-security.kubernetes.io/enforce":"privileged"}}]}`,
	`{"patch":[{"op":"replace","path":"/metadata/namespace","value":"kube-system"}]}`,
	`{"patch":[{"op":"replace","path":"/metadata/name","value":"other"}]}`,
	`{"patch":[{"op":"add","path":"/spec/hostNetwork","value":true},{"op":"add","path":"/spec/hostPID","value":true}]}`,
	`{"patch":[{"op":"add","path":"/spec/containers/0/securityContext","value":{"privileged":true}}]}`,
	`{"patch":[{"op":"add","path":"/spec/serviceAccountName","value":"default"},{"op":"add","path":"/spec/nodeName","value":"simulated-1"}]}`,
	`{"patch":[{"op":"add","path":"/subjects","value":[{"kind":"User","name":"tina","apiGroup":"rbac.authorization.k8s.io"}]}]}`,
	`{"patch":[{"op":"add","path":"/rules","value":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}]}`,
	`{"patch":[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"v1","kind":"Namespace","name":"kube-system","uid":"x"}]}]}`,
	`{"patch":[{"op":"add","path":"/metadata/finalizers","value":["example.com/never"]}]}`,
	`{"patch":[{"op":"remove","path":"/spec"}]}`, `{"patch":[{"op":"add","path":"/spec/externalIPs","value":["10.96.0.1"]}]}`,
	`{"object":{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system"}}}`,
	`{"warnings":["x"],"auditAnnotations":{"k":"v"},"allowed":true}`,
}

// tenantPlugin is a plugin of the tenant's, with whatever it asks for.
func (c chance) tenantPlugin(source, digest, ca string) map[string]any {
	var verdict any
	if json.Unmarshal([]byte(one(c, verdicts...)), &verdict) != nil {
		verdict = "rubbish"
	}
	settings, ok := verdict.(map[string]any)
	if !ok {
		settings = map[string]any{"answer": verdict}
	}
	spec := map[string]any{
		"source": one(c, source, source, source, source, "https://169.254.169.254/x", "file:/etc/passwd"), "digest": digest,
		"fetch": map[string]any{"ca": ca, "timeout": one(c, "5s", "24h")}, "settings": settings,
		"points": one(c, []any{"admission.mutate"}, []any{"admission.validate"}, []any{"admission.mutate", "admission.validate"},
			[]any{"authorization"}),
		"failurePolicy": one(c, "Fail", "Ignore"), "mode": one(c, "Enforce", "Enforce", "Warn", "Audit", "Shadow"),
		"match": map[string]any{
			"rules": []any{map[string]any{"resources": []any{one(c, "*", "*/*", "pods", "configmaps", "namespaces", "rolebindings", "secrets")}}},
		},
	}
	if c.often(20) {
		spec["grants"] = one(c, map[string]any{"read": []any{map[string]any{"resources": []any{"secrets"}, "namespaces": []any{other}}}},
			map[string]any{"http": []any{map[string]any{"hosts": []any{"example.com"}, "private": true}}},
			map[string]any{"read": []any{map[string]any{"resources": []any{"*"}}}}, map[string]any{"clock": true, "events": true})
	}
	return map[string]any{"apiVersion": "plugins.wasmplane.dev/v1", "kind": "TenantPlugin", "metadata": map[string]any{
		"annotations": map[string]any{"plugins.wasmplane.dev/writer": `{"username":"root","groups":["system:masters"]}`},
	}, "spec": spec}
}

// step is one request.
type step struct {
	verb, path, contentType string
	body                    []byte
	header                  map[string]string
}

// step chooses one.
func (c chance) step(source, digest, ca string) step {
	k, namespace, name := one(c, kinds...), c.namespace(), c.name()
	var object map[string]any
	if c.often(20) {
		k = kind{prefix: "/apis/plugins.wasmplane.dev/v1", resource: "tenantplugins"}
		object, name = c.tenantPlugin(source, digest, ca), one(c, "p", "q")
	} else if err := json.Unmarshal([]byte(k.spec), &object); err != nil {
		panic(err) // the table's own mistake
	} else {
		object["apiVersion"], object["kind"] = k.apiVersion, k.kind
	}
	meta, _ := object["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["name"], object["metadata"] = name, meta
	if namespace != "" && c.often(90) {
		meta["namespace"] = namespace
	}
	if c.often(10) {
		meta["ownerReferences"] = []any{map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "name": other, "uid": "1",
			"blockOwnerDeletion": true,
		}}
	}
	collection := k.prefix
	if namespace != "" {
		collection += "/namespaces/" + namespace
	}
	collection += "/" + k.resource
	item := collection + "/" + name
	s := step{contentType: "application/json", header: map[string]string{}}
	body, err := json.Marshal(object)
	if err != nil {
		panic(err) // made of what can be written
	}
	switch c.IntN(14) {
	case 0, 1, 2, 3:
		s.verb, s.path, s.body = "POST", collection, body
	case 4:
		s.verb, s.path, s.body = "PUT", item, body
	case 5:
		s.verb, s.path, s.body, s.contentType = "PATCH", item+"?fieldManager=walk&force=true", body, "application/apply-patch+yaml"
	case 6:
		s.verb, s.path, s.body = "PATCH", item, body
		s.contentType = one(c, "application/merge-patch+json", "application/strategic-merge-patch+json")
	case 7:
		s.verb, s.path, s.contentType = "PATCH", item, "application/json-patch+json"
		s.body = []byte(one(c, `[{"op":"add","path":"/metadata/labels","value":{"a":"c"}}]`,
			`[{"op":"remove","path":"/metadata/ownerReferences"}]`, `[{"op":"replace","path":"/metadata/namespace","value":"kube-system"}]`))
	case 8:
		s.verb, s.path = "DELETE", item+one(c, "", "?propagationPolicy=Foreground", "?gracePeriodSeconds=0")
	case 9:
		s.verb, s.path = one(c, "GET", "GET", "DELETE"), collection+one(c, "", "?limit=2", "?labelSelector=a%3Db", "?timeoutSeconds=1&watch=true")
	case 10, 11:
		sub := one(c, "status", "scale", "finalize", "binding", "eviction", "exec?command=id", "attach", "portforward", "proxy", "proxy/",
			"token", "ephemeralcontainers", "log", "approval", "resize", "finalizers")
		s.verb, s.path, s.body = one(c, "GET", "POST", "PUT", "PATCH"), item+"/"+sub, body
	default:
		s.verb, s.path, s.body = one(c, "GET", "POST"), one(c,
			"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/metrics", "/debug/pprof/", "/readyz",
			"/api/v1/nodes/simulated-1/proxy/pods", "/api/v1/namespaces/"+tenant+"/../"+other+"/secrets",
			"/api/v1/namespaces/"+tenant+"/serviceaccounts/default/token", "/api/v1/watch/secrets", "/backup", "/logs/",
			"/apis/trace.wasmplane.dev/v1/journey?kind=Secret&namespace="+other+"&name=theirs", "/apis/trace.wasmplane.dev/v1/spans", "/debug/units",
			"/servers", "/servers/open", "/servers/join/take", "/apis/metrics.k8s.io/v1beta1/namespaces/"+other+"/pods",
			"/apis/metrics.k8s.io/v1beta1/nodes", "/apis/external.metrics.k8s.io/v1beta1/namespaces/"+other+"/m",
			"/api/v1/namespaces/"+tenant+"/services/https:kubernetes.default:443/proxy/"), body
	}
	if c.often(3) {
		s.header[one(c, "Impersonate-User", "X-Remote-User", "Impersonate-Group")] = one(c, "system:admin", "system:masters", "jane")
	}
	if c.often(5) && len(s.body) > 2 {
		s.body = s.body[:c.IntN(len(s.body))]
	}
	return s
}

// String is the step for a log.
func (s step) String() string { return fmt.Sprintf("%s %s %.200s", s.verb, s.path, s.body) }
