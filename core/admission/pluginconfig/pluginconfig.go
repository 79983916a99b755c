// SPDX-License-Identifier: Apache-2.0

// Package pluginconfig reads an AdmissionConfiguration of
// apiserver.config.k8s.io/v1: what upstream's admission plugins let their
// operators configure, in upstream's formats.
//
// It is strict where upstream is not: a plugin that does not exist, or that has
// nothing to configure, an unknown field, a kubeconfig that cannot be read, are
// mistakes that name the file and the plugin. The settings come out checked and
// complete, with their defaults.
package pluginconfig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	quotavalidation "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	psaapi "k8s.io/pod-security-admission/admission/api"
	psaload "k8s.io/pod-security-admission/admission/api/load"
	psavalidation "k8s.io/pod-security-admission/admission/api/validation"
	"sigs.k8s.io/yaml"
)

// Settings of the plugins that have any. The zero value is what holds without a
// file, except for EventRateLimit and ImagePolicyWebhook, which cannot do without.
type Settings struct {
	// PodSecurity are defaults and exemptions; nil: privileged, and none.
	PodSecurity *psaapi.PodSecurityConfiguration
	// LimitedResources may be used only under a quota that covers them.
	LimitedResources []quotaapi.LimitedResource
	// EventLimits of EventRateLimit; empty: not configured.
	EventLimits []EventLimit
	// NodeSelectors of PodNodeSelector: clusterDefaultNodeSelector, and what each
	// namespace's pods may select at most.
	NodeSelectors map[string]string
	// Tolerations of PodTolerationRestriction.
	Tolerations Tolerations
	// ImagePolicy of ImagePolicyWebhook; nil: not configured.
	ImagePolicy *ImagePolicy
	// MutatingCredentials and ValidatingCredentials say as whom webhooks are asked; nil: as nobody.
	MutatingCredentials, ValidatingCredentials webhookutil.AuthenticationInfoResolver
}

// EventLimit bounds the events of one server, namespace, user, or source and object.
type EventLimit struct {
	// Type is Server, Namespace, User or SourceAndObject.
	Type string `json:"type"`
	// QPS is how many events a second are accepted once Burst has been used up.
	QPS   int32 `json:"qps"`
	Burst int32 `json:"burst"`
	// CacheSize is how many namespaces, users or sources are remembered; 0: 4096.
	CacheSize int32 `json:"cacheSize"`
}

// Tolerations of pods whose namespaces say nothing else.
type Tolerations struct {
	// Default are added to every pod.
	Default []corev1.Toleration `json:"default"`
	// Whitelist are all that a pod may have; empty: any.
	Whitelist []corev1.Toleration `json:"whitelist"`
}

// ImagePolicy says who decides on images.
type ImagePolicy struct {
	KubeConfigFile string
	// AllowTTL and DenyTTL are how long answers are remembered; 0: not at all.
	AllowTTL, DenyTTL time.Duration
	// RetryBackoff is the first pause between two attempts.
	RetryBackoff time.Duration
	// DefaultAllow lets pods in while nobody answers.
	DefaultAllow bool
}

// readers know the plugins that have something to configure.
var readers = map[string]func(s *Settings, data []byte, dir string) error{
	"PodSecurity":              readPodSecurity,
	"ResourceQuota":            readQuota,
	"EventRateLimit":           readEventLimits,
	"PodNodeSelector":          readNodeSelectors,
	"PodTolerationRestriction": readTolerations,
	"ImagePolicyWebhook":       readImagePolicy,
	"MutatingAdmissionWebhook": func(s *Settings, data []byte, dir string) error {
		return readCredentials(&s.MutatingCredentials, data, dir)
	},
	"ValidatingAdmissionWebhook": func(s *Settings, data []byte, dir string) error {
		return readCredentials(&s.ValidatingCredentials, data, dir)
	},
}

// Load reads the file. Paths in it are relative to its folder.
func Load(file string) (*Settings, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the admission configuration: %w", err)
	}
	s, err := parse(data, filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

func parse(data []byte, dir string) (*Settings, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("the file is empty: it begins with apiVersion: apiserver.config.k8s.io/v1 and kind: AdmissionConfiguration")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoded, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := decoded.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected kind AdmissionConfiguration, found %T", decoded)
	}
	s, seen := &Settings{}, map[string]bool{}
	for i, p := range config.Plugins {
		if seen[p.Name] {
			return nil, fmt.Errorf("plugins[%d]: %s is configured twice", i, p.Name)
		}
		seen[p.Name] = true
		if err := s.read(p, dir); err != nil {
			return nil, fmt.Errorf("plugins[%d] (%s): %w", i, p.Name, err)
		}
	}
	return s, nil
}

