// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	defaultResolvConf = "/etc/resolv.conf"
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
	// lookAgain is how often the host's resolvers are looked up, at most.
	lookAgain = 5 * time.Second
	// forwardTimeout bounds one resolver, forwardsAtOnce the questions under way:
	// with the uplink gone, each waits for that long.
	forwardTimeout = 2 * time.Second
	forwardsAtOnce = 1000
)

// forwarder asks the host's resolvers. The one that answered last is asked first.
type forwarder struct {
	fixed []netip.AddrPort
	file  string
	own   []netip.AddrPort // never asked: that would be us
	slots chan struct{}
	log   *slog.Logger

	mu      sync.Mutex
	known   []netip.AddrPort
	looked  time.Time
	changed time.Time
}

func newForwarder(cfg Config) *forwarder {
	return &forwarder{fixed: cfg.Upstream, file: cfg.ResolvConf, own: cfg.Listen, slots: make(chan struct{}, forwardsAtOnce), log: cfg.Log}
}

// Name implements plugin.Handler.
func (f *forwarder) Name() string { return "forward" }

// ServeDNS implements plugin.Handler.
func (f *forwarder) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return dns.RcodeServerFailure, fmt.Errorf("%d questions wait for the host's resolvers already", forwardsAtOnce)
	}
	network := "udp"
	if w.RemoteAddr().Network() == "tcp" {
		network = "tcp"
	}
	answer, err := f.ask(ctx, network, r)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	answer.Id = r.Id
	if err := w.WriteMsg(answer); err != nil {
		return dns.RcodeServerFailure, fmt.Errorf("answer: %w", err)
	}
	return answer.Rcode, nil
}

// ask tries one resolver after the other. A refusal or failure of one is kept
// in case that nobody knows better.
func (f *forwarder) ask(ctx context.Context, network string, r *dns.Msg) (*dns.Msg, error) {
	resolvers := f.resolvers()
	if len(resolvers) == 0 {
		return nil, errors.New("this machine names no resolver to ask: set dns.upstream, or a nameserver in " + defaultResolvConf)
	}
	var errs []error
	var poor *dns.Msg
	for _, at := range resolvers {
		// An identifier of our own: the client's is known to the client.
		q := r.Copy()
		q.Id = dns.Id()
		c := dns.Client{Net: network, Timeout: forwardTimeout, UDPSize: dns.DefaultMsgSize}
		answer, _, err := c.ExchangeContext(ctx, q, at.String())
		switch {
		case err != nil:
			errs = append(errs, err)
		case !answers(q, answer):
			errs = append(errs, fmt.Errorf("%s answered another question", at))
		case answer.Rcode == dns.RcodeServerFailure || answer.Rcode == dns.RcodeRefused:
			poor = answer
		default:
			f.prefer(at)
			return answer, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	if poor != nil {
		return poor, nil
	}
	return nil, fmt.Errorf("no resolver answered: %w", errors.Join(errs...))
}

func answers(q, a *dns.Msg) bool {
	return a != nil && a.Response && len(a.Question) == 1 && len(q.Question) == 1 &&
		a.Question[0].Qtype == q.Question[0].Qtype && strings.EqualFold(a.Question[0].Name, q.Question[0].Name)
}

// prefer puts a resolver in front.
func (f *forwarder) prefer(at netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.known, at); i > 0 {
		f.known = slices.Insert(slices.Delete(slices.Clone(f.known), i, i+1), 0, at)
	}
}

// resolvers looks at the file again when it has changed: laptops move.
func (f *forwarder) resolvers() []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.fixed) > 0 {
		if f.known == nil {
			f.known = f.others(f.fixed)
		}
		return f.known
	}
	now := time.Now()
	if now.Sub(f.looked) < lookAgain {
		return f.known
	}
	f.looked = now
	file := f.file
	if file == "" {
		file = hostResolvConf(defaultResolvConf, systemdResolvConf)
	}
	info, err := os.Stat(file)
	if err != nil {
		f.log.Warn("the host's resolvers are not known", "file", file, "error", err)
		return f.known
	}
	if info.ModTime().Equal(f.changed) && f.known != nil {
		return f.known
	}
	list, err := readResolvConf(file)
	if err != nil {
		f.log.Warn("the host's resolvers are not known", "file", file, "error", err)
		return f.known
	}
	f.changed, f.known = info.ModTime(), f.others(list)
	return f.known
}

// others leaves out ourselves.
func (f *forwarder) others(list []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.AddrPort) bool { return slices.Contains(f.own, a) })
}

// hostResolvConf prefers systemd-resolved's real resolvers to its stub, which
// knows names that pods must not be given.
func hostResolvConf(usual, upstream string) string {
	list, err := readResolvConf(usual)
	if err != nil {
		return usual
	}
	for _, a := range list {
		if !a.Addr().IsLoopback() {
			return usual
		}
	}
	if found, err := readResolvConf(upstream); err == nil && len(found) > 0 {
		return upstream
	}
	return usual
}

// readResolvConf returns the nameservers of a resolv.conf(5).
func readResolvConf(file string) ([]netip.AddrPort, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var found []netip.AddrPort
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if a, ok := nameserver(lines.Text()); ok {
			found = append(found, a)
		}
	}
	return found, lines.Err()
}

func nameserver(line string) (netip.AddrPort, bool) {
	line, _, _ = strings.Cut(line, "#")
	line, _, _ = strings.Cut(line, ";")
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "nameserver" {
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddr(words[1])
	return netip.AddrPortFrom(a, 53), err == nil
}
