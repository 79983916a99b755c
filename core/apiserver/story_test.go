// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// TestMain makes the test binary serve as kubectl in scripts: the real one, of
// the version that the contract is of.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){
		"kubectl": func() { os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand())) },
		"server":  serverProcess,
	})
}

type leakChecked struct{ m *testing.M }

// Run implements testscript.TestingM.
func (l leakChecked) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
	}
	return code
}

// TestStories runs what users do with kubectl. Each script has a namespace of its own.
func TestStories(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	client := kubernetes.NewForConfigOrDie(s.Config("setup"))
	kubeconfig := s.Kubeconfig(t, "admin", "system:masters")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			ns := "story-" + strings.ToLower(strings.NewReplacer("_", "-", "/", "-").Replace(filepath.Base(e.WorkDir)))
			ns = strings.TrimPrefix(ns, "story-script-")
			e.Setenv("NS", ns)
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("KUBECONFIG", filepath.Join(e.WorkDir, "kubeconfig"))
			data, err := os.ReadFile(kubeconfig)
			if err != nil {
				return err
			}
			data = []byte(strings.ReplaceAll(string(data), "    user: test\n", "    user: test\n    namespace: "+ns+"\n"))
			if err := os.WriteFile(filepath.Join(e.WorkDir, "kubeconfig"), data, 0o600); err != nil {
				return err
			}
			_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
				metav1.CreateOptions{})
			return err
		},
	})
}
