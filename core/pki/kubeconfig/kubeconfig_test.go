// SPDX-License-Identifier: Apache-2.0

package kubeconfig_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/kubeconfig"
)

// What a user has in his own file stays, and only ours is taken out again.
func TestAKubeconfigIsMergedIntoTheUsersOwn(t *testing.T) {
	dir := t.TempDir()
	a := authority(t, filepath.Join(dir, "pki"))
	k := must[kubeconfig.Access](t)(kubeconfig.Of(a, "dev", "https://127.0.0.1:6443", pki.Admin()))
	k.Embed = true
	target := filepath.Join(dir, "dotfiles")
	theirs := "apiVersion: v1\nkind: Config\nclusters: [{name: work, cluster: {server: https://work}}]\ncontexts: [{name: work, context: {cluster: work, user: me}}]\nusers: [{name: me, user: {token: t}}, {name: kubernetes-admin, user: {token: another-clusters}}]\ncurrent-context: work\n"
	write(t, target, theirs)
	file := filepath.Join(dir, "config")
	if err := os.Symlink(target, file); err != nil {
		t.Fatal(err)
	}
	if err := kubeconfig.Merge(file, k); err != nil {
		t.Fatal(err)
	}
	loaded := must[*rest.Config](t)(clientcmd.BuildConfigFromFlags("", file))
	if loaded.Host != "https://127.0.0.1:6443" || len(loaded.CertData) == 0 || strings.Contains(string(loaded.CertData), "KEY") {
		t.Errorf("loaded %+v", loaded)
	}
	if info := must[os.FileInfo](t)(os.Lstat(file)); info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced by a file")
	}
	c := must[[]byte](t)(os.ReadFile(file))
	if !strings.Contains(string(c), "name: work") || !strings.Contains(string(c), "token: another-clusters") {
		t.Errorf("what the user had is gone: %s", c)
	}
	if err := kubeconfig.Unmerge(file, "dev"); err != nil {
		t.Fatal(err)
	}
	if c := must[[]byte](t)(os.ReadFile(file)); strings.Contains(string(c), "dev") || !strings.Contains(string(c), "name: work") ||
		!strings.Contains(string(c), "token: another-clusters") {
		t.Errorf("after taking ours out: %s", c)
	}
	write(t, target, "{{{")
	if err := kubeconfig.Merge(file, k); err == nil {
		t.Error("a broken kubeconfig was overwritten")
	}
}

// The cluster's own file follows the cluster.
func TestAKubeconfigIsRefreshedAndWhatItsUserChangedStays(t *testing.T) {
	dir := t.TempDir()
	a := authority(t, filepath.Join(dir, "pki"))
	k := must[kubeconfig.Access](t)(kubeconfig.Of(a, "dev", "https://127.0.0.1:6443", pki.Admin()))
	k.Embed = true
	file := filepath.Join(dir, "kubeconfig")
	refresh := func() *clientcmdapi.Config {
		t.Helper()
		if err := kubeconfig.Refresh(file, k); err != nil {
			t.Fatal(err)
		}
		return must[*clientcmdapi.Config](t)(clientcmd.LoadFromFile(file))
	}
	c := refresh()
	c.Contexts["dev"].Namespace = "team-a"
	c.Clusters["dev"].ProxyURL = "http://proxy:3128"
	c.AuthInfos[k.User].ClientCertificateData = []byte("stale")
	c.AuthInfos["jane"] = &clientcmdapi.AuthInfo{Token: "t"}
	c.Contexts["jane"] = &clientcmdapi.Context{Cluster: "dev", AuthInfo: "jane"}
	c.Contexts["work"] = &clientcmdapi.Context{Cluster: "work", AuthInfo: "jane"}
	c.CurrentContext = "jane"
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	k.Server = "https://127.0.0.1:7443"
	c = refresh()
	if c.CurrentContext != "jane" || c.Contexts["dev"].Namespace != "team-a" || c.AuthInfos["jane"].Token != "t" ||
		c.Clusters["dev"].ProxyURL == "" {
		t.Errorf("what the user changed is gone: %+v", c)
	}
	if c.Clusters["dev"].Server != k.Server || string(c.AuthInfos[k.User].ClientCertificateData) == "stale" {
		t.Errorf("what we write is stale: %+v", c)
	}
	for _, elsewhere := range []string{"work", "nowhere"} {
		c.CurrentContext = elsewhere
		if err := clientcmd.WriteToFile(*c, file); err != nil {
			t.Fatal(err)
		}
		if c = refresh(); c.CurrentContext != "dev" {
			t.Errorf("the current context was %s, and is %s", elsewhere, c.CurrentContext)
		}
	}
	write(t, file, "{{{")
	if c = refresh(); c.CurrentContext != "dev" {
		t.Errorf("in place of a broken file: %+v", c)
	}
	if kept := must[[]byte](t)(os.ReadFile(file + ".unreadable")); string(kept) != "{{{" {
		t.Errorf("the broken file was not kept: %s", kept)
	}
}

func authority(t *testing.T, dir string) *pki.Authority {
	t.Helper()
	return must[*pki.Authority](t)(pki.Open(pki.Config{Dir: dir}))
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
