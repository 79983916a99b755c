// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/kubernetes/pkg/apis/networking"
	apinode "k8s.io/kubernetes/pkg/apis/node"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/apis/storagemigration"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	csr "k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle"
	"k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourcepoolstatusrequest"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
	"k8s.io/kubernetes/pkg/registry/scheduling/podgroup"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/scheduling/workload"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
	migration "k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/utils/clock"

	"github.com/wasmplane/wasmplane/core/api/celcost"
	"github.com/wasmplane/wasmplane/core/api/columns"
	"github.com/wasmplane/wasmplane/core/api/live"
	"github.com/wasmplane/wasmplane/core/api/podcost"
)

// Groups is the order of discovery: upstream's group priorities, the core
// group first; groups of equal priority in the order of their names. Only what
// upstream serves by default is here: no alpha and no beta versions, but for metrics,
// which have no other, and for what a feature gate switches on.
func Groups() []Group {
	v1 := []string{"v1"}
	return []Group{
		{"", v1},
		{"apiregistration.k8s.io", v1},
		{"apps", v1},
		{"events.k8s.io", v1},
		{"authentication.k8s.io", v1},
		{"authorization.k8s.io", v1},
		{"autoscaling", []string{"v2", "v1"}},
		{"batch", v1},
		{"certificates.k8s.io", v1},
		{"networking.k8s.io", v1},
		{"policy", v1},
		{"rbac.authorization.k8s.io", v1},
		{"storage.k8s.io", v1},
		{"admissionregistration.k8s.io", v1},
		{"apiextensions.k8s.io", v1},
		{"scheduling.k8s.io", schedulingVersions()},
		{"coordination.k8s.io", v1},
		{"node.k8s.io", v1},
		{"discovery.k8s.io", v1},
		{"resource.k8s.io", deviceVersions()},
		{"flowcontrol.apiserver.k8s.io", v1},
		{"storagemigration.k8s.io", v1},
		{MetricsGroup, []string{"v1beta1"}}, // metrics-server's priority is behind all of these
	}
}

// Rows is the table. Within a group the rows stand in the order of their names,
// as discovery lists them.
func Rows(s Schemes, link *live.Link) []Row {
	var out []Row
	for _, group := range [][]Row{
		coreRows(), aggregationRows(s), appsRows(), eventsRows(), reviewRows(), autoscalingRows(), batchRows(),
		certificatesRows(link), networkingRows(), policyRows(), rbacRows(), storageRows(), admissionRows(link),
		extensionRows(s), schedulingRows(), coordinationRows(), nodeRows(), discoveryRows(), deviceRows(link),
		flowcontrolRows(), migrationRows(), metricsRows(s),
	} {
		out = append(out, group...)
	}
	for i := range out {
		if out[i].Scheme == nil {
			out[i].Scheme = s.Builtin
		}
	}
	return out
}

