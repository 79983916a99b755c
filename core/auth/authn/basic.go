// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Bounds of passwords. A hash of cost 14 takes about a second: more would let a
// few wrong guesses occupy a processor.
const (
	minCost     = 10
	maxCost     = 14
	maxPassword = 72 // bcrypt reads no more

	// checkers is how many passwords are compared at once.
	checkers = 2
	// A client that guesses gets this many tries for a name, then one every
	// guessEvery.
	guesses    = 5
	guessEvery = 10 * time.Second
	// A right password is believed for this long without being compared again.
	basicTTL  = time.Minute
	basicSeen = 1024
)

// Basic identifies by name and password (RFC 7617) against a file of bcrypt
// hashes. It exists for networks where nothing better is at hand: what it costs
// and how fast it can be guessed at is bounded, and it is off unless configured.
type Basic struct {
	file  string
	now   func() time.Time
	key   []byte
	users atomic.Pointer[map[string]credentials]
	// strangers is compared where there is no such user, so that names cannot be
	// told apart by the time that an answer takes.
	strangers atomic.Pointer[[]byte]
	slots     chan struct{}
	seen      *cache.LRUExpireCache // of right passwords, by keyed hash
	tries     *cache.LRUExpireCache // of limiters, by address and name
}

type credentials struct {
	hash []byte
	info *user.DefaultInfo
}

// NewBasic reads the file: bcrypt-hash,user,uid[,"group1,group2"] in each line.
func NewBasic(file string, now func() time.Time) (*Basic, error) {
	if now == nil {
		now = time.Now
	}
	b := &Basic{
		file: file, now: now, key: make([]byte, 32), slots: make(chan struct{}, checkers),
		seen: cache.NewLRUExpireCacheWithClock(basicSeen, clock(now)), tries: cache.NewLRUExpireCacheWithClock(4*basicSeen, clock(now)),
	}
	if _, err := rand.Read(b.key); err != nil {
		return nil, fmt.Errorf("make a key for the cache of passwords: %w", err)
	}
	return b, b.load()
}

// Reload takes the file on as it is now; passwords that were right are checked again.
func (b *Basic) Reload(context.Context) error { return b.load() }

func (b *Basic) load() error {
	f, err := os.Open(b.file)
	if err != nil {
		return fmt.Errorf("read the file of passwords: %w", err)
	}
	defer func() { _ = f.Close() }()
	users, err := parseBasic(f)
	if err != nil {
		return fmt.Errorf("%s:%w", b.file, err)
	}
	strangers, err := strangersHash(users)
	if err != nil {
		return err
	}
	b.users.Store(&users)
	b.strangers.Store(&strangers)
	b.seen.RemoveAll(func(any) bool { return true })
	return nil
}

// parseBasic reads the accounts; its errors begin with the line.
func parseBasic(r io.Reader) (map[string]credentials, error) {
	users := map[string]credentials{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		a, err := parseAccount(text)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
		if _, twice := users[a.info.Name]; twice {
			return nil, fmt.Errorf("%d: user %q is given twice", n, a.info.Name)
		}
		users[a.info.Name] = a
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf(" %w", err)
	}
	return users, nil
}

func parseAccount(line string) (credentials, error) {
	r := csv.NewReader(strings.NewReader(line))
	r.TrimLeadingSpace = true
	fields, err := r.Read()
	if err != nil {
		return credentials{}, fmt.Errorf("expected bcrypt-hash,user,uid,\"group1,group2\": %w", err)
	}
	if len(fields) < 3 || len(fields) > 4 {
		return credentials{}, fmt.Errorf("expected 3 or 4 fields (bcrypt-hash,user,uid,\"group1,group2\"), found %d", len(fields))
	}
	cost, err := bcrypt.Cost([]byte(fields[0]))
	if err != nil {
		return credentials{}, errors.New("the first field is not a bcrypt hash; passwords are never stored in the clear. Make one with: htpasswd -nbBC 12 USER PASSWORD")
	}
	if cost < minCost || cost > maxCost {
		return credentials{}, fmt.Errorf("expected a bcrypt cost from %d to %d, found %d", minCost, maxCost, cost)
	}
	name := fields[1]
	if name == "" || strings.ContainsRune(name, ':') || strings.HasPrefix(name, "system:") {
		return credentials{}, fmt.Errorf("%q cannot be a user's name here: it must not be empty, contain a colon or begin with \"system:\"", name)
	}
	info := &user.DefaultInfo{Name: name, UID: fields[2]}
	if len(fields) == 4 {
		for _, g := range strings.Split(fields[3], ",") {
			if g = strings.TrimSpace(g); g != "" {
				info.Groups = append(info.Groups, g)
			}
		}
	}
	return credentials{hash: []byte(fields[0]), info: info}, nil
}

func strangersHash(users map[string]credentials) ([]byte, error) {
	cost := minCost
	for _, a := range users {
		c, err := bcrypt.Cost(a.hash)
		if err != nil {
			return nil, err
		}
		cost = max(cost, c)
	}
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, fmt.Errorf("make a hash that no password has: %w", err)
	}
	return bcrypt.GenerateFromPassword(secret[:], cost)
}

// AuthenticateRequest implements authenticator.Request.
func (b *Basic) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return nil, false, nil
	}
	if len(password) > maxPassword || password == "" {
		return nil, false, errors.New("the password is empty or longer than bcrypt reads")
	}
	a, known := (*b.users.Load())[name]
	key := b.hash(name, password)
	if _, right := b.seen.Get(key); right && known {
		return b.response(r, a), true, nil
	}
	if wait := b.guess(r, name); wait > 0 {
		return nil, false, apierrors.NewTooManyRequests("too many wrong passwords; try again later", int(wait/time.Second)+1)
	}
	if !known {
		a.hash = *b.strangers.Load()
	}
	select {
	case b.slots <- struct{}{}:
	case <-r.Context().Done():
		return nil, false, r.Context().Err()
	}
	err := bcrypt.CompareHashAndPassword(a.hash, []byte(password))
	<-b.slots
	if err != nil || !known {
		return nil, false, fmt.Errorf("wrong name or password of %q", name)
	}
	b.seen.Add(key, struct{}{}, basicTTL)
	b.tries.Remove(guesser(r, name))
	return b.response(r, a), true, nil
}

func (b *Basic) response(r *http.Request, a credentials) *authenticator.Response {
	auds, _ := authenticator.AudiencesFrom(r.Context())
	info := *a.info
	return &authenticator.Response{User: &info, Audiences: auds}
}

// guess counts a try that has to be compared, and says how long it has to wait.
// Tries are counted by address too: a stranger must not lock a user out.
func (b *Basic) guess(r *http.Request, name string) time.Duration {
	key := guesser(r, name)
	limiter, ok := b.tries.Get(key)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(guessEvery), guesses)
		b.tries.Add(key, limiter, guesses*guessEvery)
	}
	now := b.now()
	reserved := limiter.(*rate.Limiter).ReserveN(now, 1)
	wait := reserved.DelayFrom(now)
	if wait > 0 {
		reserved.CancelAt(now)
	}
	return wait
}

func guesser(r *http.Request, name string) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return host + "\x00" + name
}

func (b *Basic) hash(name, password string) [sha256.Size]byte {
	h := hmac.New(sha256.New, b.key)
	h.Write([]byte(name + "\x00" + password)) // neither may contain a zero byte that matters: names come from the file
	return [sha256.Size]byte(h.Sum(nil))
}
