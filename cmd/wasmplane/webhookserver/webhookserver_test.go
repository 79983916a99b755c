// SPDX-License-Identifier: Apache-2.0

package webhookserver

import (
	"slices"
	"strings"
	"testing"
)

func TestTheCertificateIsForTheNamesByWhichTheAPIServerAsks(t *testing.T) {
	for _, c := range []struct {
		o     Options
		hosts []string // besides those of this machine
		url   string
		err   string
	}{
		{o: Options{Address: "10.0.0.5:9443"}, hosts: []string{"10.0.0.5"}, url: "https://10.0.0.5:9443"},
		{o: Options{Address: ":9443", URL: "https://hooks.example.com:8443"}, hosts: []string{"hooks.example.com"}, url: "https://hooks.example.com:8443"},
		{o: Options{Address: "0.0.0.0:9443", Service: "policy/hooks:443"}, hosts: []string{"hooks.policy.svc", "hooks.policy.svc.cluster.local"}, url: "https://hooks.policy.svc:443"},
		{o: Options{Address: ":9443"}, err: "say how the API server reaches the webhooks"},
		{o: Options{Address: ":9443", URL: "http://plain.example.com"}, err: "--url: expected https://"},
		{o: Options{Address: ":9443", URL: "https://a:1", Service: "a/b:1"}, err: "one of them says"},
		{o: Options{Address: "9443"}, err: "--address"},
	} {
		hosts, err := c.o.hosts("cluster.local")
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: %v, want %q", c.o, err, c.err)
			}
			continue
		}
		if want := append([]string{"localhost", "127.0.0.1"}, c.hosts...); err != nil || !slices.Equal(hosts, want) {
			t.Errorf("%+v: %q, %v, want %q", c.o, hosts, err, want)
		}
		if got := (&Server{cfg: Config{Options: c.o}}).url(); got != c.url {
			t.Errorf("%+v: the authorizer asks at %s, want %s", c.o, got, c.url)
		}
	}
}