func coreRows() []Row {
	all := []string{"all"}
	create := []string{"create"}
	stream, proxied := []string{"GET", "POST"}, []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
	return []Row{
		{Name: "bindings", Object: &core.Binding{}, Scoped: Namespaced, Verbs: create, Virtual: true},
		{
			Name: "componentstatuses", Object: &core.ComponentStatus{}, List: &core.ComponentStatusList{}, Scoped: ClusterWide,
			Short: []string{"cs"}, Verbs: []string{"get", "list"}, Virtual: true,
		},
		{
			Name: "configmaps", Object: &core.ConfigMap{}, List: &core.ConfigMapList{}, Short: []string{"cm"},
			Strategy: configmap.Strategy, Attrs: configmap.GetAttrs,
		},
		{
			Name: "endpoints", Object: &core.Endpoints{}, List: &core.EndpointsList{}, Short: []string{"ep"},
			Strategy: endpoint.Strategy, Prefix: "services/endpoints",
		},
		{
			Name: "events", Object: &core.Event{}, List: &core.EventList{}, Short: []string{"ev"},
			Strategy: event.Strategy, TTL: eventTTL, Attrs: event.GetAttrs,
			Fields: []string{
				"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
				"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
				"reason", "reportingComponent", "source", "type",
			},
		},
		{
			Name: "limitranges", Object: &core.LimitRange{}, List: &core.LimitRangeList{}, Short: []string{"limits"},
			Strategy: limitrange.Strategy, PlainTable: true,
		},
		{
			Name: "namespaces", Object: &core.Namespace{}, List: &core.NamespaceList{}, Short: []string{"ns"},
			Strategy: namespace.Strategy, Attrs: namespace.GetAttrs, Fields: []string{"status.phase"}, ReturnDeleted: true,
			Verbs: []string{"create", "delete", "get", "list", "patch", "update", "watch"},
			Subs:  []*Subresource{part("finalize", namespace.FinalizeStrategy, "update"), statusOf(namespace.StatusStrategy)},
		},
		{
			Name: "nodes", Object: &core.Node{}, List: &core.NodeList{}, Short: []string{"no"}, Prefix: "minions",
			Strategy: node.Strategy, Attrs: node.GetAttrs, Fields: []string{"spec.unschedulable"},
			Subs: []*Subresource{connecting("proxy", "NodeProxyOptions", proxied...), statusOf(node.StatusStrategy)},
		},
		{
			Name: "persistentvolumeclaims", Object: &core.PersistentVolumeClaim{}, List: &core.PersistentVolumeClaimList{},
			Short: []string{"pvc"}, Strategy: persistentvolumeclaim.Strategy, Attrs: persistentvolumeclaim.GetAttrs,
			ReturnDeleted: true, Subs: []*Subresource{statusOf(persistentvolumeclaim.StatusStrategy)},
		},
		{
			Name: "persistentvolumes", Object: &core.PersistentVolume{}, List: &core.PersistentVolumeList{},
			Short: []string{"pv"}, Strategy: persistentvolume.Strategy, Attrs: persistentvolume.GetAttrs,
			ReturnDeleted: true, Subs: []*Subresource{statusOf(persistentvolume.StatusStrategy)},
		},
		{
			Name: "pods", Object: &core.Pod{}, Bound: podcost.Check, List: &core.PodList{}, Short: []string{"po"}, Categories: all,
			Strategy: pod.Strategy, Attrs: pod.GetAttrs, ReturnDeleted: true,
			Fields: []string{
				"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
				"spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
			},
			Subs: []*Subresource{
				connecting("attach", "PodAttachOptions", stream...),
				action("binding", schema.GroupVersionKind{Version: "v1", Kind: "Binding"}, "create"),
				part("ephemeralcontainers", pod.EphemeralContainersStrategy, "get", "patch", "update"),
				action("eviction", schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, "create"),
				connecting("exec", "PodExecOptions", stream...),
				action("log", schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "get"),
				connecting("portforward", "PodPortForwardOptions", stream...),
				connecting("proxy", "PodProxyOptions", proxied...),
				part("resize", pod.ResizeStrategy, "get", "patch", "update"),
				statusOf(pod.StatusStrategy),
			},
		},
		{
			Name: "podtemplates", Object: &core.PodTemplate{}, Bound: podcost.Check, List: &core.PodTemplateList{},
			Strategy: podtemplate.Strategy, ReturnDeleted: true,
		},
		{
			Name: "replicationcontrollers", Object: &core.ReplicationController{}, Bound: podcost.Check, List: &core.ReplicationControllerList{},
			Short: []string{"rc"}, Categories: all, Strategy: replicationcontroller.Strategy, Prefix: "controllers",
			Attrs: replicationcontroller.GetAttrs, Fields: []string{"status.replicas"},
			Subs: []*Subresource{Scale(), statusOf(replicationcontroller.StatusStrategy)},
		},
		{
			Name: "resourcequotas", Object: &core.ResourceQuota{}, List: &core.ResourceQuotaList{}, Short: []string{"quota"},
			Strategy: resourcequota.Strategy, ReturnDeleted: true, Subs: []*Subresource{statusOf(resourcequota.StatusStrategy)},
		},
		{
			Name: "secrets", Object: &core.Secret{}, List: &core.SecretList{},
			Strategy: secret.Strategy, Attrs: secret.GetAttrs, Fields: []string{"type"},
		},
		{
			Name: "serviceaccounts", Object: &core.ServiceAccount{}, List: &core.ServiceAccountList{}, Short: []string{"sa"},
			Strategy: serviceaccount.Strategy, ReturnDeleted: true,
			Subs: []*Subresource{action("token", schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest"},
				"create")},
		},
		{
			Name: "services", Object: &core.Service{}, List: &core.ServiceList{}, Short: []string{"svc"}, Categories: all,
			Strategy: service.Strategy, Prefix: "services/specs", Attrs: service.GetAttrs,
			Fields: []string{"spec.clusterIP", "spec.type"}, ReturnDeleted: true,
			Subs: []*Subresource{connecting("proxy", "ServiceProxyOptions", proxied...), statusOf(service.StatusStrategy)},
		},
	}
}

