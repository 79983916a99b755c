// SPDX-License-Identifier: Apache-2.0

package api

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

	"github.com/wasmplane/wasmplane/core/api/columns"
	"github.com/wasmplane/wasmplane/core/api/live"
)

// groupOrder is the order of discovery: upstream's group priorities, the core
// group first; groups of equal priority in the order of their names. Only what
// upstream serves by default is here: no alpha and no beta versions, but for metrics,
// which have no other, and for what a feature gate switches on.
func groupOrder() []Group {
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
		{"resource.k8s.io", v1},
		{"flowcontrol.apiserver.k8s.io", v1},
		{"storagemigration.k8s.io", v1},
		{MetricsGroup, []string{"v1beta1"}}, // metrics-server's priority is behind all of these
	}
}

// rows is the table. Within a group the rows stand in the order of their names,
// as discovery lists them.
func rows(s schemes, link *live.Link) []row {
	var out []row
	for _, group := range [][]row{
		coreRows(), aggregationRows(s), appsRows(), eventsRows(), reviewRows(), autoscalingRows(), batchRows(),
		certificatesRows(link), networkingRows(), policyRows(), rbacRows(), storageRows(), admissionRows(link),
		extensionRows(s), schedulingRows(), coordinationRows(), nodeRows(), discoveryRows(), deviceRows(link),
		flowcontrolRows(), migrationRows(), metricsRows(s),
	} {
		out = append(out, group...)
	}
	for i := range out {
		if out[i].scheme == nil {
			out[i].scheme = s.builtin
		}
	}
	return out
}

