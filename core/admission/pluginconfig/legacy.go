// SPDX-License-Identifier: Apache-2.0

package pluginconfig

import (
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// The two formats of this file are as old as their plugins and have no version.

func readNodeSelectors(s *Settings, data []byte, _ string) error {
	var doc struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		return err
	}
	if len(doc.Selectors) == 0 {
		return errors.New("podNodeSelectorPluginConfig: expected clusterDefaultNodeSelector or namespaces with their selectors")
	}
	for namespace, selector := range doc.Selectors {
		if _, err := labels.ConvertSelectorToLabelsMap(selector); err != nil {
			return fmt.Errorf("podNodeSelectorPluginConfig.%s: %w", namespace, err)
		}
	}
	s.NodeSelectors = doc.Selectors
	return nil
}

func readImagePolicy(s *Settings, data []byte, dir string) error {
	var doc struct {
		ImagePolicy struct {
			KubeConfigFile string `json:"kubeConfigFile"`
			AllowTTL       int64  `json:"allowTTL"`     // seconds
			DenyTTL        int64  `json:"denyTTL"`      // seconds
			RetryBackoff   int64  `json:"retryBackoff"` // milliseconds
			DefaultAllow   bool   `json:"defaultAllow"`
		} `json:"imagePolicy"`
	}
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		return err
	}
	given := doc.ImagePolicy
	if given.KubeConfigFile == "" {
		return errors.New("imagePolicy.kubeConfigFile: expected the path of a kubeconfig")
	}
	p := &ImagePolicy{KubeConfigFile: inFolder(dir, given.KubeConfigFile), DefaultAllow: given.DefaultAllow}
	if _, err := os.Stat(p.KubeConfigFile); err != nil {
		return fmt.Errorf("imagePolicy.kubeConfigFile: %w", err)
	}
	for _, d := range []struct {
		name         string
		to           *time.Duration
		given        int64
		unit         time.Duration
		least, most  time.Duration
		whereNothing time.Duration
	}{
		{"allowTTL", &p.AllowTTL, given.AllowTTL, time.Second, time.Second, 30 * time.Minute, 5 * time.Minute},
		{"denyTTL", &p.DenyTTL, given.DenyTTL, time.Second, time.Second, 30 * time.Minute, 30 * time.Second},
		{"retryBackoff", &p.RetryBackoff, given.RetryBackoff, time.Millisecond, time.Millisecond, 5 * time.Minute, 500 * time.Millisecond},
	} {
		switch v := time.Duration(d.given) * d.unit; {
		case d.given == 0:
			*d.to = d.whereNothing
		case d.given == -1: // upstream's way to say: not at all
			*d.to = 0
		case d.given < 0 || d.given > int64(d.most/d.unit) || v < d.least:
			return fmt.Errorf("imagePolicy.%s: expected -1 (none), 0 (the default, %v) or up to %v, found %d", d.name, d.whereNothing, d.most,
				d.given)
		default:
			*d.to = v
		}
	}
	s.ImagePolicy = p
	return nil
}
