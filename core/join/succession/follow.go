// SPDX-License-Identifier: Apache-2.0

package succession

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// again is how long after a failure, or after what is not there yet, it is tried again.
const again = 2 * time.Second

const (
	// bound is how long one try may take: a connection that died is not waited for.
	bound = 20 * time.Second
	// anew is how often the object is read besides the watch, which may hang as well.
	anew = 30 * time.Second
)

// errWaiting: what is to be reported is not there yet.
var errWaiting = errors.New("certificates are being signed")

// Server follows on a machine that has the cluster's keys.
type Server struct {
	Kube      kubernetes.Interface
	Authority *pki.Authority
	// Address is where other machines reach its API: the name of its report.
	Address string
	// Changed has everything else that names authorities written again. It is called
	// until it succeeds.
	Changed func(context.Context) error
	Log     *slog.Logger

	behind bool // Changed is to be called
}

// Run follows until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	informer := coreinformers.NewFilteredSecretInformer(s.Kube, metav1.NamespaceSystem, 0, cache.Indexers{}, named(Name))
	return follow(ctx, informer, s.Log, func(ctx context.Context) error {
		secret, err := s.Kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return s.apply(ctx, nil)
		}
		if err != nil {
			return fmt.Errorf("ask how far the change of the authority has come: %w", err)
		}
		return s.apply(ctx, secret)
	})
}

func (s *Server) apply(ctx context.Context, o *corev1.Secret) error {
	state, to := State{}, ""
	if o != nil {
		var err error
		if state, err = Read(o); err != nil {
			return err
		}
		if _, to, err = state.Pins(); err != nil {
			return err
		}
	}
	changed, err := s.Authority.Follow(state.Phase.Step(), to, nil)
	if errors.Is(err, pki.ErrNotGiven) {
		var given *pki.Successor
		if given, err = s.Authority.Unseal(state.Sealed, to); err == nil {
			changed, err = s.Authority.Follow(state.Phase.Step(), to, given)
		}
	}
	if err != nil {
		return err
	}
	if changed {
		s.behind = true
		s.Log.InfoContext(ctx, "the cluster's authority changes", "phase", state.Phase, "trusted", s.Authority.Trusts())
	}
	if s.behind {
		if err := s.Changed(ctx); err != nil {
			return err
		}
		s.behind = false
	}
	if o == nil {
		return nil
	}
	return s.report(ctx)
}

func (s *Server) report(ctx context.Context) error {
	trusts := s.Authority.TrustedCAs()
	r := Report{Signed: []string{cabundle.Pin(trusts[0])}}
	for _, c := range trusts {
		r.Trusts = append(r.Trusts, cabundle.Pin(c))
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{Key(s.Address): r.String()}})
	if err != nil {
		return err
	}
	api := s.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err = api.Patch(ctx, Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: Name}, Data: map[string]string{Key(s.Address): r.String()},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("report which authorities are trusted: %w", err)
	}
	return nil
}

// Worker follows on a machine that has joined.
type Worker struct {
	Kube kubernetes.Interface
	Node string
	// CAFile is whom the machine trusts, the one that signs first; Certificates are its
	// own, which others have signed anew when that is another one.
	CAFile       string
	Certificates []string
	// Signs keeps the pin of the authority that signs.
	Signs func(pin string) error
	Log   *slog.Logger
}

// Run follows until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	informer := coreinformers.NewFilteredConfigMapInformer(w.Kube, metav1.NamespaceSystem, 0, cache.Indexers{},
		named(clusterinfo.ConfigMap))
	return follow(ctx, informer, w.Log, func(ctx context.Context) error {
		about, err := w.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, clusterinfo.ConfigMap, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("ask which authorities the cluster has: %w", err)
		}
		if about.Data[clusterinfo.Authorities] == "" {
			return nil // servers of an earlier version
		}
		return w.apply(ctx, []byte(about.Data[clusterinfo.Authorities]))
	})
}

func (w *Worker) apply(ctx context.Context, bundle []byte) error {
	certs, err := cabundle.Parse(bundle)
	if err != nil {
		return fmt.Errorf("the authorities that the cluster names: %w", err)
	}
	has, err := os.ReadFile(w.CAFile)
	if err != nil {
		return fmt.Errorf("read the cluster's authority: %w", err)
	}
	if string(has) != string(bundle) {
		if err := atomicfile.Write(w.CAFile, bundle, 0o600); err != nil {
			return err
		}
		w.Log.InfoContext(ctx, "the cluster's authorities are others now", "trusted", pki.Pins(certs))
	}
	if err := w.Signs(cabundle.Pin(certs[0])); err != nil {
		return err
	}
	r, err := w.look(certs)
	if err != nil {
		return err
	}
	if err := w.report(ctx, r); err != nil {
		return err
	}
	if !signedBy(r, cabundle.Pin(certs[0])) {
		return errWaiting
	}
	return nil
}

// look says by whom the machine's certificates are signed.
func (w *Worker) look(trusted []*x509.Certificate) (r Report, err error) {
	for _, c := range trusted {
		r.Trusts = append(r.Trusts, cabundle.Pin(c))
	}
	for _, file := range w.Certificates {
		leaf, err := cabundle.Read(file)
		if errors.Is(err, os.ErrNotExist) {
			return r, errWaiting
		}
		if err != nil {
			return r, err
		}
		by := "unknown"
		for _, c := range trusted {
			if leaf[0].CheckSignatureFrom(c) == nil {
				by = cabundle.Pin(c)
			}
		}
		r.Signed = append(r.Signed, by)
	}
	return r, nil
}

func (w *Worker) report(ctx context.Context, r Report) error {
	node, err := w.Kube.CoreV1().Nodes().Get(ctx, w.Node, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("report which authorities are trusted: %w", err)
	}
	if node.Annotations[Annotation] == r.String() {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{Annotation: r.String()}}})
	if err != nil {
		return err
	}
	if _, err := w.Kube.CoreV1().Nodes().Patch(ctx, w.Node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("report which authorities are trusted: %w", err)
	}
	return nil
}

func named(name string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
}

// follow calls apply whenever an informer has seen a change, now and then without, and soon
// again after a failure, until ctx ends.
func follow(ctx context.Context, informer cache.SharedIndexInformer, log *slog.Logger, apply func(context.Context) error) error {
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	ring := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { ring() }, UpdateFunc: func(any, any) { ring() }, DeleteFunc: func(any) { ring() },
	}); err != nil {
		return fmt.Errorf("watch the cluster's authority: %w", err)
	}
	ended := run.Go("watch of the cluster's authority", func() error { informer.RunWithContext(ctx); return nil })
	defer func() { <-ended }()
	timer := time.NewTimer(anew)
	defer timer.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer.C:
		}
		one, cancel := context.WithTimeout(ctx, bound)
		err := apply(one)
		cancel()
		if err == nil || ctx.Err() != nil {
			failed = ""
			timer.Reset(anew)
			continue
		}
		if text := err.Error(); text != failed && !errors.Is(err, errWaiting) {
			failed = text
			log.ErrorContext(ctx, "this machine has not followed the change of the cluster's authority yet; it tries again", "error", err)
		}
		timer.Reset(again)
	}
}
