// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	servicehelper "k8s.io/cloud-provider/service/helpers"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
	"github.com/wasmplane/wasmplane/core/run"
)

const account = "system:serviceaccount:kube-system:service-controller"

// leastRights lets the controller's account write what upstream's role for it names: the
// status of Services, and nothing else of them.
type leastRights struct{ apiservertest.Everybody }

func (r leastRights) Authorize(ctx context.Context, a authz.Attributes) (authz.Decision, string, error) {
	if a.GetUser().GetName() == account && !a.IsReadOnly() && (a.GetResource() != "services" || a.GetSubresource() != "status") {
		return authz.Deny, "not of the role", nil
	}
	return r.Everybody.Authorize(ctx, a)
}

// On a real server, with no more rights than its role gives: a Service gets its address and the
// finalizer, keeps them over a change of the term, and goes when it is deleted.
func TestByItsRoleOnAServer(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Authorizer: leastRights{}})
	admin, err := kubernetes.NewForConfig(s.Config("admin", user.SystemPrivilegedGroup))
	if err != nil {
		t.Fatal(err)
	}
	own, err := kubernetes.NewForConfig(s.Config(account))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n, err := admin.CoreV1().Nodes().Create(ctx, node("a", true), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status = node("a", true, "192.0.2.1").Status
	if _, err := admin.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		f := informers.NewSharedInformerFactory(admin, 0)
		lb, err := New(controllers.Env{
			Client: own, Reader: admin, Informers: f, Log: slog.New(slog.DiscardHandler),
			Recorder: func(string) record.EventRecorder { return record.NewFakeRecorder(1000) },
		}, lan(t, "192.0.2.10"))
		if err != nil {
			t.Fatal(err)
		}
		f.Start(ctx.Done())
		done := run.Go("servicelb", func() error { return lb.Run(ctx) })
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			f.Shutdown()
		}
	}
	services := admin.CoreV1().Services("default")
	create := func(name string) {
		made := balanced(name)
		made.UID, made.Spec.IPFamilies = "", nil
		if _, err := services.Create(ctx, made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	served := func(name string) func() error {
		return func() error {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(s.Status.LoadBalancer.Ingress) != 1 || s.Status.LoadBalancer.Ingress[0].IP != "192.0.2.10" || !servicehelper.HasLBFinalizer(s) || s.Annotations[loadbalancer.NodeAnnotation] != "a" {
				return fmt.Errorf("%s: %v %v %v", name, s.Finalizers, s.Annotations, s.Status)
			}
			return nil
		}
	}
	stop := start()
	create("first")
	controllertest.Eventually(t, served("first"))
	create("second")
	controllertest.Eventually(t, func() error {
		s, err := services.Get(ctx, "second", metav1.GetOptions{})
		if err == nil && (len(s.Status.Conditions) != 1 || s.Status.Conditions[0].Reason != "NoFreeAddress") {
			err = fmt.Errorf("%+v", s.Status)
		}
		return err
	})
	stop()
	stop = start()
	defer func() { stop() }()
	if err := served("first")(); err != nil {
		t.Error(err)
	}
	if err := services.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, served("second"))
	controllertest.Eventually(t, func() error {
		if s, err := services.Get(ctx, "first", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %v, %w", s.Finalizers, err)
		}
		return nil
	})
	// Of another type it keeps nothing of ours.
	second, err := services.Get(ctx, "second", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second.Spec.Type = corev1.ServiceTypeClusterIP
	if _, err := services.Update(ctx, second, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		s, err := services.Get(ctx, "second", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if servicehelper.HasLBFinalizer(s) || len(s.Status.LoadBalancer.Ingress)+len(s.Status.Conditions) > 0 ||
			strings.Contains(fmt.Sprint(s.Annotations), loadbalancer.NodeAnnotation) {
			return fmt.Errorf("%v %v %v", s.Finalizers, s.Annotations, s.Status)
		}
		return nil
	})
}
