// SPDX-License-Identifier: Apache-2.0

package pluginconfig

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psaload "k8s.io/pod-security-admission/admission/api/load"
)

// podSecurityHardened is what holds for namespaces whose labels say nothing. The
// cluster's own namespace is exempt: networks and storage of others run there, on the
// hosts, and who may write there is an administrator anyway.
const podSecurityHardened = `
apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: baseline, enforce-version: latest, audit: restricted, audit-version: latest, warn: restricted, warn-version: latest}
exemptions: {namespaces: [%s]}
`

// Harden fills in what the file leaves open: Pod Security for namespaces without
// labels, and limits of events that only a flood reaches.
func (s *Settings) Harden() (err error) {
	if s.PodSecurity == nil {
		if s.PodSecurity, err = psaload.LoadFromData(fmt.Appendf(nil, podSecurityHardened, metav1.NamespaceSystem)); err != nil {
			return fmt.Errorf("pod security: load the hardened configuration: %w", err)
		}
	}
	if len(s.EventLimits) == 0 {
		s.EventLimits = []EventLimit{
			{Type: "Server", QPS: 5000, Burst: 20000},
			{Type: "Namespace", QPS: 500, Burst: 2000},
			{Type: "SourceAndObject", QPS: 10, Burst: 50},
		}
	}
	return nil
}
