// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/attempts"
)

// Subject is on whose behalf the plugin does something: its writer, and the object that stands for it.
func (e *Entry) Subject() attempts.Subject {
	s := attempts.Subject{Object: corev1.ObjectReference{APIVersion: APIGroup + "/v1", Kind: "Plugin", Name: e.Name}}
	if e.Namespace != "" {
		s.Object.Kind, s.Object.Namespace = "TenantPlugin", e.Namespace
		if _, name, ok := strings.Cut(e.Name, ":"); ok {
			s.Object.Name = name
		}
	}
	if e.Writer != nil {
		s.User = e.Writer.GetName()
	}
	return s
}