// aggregationRows: upstream keeps these as JSON.
func aggregationRows(s Schemes) []Row {
	strategy := apiservice.NewStrategy(s.Aggregation)
	return []Row{
		{
			Group: "apiregistration.k8s.io", Name: "apiservices", Scheme: s.Aggregation, Object: &apiregistration.APIService{},
			List: &apiregistration.APIServiceList{}, Categories: []string{"api-extensions"}, Strategy: strategy,
			Prefix: "apiregistration.k8s.io/apiservices", StorageJSON: true, Printer: columns.APIServices,
			Subs: []*Subresource{statusOf(updates(apiservice.NewStatusStrategy(s.Aggregation)))},
		},
	}
}

func appsRows() []Row {
	all := []string{"all"}
	return []Row{
		{
			Group: "apps", Name: "controllerrevisions", Object: &apps.ControllerRevision{}, List: &apps.ControllerRevisionList{},
			Strategy: controllerrevision.Strategy,
		},
		{
			Group: "apps", Name: "daemonsets", Object: &apps.DaemonSet{}, Bound: podcost.Check, List: &apps.DaemonSetList{}, Short: []string{"ds"},
			Categories: all, Strategy: daemonset.Strategy, Subs: []*Subresource{statusOf(daemonset.StatusStrategy)},
		},
		{
			Group: "apps", Name: "deployments", Object: &apps.Deployment{}, List: &apps.DeploymentList{},
			Bound: podcost.Check, Short: []string{"deploy"},
			Categories: all, Strategy: deployment.Strategy, Subs: []*Subresource{Scale(), statusOf(deployment.StatusStrategy)},
		},
		{
			Group: "apps", Name: "replicasets", Object: &apps.ReplicaSet{}, List: &apps.ReplicaSetList{},
			Bound: podcost.Check, Short: []string{"rs"},
			Categories: all, Strategy: replicaset.Strategy, Attrs: replicaset.GetAttrs,
			Subs: []*Subresource{Scale(), statusOf(replicaset.StatusStrategy)},
		},
		{
			Group: "apps", Name: "statefulsets", Object: &apps.StatefulSet{}, List: &apps.StatefulSetList{},
			Bound: podcost.Check, Short: []string{"sts"},
			Categories: all, Strategy: statefulset.Strategy, Subs: []*Subresource{Scale(), statusOf(statefulset.StatusStrategy)},
		},
	}
}

