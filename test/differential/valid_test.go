// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// kind is a built-in resource with an object that is right.
type kind struct {
	group, version, kind, resource string
	clustered                      bool
	// valid is an object without apiVersion, kind and metadata.
	valid string
	// name of the object, where rules of its own apply; "" = "valid".
	name string
}

const space = "stories"

// collection is the path of the kind's objects.
func (k kind) collection() string {
	path := "/apis/" + k.group + "/" + k.version
	if k.group == "" {
		path = "/api/" + k.version
	}
	if !k.clustered {
		path += "/namespaces/" + space
	}
	return path + "/" + k.resource
}

func (k kind) apiVersion() string {
	return strings.TrimPrefix(k.group+"/"+k.version, "/")
}

func (k kind) String() string { return k.apiVersion() + " " + k.kind }

// object is the valid object, ready for changes.
func (k kind) object(t *testing.T) map[string]any {
	t.Helper()
	o := map[string]any{}
	if err := json.Unmarshal([]byte(k.valid), &o); err != nil {
		t.Fatalf("%s: %v", k, err)
	}
	o["apiVersion"], o["kind"] = k.apiVersion(), k.kind
	name := k.name
	if name == "" {
		name = "valid"
	}
	o["metadata"] = map[string]any{"name": name, "labels": map[string]any{"story": "told"}}
	return o
}

func (k kind) path(t *testing.T) string {
	t.Helper()
	name, _ := k.object(t)["metadata"].(map[string]any)["name"].(string)
	return fmt.Sprintf("%s/%s", k.collection(), name)
}

const (
	podSpec     = `{"containers":[{"name":"c","image":"registry.example/app:1","ports":[{"containerPort":80}],"env":[{"name":"A","value":"b"}],"resources":{"limits":{"cpu":"1"},"requests":{"cpu":"100m"}}}]}`
	podTemplate = `{"metadata":{"labels":{"app":"a"}},"spec":` + podSpec + `}`
	selector    = `{"matchLabels":{"app":"a"}}`
	webhook     = `[{"name":"a.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"url":"https://hook.example"},"rules":[{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["nothing"]}]}]`
	claimSpec   = `{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"class.example.com"}}]}}`
	metrics     = `[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]`
	csr         = `LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlHOE1HVUNBUUF3QXpFQk1BQXdXVEFUQmdjcWhrak9QUUlCQmdncWhrak9QUU1CQndOQ0FBU0xwcXQ2`
)