func (s *Settings) read(p apiserver.AdmissionPluginConfiguration, dir string) error {
	read, ok := readers[p.Name]
	if !ok {
		names := make([]string, 0, len(readers))
		for n := range readers {
			names = append(names, n)
		}
		slices.Sort(names)
		return fmt.Errorf("no plugin of that name can be configured; there are %q", names)
	}
	var data []byte
	switch {
	case p.Configuration != nil:
		data = p.Configuration.Raw
	case p.Path != "":
		file := inFolder(dir, p.Path)
		var err error
		if data, err = os.ReadFile(file); err != nil {
			return fmt.Errorf("path: %w", err)
		}
		dir = filepath.Dir(file)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return errors.New("expected configuration or path, found neither")
	}
	return read(s, data, dir)
}

func inFolder(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func readPodSecurity(s *Settings, data []byte, _ string) (err error) {
	if s.PodSecurity, err = psaload.LoadFromData(data); err != nil {
		return err
	}
	return psavalidation.ValidatePodSecurityConfiguration(s.PodSecurity).ToAggregate()
}

func readQuota(s *Settings, data []byte, _ string) error {
	config, err := resourcequota.LoadConfiguration(bytes.NewReader(data))
	if err != nil {
		return err
	}
	s.LimitedResources = config.LimitedResources
	return quotavalidation.ValidateConfiguration(config).ToAggregate()
}

// header is what a versioned document begins with.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func (h header) check(apiVersion string) error {
	if h.APIVersion != apiVersion || h.Kind != "Configuration" {
		return fmt.Errorf("expected apiVersion: %s and kind: Configuration, found %q and %q", apiVersion, h.APIVersion, h.Kind)
	}
	return nil
}

func readEventLimits(s *Settings, data []byte, _ string) error {
	var doc struct {
		header `json:",inline"`
		Limits []EventLimit `json:"limits"`
	}
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		return err
	}
	if err := doc.check("eventratelimit.admission.k8s.io/v1alpha1"); err != nil {
		return err
	}
	if len(doc.Limits) == 0 {
		return errors.New("limits: expected at least one")
	}
	for i, l := range doc.Limits {
		switch {
		case !slices.Contains([]string{"Server", "Namespace", "User", "SourceAndObject"}, l.Type):
			return fmt.Errorf("limits[%d].type: expected Server, Namespace, User or SourceAndObject, found %q", i, l.Type)
		case l.QPS <= 0 || l.Burst <= 0:
			return fmt.Errorf("limits[%d]: qps and burst must be positive, found %d and %d", i, l.QPS, l.Burst)
		case l.CacheSize < 0:
			return fmt.Errorf("limits[%d].cacheSize: must not be negative, found %d", i, l.CacheSize)
		}
	}
	s.EventLimits = doc.Limits
	return nil
}

func readTolerations(s *Settings, data []byte, _ string) error {
	var doc struct {
		header      `json:",inline"`
		Tolerations `json:",inline"`
	}
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		return err
	}
	if err := doc.check("podtolerationrestriction.admission.k8s.io/v1alpha1"); err != nil {
		return err
	}
	for name, list := range map[string][]corev1.Toleration{"default": doc.Default, "whitelist": doc.Whitelist} {
		for i, t := range list {
			if err := checkToleration(t); err != nil {
				return fmt.Errorf("%s[%d]: %w", name, i, err)
			}
		}
	}
	s.Tolerations = doc.Tolerations
	return nil
}

// checkToleration refuses what no pod could have.
func checkToleration(t corev1.Toleration) error {
	switch {
	case t.Key == "" && t.Operator != corev1.TolerationOpExists:
		return errors.New("operator: without a key it must be Exists, which means all keys")
	case t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute:
		return errors.New("effect: tolerationSeconds go with NoExecute only")
	case t.Operator == corev1.TolerationOpExists && t.Value != "":
		return errors.New("value: must be empty where operator is Exists")
	case !slices.Contains([]corev1.TolerationOperator{"", corev1.TolerationOpEqual, corev1.TolerationOpExists}, t.Operator):
		return fmt.Errorf("operator: expected Equal or Exists, found %q", t.Operator)
	case !slices.Contains([]corev1.TaintEffect{
		"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
		corev1.TaintEffectNoExecute,
	}, t.Effect):
		return fmt.Errorf("effect: expected NoSchedule, PreferNoSchedule or NoExecute, found %q", t.Effect)
	}
	return nil
}

// readCredentials reads a WebhookAdmission.
func readCredentials(to *webhookutil.AuthenticationInfoResolver, data []byte, dir string) error {
	config, err := webhookconfig.LoadConfig(bytes.NewReader(data))
	if err != nil {
		return err
	}
	if config.StaticManifestsDir != "" {
		return errors.New("staticManifestsDir: name the folder in apiserver.staticAdmissionDir of wasmplane's configuration; it takes webhooks and policies together")
	}
	if config.KubeConfigFile == "" {
		return errors.New("kubeConfigFile: expected the path of a kubeconfig")
	}
	if *to, err = webhookutil.NewDefaultAuthenticationInfoResolver(inFolder(dir, config.KubeConfigFile)); err != nil {
		return fmt.Errorf("kubeConfigFile: %w", err)
	}
	return nil
}
