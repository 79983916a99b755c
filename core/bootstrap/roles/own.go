// SPDX-License-Identifier: Apache-2.0

package roles

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/pki"
)

// Roles that upstream's policy does not have.
const (
	// TraceWriterRole may hand in spans, TraceReaderRole may ask for journeys.
	TraceWriterRole = "wasmplane:trace-writer"
	TraceReaderRole = "wasmplane:trace-reader"
	// AskerRole may ask why an object does not get on. The answer is made of what the asker may
	// read by himself.
	AskerRole = "wasmplane:why"
	// CoreDNSRole reads Services and their endpoints.
	CoreDNSRole = "system:coredns"
	// SimulatedNodesRole reads what the simulated nodes of one process share.
	SimulatedNodesRole = "wasmplane:simulated-nodes"

	manifestsRole      = "wasmplane:manifests"
	approveServingRole = "wasmplane:approve-kubelet-serving"

	pluginLoaderRole = "wasmplane:plugin-loader"
	pluginReaderRole = "wasmplane:plugin-reader"
	pluginStateRole  = "wasmplane:plugin-state"
	pluginGroup      = "plugins.wasmplane.dev"
	// PluginNamespace holds what plugins keep; components that ask plugins write there.
	PluginNamespace = "wasmplane-plugins"

	kubeletAPIAdmin = "system:kubelet-api-admin"
	nodeClient      = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	selfNodeClient  = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
	clusterAdmin    = "cluster-admin"
	coreDNSAccount  = "coredns"

	policyRole    = "wasmplane:policy-controller"
	policyAccount = "policy-controller"

	localVolumesRole    = "wasmplane:local-volume-controller"
	localVolumesAccount = "local-volume-controller"
	wasmClassRole       = "wasmplane:wasm-class-controller"
	wasmClassAccount    = "wasm-class-controller"
	helmChartsRole      = "wasmplane:helm-chart-controller"
	helmChartsAccount   = "helm-chart-controller"
	helmChartsGroup     = "charts.wasmplane.dev"
	networkPolicyRole   = "wasmplane:network-policy-enforcer"
	// localVolumesMarker remembers that the class of nodes' own directories was made.
	localVolumesMarker = "local-volume-class"
	// wasmClassMarker remembers that the class of WebAssembly modules was made.
	wasmClassMarker = "wasm-runtime-class"

	traceGroup      = "trace.wasmplane.dev"
	whyGroup        = "why.wasmplane.dev"
	bootstrapping   = "kubernetes.io/bootstrapping"
	bootstrapValue  = "rbac-defaults"
	aggregateToView = "rbac.authorization.k8s.io/aggregate-to-view"

	// metricsReaderRole is what metrics-server's manifests make, under their name.
	metricsReaderRole = "system:aggregated-metrics-reader"
	aggregateTo       = "rbac.authorization.k8s.io/aggregate-to-"
)

// standard marks an object as ours to bring up to date, as upstream marks its own.
func standard(name string, labels ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name: name, Labels: map[string]string{bootstrapping: bootstrapValue},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
	for _, l := range labels {
		m.Labels[l] = "true"
	}
	return m
}

func ownClusterRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{{
		ObjectMeta: standard(TraceWriterRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create"}, APIGroups: []string{traceGroup}, Resources: []string{"spans"}},
			{Verbs: []string{"post", "create"}, NonResourceURLs: []string{"/apis/" + traceGroup + "/v1/spans"}},
		},
	}, {
		ObjectMeta: standard(TraceReaderRole, aggregateToView),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list"}, APIGroups: []string{traceGroup}, Resources: []string{"journey"}},
			{Verbs: []string{"get", "list"}, NonResourceURLs: []string{"/apis/" + traceGroup + "/v1/journey"}},
		},
	}, {
		ObjectMeta: standard(AskerRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list"}, APIGroups: []string{whyGroup}, Resources: []string{"answer"}},
			{Verbs: []string{"get", "list"}, NonResourceURLs: []string{"/apis/" + whyGroup + "/v1/answer"}},
		},
	}, {
		ObjectMeta: standard(metricsReaderRole, aggregateTo+"view", aggregateTo+"edit", aggregateTo+"admin"),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"nodes", "pods"}},
		},
	}, {
		ObjectMeta: standard(CoreDNSRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"list", "watch"}, APIGroups: []string{""}, Resources: []string{"services", "namespaces"}},
			{Verbs: []string{"list", "watch"}, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}},
		},
	}, {
		// Components that ask plugins load those of the API, and say what became of them.
		ObjectMeta: standard(pluginLoaderRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{pluginGroup}, Resources: []string{"plugins"}},
			{Verbs: []string{"update", "patch"}, APIGroups: []string{pluginGroup}, Resources: []string{"plugins/status"}},
		},
	}, {
		// Nodes load them too, and report to nobody: one that was taken over must not
		// tell the cluster that its policies are in force.
		ObjectMeta: standard(pluginReaderRole, aggregateToView),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{pluginGroup}, Resources: []string{"plugins", "tenantplugins"}},
		},
	}, {
		// Whoever wrote a policy is who its plugin may do no more than: this account makes the
		// plugins, and has no right of its own that one of them could use (plugins/policies).
		ObjectMeta: standard(policyRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: policyGroups(), Resources: []string{"*"}},
			{Verbs: []string{"update"}, APIGroups: policyGroups(), Resources: []string{"*/status"}},
			{
				Verbs: []string{"get", "list", "watch", "create", "update", "delete"}, APIGroups: []string{pluginGroup},
				Resources: []string{"plugins", "tenantplugins"},
			},
			{
				Verbs: []string{"get", "list", "watch", "create", "update", "delete"}, APIGroups: []string{"admissionregistration.k8s.io"},
				Resources: []string{
					"validatingadmissionpolicies", "validatingadmissionpolicybindings",
					"mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
				},
			},
			{
				Verbs: []string{"get", "list", "watch", "create", "patch"}, APIGroups: []string{"apiextensions.k8s.io"},
				Resources: []string{"customresourcedefinitions"},
			},
		},
	}, {
		// Whoever makes volumes can make one of any path of any node: this account makes
		// those of claims, on the node that the scheduler chose (core/localvolume).
		ObjectMeta: standard(localVolumesRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create", "update", "delete"}, APIGroups: []string{""}, Resources: []string{"persistentvolumes"}},
			{Verbs: []string{"update"}, APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims", "persistentvolumeclaims/status"}},
			{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"nodes"}},
			{Verbs: []string{"get", "create"}, APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csidrivers"}},
			// Of which a volume is to be a copy.
			{
				Verbs: []string{"get"}, APIGroups: []string{"snapshot.storage.k8s.io"},
				Resources: []string{"volumesnapshots", "volumesnapshotcontents"},
			},
			{Verbs: []string{"list", "create"}, APIGroups: []string{"storage.k8s.io"}, Resources: []string{"storageclasses"}},
			{Verbs: []string{"create", "update", "patch"}, APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}},
		},
	}, {
		// Charts are installed by the rights of accounts that their objects name: this one follows the
		// objects and says what became of them, and may make nothing that a chart asks for.
		ObjectMeta: standard(helmChartsRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch", "patch"}, APIGroups: []string{helmChartsGroup}, Resources: []string{"helmcharts"}},
			{Verbs: []string{"patch"}, APIGroups: []string{helmChartsGroup}, Resources: []string{"helmcharts/status"}},
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"serviceaccounts"}},
			{Verbs: []string{"create", "update", "patch"}, APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}},
		},
	}, {
		// Whoever may make pods of a namespace may do what its service accounts may, and so may whoever has
		// them install charts.
		ObjectMeta: standard("wasmplane:helm-chart-editor", aggregateTo+"edit", aggregateTo+"admin"),
		Rules: []rbacv1.PolicyRule{{
			Verbs:     []string{"create", "update", "patch", "delete", "deletecollection"},
			APIGroups: []string{helmChartsGroup}, Resources: []string{"helmcharts"},
		}},
	}, {
		ObjectMeta: standard("wasmplane:helm-chart-viewer", aggregateTo+"view", aggregateTo+"edit", aggregateTo+"admin"),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{helmChartsGroup}, Resources: []string{"helmcharts"}},
		},
	}, {
		ObjectMeta: standard(wasmClassRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create"}, APIGroups: []string{"node.k8s.io"}, Resources: []string{"runtimeclasses"}},
		},
	}, {
		// A node's packet filter is told of all pods that may be let in or out: no set of
		// addresses can be had from less. It lists and watches, and keeps no more of a pod
		// than its labels, addresses and ports. Policies of the cluster may name nodes, too.
		ObjectMeta: standard(networkPolicyRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods", "namespaces", "nodes"}},
			{Verbs: []string{"list", "watch"}, APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}},
			{Verbs: []string{"list", "watch"}, APIGroups: []string{"policy.networking.k8s.io"}, Resources: []string{"clusternetworkpolicies"}},
			{ // whether the cluster has such policies at all
				Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"apiextensions.k8s.io"},
				Resources: []string{"customresourcedefinitions"}, ResourceNames: []string{"clusternetworkpolicies.policy.networking.k8s.io"},
			},
		},
	}, {
		// The approving controller looks at what a node asks for; upstream leaves these to people.
		ObjectMeta: standard(approveServingRole),
		Rules: []rbacv1.PolicyRule{
			{
				Verbs: []string{"approve"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"},
				ResourceNames: []string{"kubernetes.io/kubelet-serving"},
			},
		},
	}, {
		// A machine with a server's token asks for the cluster's keys (core/join/handover).
		ObjectMeta: standard(serverJoinerRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"post"}, NonResourceURLs: []string{"/servers/join/prepare", "/servers/join/take"}},
		},
	}, {
		// Each machine can say which servers there are, and how they are.
		ObjectMeta: standard(serversReaderRole),
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/servers"}}},
	}, {
		// Each machine takes over the archives that a server was given (core/airgap/lending).
		ObjectMeta: standard(archivesReaderRole),
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/airgap"}}},
	}, {
		// One watch on all pods for a hundred nodes, where each alone would need its own.
		ObjectMeta: standard(SimulatedNodesRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods", "nodes", "services"}},
		},
	}}
}