func coreRows() []row {
	all := []string{"all"}
	create := []string{"create"}
	stream, proxied := []string{"GET", "POST"}, []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
	return []row{
		{name: "bindings", object: &core.Binding{}, scoped: namespaced, verbs: create, virtual: true},
		{
			name: "componentstatuses", object: &core.ComponentStatus{}, list: &core.ComponentStatusList{}, scoped: clusterWide,
			short: []string{"cs"}, verbs: []string{"get", "list"}, virtual: true,
		},
		{
			name: "configmaps", object: &core.ConfigMap{}, list: &core.ConfigMapList{}, short: []string{"cm"},
			strategy: configmap.Strategy, attrs: configmap.GetAttrs,
		},
		{
			name: "endpoints", object: &core.Endpoints{}, list: &core.EndpointsList{}, short: []string{"ep"},
			strategy: endpoint.Strategy, prefix: "services/endpoints",
		},
		{
			name: "events", object: &core.Event{}, list: &core.EventList{}, short: []string{"ev"},
			strategy: event.Strategy, ttl: eventTTL, attrs: event.GetAttrs,
			fields: []string{
				"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
				"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
				"reason", "reportingComponent", "source", "type",
			},
		},
		{
			name: "limitranges", object: &core.LimitRange{}, list: &core.LimitRangeList{}, short: []string{"limits"},
			strategy: limitrange.Strategy, plainTable: true,
		},
		{
			name: "namespaces", object: &core.Namespace{}, list: &core.NamespaceList{}, short: []string{"ns"},
			strategy: namespace.Strategy, attrs: namespace.GetAttrs, fields: []string{"status.phase"}, returnDeleted: true,
			verbs: []string{"create", "delete", "get", "list", "patch", "update", "watch"},
			subs:  []*Subresource{part("finalize", namespace.FinalizeStrategy, "update"), statusOf(namespace.StatusStrategy)},
		},
		{
			name: "nodes", object: &core.Node{}, list: &core.NodeList{}, short: []string{"no"}, prefix: "minions",
			strategy: node.Strategy, attrs: node.GetAttrs, fields: []string{"spec.unschedulable"},
			subs: []*Subresource{connecting("proxy", "NodeProxyOptions", proxied...), statusOf(node.StatusStrategy)},
		},
		{
			name: "persistentvolumeclaims", object: &core.PersistentVolumeClaim{}, list: &core.PersistentVolumeClaimList{},
			short: []string{"pvc"}, strategy: persistentvolumeclaim.Strategy, attrs: persistentvolumeclaim.GetAttrs,
			returnDeleted: true, subs: []*Subresource{statusOf(persistentvolumeclaim.StatusStrategy)},
		},
		{
			name: "persistentvolumes", object: &core.PersistentVolume{}, list: &core.PersistentVolumeList{},
			short: []string{"pv"}, strategy: persistentvolume.Strategy, attrs: persistentvolume.GetAttrs,
			returnDeleted: true, subs: []*Subresource{statusOf(persistentvolume.StatusStrategy)},
		},
		{
			name: "pods", object: &core.Pod{}, list: &core.PodList{}, short: []string{"po"}, categories: all,
			strategy: pod.Strategy, attrs: pod.GetAttrs, returnDeleted: true,
			fields: []string{
				"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
				"spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
			},
			subs: []*Subresource{
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
			name: "podtemplates", object: &core.PodTemplate{}, list: &core.PodTemplateList{},
			strategy: podtemplate.Strategy, returnDeleted: true,
		},
		{
			name: "replicationcontrollers", object: &core.ReplicationController{}, list: &core.ReplicationControllerList{},
			short: []string{"rc"}, categories: all, strategy: replicationcontroller.Strategy, prefix: "controllers",
			attrs: replicationcontroller.GetAttrs, fields: []string{"status.replicas"},
			subs: []*Subresource{scaleOf(), statusOf(replicationcontroller.StatusStrategy)},
		},
		{
			name: "resourcequotas", object: &core.ResourceQuota{}, list: &core.ResourceQuotaList{}, short: []string{"quota"},
			strategy: resourcequota.Strategy, returnDeleted: true, subs: []*Subresource{statusOf(resourcequota.StatusStrategy)},
		},
		{
			name: "secrets", object: &core.Secret{}, list: &core.SecretList{},
			strategy: secret.Strategy, attrs: secret.GetAttrs, fields: []string{"type"},
		},
		{
			name: "serviceaccounts", object: &core.ServiceAccount{}, list: &core.ServiceAccountList{}, short: []string{"sa"},
			strategy: serviceaccount.Strategy, returnDeleted: true,
			subs: []*Subresource{action("token", schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest"},
				"create")},
		},
		{
			name: "services", object: &core.Service{}, list: &core.ServiceList{}, short: []string{"svc"}, categories: all,
			strategy: service.Strategy, prefix: "services/specs", attrs: service.GetAttrs,
			fields: []string{"spec.clusterIP", "spec.type"}, returnDeleted: true,
			subs: []*Subresource{connecting("proxy", "ServiceProxyOptions", proxied...), statusOf(service.StatusStrategy)},
		},
	}
}

// aggregationRows: upstream keeps these as JSON.
func aggregationRows(s schemes) []row {
	strategy := apiservice.NewStrategy(s.aggregation)
	return []row{
		{
			group: "apiregistration.k8s.io", name: "apiservices", scheme: s.aggregation, object: &apiregistration.APIService{},
			list: &apiregistration.APIServiceList{}, categories: []string{"api-extensions"}, strategy: strategy,
			prefix: "apiregistration.k8s.io/apiservices", storageJSON: true, printer: columns.APIServices,
			subs: []*Subresource{statusOf(updates(apiservice.NewStatusStrategy(s.aggregation)))},
		},
	}
}

func appsRows() []row {
	all := []string{"all"}
	return []row{
		{
			group: "apps", name: "controllerrevisions", object: &apps.ControllerRevision{}, list: &apps.ControllerRevisionList{},
			strategy: controllerrevision.Strategy,
		},
		{
			group: "apps", name: "daemonsets", object: &apps.DaemonSet{}, list: &apps.DaemonSetList{}, short: []string{"ds"},
			categories: all, strategy: daemonset.Strategy, subs: []*Subresource{statusOf(daemonset.StatusStrategy)},
		},
		{
			group: "apps", name: "deployments", object: &apps.Deployment{}, list: &apps.DeploymentList{}, short: []string{"deploy"},
			categories: all, strategy: deployment.Strategy, subs: []*Subresource{scaleOf(), statusOf(deployment.StatusStrategy)},
		},
		{
			group: "apps", name: "replicasets", object: &apps.ReplicaSet{}, list: &apps.ReplicaSetList{}, short: []string{"rs"},
			categories: all, strategy: replicaset.Strategy, attrs: replicaset.GetAttrs,
			subs: []*Subresource{scaleOf(), statusOf(replicaset.StatusStrategy)},
		},
		{
			group: "apps", name: "statefulsets", object: &apps.StatefulSet{}, list: &apps.StatefulSetList{}, short: []string{"sts"},
			categories: all, strategy: statefulset.Strategy, subs: []*Subresource{scaleOf(), statusOf(statefulset.StatusStrategy)},
		},
	}
}

// eventsRows: the same objects under another group; they are stored with the core group's.
func eventsRows() []row {
	return []row{
		{
			group: "events.k8s.io", name: "events", object: &core.Event{}, list: &core.EventList{}, short: []string{"ev"},
			strategy: event.Strategy, ttl: eventTTL, attrs: event.GetAttrs,
			fields: []string{
				"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "regarding.apiVersion",
				"regarding.resourceVersion", "regarding.fieldPath", "reason", "reportingController", "type",
			},
		},
	}
}

// reviewRows are questions: answered, never stored.
func reviewRows() []row {
	create := []string{"create"}
	question := func(group, name string, o runtime.Object, sc scope) row {
		return row{group: group, name: name, object: o, scoped: sc, verbs: create, virtual: true}
	}
	const authn, authz = "authentication.k8s.io", "authorization.k8s.io"
	return []row{
		question(authn, "selfsubjectreviews", &authentication.SelfSubjectReview{}, clusterWide),
		question(authn, "tokenreviews", &authentication.TokenReview{}, clusterWide),
		question(authz, "localsubjectaccessreviews", &authorization.LocalSubjectAccessReview{}, namespaced),
		question(authz, "selfsubjectaccessreviews", &authorization.SelfSubjectAccessReview{}, clusterWide),
		question(authz, "selfsubjectrulesreviews", &authorization.SelfSubjectRulesReview{}, clusterWide),
		question(authz, "subjectaccessreviews", &authorization.SubjectAccessReview{}, clusterWide),
	}
}

func autoscalingRows() []row {
	return []row{
		{
			group: "autoscaling", name: "horizontalpodautoscalers", object: &autoscaling.HorizontalPodAutoscaler{},
			list: &autoscaling.HorizontalPodAutoscalerList{}, short: []string{"hpa"}, categories: []string{"all"},
			strategy: horizontalpodautoscaler.Strategy, storageVersion: "v2",
			subs: []*Subresource{statusOf(horizontalpodautoscaler.StatusStrategy)},
		},
	}
}

func batchRows() []row {
	all := []string{"all"}
	return []row{
		{
			group: "batch", name: "cronjobs", object: &batch.CronJob{}, list: &batch.CronJobList{}, short: []string{"cj"},
			categories: all, strategy: cronjob.Strategy, subs: []*Subresource{statusOf(cronjob.StatusStrategy)},
		},
		{
			group: "batch", name: "jobs", object: &batch.Job{}, list: &batch.JobList{}, categories: all,
			strategy: job.Strategy, attrs: job.GetAttrs, fields: []string{"status.successful"},
			subs: []*Subresource{statusOf(job.StatusStrategy)},
		},
	}
}

func certificatesRows(link *live.Link) []row {
	const group = "certificates.k8s.io"
	requests := podcertificaterequest.NewStrategy()
	signer := []string{"spec.signerName"}
	return []row{
		{
			group: group, name: "certificatesigningrequests", object: &certificates.CertificateSigningRequest{},
			list: &certificates.CertificateSigningRequestList{}, short: []string{"csr"}, strategy: csr.Strategy,
			attrs: csr.GetAttrs, fields: signer,
			subs: []*Subresource{part("approval", csr.ApprovalStrategy, "get", "patch", "update"), statusOf(csr.StatusStrategy)},
		},
		{
			group: group, name: "clustertrustbundles", object: &certificates.ClusterTrustBundle{},
			list: &certificates.ClusterTrustBundleList{}, strategy: clustertrustbundle.Strategy, storageVersion: "v1beta1",
			fields: signer, attrs: withMeta(false, func(o runtime.Object) fields.Set {
				return fields.Set{"spec.signerName": o.(*certificates.ClusterTrustBundle).Spec.SignerName}
			}),
		},
		{
			group: group, name: "podcertificaterequests", object: &certificates.PodCertificateRequest{},
			list: &certificates.PodCertificateRequestList{}, strategy: requests, storageVersion: "v1beta1",
			noNamespace: true, fields: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
			attrs: withMeta(true, func(o runtime.Object) fields.Set {
				spec := &o.(*certificates.PodCertificateRequest).Spec
				return fields.Set{"spec.signerName": spec.SignerName, "spec.podName": spec.PodName, "spec.nodeName": string(spec.NodeName)}
			}),
			subs: []*Subresource{statusOf(podcertificaterequest.NewStatusStrategy(requests, link, clock.RealClock{}))},
		},
	}
}

func networkingRows() []row {
	const group = "networking.k8s.io"
	return []row{
		{
			group: group, name: "ingressclasses", object: &networking.IngressClass{}, list: &networking.IngressClassList{},
			strategy: ingressclass.Strategy,
		},
		{
			group: group, name: "ingresses", object: &networking.Ingress{}, list: &networking.IngressList{}, short: []string{"ing"},
			strategy: ingress.Strategy, prefix: "ingress", subs: []*Subresource{statusOf(ingress.StatusStrategy)},
		},
		{
			group: group, name: "ipaddresses", object: &networking.IPAddress{}, list: &networking.IPAddressList{}, short: []string{"ip"},
			strategy: ipaddress.Strategy,
		},
		{
			group: group, name: "networkpolicies", object: &networking.NetworkPolicy{}, list: &networking.NetworkPolicyList{},
			short: []string{"netpol"}, strategy: networkpolicy.Strategy,
		},
		{
			group: group, name: "servicecidrs", object: &networking.ServiceCIDR{}, list: &networking.ServiceCIDRList{},
			strategy: servicecidr.Strategy, subs: []*Subresource{statusOf(servicecidr.StatusStrategy)},
		},
	}
}

func policyRows() []row {
	return []row{
		{
			group: "policy", name: "poddisruptionbudgets", object: &policy.PodDisruptionBudget{}, list: &policy.PodDisruptionBudgetList{},
			short: []string{"pdb"}, strategy: poddisruptionbudget.Strategy,
			subs: []*Subresource{statusOf(poddisruptionbudget.StatusStrategy)},
		},
	}
}

func rbacRows() []row {
	const group = "rbac.authorization.k8s.io"
	return []row{
		{
			group: group, name: "clusterrolebindings", object: &rbac.ClusterRoleBinding{}, list: &rbac.ClusterRoleBindingList{},
			strategy: clusterrolebinding.Strategy,
		},
		{
			group: group, name: "clusterroles", object: &rbac.ClusterRole{}, list: &rbac.ClusterRoleList{},
			strategy: clusterrole.Strategy, plainTable: true,
		},
		{group: group, name: "rolebindings", object: &rbac.RoleBinding{}, list: &rbac.RoleBindingList{}, strategy: rolebinding.Strategy},
		{group: group, name: "roles", object: &rbac.Role{}, list: &rbac.RoleList{}, strategy: role.Strategy, plainTable: true},
	}
}

func storageRows() []row {
	const group = "storage.k8s.io"
	return []row{
		{
			group: group, name: "csidrivers", object: &storage.CSIDriver{}, list: &storage.CSIDriverList{},
			strategy: csidriver.Strategy, returnDeleted: true,
		},
		{
			group: group, name: "csinodes", object: &storage.CSINode{}, list: &storage.CSINodeList{},
			strategy: csinode.Strategy, returnDeleted: true, subs: []*Subresource{statusOf(csinode.StatusStrategy)},
		},
		{
			group: group, name: "csistoragecapacities", object: &storage.CSIStorageCapacity{}, list: &storage.CSIStorageCapacityList{},
			strategy: csistoragecapacity.Strategy, plainTable: true,
		},
		{
			group: group, name: "storageclasses", object: &storage.StorageClass{}, list: &storage.StorageClassList{},
			short: []string{"sc"}, strategy: storageclass.Strategy, returnDeleted: true,
		},
		{
			group: group, name: "volumeattachments", object: &storage.VolumeAttachment{}, list: &storage.VolumeAttachmentList{},
			strategy: volumeattachment.Strategy, returnDeleted: true, subs: []*Subresource{statusOf(volumeattachment.StatusStrategy)},
		},
		{
			group: group, name: "volumeattributesclasses", object: &storage.VolumeAttributesClass{}, list: &storage.VolumeAttributesClassList{},
			short: []string{"vac"}, strategy: volumeattributesclass.Strategy, returnDeleted: true,
		},
	}
}

func admissionRows(link *live.Link) []row {
	const group = "admissionregistration.k8s.io"
	api := []string{"api-extensions"}
	validating := validatingadmissionpolicy.NewStrategy(link, link)
	return []row{
		{
			group: group, name: "mutatingadmissionpolicies", object: &admissionregistration.MutatingAdmissionPolicy{},
			list: &admissionregistration.MutatingAdmissionPolicyList{}, categories: api,
			strategy: mutatingadmissionpolicy.NewStrategy(link, link),
		},
		{
			group: group, name: "mutatingadmissionpolicybindings", object: &admissionregistration.MutatingAdmissionPolicyBinding{},
			list: &admissionregistration.MutatingAdmissionPolicyBindingList{}, categories: api,
			strategy: mutatingadmissionpolicybinding.NewStrategy(link, link, link),
		},
		{
			group: group, name: "mutatingwebhookconfigurations", object: &admissionregistration.MutatingWebhookConfiguration{},
			list: &admissionregistration.MutatingWebhookConfigurationList{}, categories: api,
			strategy: mutatingwebhookconfiguration.Strategy,
		},
		{
			group: group, name: "validatingadmissionpolicies", object: &admissionregistration.ValidatingAdmissionPolicy{},
			list: &admissionregistration.ValidatingAdmissionPolicyList{}, categories: api, strategy: validating,
			subs: []*Subresource{statusOf(validatingadmissionpolicy.NewStatusStrategy(validating))},
		},
		{
			group: group, name: "validatingadmissionpolicybindings", object: &admissionregistration.ValidatingAdmissionPolicyBinding{},
			list: &admissionregistration.ValidatingAdmissionPolicyBindingList{}, categories: api,
			strategy: validatingadmissionpolicybinding.NewStrategy(link, link, link),
		},
		{
			group: group, name: "validatingwebhookconfigurations", object: &admissionregistration.ValidatingWebhookConfiguration{},
			list: &admissionregistration.ValidatingWebhookConfigurationList{}, categories: api,
			strategy: validatingwebhookconfiguration.Strategy,
		},
	}
}

// extensionRows: upstream stores definitions as JSON of v1beta1, the more
// compact form, and a cluster's snapshot has them so.
func extensionRows(s schemes) []row {
	return []row{
		{
			group: "apiextensions.k8s.io", name: "customresourcedefinitions", scheme: s.extensions,
			object: &apiextensions.CustomResourceDefinition{}, list: &apiextensions.CustomResourceDefinitionList{},
			short: []string{"crd", "crds"}, categories: []string{"api-extensions"},
			strategy: customresourcedefinition.NewStrategy(s.extensions), storageVersion: "v1beta1", storageJSON: true,
			prefix: "apiextensions.k8s.io/customresourcedefinitions", printer: columns.Definitions, beginDelete: cleanUpFirst,
			subs: []*Subresource{statusOf(updates(customresourcedefinition.NewStatusStrategy(s.extensions)))},
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

func schedulingRows() []row {
	const group = "scheduling.k8s.io"
	classes := row{
		group: group, name: "priorityclasses", object: &scheduling.PriorityClass{}, list: &scheduling.PriorityClassList{},
		short: []string{"pc"}, strategy: priorityclass.Strategy, onlyIn: []string{"v1"},
	}
	if !podGroups() {
		return []row{classes}
	}
	strategy, beta := podgroup.NewStrategy(), []string{"v1beta1"}
	return []row{
		{
			group: group, name: "podgroups", object: &scheduling.PodGroup{}, list: &scheduling.PodGroupList{}, strategy: strategy,
			onlyIn: beta, storageVersion: "v1beta1", subs: []*Subresource{statusOf(podgroup.NewStatusStrategy(strategy))},
		},
		classes,
		{
			group: group, name: "workloads", object: &scheduling.Workload{}, list: &scheduling.WorkloadList{}, strategy: workload.Strategy,
			onlyIn: beta, storageVersion: "v1beta1",
		},
	}
}

func coordinationRows() []row {
	return []row{
		{
			group: "coordination.k8s.io", name: "leases", object: &coordination.Lease{}, list: &coordination.LeaseList{},
			strategy: lease.Strategy,
		},
	}
}

func nodeRows() []row {
	return []row{
		{
			group: "node.k8s.io", name: "runtimeclasses", object: &apinode.RuntimeClass{}, list: &apinode.RuntimeClassList{},
			strategy: runtimeclass.Strategy,
		},
	}
}

func discoveryRows() []row {
	return []row{
		{
			group: "discovery.k8s.io", name: "endpointslices", object: &discovery.EndpointSlice{}, list: &discovery.EndpointSliceList{},
			strategy: endpointslice.Strategy,
		},
	}
}

func deviceRows(link *live.Link) []row {
	const group = "resource.k8s.io"
	claims := resourceclaim.NewStrategy(link.Namespaces(), link)
	return []row{
		{
			group: group, name: "deviceclasses", object: &resource.DeviceClass{}, list: &resource.DeviceClassList{},
			strategy: deviceclass.Strategy, returnDeleted: true,
		},
		{
			group: group, name: "devicetaintrules", object: &resource.DeviceTaintRule{}, list: &resource.DeviceTaintRuleList{},
			strategy: devicetaintrule.Strategy, storageVersion: "v1beta2",
			subs: []*Subresource{statusOf(devicetaintrule.StatusStrategy)},
		},
		{
			group: group, name: "resourceclaims", object: &resource.ResourceClaim{}, list: &resource.ResourceClaimList{},
			strategy: claims, attrs: resourceclaim.GetAttrs, returnDeleted: true,
			subs: []*Subresource{statusOf(resourceclaim.NewStatusStrategy(claims))},
		},
		{
			group: group, name: "resourceclaimtemplates", object: &resource.ResourceClaimTemplate{}, list: &resource.ResourceClaimTemplateList{},
			strategy: resourceclaimtemplate.NewStrategy(link.Namespaces()), attrs: resourceclaimtemplate.GetAttrs, returnDeleted: true,
		},
		{
			group: group, name: "resourceslices", object: &resource.ResourceSlice{}, list: &resource.ResourceSliceList{},
			strategy: resourceslice.Strategy, attrs: resourceslice.GetAttrs, returnDeleted: true,
			fields: []string{"spec.nodeName", "spec.driver", "spec.pool.name"},
		},
	}
}

func flowcontrolRows() []row {
	const group = "flowcontrol.apiserver.k8s.io"
	return []row{
		{
			group: group, name: "flowschemas", object: &flowcontrol.FlowSchema{}, list: &flowcontrol.FlowSchemaList{},
			strategy: flowschema.Strategy, subs: []*Subresource{statusOf(flowschema.StatusStrategy)},
		},
		{
			group: group, name: "prioritylevelconfigurations", object: &flowcontrol.PriorityLevelConfiguration{},
			list: &flowcontrol.PriorityLevelConfigurationList{}, strategy: prioritylevelconfiguration.Strategy,
			subs: []*Subresource{statusOf(prioritylevelconfiguration.StatusStrategy)},
		},
	}
}

func migrationRows() []row {
	return []row{
		{
			group: "storagemigration.k8s.io", name: "storageversionmigrations", object: &storagemigration.StorageVersionMigration{},
			list: &storagemigration.StorageVersionMigrationList{}, strategy: migration.Strategy, storageVersion: "v1beta1",
			subs: []*Subresource{statusOf(migration.StatusStrategy)},
		},
	}
}

// MetricsGroup is served here until somebody registers a server for it: upstream
// leaves it to metrics-server, so no APIService stands for it that an installation
// of one would have to take over.
const MetricsGroup = "metrics.k8s.io"

// metricsRows are what nodes and pods use, which is made when somebody asks.
func metricsRows(s schemes) []row {
	nodes := row{group: MetricsGroup, scheme: s.metrics, verbs: []string{"get", "list"}, virtual: true, printer: columns.Metrics}
	pods := nodes
	nodes.name, nodes.object, nodes.list, nodes.scoped = "nodes", &metrics.NodeMetrics{}, &metrics.NodeMetricsList{}, clusterWide
	pods.name, pods.object, pods.list, pods.scoped = "pods", &metrics.PodMetrics{}, &metrics.PodMetricsList{}, namespaced
	return []row{nodes, pods}
}
