// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// writeTwins is a program of the story of writes that exclude each other:
//
//	twins ROUNDS KUBECONFIG...
//
// In each round it sends as many writes as there are servers, one to each, at the same moment: ConfigMaps of one value, Ingresses of one
// host, and patches that give ConfigMaps one value. It prints how many rounds admitted one of them, and fails where another number was
// admitted.
func writeTwins() {
	if len(os.Args) < 4 {
		log.Fatal("usage: twins ROUNDS KUBECONFIG...")
	}
	rounds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	t := &twins{}
	for _, kubeconfig := range os.Args[2:] {
		t.servers = append(t.servers, clientOf(kubeconfig))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, kind := range []struct {
		what  string
		ready func(ctx context.Context, round int) error
		write func(ctx context.Context, s *kubernetes.Clientset, name, value string) error
	}{
		{"maps", nil, createMap},
		{"ingresses", nil, createIngress},
		{"patched maps", t.plainMaps, patchMap},
	} {
		if err := t.run(ctx, kind.what, rounds, kind.ready, kind.write); err != nil {
			log.Fatalf("%s: %v", kind.what, err) //nolint:gocritic // the end of the process ends the context too
		}
	}
}

type twins struct{ servers []*kubernetes.Clientset }

func (t *twins) run(ctx context.Context, what string, rounds int, ready func(context.Context, int) error,
	write func(ctx context.Context, s *kubernetes.Clientset, name, value string) error,
) error {
	for round := range rounds {
		if ready != nil {
			if err := ready(ctx, round); err != nil {
				return err
			}
		}
		begin, results := make(chan struct{}), make(chan error)
		for i, s := range t.servers {
			go func() {
				<-begin
				results <- write(ctx, s, twin(round, i), fmt.Sprintf("%s-%d", strings.ReplaceAll(what, " ", "-"), round))
			}()
		}
		close(begin)
		var errs []error
		for range t.servers {
			if err := <-results; err != nil {
				errs = append(errs, err)
			}
		}
		admitted := len(t.servers) - len(errs)
		for _, err := range errs {
			if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "taken") {
				return fmt.Errorf("round %d: refused for another reason: %w", round, err)
			}
		}
		if admitted != 1 {
			return fmt.Errorf("round %d: %d of %d were admitted, of which each excludes the others: %v", round, admitted, len(t.servers), errs)
		}
	}
	fmt.Printf("%s: one of %d was admitted in each of %d rounds\n", what, len(t.servers), rounds)
	return nil
}

func twin(round, server int) string { return fmt.Sprintf("twin-%d-%d", round, server) }

func uniqueMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"unique": "yes"}}, Data: data}
}

func createMap(ctx context.Context, s *kubernetes.Clientset, name, value string) error {
	m := uniqueMap(name, map[string]string{"value": value})
	_, err := s.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, m, metav1.CreateOptions{})
	return err
}

func createIngress(ctx context.Context, s *kubernetes.Clientset, name, value string) error {
	prefix := networkingv1.PathTypePrefix
	path := networkingv1.HTTPIngressPath{Path: "/", PathType: &prefix, Backend: networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}},
	}}
	_, err := s.NetworkingV1().Ingresses(metav1.NamespaceDefault).Create(ctx, &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{
			Host:             value + ".example.com",
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{path}}},
		}}},
	}, metav1.CreateOptions{})
	return err
}

// plainMaps makes the ConfigMaps that a round patches, each of a value of its own.
func (t *twins) plainMaps(ctx context.Context, round int) error {
	for i := range t.servers {
		m := uniqueMap("patched-"+twin(round, i), map[string]string{"value": "own-" + twin(round, i)})
		if _, err := t.servers[0].CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, m, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func patchMap(ctx context.Context, s *kubernetes.Clientset, name, value string) error {
	_, err := s.CoreV1().ConfigMaps(metav1.NamespaceDefault).Patch(ctx, "patched-"+name, types.MergePatchType,
		[]byte(`{"data":{"value":"`+value+`"}}`), metav1.PatchOptions{})
	return err
}