// eventsRows: the same objects under another group; they are stored with the core group's.
func eventsRows() []Row {
	return []Row{
		{
			Group: "events.k8s.io", Name: "events", Object: &core.Event{}, List: &core.EventList{}, Short: []string{"ev"},
			Strategy: event.Strategy, TTL: eventTTL, Attrs: event.GetAttrs,
			Fields: []string{
				"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "regarding.apiVersion",
				"regarding.resourceVersion", "regarding.fieldPath", "reason", "reportingController", "type",
			},
		},
	}
}

// reviewRows are questions: answered, never stored.
func reviewRows() []Row {
	create := []string{"create"}
	question := func(group, name string, o runtime.Object, sc Scope) Row {
		return Row{Group: group, Name: name, Object: o, Scoped: sc, Verbs: create, Virtual: true}
	}
	const authn, authz = "authentication.k8s.io", "authorization.k8s.io"
	return []Row{
		question(authn, "selfsubjectreviews", &authentication.SelfSubjectReview{}, ClusterWide),
		question(authn, "tokenreviews", &authentication.TokenReview{}, ClusterWide),
		question(authz, "localsubjectaccessreviews", &authorization.LocalSubjectAccessReview{}, Namespaced),
		question(authz, "selfsubjectaccessreviews", &authorization.SelfSubjectAccessReview{}, ClusterWide),
		question(authz, "selfsubjectrulesreviews", &authorization.SelfSubjectRulesReview{}, ClusterWide),
		question(authz, "subjectaccessreviews", &authorization.SubjectAccessReview{}, ClusterWide),
	}
}

func autoscalingRows() []Row {
	return []Row{
		{
			Group: "autoscaling", Name: "horizontalpodautoscalers", Object: &autoscaling.HorizontalPodAutoscaler{},
			List: &autoscaling.HorizontalPodAutoscalerList{}, Short: []string{"hpa"}, Categories: []string{"all"},
			Strategy: horizontalpodautoscaler.Strategy, StorageVersion: "v2",
			Subs: []*Subresource{statusOf(horizontalpodautoscaler.StatusStrategy)},
		},
	}
}

func batchRows() []Row {
	all := []string{"all"}
	return []Row{
		{
			Group: "batch", Name: "cronjobs", Object: &batch.CronJob{}, Bound: podcost.Check, List: &batch.CronJobList{}, Short: []string{"cj"},
			Categories: all, Strategy: cronjob.Strategy, Subs: []*Subresource{statusOf(cronjob.StatusStrategy)},
		},
		{
			Group: "batch", Name: "jobs", Object: &batch.Job{}, Bound: podcost.Check, List: &batch.JobList{}, Categories: all,
			Strategy: job.Strategy, Attrs: job.GetAttrs, Fields: []string{"status.successful"},
			Subs: []*Subresource{statusOf(job.StatusStrategy)},
		},
	}
}

func certificatesRows(link *live.Link) []Row {
	const group = "certificates.k8s.io"
	requests := podcertificaterequest.NewStrategy()
	signer := []string{"spec.signerName"}
	return []Row{
		{
			Group: group, Name: "certificatesigningrequests", Object: &certificates.CertificateSigningRequest{},
			List: &certificates.CertificateSigningRequestList{}, Short: []string{"csr"}, Strategy: csr.Strategy,
			Attrs: csr.GetAttrs, Fields: signer,
			Subs: []*Subresource{part("approval", csr.ApprovalStrategy, "get", "patch", "update"), statusOf(csr.StatusStrategy)},
		},
		{
			Group: group, Name: "clustertrustbundles", Object: &certificates.ClusterTrustBundle{},
			List: &certificates.ClusterTrustBundleList{}, Strategy: clustertrustbundle.Strategy, StorageVersion: "v1beta1",
			Fields: signer, Attrs: withMeta(false, func(o runtime.Object) fields.Set {
				return fields.Set{"spec.signerName": o.(*certificates.ClusterTrustBundle).Spec.SignerName}
			}),
		},
		{
			Group: group, Name: "podcertificaterequests", Object: &certificates.PodCertificateRequest{},
			List: &certificates.PodCertificateRequestList{}, Strategy: requests, StorageVersion: "v1beta1",
			NoNamespace: true, Fields: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
			Attrs: withMeta(true, func(o runtime.Object) fields.Set {
				spec := &o.(*certificates.PodCertificateRequest).Spec
				return fields.Set{"spec.signerName": spec.SignerName, "spec.podName": spec.PodName, "spec.nodeName": string(spec.NodeName)}
			}),
			Subs: []*Subresource{statusOf(podcertificaterequest.NewStatusStrategy(requests, link, clock.RealClock{}))},
		},
	}
}

