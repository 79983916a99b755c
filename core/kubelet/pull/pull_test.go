// SPDX-License-Identifier: Apache-2.0

package pull_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pull"
)

// store holds images in memory.
type store struct {
	mu     sync.Mutex
	images map[string]*cri.Image
	users  []string // who pulled
	err    func(auth *cri.AuthConfig) error
	takes  time.Duration
	now    int
	most   int
}

func (s *store) PullImage(_ context.Context, spec *cri.ImageSpec, auth *cri.AuthConfig, _ *cri.PodSandboxConfig) (string, error) {
	s.mu.Lock()
	s.users = append(s.users, auth.GetUsername())
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	if s.err != nil {
		if err := s.err(auth); err != nil {
			return "", err
		}
	}
	s.images[spec.Image] = &cri.Image{Id: "id-" + spec.Image, Size: 7}
	return "id-" + spec.Image, nil
}

func (s *store) ImageStatus(_ context.Context, spec *cri.ImageSpec) (*cri.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, img := range s.images {
		if name == spec.Image || img.Id == spec.Image {
			return img, nil
		}
	}
	return nil, nil
}

func (s *store) ListImages(context.Context) ([]*cri.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*cri.Image
	for _, i := range s.images {
		out = append(out, i)
	}
	return out, nil
}

func (s *store) RemoveImage(_ context.Context, spec *cri.ImageSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, img := range s.images {
		if img.Id == spec.Image {
			delete(s.images, name)
		}
	}
	return nil
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		policy  corev1.PullPolicy
		there   bool
		image   string
		failing bool
		reason  string
		events  string
	}{
		{corev1.PullIfNotPresent, true, "web:1", false, "", `Pulled Container image "web:1" already present on machine`},
		{corev1.PullIfNotPresent, false, "web:1", false, "", `Pulling Pulling image "web:1"|Pulled Successfully pulled image "web:1" in 0s (0s including waiting). Image size: 7 bytes.`},
		{corev1.PullAlways, true, "web:1", false, "", `Pulling Pulling image "web:1"|Pulled Successfully pulled image "web:1" in 0s (0s including waiting). Image size: 7 bytes.`},
		{corev1.PullNever, true, "web:1", false, "", `Pulled Container image "web:1" already present on machine`},
		{corev1.PullNever, false, "web:1", false, "ErrImageNeverPull", `ErrImageNeverPull Container image "web:1" is not present with pull policy of Never`},
		{corev1.PullAlways, true, "web:1", true, "ErrImagePull", `Pulling Pulling image "web:1"|Failed Failed to pull image "web:1": no such host`},
		{corev1.PullIfNotPresent, false, "Not:Valid:Name", false, "InvalidImageName", `InspectFailed Failed to apply default image tag "Not:Valid:Name": couldn't parse image name "Not:Valid:Name": invalid reference format: repository name (library/Not) must be lowercase`},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{images: map[string]*cri.Image{}}
			if c.there {
				s.images["docker.io/library/web:1"] = &cri.Image{Id: "id"}
			}
			if c.failing {
				s.err = func(*cri.AuthConfig) error { return errors.New("no such host") }
			}
			var events []string
			ref, err := pull.New(s, 0).Ensure(t.Context(),
				pull.Request{Image: c.image, Policy: c.policy, Tell: func(_, reason, msg string) { events = append(events, reason+" "+msg) }})
			var f *pull.Failure
			switch {
			case c.reason == "" && (err != nil || ref == ""):
				t.Errorf("%v: %q %v", c, ref, err)
			case c.reason != "" && (!errors.As(err, &f) || f.Reason != c.reason):
				t.Errorf("%v: %v", c, err)
			}
			if got := strings.Join(events, "|"); got != c.events {
				t.Errorf("events\n%s\nwant\n%s", got, c.events)
			}
		})
	}
}

func TestPullsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{images: map[string]*cri.Image{}, takes: time.Second}
		p := pull.New(s, 2)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				if _, err := p.Ensure(t.Context(), pull.Request{
					Image: fmt.Sprint("web:", i), Policy: corev1.PullAlways,
					Tell: func(string, string, string) {},
				}); err != nil {
					t.Error(err)
				}
			})
		}
		began := time.Now()
		wg.Wait()
		if took := time.Since(began); s.most != 2 || took != 3*time.Second {
			t.Errorf("%d at once, in %v", s.most, took)
		}
	})
}

func secret(kind corev1.SecretType, key, data string) *corev1.Secret {
	return &corev1.Secret{Type: kind, Data: map[string][]byte{key: []byte(data)}}
}

func auths(entries ...string) *corev1.Secret {
	var list []string
	for i := 0; i < len(entries); i += 2 {
		list = append(list, fmt.Sprintf(`%q:{"auth":%q}`, entries[i], base64.StdEncoding.EncodeToString([]byte(entries[i+1]+":pw"))))
	}
	return secret(corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, `{"auths":{`+strings.Join(list, ",")+`}}`)
}

