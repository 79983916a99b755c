// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/pki"
)

func hashOf(t *testing.T, password string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(password), minCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(h)
}

type basicWorld struct {
	*Authenticator
	b    *Basic
	file string
	now  time.Time
}

func newBasicWorld(t *testing.T, lines string) *basicWorld {
	t.Helper()
	w := &basicWorld{file: filepath.Join(t.TempDir(), "passwords"), now: time.Now()}
	w.write(t, lines)
	var err error
	if w.b, err = NewBasic(w.file, func() time.Time { return w.now }); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.Open(pki.Config{Dir: filepath.Join(t.TempDir(), "pki")})
	if err != nil {
		t.Fatal(err)
	}
	if w.Authenticator, err = New(Config{Basic: w.b, ClientCAs: pool(ca.ClusterCA()), Audiences: []string{audience}}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *basicWorld) write(t *testing.T, lines string) {
	t.Helper()
	if err := os.WriteFile(w.file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *basicWorld) login(name, password, from string) (string, []string, error) {
	r := httptest.NewRequest("GET", "/api", nil)
	r.RemoteAddr = from + ":1234"
	r.SetBasicAuth(name, password)
	resp, ok, err := w.AuthenticateRequest(r)
	if !ok {
		return "", nil, errors.Join(errors.New("refused"), err)
	}
	if r.Header.Get("Authorization") != "" {
		return "", nil, errors.New("the password is still on the request")
	}
	return resp.User.GetName(), resp.User.GetGroups(), nil
}

func TestPasswords(t *testing.T) {
	w := newBasicWorld(t, fmt.Sprintf("# people\n%s,ann,u1,\"dev,ops\"\n\n%s,bob,u2\n", hashOf(t, "right"), hashOf(t, "b")))
	name, groups, err := w.login("ann", "right", "192.0.2.1")
	if err != nil || name != "ann" || !slices.Equal(groups, []string{"dev", "ops", "system:authenticated"}) {
		t.Errorf("%s in %q: %v", name, groups, err)
	}
	for _, c := range [][2]string{
		{"ann", "wrong"},
		{"ann", ""},
		{"nobody", "right"},
		{"ann", strings.Repeat("x", 80)},
		{"", "right"},
		{"bob", "right"},
	} {
		if _, _, err := w.login(c[0], c[1], "192.0.2.1"); err == nil {
			t.Errorf("%q was let in", c)
		}
	}
	// A removed user is out at once, also out of the cache.
	w.write(t, hashOf(t, "b")+",bob,u2\n")
	if err := w.b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.login("ann", "right", "192.0.2.1"); err == nil {
		t.Error("a removed user was let in")
	}
}

func TestGuessingIsSlowedDownForTheGuesserAlone(t *testing.T) {
	w := newBasicWorld(t, hashOf(t, "right")+",ann,u1\n")
	for i := range guesses {
		if _, _, err := w.login("ann", fmt.Sprint("guess", i), "192.0.2.66"); apierrors.IsTooManyRequests(err) {
			t.Fatalf("try %d was refused as one too many", i)
		}
	}
	_, _, err := w.login("ann", "right", "192.0.2.66")
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != 429 || status.Status().Details.RetryAfterSeconds < 1 {
		t.Errorf("after %d guesses: %v", guesses, err)
	}
	if _, _, err := w.login("ann", "right", "192.0.2.1"); err != nil {
		t.Errorf("another address is locked out: %v", err)
	}
	w.now = w.now.Add(2 * guessEvery)
	if _, _, err := w.login("ann", "right", "192.0.2.66"); err != nil {
		t.Errorf("after a pause: %v", err)
	}
}

func TestFilesOfPasswordsThatAreRefused(t *testing.T) {
	low, err := bcrypt.GenerateFromPassword([]byte("x"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	good := hashOf(t, "x")
	for line, want := range map[string]string{
		"secret,ann,u1":                   "not a bcrypt hash",
		string(low) + ",ann,u1":           "cost from 10 to 14",
		good + ",ann":                     "3 or 4 fields",
		good + ",system:admin,u1":         "cannot be a user's name",
		good + ",a:b,u1":                  "cannot be a user's name",
		good + ",a,1\n" + good + ",a,2":   "given twice",
		good + ",a,1\n\"" + good + ",b,2": ":2:",
	} {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewBasic(file, nil); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), file+":") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func FuzzParseBasic(f *testing.F) {
	f.Add("$2a$10$aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,ann,u1,\"a,b\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		users, err := parseBasic(strings.NewReader(text))
		for name := range users {
			if err != nil || name == "" || strings.Contains(name, ":") {
				t.Errorf("user %q, error %v", name, err)
			}
		}
	})
}