func networkingRows() []Row {
	const group = "networking.k8s.io"
	return []Row{
		{
			Group: group, Name: "ingressclasses", Object: &networking.IngressClass{}, List: &networking.IngressClassList{},
			Strategy: ingressclass.Strategy,
		},
		{
			Group: group, Name: "ingresses", Object: &networking.Ingress{}, List: &networking.IngressList{}, Short: []string{"ing"},
			Strategy: ingress.Strategy, Prefix: "ingress", Subs: []*Subresource{statusOf(ingress.StatusStrategy)},
		},
		{
			Group: group, Name: "ipaddresses", Object: &networking.IPAddress{}, List: &networking.IPAddressList{}, Short: []string{"ip"},
			Strategy: ipaddress.Strategy,
		},
		{
			Group: group, Name: "networkpolicies", Object: &networking.NetworkPolicy{}, List: &networking.NetworkPolicyList{},
			Short: []string{"netpol"}, Strategy: networkpolicy.Strategy,
		},
		{
			Group: group, Name: "servicecidrs", Object: &networking.ServiceCIDR{}, List: &networking.ServiceCIDRList{},
			Strategy: servicecidr.Strategy, Subs: []*Subresource{statusOf(servicecidr.StatusStrategy)},
		},
	}
}

func policyRows() []Row {
	return []Row{
		{
			Group: "policy", Name: "poddisruptionbudgets", Object: &policy.PodDisruptionBudget{}, List: &policy.PodDisruptionBudgetList{},
			Short: []string{"pdb"}, Strategy: poddisruptionbudget.Strategy,
			Subs: []*Subresource{statusOf(poddisruptionbudget.StatusStrategy)},
		},
	}
}

func rbacRows() []Row {
	const group = "rbac.authorization.k8s.io"
	return []Row{
		{
			Group: group, Name: "clusterrolebindings", Object: &rbac.ClusterRoleBinding{}, List: &rbac.ClusterRoleBindingList{},
			Strategy: clusterrolebinding.Strategy,
		},
		{
			Group: group, Name: "clusterroles", Object: &rbac.ClusterRole{}, List: &rbac.ClusterRoleList{},
			Strategy: clusterrole.Strategy, PlainTable: true,
		},
		{Group: group, Name: "rolebindings", Object: &rbac.RoleBinding{}, List: &rbac.RoleBindingList{}, Strategy: rolebinding.Strategy},
		{Group: group, Name: "roles", Object: &rbac.Role{}, List: &rbac.RoleList{}, Strategy: role.Strategy, PlainTable: true},
	}
}

