// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// upkeepClasses are what operators do to a cluster that is in use.
func upkeepClasses() []class {
	one := bounds{writes: tryFor + elects, goesOn: takesOver}
	away := bounds{failed: unbounded, writes: 3 * down, goesOn: 3 * down}
	return []class{
		{
			"restored-from-backup", "a backup is taken, the server is ended, the backup restored, and the server started again", alone, false,
			restoredFromBackup, away,
		},
		{"namespace-restored", "a namespace is deleted, and comes back from a backup", many, false, namespaceRestored, one},
		{
			"rolling-upgrade", "wasmplane upgrade on each server in turn, and then on each worker", many, false,
			rollingUpgrade, one,
		},
		{
			"majority-lost", "two of three servers are lost with their disks: restore --from-this-member, and both join again by tokens", many, false,
			majorityLost,
			bounds{failed: unbounded, writes: 6 * down, goesOn: 6 * down},
		},
		{ // the last: a server that joins after it is not known to who knows the old authority alone
			"authority-replaced", "wasmplane certs rotate-ca: everybody gets certificates of a new authority, and the old one is removed", many, false,
			authorityReplaced, one,
		},
	}
}

// restoredFromBackup ends the server before anything is written that the backup lacks.
func restoredFromBackup(w *world) error {
	m, file := w.first(), filepath.Join(w.cluster.Dir, "taken.db")
	defer func() { _ = os.Remove(file) }()
	w.gate.Lock()
	err := m.do(m.binary, "backup", file, "--data-dir", m.data)
	if err == nil {
		err = m.process.End(os.Interrupt)
	}
	w.gate.Unlock()
	if err != nil {
		return err
	}
	aside, _ := filepath.Glob(filepath.Join(m.data, "etcd.before-*"))
	err = errors.Join(m.do(m.binary, "restore", file, "--force", "--data-dir", m.data), m.start())
	kept, _ := filepath.Glob(filepath.Join(m.data, "etcd.before-*"))
	if len(kept) != len(aside)+1 {
		err = errors.Join(err, fmt.Errorf("the former store was kept in %q", kept))
	}
	for _, dir := range kept {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func namespaceRestored(w *world) error {
	m, name, file := w.first(), w.names+"-kept", filepath.Join(w.cluster.Dir, "taken.db")
	defer func() { _ = os.Remove(file) }()
	const objects = 50
	maps := m.kube.CoreV1().ConfigMaps(name)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := m.kube.CoreV1().Namespaces().Create(w.ctx, namespace, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer func() { _ = m.kube.CoreV1().Namespaces().Delete(w.ctx, name, metav1.DeleteOptions{}) }()
	for i := range objects {
		one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("one-%d", i)}, Data: map[string]string{"is": fmt.Sprint(i)}}
		if _, err := maps.Create(w.ctx, one, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	err := errors.Join(m.do(m.binary, "backup", file, "--data-dir", m.data),
		m.do(m.binary, "kubectl", "--kubeconfig", filepath.Join(m.data, "kubeconfig"), "delete", "namespace", name, "--timeout=2m"))
	if err == nil {
		err = m.do(m.binary, "restore", file, "--namespace", name, "--data-dir", m.data)
	}
	if err != nil {
		return err
	}
	for i := range objects {
		is, err := maps.Get(w.ctx, fmt.Sprintf("one-%d", i), metav1.GetOptions{})
		if err != nil || is.Data["is"] != fmt.Sprint(i) {
			return fmt.Errorf("what came back is %v, %w", is.Data, err)
		}
	}
	return nil
}

// rollingUpgrade is to the binary that CHAOS_NEXT names, or to one that is the same and ends in another byte.
func rollingUpgrade(w *world) error {
	next := filepath.Join(w.cluster.Dir, "next")
	sum, err := nextBinary(w.cluster.Binary, next)
	if err != nil {
		return err
	}
	for _, m := range w.machines {
		if err := m.upgrade(next, sum); err != nil {
			return err
		}
	}
	return nil
}

// nextBinary writes the binary of an upgrade to a file, and answers its digest.
func nextBinary(binary, file string) (string, error) {
	from, end := os.Getenv("CHAOS_NEXT"), ""
	if from == "" {
		from, end = binary, "\n"
	}
	in, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), in)
	if err == nil {
		_, err = io.MultiWriter(out, sum).Write([]byte(end))
	}
	return hex.EncodeToString(sum.Sum(nil)), errors.Join(err, out.Close())
}

// upgrade is done by the machine's own wasmplane. What starts the process again when it has ended, as systemd would, is this test.
func (m *machine) upgrade(to, sum string) error {
	was, instead, started := m.process, make(chan struct{}), make(chan error, 1)
	go func() {
		select {
		case <-was.Done():
			started <- m.launch()
		case <-instead:
			started <- errors.New("nobody ended the process")
		}
	}()
	err := m.do(m.binary, "upgrade", "--data-dir", m.data, "--to", to, "--sha256", sum, "--stable", "3s",
		"--restart", fmt.Sprintf("kill -INT %d", was.PID()))
	close(instead)
	if err == nil {
		err = <-started
	}
	return err
}

// authorityReplaced is seen by clients with tokens: they know the old authority, and read it once. The shelf has nobody to hear of it.
func authorityReplaced(w *world) error {
	m := w.first()
	before, err := os.ReadFile(filepath.Join(m.data, "pki", "ca.crt"))
	if err != nil {
		return err
	}
	if err := m.do(m.binary, "certs", "rotate-ca", "--data-dir", m.data, "--patience", "5m", "--without", shelf); err != nil {
		return err
	}
	for _, of := range w.machines {
		file := filepath.Join(of.data, "member", "ca.crt")
		if of.server {
			file = filepath.Join(of.data, "pki", "ca.crt")
		}
		after, err := os.ReadFile(file)
		if err != nil || string(after) == string(before) {
			return fmt.Errorf("machine %s still has the old authority, %w", of.name, err)
		}
	}
	return nil
}

// majorityLost leaves the server whose store leads: it has every write that was acknowledged.
func majorityLost(w *world) error {
	left, err := storeLeader(w)
	if err != nil {
		return err
	}
	var gone []*machine
	for _, m := range w.machines[:w.on.servers] {
		if m != left {
			gone = append(gone, m)
		}
	}
	for _, m := range gone {
		if err := errors.Join(m.kill(), m.do(m.binary, "down", "--purge", "--force", "--data-dir", m.data)); err != nil {
			return err
		}
	}
	err = errors.Join(left.process.End(os.Interrupt),
		left.do(left.binary, "restore", "--from-this-member", "--data-dir", left.data), left.start())
	if err != nil {
		return err
	}
	for _, m := range gone {
		// Until its lease has run out, its node lives, and is not removed.
		ctx, cancel := context.WithTimeout(w.ctx, recoversWithin)
		err := harness.Poll(ctx, time.Second, func() error { return left.do(left.binary, "node", "remove", m.name, "--data-dir", left.data) })
		cancel()
		if err == nil {
			err = w.joinAt(left, m)
		}
		if err == nil {
			m.kube, err = w.client(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// linked gives a machine a binary of its own, which an upgrade replaces.
func (m *machine) linked(binary, dir string) error {
	m.binary = filepath.Join(dir, "bin-"+m.name, filepath.Base(binary))
	if err := os.MkdirAll(filepath.Dir(m.binary), 0o755); err != nil {
		return err
	}
	if os.Link(binary, m.binary) == nil {
		return nil
	}
	return harness.Execute("cp", binary, m.binary) // on another file system
}

// tokenFor makes an account for the observers, and a token of it: a certificate would be refused once its authority is
// replaced. Its requests wait for no others, as the administrator's do not.
func (w *world) tokenFor(kube *kubernetes.Clientset) (string, error) {
	const name, valid = "observers", 2 * 24 * 60 * 60
	in, meta := metav1.NamespaceSystem, metav1.ObjectMeta{Name: name}
	_, err := kube.CoreV1().ServiceAccounts(in).Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	_, err = kube.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: in, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	all := []string{"*"}
	_, err = kube.FlowcontrolV1().FlowSchemas().Create(w.ctx, &flowcontrolv1.FlowSchema{ObjectMeta: meta, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "exempt"}, MatchingPrecedence: 2,
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects: []flowcontrolv1.Subject{{
				Kind: flowcontrolv1.SubjectKindServiceAccount, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: in, Name: name},
			}},
			ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: all, APIGroups: all, Resources: all, Namespaces: all, ClusterScope: true}},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: all, NonResourceURLs: all}},
		}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	token, err := kube.CoreV1().ServiceAccounts(in).CreateToken(w.ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(valid))},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return token.Status.Token, nil
}
