// SPDX-License-Identifier: Apache-2.0

package succession

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// FuzzRead: what a Secret says of a change is read whole, or is an error; a report is read as it was written.
func FuzzRead(f *testing.F) {
	at := time.Unix(1000, 0).UTC().Format(time.RFC3339)
	f.Add("offered", at, []byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"), []byte("x"), "trusts a b; signed by a")
	f.Add("", "", []byte(nil), []byte(nil), "")
	f.Fuzz(func(t *testing.T, phase, since string, from, to []byte, report string) {
		s, err := Read(&corev1.Secret{Data: map[string][]byte{"phase": []byte(phase), "since": []byte(since), "from": from, "to": to}})
		if err == nil {
			if _, _, err := s.Pins(); err != nil || len(s.Public()) == 0 {
				t.Errorf("read %+v, %v", s, err)
			}
		}
		if r, err := ParseReport(report); err == nil {
			if again, err := ParseReport(r.String()); err != nil || again.String() != r.String() {
				t.Errorf("%q is read as %q, and that as %q: %v", report, r, again, err)
			}
		}
	})
}