func storageRows() []Row {
	const group = "storage.k8s.io"
	return []Row{
		{
			Group: group, Name: "csidrivers", Object: &storage.CSIDriver{}, List: &storage.CSIDriverList{},
			Strategy: csidriver.Strategy, ReturnDeleted: true,
		},
		{
			Group: group, Name: "csinodes", Object: &storage.CSINode{}, List: &storage.CSINodeList{},
			Strategy: csinode.Strategy, ReturnDeleted: true, Subs: []*Subresource{statusOf(csinode.StatusStrategy)},
		},
		{
			Group: group, Name: "csistoragecapacities", Object: &storage.CSIStorageCapacity{}, List: &storage.CSIStorageCapacityList{},
			Strategy: csistoragecapacity.Strategy, PlainTable: true,
		},
		{
			Group: group, Name: "storageclasses", Object: &storage.StorageClass{}, List: &storage.StorageClassList{},
			Short: []string{"sc"}, Strategy: storageclass.Strategy, ReturnDeleted: true,
		},
		{
			Group: group, Name: "volumeattachments", Object: &storage.VolumeAttachment{}, List: &storage.VolumeAttachmentList{},
			Strategy: volumeattachment.Strategy, ReturnDeleted: true, Subs: []*Subresource{statusOf(volumeattachment.StatusStrategy)},
		},
		{
			Group: group, Name: "volumeattributesclasses", Object: &storage.VolumeAttributesClass{}, List: &storage.VolumeAttributesClassList{},
			Short: []string{"vac"}, Strategy: volumeattributesclass.Strategy, ReturnDeleted: true,
		},
	}
}

func admissionRows(link *live.Link) []Row {
	const group = "admissionregistration.k8s.io"
	api := []string{"api-extensions"}
	validating := validatingadmissionpolicy.NewStrategy(link, link)
	return []Row{
		{
			Group: group, Name: "mutatingadmissionpolicies", Object: &admissionregistration.MutatingAdmissionPolicy{},
			List: &admissionregistration.MutatingAdmissionPolicyList{}, Categories: api, Bound: celcost.Check,
			Strategy: mutatingadmissionpolicy.NewStrategy(link, link),
		},
		{
			Group: group, Name: "mutatingadmissionpolicybindings", Object: &admissionregistration.MutatingAdmissionPolicyBinding{},
			List: &admissionregistration.MutatingAdmissionPolicyBindingList{}, Categories: api,
			Strategy: mutatingadmissionpolicybinding.NewStrategy(link, link, link),
		},
		{
			Group: group, Name: "mutatingwebhookconfigurations", Object: &admissionregistration.MutatingWebhookConfiguration{},
			List: &admissionregistration.MutatingWebhookConfigurationList{}, Categories: api, Bound: celcost.Check,
			Strategy: mutatingwebhookconfiguration.Strategy,
		},
		{
			Group: group, Name: "validatingadmissionpolicies", Object: &admissionregistration.ValidatingAdmissionPolicy{},
			List: &admissionregistration.ValidatingAdmissionPolicyList{}, Categories: api, Strategy: validating, Bound: celcost.Check,
			Subs: []*Subresource{statusOf(validatingadmissionpolicy.NewStatusStrategy(validating))},
		},
		{
			Group: group, Name: "validatingadmissionpolicybindings", Object: &admissionregistration.ValidatingAdmissionPolicyBinding{},
			List: &admissionregistration.ValidatingAdmissionPolicyBindingList{}, Categories: api,
			Strategy: validatingadmissionpolicybinding.NewStrategy(link, link, link),
		},
		{
			Group: group, Name: "validatingwebhookconfigurations", Object: &admissionregistration.ValidatingWebhookConfiguration{},
			List: &admissionregistration.ValidatingWebhookConfigurationList{}, Categories: api, Bound: celcost.Check,
			Strategy: validatingwebhookconfiguration.Strategy,
		},
	}
}

// extensionRows: upstream stores definitions as JSON of v1beta1, the more
// compact form, and a cluster's snapshot has them so.
func extensionRows(s Schemes) []Row {
	return []Row{
		{
			Group: "apiextensions.k8s.io", Name: "customresourcedefinitions", Scheme: s.Extensions,
			Object: &apiextensions.CustomResourceDefinition{}, List: &apiextensions.CustomResourceDefinitionList{},
			Short: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
			Strategy: celcost.Definitions(customresourcedefinition.NewStrategy(s.Extensions)), Bound: celcost.Check,
			StorageVersion: "v1beta1", StorageJSON: true,
			Prefix: "apiextensions.k8s.io/customresourcedefinitions", Printer: columns.Definitions, BeginDelete: cleanUpFirst,
			Subs: []*Subresource{statusOf(updates(customresourcedefinition.NewStatusStrategy(s.Extensions)))},
		},
	}
}

