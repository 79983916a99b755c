// SPDX-License-Identifier: Apache-2.0

package scan_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	corepolicy "github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/plugins/policies/scan"
)

// large is a cluster of many pods and many policies in CEL, of which each is about all pods.
type large struct {
	corepolicy.Objects
	pods     []*corev1.Pod
	policies []scan.Policy
	writes   int
}

type celPolicy struct{ corepolicy.Standing }

func (p celPolicy) Info() scan.Info {
	return scan.Info{Key: p.Object().GetName(), Source: "test", Policy: p.Object().GetName()}
}
func (p celPolicy) About(scan.Resource) admission.Operation { return admission.Create }

func (p celPolicy) Judge(ctx context.Context, r *admission.Request) (asked bool, out []scan.Objection, err error) {
	asked, found, err := p.Standing.Judge(ctx, r)
	for _, f := range found {
		out = append(out, scan.Objection(f))
	}
	return asked, out, err
}

func newLarge(b *testing.B, pods, policies int) *large {
	b.Helper()
	w := &large{}
	kube := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red"}})
	for i := range policies {
		p := &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%03d", i), UID: types.UID(fmt.Sprint(i))},
		}
		rule := admissionregistrationv1.NamedRuleWithOperations{}
		rule.Operations = []admissionregistrationv1.OperationType{"CREATE"}
		rule.APIGroups, rule.APIVersions, rule.Resources = []string{""}, []string{"v1"}, []string{"pods"}
		p.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{rule}}
		p.Spec.Validations = []admissionregistrationv1.Validation{{
			Expression: fmt.Sprintf(`object.spec.containers.all(c, !c.image.endsWith(":bad%d")) && !has(object.spec.hostPID)`, i),
		}}
		bound := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: p.ObjectMeta}
		bound.Spec.PolicyName, bound.Spec.ValidationActions = p.Name, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}
		if err := kube.Tracker().Add(p); err != nil {
			b.Fatal(err)
		}
		if err := kube.Tracker().Add(bound); err != nil {
			b.Fatal(err)
		}
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	all, err := corepolicy.New(corepolicy.Config{
		Client: kube, Informers: factory, Objects: w,
		Authorizer: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", nil
		}),
		Types: func(schema.GroupVersionKind) (managedfields.TypeConverter, error) {
			return managedfields.NewDeducedTypeConverter(), nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	factory.Start(b.Context().Done())
	b.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(b.Context().Done())
	for _, p := range all.Standing() {
		w.policies = append(w.policies, celPolicy{p})
	}
	if len(w.policies) != policies {
		b.Fatalf("%d policies stand", len(w.policies))
	}
	for i := range pods {
		w.pods = append(w.pods, &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: "red", UID: types.UID(fmt.Sprint(i)), Generation: 1},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: fmt.Sprintf("example.com/i:bad%d", 100+i%2000)}}},
		})
	}
	return w
}

func (w *large) Judges(context.Context) ([]scan.Policy, error) { return w.policies, nil }
func (w *large) Resources(context.Context) ([]scan.Resource, error) {
	return []scan.Resource{pods}, nil
}
func (w *large) Labels(string) uint64                           { return 1 }
func (w *large) Known(context.Context) (map[string]bool, error) { return map[string]bool{}, nil }

func (w *large) Write(context.Context, *scan.Report) error                      { w.writes++; return nil }
func (w *large) Remove(context.Context, string) error                           { return nil }
func (w *large) Totals(context.Context, scan.Info, int, []scan.Violation) error { return nil }

func (w *large) Items(context.Context, scan.Resource) ([]scan.Item, error) {
	out := make([]scan.Item, 0, len(w.pods))
	for _, p := range w.pods {
		out = append(out, scan.Item{Key: p.Name, Revision: p.Generation, Namespace: "red", Of: p})
	}
	return out, nil
}

func (w *large) Request(_ context.Context, _ scan.Resource, i *scan.Item, _ admission.Operation) (*admission.Request, error) {
	o, _ := i.Of.(runtime.Object)
	return admissiontest.Creating("pods", o), nil
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScan is what it costs to ask 100 policies about 50,000 objects, to do it again when nothing has changed, and
// again after ten changes.
func BenchmarkScan(b *testing.B) {
	for b.Loop() {
		w := newLarge(b, 50_000, 100)
		s := scan.New(scan.Config{World: w, Sink: w, Reports: 10_000})
		for _, step := range []struct {
			name    string
			changes int
			judged  int
		}{{"all", 0, 50_000}, {"unchanged", 0, 0}, {"ten", 10, 10}} {
			for i := range step.changes {
				w.pods[i*1000].Generation++
			}
			start, used := time.Now(), cpu(b)
			n, err := s.Pass(b.Context())
			if err != nil || n != step.judged {
				b.Fatal(step.name, n, err)
			}
			b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "ms/"+step.name)
			b.ReportMetric(float64((cpu(b)-used).Microseconds())/1000, "cpu-ms/"+step.name)
		}
	}
}