func TestCredentialsAreMatchedByRegistry(t *testing.T) {
	ring := &pull.Keyring{}
	if err := ring.AddSecret(auths("https://index.docker.io/v1/", "hub", "r.example.org", "all", "r.example.org/team", "team", "*.wild.org",
		"wild", "port.org:5000", "port")); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"nginx":                     "hub",
		"docker.io/me/x:1":          "hub",
		"r.example.org/x":           "all",
		"r.example.org/team/x:1":    "team all",
		"r.example.org/teammates/x": "all",
		"a.wild.org/x":              "wild",
		"a.b.wild.org/x":            "",
		"port.org:5000/x@sha256:" + strings.Repeat("a", 64): "port",
		"port.org/x":               "",
		"port.org:5001/x":          "",
		"r.example.org.evil.com/x": "",
		"evil.com/r.example.org/x": "",
		"not a name":               "",
	} {
		var got []string
		for _, a := range ring.Lookup(image) {
			got = append(got, a.Username)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", image, got, want)
		}
	}
}

func TestCredentialsAreTriedInOrder(t *testing.T) {
	ring := &pull.Keyring{}
	if err := ring.AddSecret(auths("r.org/a", "wrong", "r.org", "right")); err != nil {
		t.Fatal(err)
	}
	s := &store{images: map[string]*cri.Image{}, err: func(a *cri.AuthConfig) error {
		if a.GetUsername() != "right" || a.GetPassword() != "pw" {
			return errors.New("unauthorized")
		}
		return nil
	}}
	_, err := pull.New(s, 0).Ensure(t.Context(), pull.Request{
		Image: "r.org/a/b", Policy: corev1.PullAlways,
		Tell: func(string, string, string) {}, Credentials: func(context.Context) *pull.Keyring { return ring },
	})
	if err != nil || !slices.Equal(s.users, []string{"wrong", "right"}) {
		t.Errorf("%v, %v", s.users, err)
	}
}

func TestBadSecretsSaySo(t *testing.T) {
	for want, s := range map[string]*corev1.Secret{
		"an image pull secret is of type": secret(corev1.SecretTypeOpaque, "x", ""),
		"read .dockerconfigjson":          secret(corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, "{"),
		"USER:PASSWORD":                   secret(corev1.SecretTypeDockercfg, corev1.DockerConfigKey, `{"r.org":{"auth":"!"}}`),
	} {
		if err := (&pull.Keyring{}).AddSecret(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func FuzzSecret(f *testing.F) {
	f.Add([]byte(`{"auths":{"r.org":{"auth":"YTpi"}}}`), "r.org/x")
	f.Fuzz(func(_ *testing.T, data []byte, image string) {
		ring := &pull.Keyring{}
		_ = ring.AddSecret(secret(corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, string(data)))
		_ = ring.AddSecret(secret(corev1.SecretTypeDockercfg, corev1.DockerConfigKey, string(data)))
		ring.Lookup(image)
	})
}

func TestUnusedImagesGoWhenTheDiskFills(t *testing.T) {
	s := &store{images: map[string]*cri.Image{}}
	for _, n := range []string{"old", "used", "new", "pinned"} {
		s.images[n] = &cri.Image{Id: n, Size: 10, Pinned: n == "pinned"}
	}
	inUse, disk := map[string]bool{"used": true, "new": true}, uint64(50)
	c := &pull.Collector{
		Images: s, InUse: func(context.Context) (map[string]bool, error) { return inUse, nil },
		Disk: func(context.Context) (uint64, uint64, error) { return disk, 100, nil },
	}
	now := time.Now()
	look := func() string {
		t.Helper()
		now = now.Add(5 * time.Minute)
		removed, err := c.Collect(t.Context(), now)
		if err != nil {
			return strings.Join(removed, " ") + " " + err.Error()
		}
		return strings.Join(removed, " ")
	}
	if got := look(); got != "" {
		t.Errorf("with room: %s", got)
	}
	disk = 88
	inUse = map[string]bool{"used": true}
	if got := look(); got != "old" {
		t.Errorf("88 percent: %s", got)
	}
	disk = 99
	if got := look(); got != "new the disk is 89% full and all images that may go are gone: 9 bytes are still too many" {
		t.Errorf("99 percent: %s", got)
	}
}

// What nothing has used for too long goes, however much room there is. What a container uses does not, nor what is pinned.
func TestImagesThatAreTooOldGo(t *testing.T) {
	s := &store{images: map[string]*cri.Image{}}
	for _, n := range []string{"never", "once", "used", "pinned"} {
		s.images[n] = &cri.Image{Id: n, Size: 10, Pinned: n == "pinned"}
	}
	inUse := map[string]bool{"used": true, "once": true}
	c := &pull.Collector{
		Limits: pull.Limits{MaxAge: time.Hour},
		Images: s, InUse: func(context.Context) (map[string]bool, error) { return inUse, nil },
		Disk: func(context.Context) (uint64, uint64, error) { return 1, 100, nil },
	}
	began := time.Now()
	for _, look := range []struct {
		after time.Duration
		want  string
	}{
		{0, ""},
		{30 * time.Minute, ""},
		{time.Hour, ""},
		{time.Hour + time.Second, "never"},
		{90 * time.Minute, ""},
		{90*time.Minute + time.Second, "once"},
		{24 * time.Hour, ""},
	} {
		removed, err := c.Collect(t.Context(), began.Add(look.after))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(removed, " "); got != look.want {
			t.Errorf("after %v %q went, want %q", look.after, got, look.want)
		}
		if look.after == 30*time.Minute {
			delete(inUse, "once")
		}
	}
}