// cleanUpFirst has the objects of a definition deleted before it goes.
func cleanUpFirst(internal runtime.Object) {
	crd, ok := internal.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return
	}
	if !apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(crd.Finalizers, apiextensions.CustomResourceCleanupFinalizer)
	}
	apiextensions.SetCRDCondition(crd, apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.Terminating, Status: apiextensions.ConditionTrue, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
}

// schedulingVersions: upstream serves the beta with a feature gate, and where it was asked for
// beta versions; here the gate is enough.
func schedulingVersions() []string {
	if podGroups() {
		return []string{"v1", "v1beta1"}
	}
	return []string{"v1"}
}

func schedulingRows() []Row {
	const group = "scheduling.k8s.io"
	classes := Row{
		Group: group, Name: "priorityclasses", Object: &scheduling.PriorityClass{}, List: &scheduling.PriorityClassList{},
		Short: []string{"pc"}, Strategy: priorityclass.Strategy, OnlyIn: []string{"v1"},
	}
	if !podGroups() {
		return []Row{classes}
	}
	strategy, beta := podgroup.NewStrategy(), []string{"v1beta1"}
	return []Row{
		{
			Group: group, Name: "podgroups", Object: &scheduling.PodGroup{}, List: &scheduling.PodGroupList{}, Strategy: strategy,
			OnlyIn: beta, StorageVersion: "v1beta1", Subs: []*Subresource{statusOf(podgroup.NewStatusStrategy(strategy))},
		},
		classes,
		{
			Group: group, Name: "workloads", Object: &scheduling.Workload{}, List: &scheduling.WorkloadList{}, Strategy: workload.Strategy,
			OnlyIn: beta, StorageVersion: "v1beta1",
		},
	}
}

func coordinationRows() []Row {
	return []Row{
		{
			Group: "coordination.k8s.io", Name: "leases", Object: &coordination.Lease{}, List: &coordination.LeaseList{},
			Strategy: lease.Strategy,
		},
	}
}

func nodeRows() []Row {
	return []Row{
		{
			Group: "node.k8s.io", Name: "runtimeclasses", Object: &apinode.RuntimeClass{}, List: &apinode.RuntimeClassList{},
			Strategy: runtimeclass.Strategy,
		},
	}
}

func discoveryRows() []Row {
	return []Row{
		{
			Group: "discovery.k8s.io", Name: "endpointslices", Object: &discovery.EndpointSlice{}, List: &discovery.EndpointSliceList{},
			Strategy: endpointslice.Strategy,
		},
	}
}

// deviceVersions: as with schedulingVersions, the gate is enough.
func deviceVersions() []string {
	if poolStatus() {
		return []string{"v1", "v1alpha3"}
	}
	return []string{"v1"}
}

