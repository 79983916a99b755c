// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Bound is from when on the clock of a server is said to be wrong. Leases and elections measure
// durations, so that they bear more; certificates and tokens begin five minutes back.
const Bound = 5 * time.Second

// Apart says what is wrong with this machine's clock, by those of the other servers; "" = nothing. Where most of
// the others agree that it is off, it is this one; a single other one may be as wrong.
func Apart(others []Peer) string {
	var off []string
	judged, ahead, behind := 0, 0, 0
	for _, p := range others {
		text := p.Clock()
		switch {
		case text != "":
			off = append(off, text)
		case p.Err != nil:
			continue // it says no time
		}
		if p.Ahead >= Bound {
			ahead++
		} else if p.Ahead <= -Bound {
			behind++
		}
		judged++
	}
	const do = "; set the clocks of all servers by time servers (timedatectl set-ntp true): certificates and tokens hold between two times"
	switch {
	case len(off) == 0:
		return ""
	case judged > 1 && 2*max(ahead, behind) <= judged && 2*len(off) <= judged:
		return "" // it is the other one that is wrong, which says so itself
	case judged > 1 && 2*max(ahead, behind) > judged:
		return "this server's clock is wrong: " + strings.Join(off, ", ") + do
	default:
		return "this server's clock, or another one's, is wrong: " + strings.Join(off, ", ") + do
	}
}

// Clock says what is wrong with a server's clock, or with this machine's; "" = nothing.
func (p Peer) Clock() string {
	switch {
	case expired(p.Err):
		return fmt.Sprintf("by this machine's clock the certificate of server %s does not hold", p.Called())
	case p.Ahead >= Bound:
		return fmt.Sprintf("the clock of server %s is %s ahead of this machine's", p.Called(), p.Ahead)
	case p.Ahead <= -Bound:
		return fmt.Sprintf("the clock of server %s is %s behind this machine's", p.Called(), -p.Ahead)
	}
	return ""
}

// expired: a certificate does not hold now, so that no time could be asked for.
func expired(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired
}