// kinds is every resource that upstream lets people create by default, but those
// that are only questions (reviews) and custom resources.
var kinds = []kind{
	{"", "v1", "ConfigMap", "configmaps", false, `{"data":{"a":"b"},"binaryData":{"c":"ZA=="}}`, ""},
	{"", "v1", "Endpoints", "endpoints", false, `{"subsets":[{"addresses":[{"ip":"192.0.2.1"}],"ports":[{"port":80}]}]}`, ""},
	{"", "v1", "Event", "events", false, `{"involvedObject":{"kind":"Pod","name":"p","namespace":"stories"},"reason":"r","message":"m","type":"Normal"}`, ""},
	{"", "v1", "LimitRange", "limitranges", false, `{"spec":{"limits":[{"type":"Pod","max":{"cpu":"100"}}]}}`, ""},
	{"", "v1", "Namespace", "namespaces", true, `{}`, ""},
	{"", "v1", "Node", "nodes", true, `{"spec":{"podCIDR":"10.1.0.0/24","taints":[{"key":"a","value":"b","effect":"NoSchedule"}]}}`, ""},
	{"", "v1", "PersistentVolume", "persistentvolumes", true, `{"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/tmp"}}}`, ""},
	{"", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", false, `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, ""},
	{"", "v1", "Pod", "pods", false, `{"spec":` + podSpec + `}`, ""},
	{"", "v1", "PodTemplate", "podtemplates", false, `{"template":` + podTemplate + `}`, ""},
	{"", "v1", "ReplicationController", "replicationcontrollers", false, `{"spec":{"replicas":1,"selector":{"app":"a"},"template":` + podTemplate + `}}`, ""},
	{"", "v1", "ResourceQuota", "resourcequotas", false, `{"spec":{"hard":{"count/widgets.example.com":"10"}}}`, ""},
	{"", "v1", "Secret", "secrets", false, `{"type":"Opaque","data":{"a":"Yg=="}}`, ""},
	{"", "v1", "Service", "services", false, `{"spec":{"selector":{"app":"a"},"ports":[{"name":"p","port":80,"targetPort":8080}]}}`, ""},
	{"", "v1", "ServiceAccount", "serviceaccounts", false, `{"secrets":[{"name":"s"}],"imagePullSecrets":[{"name":"p"}]}`, ""},
	{"admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies", true, `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["nothing"]}]},"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{}"}}]}}`, ""},
	{"admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", true, `{"spec":{"policyName":"nothing"}}`, ""},
	{"admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", true, `{"webhooks":` + webhook + `}`, ""},
	{"admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", true, `{"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["nothing"]}]},"validations":[{"expression":"true","message":"m"}]}}`, ""},
	{"admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", true, `{"spec":{"policyName":"nothing","validationActions":["Deny"]}}`, ""},
	{"admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", true, `{"webhooks":` + webhook + `}`, ""},
	{"apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", true, `{"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"valids","kind":"Valid"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string","maxLength":5}}}}}}}]}}`, "valids.example.com"},
	{"apiregistration.k8s.io", "v1", "APIService", "apiservices", true, `{"spec":{"group":"aggregated.example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":10,"insecureSkipTLSVerify":true,"service":{"namespace":"stories","name":"none"}}}`, "v1.aggregated.example.com"},
	{"apps", "v1", "ControllerRevision", "controllerrevisions", false, `{"data":{"a":"b"},"revision":1}`, ""},
	{"apps", "v1", "DaemonSet", "daemonsets", false, `{"spec":{"selector":` + selector + `,"template":` + podTemplate + `}}`, ""},
	{"apps", "v1", "Deployment", "deployments", false, `{"spec":{"replicas":2,"selector":` + selector + `,"template":` + podTemplate + `}}`, ""},
	{"apps", "v1", "ReplicaSet", "replicasets", false, `{"spec":{"replicas":2,"selector":` + selector + `,"template":` + podTemplate + `}}`, ""},
	{"apps", "v1", "StatefulSet", "statefulsets", false, `{"spec":{"serviceName":"s","replicas":2,"selector":` + selector + `,"template":` + podTemplate + `,"volumeClaimTemplates":[{"metadata":{"name":"d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}]}}`, ""},
	{"autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", false, `{"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"minReplicas":1,"maxReplicas":3,"targetCPUUtilizationPercentage":50}}`, ""},
	{"autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", false, `{"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"minReplicas":1,"maxReplicas":3,"metrics":` + metrics + `}}`, "valid-two"},
	{"batch", "v1", "CronJob", "cronjobs", false, `{"spec":{"schedule":"*/5 * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`, ""},
	{"batch", "v1", "Job", "jobs", false, `{"spec":{"completions":2,"parallelism":1,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`, ""},
	{"certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", true, `{"spec":{"request":"` + csr + `","signerName":"example.com/signer","usages":["client auth"]}}`, ""},
	{"coordination.k8s.io", "v1", "Lease", "leases", false, `{"spec":{"holderIdentity":"h","leaseDurationSeconds":10,"leaseTransitions":1}}`, ""},
	{"discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", false, `{"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"],"conditions":{"ready":true}}],"ports":[{"name":"p","port":80,"protocol":"TCP"}]}`, ""},
	{"events.k8s.io", "v1", "Event", "events", false, `{"eventTime":"2024-01-02T03:04:05.000006Z","reportingController":"example.com/c","reportingInstance":"i","action":"a","reason":"r","regarding":{"kind":"Pod","name":"p","namespace":"stories"},"type":"Normal"}`, "valid-two"},
	{"flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", true, `{"spec":{"matchingPrecedence":1000,"priorityLevelConfiguration":{"name":"catch-all"},"rules":[{"subjects":[{"kind":"User","user":{"name":"nobody"}}],"nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/nothing"]}]}]}}`, ""},
	{"flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", true, `{"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":1,"limitResponse":{"type":"Reject"}}}}`, ""},
	{"networking.k8s.io", "v1", "IPAddress", "ipaddresses", true, `{"spec":{"parentRef":{"resource":"services","name":"s","namespace":"stories"}}}`, "192.0.2.7"},
	{"networking.k8s.io", "v1", "Ingress", "ingresses", false, `{"spec":{"rules":[{"host":"a.example.com","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}]}}]}}`, ""},
	{"networking.k8s.io", "v1", "IngressClass", "ingressclasses", true, `{"spec":{"controller":"example.com/c"}}`, ""},
	{"networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", false, `{"spec":{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"192.0.2.0/24"}}],"ports":[{"port":80}]}]}}`, ""},
	{"networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", true, `{"spec":{"cidrs":["192.0.2.0/24"]}}`, ""},
	{"node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", true, `{"handler":"h","overhead":{"podFixed":{"cpu":"1m"}}}`, ""},
	{"policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", false, `{"spec":{"minAvailable":1,"selector":` + selector + `}}`, ""},
	{"rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", true, `{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`, ""},
	{"rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", true, `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"u"}]}`, ""},
	{"rbac.authorization.k8s.io", "v1", "Role", "roles", false, `{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`, ""},
	{"rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", false, `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"kind":"ServiceAccount","name":"s","namespace":"stories"}]}`, ""},
	{"resource.k8s.io", "v1", "DeviceClass", "deviceclasses", true, `{"spec":{"selectors":[{"cel":{"expression":"device.driver == 'd.example.com'"}}]}}`, ""},
	{"resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", false, `{"spec":` + claimSpec + `}`, ""},
	{"resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", false, `{"spec":{"spec":` + claimSpec + `}}`, ""},
	{"resource.k8s.io", "v1", "ResourceSlice", "resourceslices", true, `{"spec":{"driver":"d.example.com","nodeName":"n","pool":{"name":"p","generation":1,"resourceSliceCount":1},"devices":[{"name":"d","attributes":{"a":{"string":"s"}}}]}}`, ""},
	{"scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", true, `{"value":10,"description":"d"}`, ""},
	{"storage.k8s.io", "v1", "CSIDriver", "csidrivers", true, `{"spec":{"attachRequired":false}}`, ""},
	{"storage.k8s.io", "v1", "CSINode", "csinodes", true, `{"spec":{"drivers":[{"name":"d.example.com","nodeID":"n","topologyKeys":["k"]}]}}`, ""},
	{"storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", false, `{"storageClassName":"s","capacity":"1Gi","nodeTopology":{"matchLabels":{"a":"b"}}}`, ""},
	{"storage.k8s.io", "v1", "StorageClass", "storageclasses", true, `{"provisioner":"p.example.com","parameters":{"a":"b"}}`, ""},
	{"storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", true, `{"spec":{"attacher":"a","nodeName":"n","source":{"persistentVolumeName":"v"}}}`, ""},
	{"storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", true, `{"driverName":"d.example.com","parameters":{"a":"b"}}`, ""},
}
