// SPDX-License-Identifier: Apache-2.0

package profiles_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/profiles"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
)

func of(t *testing.T, text string) (profiles.Policy, error) {
	t.Helper()
	c, err := config.Load(filepath.Join("../../../configs/simulate", "c.yaml"),
		[]byte("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		return profiles.Policy{}, err
	}
	return profiles.Of(c, nil, native.Config{Informers: informers.NewSharedInformerFactory(nil, 0)}, extender.Reach{})
}

func TestProfilesOfBothForms(t *testing.T) {
	own, err := of(t, "scheduler: {profiles: [{name: mine, disable: [ImageLocality], weights: {NodeResourcesFit: 7}}]}")
	if err != nil || len(own.Profiles) != 1 || own.Profiles[0].Name != "mine" {
		t.Fatal(own, err)
	}
	for _, w := range own.Profiles[0].Plugins {
		if w.Name() == "ImageLocality" || w.Name() == "NodeResourcesFit" && w.Weight != 7 {
			t.Errorf("%s has weight %d", w.Name(), w.Weight)
		}
	}
	theirs, err := of(t, "scheduler: {configFile: kube-scheduler.yaml}")
	if err != nil || len(theirs.Profiles) != 1 || theirs.Profiles[0].Name != "default-scheduler" {
		t.Fatal(theirs, err)
	}
	for _, w := range theirs.Profiles[0].Plugins {
		if fit, ok := w.Plugin.(native.Fit); ok && (w.Weight != 10 || len(fit.Shape) != 2) {
			t.Errorf("NodeResourcesFit: weight %d, %+v", w.Weight, fit)
		}
	}
}

func TestBothFormsAtOnceAreRefused(t *testing.T) {
	_, err := of(t, "scheduler:\n  configFile: kube-scheduler.yaml\n  profiles: [{name: mine}]")
	if err == nil || !strings.Contains(err.Error(), "c.yaml:4: scheduler.configFile: the file says what profiles") {
		t.Error(err)
	}
	if _, err := of(t, "scheduler: {configFile: none.yaml}"); err == nil || !strings.Contains(err.Error(), "scheduler.configFile: ") ||
		!errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
