// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/config"
)

// workers are sections 4.2 and 4.3.
func workers() []recommendation {
	return []recommendation{
		{"4.2.1", "the kubelet serves nobody who is anonymous", always("built in")},
		{"4.2.2", "the kubelet asks the apiserver who may", always("built in")},
		{"4.2.3", "the kubelet knows the authority of clients", always("built in")},
		{"4.2.4", "there is no read-only port", always("built in")},
		{"4.2.5", "idle streams end", always("built in")},
		{"4.2.8", "events are bounded, and enough", always("built in")},
		{"4.2.9", "the kubelet serves by TLS (and 4.2.12)", always("built in: TLS 1.2 with AEAD ciphers, and TLS 1.3")},
		{"4.2.10", "certificates of kubelets are renewed (and 4.2.11)", always("built in")},
		{"4.2.13", "processes of a pod are bounded", func(_ context.Context, s *subject) verdict {
			if n := s.config.PodPIDs(); n > 0 {
				return met("node.podPidsLimit: %d", n)
			}
			return lacking("node.podPidsLimit, as profile: hardened sets it", "a pod may have as many as there are; below node.evictionHard's "+
				"pid.available the node evicts those with the most")
		}},
		{"4.2.14", "the seccomp profile RuntimeDefault is the default", always("built in")},
		{"4.3.1", "the proxy's metrics are served at loopback", always("built in: another address is refused")},
	}
}

// policies are section 5: what is in the API. Without a cluster that runs, what the
// configuration alone decides.
func policies() []recommendation {
	return []recommendation{
		{"5.1.1", "cluster-admin is bound where it must be (and 5.1.7)", clusterAdmins},
		{"5.1.5", "default service accounts have no rights", defaultAccounts},
		{"5.2.1", "pods are held to a standard (to 5.2.13)", podStandard},
		{"5.3.1", "the network supports NetworkPolicies", func(_ context.Context, s *subject) verdict {
			if s.config.Node.CNIConfigDir != "" {
				return manual("look whether it does", "the network is another one: %s", s.config.Node.CNIConfigDir)
			}
			return met("built in")
		}},
		{"5.3.2", "all namespaces have NetworkPolicies", networkPolicies},
		{"5.5.1", "images are held to their provenance", func(_ context.Context, s *subject) verdict {
			if slices.Contains(s.config.APIServer.EnableAdmissionPlugins, "ImagePolicyWebhook") {
				return met("ImagePolicyWebhook")
			}
			return manual("a plugin that verifies signatures (wasm-examples), or ImagePolicyWebhook", "not by ImagePolicyWebhook")
		}},
		{"5.6.2", "the seccomp profile of pods is RuntimeDefault", always("built in: it is the default of kubelets")},
		{"5.6.4", "the default namespace is not used", defaultNamespace},
	}
}

func notSeen(do string) verdict { return manual(do, "%v", errNotAsked) }

// externalIPs asks the server that runs, which may have been started with another file.
func externalIPs(ctx context.Context, s *subject) verdict {
	v := enabled("DenyServiceExternalIPs")(ctx, s)
	if s.kube == nil {
		return v
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "check-"},
		Spec:       corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	_, err := s.kube.Kube.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, svc, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch denied := apierrors.IsForbidden(err); {
	case err != nil && !denied:
		return manual("", "a Service with one, tried without making it: %v", err)
	case denied:
		return met("a Service with one is refused")
	case v.state == meets:
		return lacking("restart the server with this configuration", "the server that runs admits a Service with one")
	default:
		return v
	}
}

// unlabelled are namespaces for which the server's own default decides.
func (s *subject) unlabelled(ctx context.Context) (all, open []string, err error) {
	list, err := s.kube.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for i := range list.Items {
		ns := &list.Items[i]
		if ns.Name == metav1.NamespaceSystem {
			continue
		}
		switch ns.Labels[podsecurity.EnforceLevelLabel] {
		case "":
			all = append(all, ns.Name)
		case string(podsecurity.LevelPrivileged):
			open = append(open, ns.Name)
		}
	}
	return all, open, nil
}