// policyGroups hold the policies of other projects.
func policyGroups() []string {
	return []string{
		"templates.gatekeeper.sh", "constraints.gatekeeper.sh", "config.gatekeeper.sh", "syncset.gatekeeper.sh",
		"mutations.gatekeeper.sh", "expansion.gatekeeper.sh",
		"policies.kubewarden.io", "policies.kyverno.io",
	}
}

func ownClusterBindings() []rbacv1.ClusterRoleBinding {
	return []rbacv1.ClusterRoleBinding{
		bind("wasmplane:cluster-admins", clusterAdmin, groupSubject(pki.AdminsGroup)),
		// Whoever writes the folder of manifests is root on a server (core/manifests).
		bind(manifestsRole, clusterAdmin, userSubject(Manifests().GetName())),
		bind("wasmplane:apiserver-kubelet-client", kubeletAPIAdmin, userSubject(pki.KubeletClient().User)),
		bind(AskerRole, AskerRole, groupSubject(user.AllAuthenticated)),
		bind(CoreDNSRole, CoreDNSRole, accountSubject(metav1.NamespaceSystem, coreDNSAccount)),
		bind(policyRole, policyRole, accountSubject(metav1.NamespaceSystem, policyAccount)),
		bind(localVolumesRole, localVolumesRole, accountSubject(metav1.NamespaceSystem, localVolumesAccount)),
		bind(helmChartsRole, helmChartsRole, accountSubject(metav1.NamespaceSystem, helmChartsAccount)),
		bind(wasmClassRole, wasmClassRole, accountSubject(metav1.NamespaceSystem, wasmClassAccount)),
		bind(SimulatedNodesRole, SimulatedNodesRole, userSubject(SimulatedNodes().GetName())),
		bind(pluginLoaderRole, pluginLoaderRole, userSubject(user.KubeScheduler), userSubject(user.KubeControllerManager)),
		bind(pluginReaderRole, pluginReaderRole, groupSubject(user.NodesGroup)),
		bind(approveServingRole, approveServingRole, accountSubject(metav1.NamespaceSystem, "certificate-controller")),
		// A machine with a token may ask for a node's certificate, and a node renews its own.
		bind("wasmplane:node-bootstrapper", "system:node-bootstrapper", groupSubject(jointoken.WorkersGroup)),
		bind("wasmplane:node-client", nodeClient, groupSubject(jointoken.WorkersGroup)),
		bind("wasmplane:self-node-client", selfNodeClient, groupSubject(user.NodesGroup)),
		bind(serverJoinerRole, serverJoinerRole, groupSubject(jointoken.ServersGroup)),
		bind(serversReaderRole, serversReaderRole, groupSubject(user.NodesGroup)),
		bind(archivesReaderRole, archivesReaderRole, groupSubject(user.NodesGroup)),
		// The service proxy and the DNS of a machine that joined work as its node.
		bind("wasmplane:node-proxier", "system:node-proxier", groupSubject(user.NodesGroup)),
		bind(networkPolicyRole, networkPolicyRole, groupSubject(user.NodesGroup)),
		bind("wasmplane:node-dns", CoreDNSRole, groupSubject(user.NodesGroup)),
		bind(TraceWriterRole, TraceWriterRole,
			userSubject(user.KubeScheduler), userSubject(user.KubeControllerManager), userSubject(user.KubeProxy),
			groupSubject(user.NodesGroup), accountSubject(metav1.NamespaceSystem, coreDNSAccount),
		),
	}
}

func bind(name, role string, subjects ...rbacv1.Subject) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: standard(name), Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

func userSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}
}

func groupSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
}

func accountSubject(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
}

