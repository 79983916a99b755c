// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"testing"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
)

func TestVersionSaysWhatItBehavesAs(t *testing.T) {
	v := effective(apimachineryversion.Info{Major: "1", Minor: "37", GitVersion: "v1.37.1"})
	want := apimachineryversion.Info{
		Major: "1", Minor: "37", GitVersion: "v1.37.1",
		EmulationMajor: "1", EmulationMinor: "37", MinCompatibilityMajor: "1", MinCompatibilityMinor: "36",
	}
	if v != want {
		t.Errorf("the version is %#v, want %#v", v, want)
	}
	// A build that was not told its version says nothing of others.
	if v := effective(apimachineryversion.Info{}); v != (apimachineryversion.Info{}) {
		t.Errorf("the version of a build without one is %#v", v)
	}
}
