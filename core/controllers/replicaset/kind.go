// SPDX-License-Identifier: Apache-2.0

package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// kind is what differs between a ReplicaSet and a ReplicationController: where
// they are read and written. Both are seen as ReplicaSets.
type kind struct {
	gvk       schema.GroupVersionKind
	name      string // of the controller
	component string // in events
	informer  cache.SharedIndexInformer
	// get and inNamespace read the cache; owner is the object itself, for events
	// and references.
	get         func(key controllers.Key) (rs *appsv1.ReplicaSet, owner controllers.Owner, err error)
	inNamespace func(namespace string) ([]*appsv1.ReplicaSet, error)
	// live reads the server.
	live func(ctx context.Context, key controllers.Key) (*appsv1.ReplicaSet, error)
	// writeStatus writes rs.Status and returns what the server stored.
	writeStatus func(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error)
}

func replicaSets(client kubernetes.Interface, f informers.SharedInformerFactory) kind {
	inf := f.Apps().V1().ReplicaSets()
	lister := inf.Lister()
	return kind{
		gvk:       appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		name:      "replicaset-controller",
		component: "replicaset-controller",
		informer:  inf.Informer(),
		get: func(key controllers.Key) (*appsv1.ReplicaSet, controllers.Owner, error) {
			rs, err := lister.ReplicaSets(key.Namespace).Get(key.Name)
			return rs, rs, err
		},
		inNamespace: func(namespace string) ([]*appsv1.ReplicaSet, error) {
			return lister.ReplicaSets(namespace).List(labels.Everything())
		},
		live: func(ctx context.Context, key controllers.Key) (*appsv1.ReplicaSet, error) {
			return client.AppsV1().ReplicaSets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		},
		writeStatus: func(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error) {
			return client.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
		},
	}
}

func replicationControllers(client kubernetes.Interface, f informers.SharedInformerFactory) kind {
	inf := f.Core().V1().ReplicationControllers()
	lister := inf.Lister()
	return kind{
		gvk:       corev1.SchemeGroupVersion.WithKind("ReplicationController"),
		name:      "replication-controller",
		component: "replication-controller",
		informer:  inf.Informer(),
		get: func(key controllers.Key) (*appsv1.ReplicaSet, controllers.Owner, error) {
			rc, err := lister.ReplicationControllers(key.Namespace).Get(key.Name)
			if err != nil {
				return nil, nil, err
			}
			return asReplicaSet(rc), rc, nil
		},
		inNamespace: func(namespace string) ([]*appsv1.ReplicaSet, error) {
			rcs, err := lister.ReplicationControllers(namespace).List(labels.Everything())
			sets := make([]*appsv1.ReplicaSet, 0, len(rcs))
			for _, rc := range rcs {
				sets = append(sets, asReplicaSet(rc))
			}
			return sets, err
		},
		live: func(ctx context.Context, key controllers.Key) (*appsv1.ReplicaSet, error) {
			rc, err := client.CoreV1().ReplicationControllers(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return asReplicaSet(rc), nil
		},
		writeStatus: func(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error) {
			return client.CoreV1().ReplicationControllers(rs.Namespace).UpdateStatus(ctx, asReplicationController(rs), metav1.UpdateOptions{})
		},
	}
}

// asReplicaSet is a view: it shares with the original what nobody mutates.
func asReplicaSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        rc.Spec.Replicas,
			MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas:             rc.Status.Replicas,
			FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:        rc.Status.ReadyReplicas,
			AvailableReplicas:    rc.Status.AvailableReplicas,
			ObservedGeneration:   rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		rs.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rs
}

// asReplicationController carries what a status update needs; the server takes
// the spec from what it has.
func asReplicationController(rs *appsv1.ReplicaSet) *corev1.ReplicationController {
	rc := &corev1.ReplicationController{
		ObjectMeta: rs.ObjectMeta,
		Spec: corev1.ReplicationControllerSpec{
			Replicas:        rs.Spec.Replicas,
			MinReadySeconds: rs.Spec.MinReadySeconds,
			Selector:        rs.Spec.Selector.MatchLabels,
			Template:        &rs.Spec.Template,
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas:             rs.Status.Replicas,
			FullyLabeledReplicas: rs.Status.FullyLabeledReplicas,
			ReadyReplicas:        rs.Status.ReadyReplicas,
			AvailableReplicas:    rs.Status.AvailableReplicas,
			ObservedGeneration:   rs.Status.ObservedGeneration,
		},
	}
	for _, c := range rs.Status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rc
}