// CoreDNS is the identity of the cluster's DNS.
func CoreDNS() user.Info {
	return serviceaccount.UserInfo(metav1.NamespaceSystem, coreDNSAccount, "")
}

// Manifests is the identity that applies a server's folder of manifests. It is a user of
// its own, and not of system:masters: authorizers and admission judge it, the audit log
// shows it, and an operator can bind it to less.
func Manifests() user.Info {
	return &user.DefaultInfo{Name: manifestsRole, Groups: []string{user.AllAuthenticated}}
}

// SimulatedNodes is the identity that reads for all simulated nodes of a process;
// each of them writes under its own.
func SimulatedNodes() user.Info {
	return &user.DefaultInfo{Name: SimulatedNodesRole, Groups: []string{user.AllAuthenticated}}
}

// dnsEndpointsRole lets each node's DNS say where it listens.
const dnsEndpointsRole = "wasmplane:dns-endpoints"

// serverJoinerRole lets machines with a server's token in, serversReaderRole nodes see
// which servers there are, archivesReaderRole nodes read archives for machines without a network.
const (
	serverJoinerRole   = "wasmplane:server-joiner"
	serversReaderRole  = "wasmplane:servers-reader"
	archivesReaderRole = "wasmplane:archives-reader"
)

// clusterReaderRole lets machines that join and nodes read the clusterinfo.ConfigMap.
const clusterReaderRole = "wasmplane:cluster-reader"

func ownRoles() map[string][]rbacv1.Role {
	return map[string][]rbacv1.Role{PluginNamespace: {{
		// Nodes are not among those who have it: they keep what their plugins keep by themselves.
		ObjectMeta: inNamespace(PluginNamespace, pluginStateRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create", "get", "update"}, APIGroups: []string{""}, Resources: []string{"configmaps"}},
		},
	}, {
		// Whoever reports about plugins keeps a lease that says that it lives, and looks at the others'
		// (core/run/presence). Servers delete those of the dead.
		ObjectMeta: inNamespace(PluginNamespace, pluginLoaderRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create", "get", "list", "update"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}},
		},
	}}, metav1.NamespaceSystem: {{
		ObjectMeta: inNamespace(metav1.NamespaceSystem, dnsEndpointsRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create", "get", "update"}, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}},
		},
	}, {
		ObjectMeta: inNamespace(metav1.NamespaceSystem, localVolumesRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{localVolumesMarker}},
			{Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"configmaps"}},
		},
	}, {
		ObjectMeta: inNamespace(metav1.NamespaceSystem, wasmClassRole),
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{wasmClassMarker}},
			{Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"configmaps"}},
		},
	}, {
		ObjectMeta: inNamespace(metav1.NamespaceSystem, clusterReaderRole),
		Rules: []rbacv1.PolicyRule{
			{
				Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"configmaps"},
				ResourceNames: []string{clusterinfo.ConfigMap},
			},
		},
	}}}
}

func ownRoleBindings() map[string][]rbacv1.RoleBinding {
	return map[string][]rbacv1.RoleBinding{PluginNamespace: {{
		ObjectMeta: inNamespace(PluginNamespace, pluginStateRole),
		Subjects:   []rbacv1.Subject{userSubject(user.KubeScheduler), userSubject(user.KubeControllerManager)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: pluginStateRole},
	}, {
		ObjectMeta: inNamespace(PluginNamespace, pluginLoaderRole),
		Subjects:   []rbacv1.Subject{userSubject(user.KubeScheduler), userSubject(user.KubeControllerManager)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: pluginLoaderRole},
	}}, metav1.NamespaceSystem: {{
		ObjectMeta: inNamespace(metav1.NamespaceSystem, dnsEndpointsRole),
		Subjects:   []rbacv1.Subject{accountSubject(metav1.NamespaceSystem, coreDNSAccount)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: dnsEndpointsRole},
	}, {
		ObjectMeta: inNamespace(metav1.NamespaceSystem, localVolumesRole),
		Subjects:   []rbacv1.Subject{accountSubject(metav1.NamespaceSystem, localVolumesAccount)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: localVolumesRole},
	}, {
		ObjectMeta: inNamespace(metav1.NamespaceSystem, wasmClassRole),
		Subjects:   []rbacv1.Subject{accountSubject(metav1.NamespaceSystem, wasmClassAccount)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: wasmClassRole},
	}, {
		ObjectMeta: inNamespace(metav1.NamespaceSystem, clusterReaderRole),
		Subjects:   []rbacv1.Subject{groupSubject(jointoken.WorkersGroup), groupSubject(user.NodesGroup)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: clusterReaderRole},
	}}}
}

func inNamespace(namespace, name string) metav1.ObjectMeta {
	m := standard(name)
	m.Namespace = namespace
	return m
}