// deviceRows are in v1 alone, but for what a feature gate switches on.
func deviceRows(link *live.Link) []Row {
	const group = "resource.k8s.io"
	claims := resourceclaim.NewStrategy(link.Namespaces(), link)
	rows := []Row{
		{
			Group: group, Name: "deviceclasses", Object: &resource.DeviceClass{}, List: &resource.DeviceClassList{},
			Strategy: deviceclass.Strategy, ReturnDeleted: true, Bound: celcost.Check,
		},
		{
			Group: group, Name: "devicetaintrules", Object: &resource.DeviceTaintRule{}, List: &resource.DeviceTaintRuleList{},
			Strategy: devicetaintrule.Strategy, StorageVersion: "v1beta2",
			Subs: []*Subresource{statusOf(devicetaintrule.StatusStrategy)},
		},
		{
			Group: group, Name: "resourceclaims", Object: &resource.ResourceClaim{}, List: &resource.ResourceClaimList{},
			Strategy: claims, Attrs: resourceclaim.GetAttrs, ReturnDeleted: true, Bound: celcost.Check,
			Subs: []*Subresource{statusOf(resourceclaim.NewStatusStrategy(claims))},
		},
		{
			Group: group, Name: "resourceclaimtemplates", Object: &resource.ResourceClaimTemplate{}, List: &resource.ResourceClaimTemplateList{},
			Strategy: resourceclaimtemplate.NewStrategy(link.Namespaces()), Attrs: resourceclaimtemplate.GetAttrs, ReturnDeleted: true,
			Bound: celcost.Check,
		},
		{
			Group: group, Name: "resourceslices", Object: &resource.ResourceSlice{}, List: &resource.ResourceSliceList{},
			Strategy: resourceslice.Strategy, Attrs: resourceslice.GetAttrs, ReturnDeleted: true,
			Fields: []string{"spec.nodeName", "spec.driver", "spec.pool.name"},
		},
	}
	for i := range rows {
		rows[i].OnlyIn = []string{"v1"}
	}
	if !poolStatus() {
		return rows
	}
	return slices.Insert(rows, len(rows)-1, Row{
		Group: group, Name: "resourcepoolstatusrequests", Object: &resource.ResourcePoolStatusRequest{},
		List: &resource.ResourcePoolStatusRequestList{}, Strategy: resourcepoolstatusrequest.Strategy, ReturnDeleted: true,
		OnlyIn: []string{"v1alpha3"}, StorageVersion: "v1alpha3",
		Subs: []*Subresource{statusOf(resourcepoolstatusrequest.StatusStrategy)},
	})
}

func flowcontrolRows() []Row {
	const group = "flowcontrol.apiserver.k8s.io"
	return []Row{
		{
			Group: group, Name: "flowschemas", Object: &flowcontrol.FlowSchema{}, List: &flowcontrol.FlowSchemaList{},
			Strategy: flowschema.Strategy, Subs: []*Subresource{statusOf(flowschema.StatusStrategy)},
		},
		{
			Group: group, Name: "prioritylevelconfigurations", Object: &flowcontrol.PriorityLevelConfiguration{},
			List: &flowcontrol.PriorityLevelConfigurationList{}, Strategy: prioritylevelconfiguration.Strategy,
			Subs: []*Subresource{statusOf(prioritylevelconfiguration.StatusStrategy)},
		},
	}
}

func migrationRows() []Row {
	return []Row{
		{
			Group: "storagemigration.k8s.io", Name: "storageversionmigrations", Object: &storagemigration.StorageVersionMigration{},
			List: &storagemigration.StorageVersionMigrationList{}, Strategy: migration.Strategy, StorageVersion: "v1beta1",
			Subs: []*Subresource{statusOf(migration.StatusStrategy)},
		},
	}
}

// MetricsGroup is served here until somebody registers a server for it: upstream
// leaves it to metrics-server, so no APIService stands for it that an installation
// of one would have to take over.
const MetricsGroup = "metrics.k8s.io"

// metricsRows are what nodes and pods use, which is made when somebody asks.
func metricsRows(s Schemes) []Row {
	nodes := Row{Group: MetricsGroup, Scheme: s.Metrics, Verbs: []string{"get", "list"}, Virtual: true, Printer: columns.Metrics}
	pods := nodes
	nodes.Name, nodes.Object, nodes.List, nodes.Scoped = "nodes", &metrics.NodeMetrics{}, &metrics.NodeMetricsList{}, ClusterWide
	pods.Name, pods.Object, pods.List, pods.Scoped = "pods", &metrics.PodMetrics{}, &metrics.PodMetricsList{}, Namespaced
	return []Row{nodes, pods}
}

// poolStatus says whether ResourcePoolStatusRequests are served.
func poolStatus() bool { return utilfeature.DefaultFeatureGate.Enabled(features.DRAResourcePoolStatus) }

// podGroups says whether pod groups are served.
func podGroups() bool { return utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) }
