// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/join/handover"
)

func TestWhoseClockIsWrong(t *testing.T) {
	at := func(name string, ahead time.Duration, err error) Peer {
		return Peer{Offer: handover.Offer{Server: handover.Server{Name: name}}, Ahead: ahead, Err: err}
	}
	invalid := fmt.Errorf("tls: %w", x509.CertificateInvalidError{Reason: x509.Expired})
	for name, c := range map[string]struct {
		others []Peer
		want   string
	}{
		"alone":                              {nil, ""},
		"all agree":                          {[]Peer{at("b", 0, nil), at("c", -time.Second, nil)}, ""},
		"ours is off":                        {[]Peer{at("b", time.Hour, nil), at("c", time.Hour, nil)}, "this server's clock is wrong: the clock of server b is 1h0m0s ahead of this machine's, the clock of server c"},
		"another's is off":                   {[]Peer{at("b", time.Hour, nil), at("c", 0, nil)}, ""},
		"one of two":                         {[]Peer{at("b", -time.Minute, nil)}, "this server's clock, or another one's, is wrong: the clock of server b is 1m0s behind"},
		"one that is down says nothing":      {[]Peer{at("b", 0, errors.New("refused")), at("c", time.Minute, nil)}, "or another one's, is wrong: the clock of server c"},
		"a certificate of another time":      {[]Peer{at("b", 0, invalid), at("c", 0, invalid)}, "by this machine's clock the certificate of server b does not hold"},
		"of four, two each way and one well": {[]Peer{at("b", time.Minute, nil), at("c", -time.Minute, nil), at("d", 0, nil), at("e", 0, nil)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Apart(c.others)
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%q; want %q", got, c.want)
			}
		})
	}
}