func podStandard(ctx context.Context, s *subject) verdict {
	const do = profile + "defaults of PodSecurity in apiserver.admissionConfigFile"
	hardened := s.config.Profile == config.Hardened || s.config.APIServer.AdmissionConfigFile != ""
	switch {
	case s.kube == nil && !hardened:
		return lacking(do, "namespaces without labels are held to none")
	case s.kube == nil:
		return manual("run this while the cluster runs", "as configured: %v", errNotAsked)
	}
	unlabelled, open, err := s.unlabelled(ctx)
	if err != nil {
		return manual("", "%v", err)
	}
	for _, ns := range unlabelled {
		err := s.tryPrivileged(ctx, ns)
		switch {
		case err == nil:
			return lacking(do+", or a label "+podsecurity.EnforceLevelLabel+": baseline", "a privileged pod is admitted to namespace %s", ns)
		case !apierrors.IsForbidden(err):
			return manual("", "a privileged pod in namespace %s, tried without making it: %v", ns, err)
		}
	}
	if len(open) > 0 {
		return manual("look whether they must be", "namespaces are labelled privileged: %s", list(open))
	}
	return met("a privileged pod is refused in every namespace but kube-system")
}

func (s *subject) tryPrivileged(ctx context.Context, namespace string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "check-"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "none.invalid/none", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
		}}},
	}
	_, err := s.kube.Kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func clusterAdmins(ctx context.Context, s *subject) verdict {
	if s.kube == nil {
		return notSeen("")
	}
	bindings, err := s.kube.Kube.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return manual("", "%v", err)
	}
	var others []string
	for i := range bindings.Items {
		b := &bindings.Items[i]
		if b.RoleRef.Name == "cluster-admin" && b.Name != "cluster-admin" && b.Name != "wasmplane:cluster-admins" {
			others = append(others, b.Name)
		}
	}
	if len(others) > 0 {
		return manual("look who they are for", "ClusterRoleBindings beside the cluster's own: %s", list(others))
	}
	return met("by the cluster's own bindings only; keep break-glass.kubeconfig for emergencies")
}

func defaultAccounts(ctx context.Context, s *subject) verdict {
	if s.kube == nil {
		return notSeen("")
	}
	var found []string
	note := func(kind, name string, subjects []rbacv1.Subject) {
		for _, to := range subjects {
			if to.Kind == rbacv1.ServiceAccountKind && to.Name == "default" {
				found = append(found, fmt.Sprintf("%s %s (for %s)", kind, name, to.Namespace))
			}
		}
	}
	wide, err := s.kube.Kube.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return manual("", "%v", err)
	}
	for i := range wide.Items {
		note("ClusterRoleBinding", wide.Items[i].Name, wide.Items[i].Subjects)
	}
	narrow, err := s.kube.Kube.RbacV1().RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return manual("", "%v", err)
	}
	for i := range narrow.Items {
		note("RoleBinding", narrow.Items[i].Namespace+"/"+narrow.Items[i].Name, narrow.Items[i].Subjects)
	}
	if len(found) > 0 {
		return lacking("bind accounts of their own", "%s", list(found))
	}
	return met("no binding names one")
}

func networkPolicies(ctx context.Context, s *subject) verdict {
	if s.kube == nil {
		return notSeen("")
	}
	namespaces, err := s.kube.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return manual("", "%v", err)
	}
	all, err := s.kube.Kube.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return manual("", "%v", err)
	}
	has := map[string]bool{metav1.NamespaceSystem: true, metav1.NamespacePublic: true, corev1.NamespaceNodeLease: true}
	for i := range all.Items {
		has[all.Items[i].Namespace] = true
	}
	var without []string
	for i := range namespaces.Items {
		if n := namespaces.Items[i].Name; !has[n] {
			without = append(without, n)
		}
	}
	if len(without) > 0 {
		return manual("a NetworkPolicy that denies by default in each", "none in %s", list(without))
	}
	return met("each has one")
}

func defaultNamespace(ctx context.Context, s *subject) verdict {
	if s.kube == nil {
		return notSeen("")
	}
	pods, err := s.kube.Kube.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return manual("", "%v", err)
	}
	if len(pods.Items) > 0 {
		return manual("move its workloads to namespaces of their own", "it has pods")
	}
	return met("it has no pods")
}
