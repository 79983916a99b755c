// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/object"
)

// podJSON is a pod as a ReplicaSet controller creates it after service-account
// admission: 2.3 KB.
const podJSON = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"nginx-deployment-7c5b8d9f6-x2v9k","generateName":"nginx-deployment-7c5b8d9f6-","namespace":"default","labels":{"app":"nginx","pod-template-hash":"7c5b8d9f6"},"annotations":{"example.com/owner":"team-a"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"nginx-deployment-7c5b8d9f6","uid":"5b0f1c62-65f5-4f0e-9d6f-d1f1a5a6a001","controller":true,"blockOwnerDeletion":true}]},"spec":{"volumes":[{"name":"kube-api-access-8xk2p","projected":{"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},{"downwardAPI":{"items":[{"path":"namespace","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}],"defaultMode":420}},{"name":"config","configMap":{"name":"nginx-config"}}],"containers":[{"name":"nginx","image":"nginx:1.14.2","ports":[{"containerPort":80,"protocol":"TCP"}],"env":[{"name":"POD_NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"MODE","value":"production"}],"resources":{"limits":{"cpu":"500m","memory":"128Mi"},"requests":{"cpu":"100m","memory":"64Mi"}},"volumeMounts":[{"name":"kube-api-access-8xk2p","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"},{"name":"config","mountPath":"/etc/nginx"}],"livenessProbe":{"httpGet":{"path":"/","port":80},"periodSeconds":10},"readinessProbe":{"httpGet":{"path":"/","port":80},"initialDelaySeconds":1},"imagePullPolicy":"IfNotPresent","securityContext":{"allowPrivilegeEscalation":false}}],"restartPolicy":"Always","serviceAccountName":"default","schedulerName":"default-scheduler","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"}}`

// BenchmarkPodCreateFloor is what one pod create costs through the imported
// contract alone, whole and step by step: what our pipeline adds to.
func BenchmarkPodCreateFloor(b *testing.B) {
	c := newContract(b)
	pods, _ := c.Resource(schema.GroupResource{Resource: "pods"})
	codec := pods.Codec("v1")
	fm, err := c.FieldManager(pods, "v1", "")
	if err != nil {
		b.Fatal(err)
	}
	ctx := StrategyContext(b.Context(), StrategyInfo{Resource: pods, Namespace: "default", User: &user.DefaultInfo{Name: "bench"}})
	data := []byte(podJSON)
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	decode := func() runtime.Object {
		o, strict, err := c.DecodeStrict(pods, "v1", data, object.JSON)
		must(err)
		if len(strict) > 0 {
			b.Fatal(strict)
		}
		return o
	}
	defaulted := func() runtime.Object { o := decode(); codec.Default(o); return o }
	internalOf := func(o runtime.Object) runtime.Object { o, err := codec.Internal(o); must(err); return o }
	internal := func() runtime.Object { return internalOf(defaulted()) }
	prepare := func(o runtime.Object) {
		m := o.(metav1.Object)
		m.SetUID("5b0f1c62-65f5-4f0e-9d6f-d1f1a5a6a002")
		m.SetCreationTimestamp(metav1.NewTime(time.Unix(1700000000, 0)))
		must(rest.BeforeCreate(pods.Strategy, ctx, o))
	}
	manage := func(o runtime.Object) runtime.Object {
		return fm.Create(o, "kube-controller-manager")
	}
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			o := internalOf(manage(defaulted()))
			prepare(o)
			_, err := c.EncodeStorage(pods, o)
			must(err)
			v, err := codec.Versioned(o)
			must(err)
			_, err = codec.Encode(v, object.JSON)
			must(err)
		}
	})
	step := func(name string, setup func() runtime.Object, do func(runtime.Object)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				o := setup()
				b.StartTimer()
				do(o)
			}
		})
	}
	nothing := func() runtime.Object { return nil }
	step("decode strict JSON", nothing, func(runtime.Object) { decode() })
	step("decode JSON", nothing, func(runtime.Object) { _, err := codec.Decode(data, object.JSON); must(err) })
	step("default", decode, func(o runtime.Object) { codec.Default(o) })
	step("to internal", defaulted, func(o runtime.Object) { _, err := codec.Internal(o); must(err) })
	step("field management", defaulted, func(o runtime.Object) { manage(o) })
	step("strategy", internal, prepare)
	managed := func() runtime.Object { o := internalOf(manage(defaulted())); prepare(o); return o }
	step("encode storage", managed, func(o runtime.Object) { _, err := c.EncodeStorage(pods, o); must(err) })
	step("encode answer", managed, func(o runtime.Object) {
		v, err := codec.Versioned(o)
		must(err)
		_, err = codec.Encode(v, object.JSON)
		must(err)
	})
	stored, err := c.EncodeStorage(pods, managed())
	must(err)
	decodeWatch := c.WatchDecoder(pods)
	step("decode watch event", nothing, func(runtime.Object) { _, _, _, err := decodeWatch("k", stored, 7); must(err) })
	live, err := codec.Versioned(managed())
	must(err)
	step("field management of an update", func() runtime.Object { o := live.DeepCopyObject(); o.(*corev1.Pod).Status.Phase = "Running"; return o }, func(o runtime.Object) {
		fm.UpdateNoErrors(live, o, "kubelet")
	})
}
