// SPDX-License-Identifier: Apache-2.0

package pluginconfig_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
)

const whole = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, enforce-version: latest}
    exemptions: {namespaces: [kube-system], usernames: [admin]}
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes: [{scopeName: PriorityClass, operator: In, values: [cluster-services]}]
- name: EventRateLimit
  path: sub/events.yaml
- name: PodNodeSelector
  configuration:
    podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: "env=prod", dev: "env=dev"}
- name: PodTolerationRestriction
  configuration:
    apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1
    kind: Configuration
    whitelist: [{key: gpu, operator: Exists}]
- name: ImagePolicyWebhook
  configuration: {imagePolicy: {kubeConfigFile: hooks.kubeconfig, allowTTL: 50, denyTTL: -1, defaultAllow: true}}
- name: ValidatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: DIR/hooks.kubeconfig
`

func folder(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"admission.yaml": strings.ReplaceAll(config, "DIR", dir),
		"sub/events.yaml": "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n" +
			"limits:\n- {type: Namespace, qps: 50, burst: 100, cacheSize: 2000}\n",
		"hooks.kubeconfig": "apiVersion: v1\nkind: Config\nusers:\n- name: '*.svc'\n  user: {token: secret}\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "admission.yaml")
}

func TestAFileOfUpstreamIsReadWhole(t *testing.T) {
	s, err := pluginconfig.Load(folder(t, whole))
	if err != nil {
		t.Fatal(err)
	}
	if s.PodSecurity.Defaults.Enforce != "baseline" || s.PodSecurity.Defaults.Audit != "privileged" ||
		len(s.PodSecurity.Exemptions.Namespaces) != 1 {
		t.Errorf("pod security %+v", s.PodSecurity)
	}
	if len(s.LimitedResources) != 1 || s.LimitedResources[0].MatchScopes[0].Values[0] != "cluster-services" {
		t.Errorf("limited resources %+v", s.LimitedResources)
	}
	if len(s.EventLimits) != 1 || s.EventLimits[0].Burst != 100 {
		t.Errorf("event limits %+v", s.EventLimits)
	}
	if s.NodeSelectors["dev"] != "env=dev" || len(s.Tolerations.Whitelist) != 1 {
		t.Errorf("selectors %v, tolerations %v", s.NodeSelectors, s.Tolerations)
	}
	p := s.ImagePolicy
	if p == nil || p.AllowTTL != 50*time.Second || p.DenyTTL != 0 || p.RetryBackoff != 500*time.Millisecond || !p.DefaultAllow {
		t.Errorf("image policy %+v", p)
	}
	if s.MutatingCredentials != nil {
		t.Error("the mutating webhooks got credentials")
	}
	config, err := s.ValidatingCredentials.ClientConfigForService("hook", "default", 443)
	if err != nil || config.BearerToken != "secret" {
		t.Errorf("credentials of the service: %v (%v)", config, err)
	}
	if config, err = s.ValidatingCredentials.ClientConfigFor("elsewhere.example.com"); err != nil || config.BearerToken != "" {
		t.Errorf("a stranger gets %v (%v)", config, err)
	}
}

func TestMistakesSayWhatToDo(t *testing.T) {
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	for name, c := range map[string]struct{ file, want string }{
		"empty":          {"", "it begins with apiVersion"},
		"another kind":   {"apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: []\n", "expected kind AdmissionConfiguration"},
		"unknown field":  {head + "- {name: PodSecurity, confguration: {}}\n", `unknown field "plugins[0].confguration"`},
		"unknown plugin": {head + "- {name: PodSecurty, path: x}\n", `plugins[0] (PodSecurty): no plugin of that name`},
		"twice":          {head + "- {name: EventRateLimit, path: sub/events.yaml}\n- {name: EventRateLimit, path: sub/events.yaml}\n", "configured twice"},
		"nothing":        {head + "- name: PodSecurity\n", "expected configuration or path"},
		"no such path":   {head + "- {name: EventRateLimit, path: nowhere.yaml}\n", "nowhere.yaml"},
		"wrong version":  {head + "- {name: EventRateLimit, configuration: {apiVersion: v1, kind: Configuration}}\n", "expected apiVersion: eventratelimit.admission.k8s.io/v1alpha1"},
		"wrong type":     {head + "- {name: EventRateLimit, configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Node, qps: 1, burst: 1}]}}\n", "limits[0].type"},
		"no rate":        {head + "- {name: EventRateLimit, configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: User, burst: 1}]}}\n", "must be positive"},
		"a bad level":    {head + "- {name: PodSecurity, configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: strict}}}\n", "enforce"},
		"bad toleration": {head + "- {name: PodTolerationRestriction, configuration: {apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, default: [{effect: Never, key: a, operator: Exists}]}}\n", "default[0]: effect"},
		"bad selector":   {head + "- {name: PodNodeSelector, configuration: {podNodeSelectorPluginConfig: {dev: 'a in (b)'}}}\n", "podNodeSelectorPluginConfig.dev"},
		"ttl":            {head + "- {name: ImagePolicyWebhook, configuration: {imagePolicy: {kubeConfigFile: hooks.kubeconfig, allowTTL: 1801}}}\n", "imagePolicy.allowTTL: expected"},
		"no kubeconfig":  {head + "- {name: ImagePolicyWebhook, configuration: {imagePolicy: {kubeConfigFile: nowhere}}}\n", "nowhere"},
		"static":         {head + "- {name: MutatingAdmissionWebhook, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, staticManifestsDir: DIR}}\n", "apiserver.staticAdmissionDir"},
	} {
		t.Run(name, func(t *testing.T) {
			file := folder(t, c.file)
			if _, err := pluginconfig.Load(file); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
				t.Errorf("error %v\nwant %s", err, c.want)
			}
		})
	}
}
