// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// TestAddresses: who may connect where. Whatever writes an address differently (an IPv4
// address in IPv6, a zone) is the same address.
func TestAddresses(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("93.184.0.0/16")}
	allowed := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("93.184.9.0/24")}
	public, operator, metadata := Public(allowed, cluster), Operator(nil), Policy{Private: true, Metadata: true}
	for _, c := range []struct {
		address                    string
		public, operator, metadata bool
	}{
		{"8.8.8.8", true, true, true},
		{"2606:4700::1111", true, true, true},
		{"127.0.0.1", false, true, true},
		{"::1", false, true, true},
		{"::ffff:127.0.0.1", false, true, true},
		{"10.1.2.3", false, true, true},
		{"10.9.2.3", true, true, true},
		{"192.168.1.1", false, true, true},
		{"172.16.0.1", false, true, true},
		{"fd12::1", false, true, true},
		{"100.64.0.1", false, true, true},
		{"93.184.1.1", false, true, true},
		{"93.184.9.1", true, true, true},
		{"169.254.169.254", false, false, true},
		{"::ffff:169.254.169.254", false, false, true},
		{"169.254.1.1", false, false, true},
		{"fe80::1%eth0", false, false, true},
		{"fd00:ec2::254", false, false, true},
		{"100.100.100.200", false, false, true},
		{"168.63.129.16", false, false, true},
		{"64:ff9b::a9fe:a9fe", false, true, true},
		{"2002:7f00:1::1", false, true, true},
		{"::127.0.0.1", false, true, true},
		{"0.0.0.0", false, false, false},
		{"::", false, false, false},
		{"224.0.0.1", false, false, false},
		{"ff02::1", false, false, false},
		{"255.255.255.255", false, false, false},
	} {
		a := netip.MustParseAddr(c.address)
		for name, one := range map[string]struct {
			p    Policy
			want bool
		}{"public": {public, c.public}, "operator": {operator, c.operator}, "metadata": {metadata, c.metadata}} {
			if err := one.p.Check(a); (err == nil) != one.want || err != nil && !Refused(err) {
				t.Errorf("%s: %s: %v", name, a, err)
			}
		}
	}
}

// TestTheAddressThatIsConnectedToCounts: not the name, whatever it was resolved to when
// somebody looked, nor the place that a public server sends one on to. A proxy of the
// environment would connect in our place, and is not asked.
func TestTheAddressThatIsConnectedToCounts(t *testing.T) {
	asked := 0
	near := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer near.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(near.URL, "http://"), ":")
	t.Setenv("HTTP_PROXY", near.URL)
	client := &http.Client{Transport: Public(nil, nil).Guard(http.DefaultTransport.(*http.Transport).Clone())}
	defer client.CloseIdleConnections()
	// "localhost" stands for a name whose second answer is loopback: nobody looks at the first.
	for _, url := range []string{near.URL, "http://localhost:" + port, "http://[::ffff:127.0.0.1]:" + port} {
		resp, err := client.Get(url) // it is refused
		if err == nil {
			_ = resp.Body.Close()
		}
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", url, err)
		}
	}
	if asked != 0 {
		t.Errorf("the server was asked %d times", asked)
	}
	resp, err := (&http.Client{Transport: Operator(nil).Guard(&http.Transport{DisableKeepAlives: true})}).Get(near.URL) // it is here
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if asked != 1 {
		t.Errorf("an operator's dial did not arrive")
	}
}
