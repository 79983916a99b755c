// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/chart/release"
)

func record() *release.Record {
	at := release.Time{Time: time.Unix(1000, 0).UTC()}
	return &release.Record{
		Name: "shop", Namespace: "market", Version: 3, Chart: json.RawMessage(`{"metadata":{"name":"shop"}}`), Config: json.RawMessage(`{"a":1}`),
		Info:     release.Info{FirstDeployed: at, LastDeployed: at, Status: release.Deployed, Description: "Install complete"},
		Manifest: "---\nkind: X\n", Hooks: []*release.Hook{{
			Name: "h", Events: []string{"pre-install"}, LastRun: release.Run{Phase: release.HookRunning, StartedAt: at},
		}},
		Marks: map[string]string{"m": "1"},
	}
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	r := record()
	s, err := r.Secret(time.Unix(2000, 0))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "sh.helm.release.v1.shop.v3" || s.Type != "helm.sh/release.v1" || s.Labels["owner"] != "helm" ||
		s.Labels["status"] != "deployed" ||
		s.Labels["version"] != "3" || s.Labels["createdAt"] != "2000" || release.VersionOf(s) != 3 || release.StatusOf(s) != release.Deployed {
		t.Errorf("%+v", s.ObjectMeta)
	}
	s.ResourceVersion = "7"
	s.Labels["team"] = "red" // as helm --labels does
	got, err := release.Read(s)
	if err != nil {
		t.Fatal(err)
	}
	was, _ := json.Marshal(r)
	is, _ := json.Marshal(got)
	if string(was) != string(is) || got.Marks["m"] != "1" || got.On("pre-install")[0].LastRun.Phase != release.HookRunning {
		t.Errorf("%s\n%s", was, is)
	}
	again, err := got.Secret(time.Unix(3000, 0))
	if err != nil || again.ResourceVersion != "7" || again.Labels["modifiedAt"] != "3000" || again.Labels["team"] != "red" {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestADamagedRecordIsRefused(t *testing.T) {
	packed := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(text))
		_ = w.Close()
		return base64.StdEncoding.EncodeToString(b.Bytes())
	}
	for name, c := range map[string]struct{ data, want string }{
		"no base64":       {"%", "no base64"},
		"no release":      {packed("hello"), "no release"},
		"a null hook":     {packed(`{"name":"shop","version":1,"hooks":[null]}`), "hook is null"},
		"another's":       {packed(`{"name":"other","version":1}`), "says that it is sh.helm.release.v1.other.v1"},
		"a bomb":          {packed(strings.Repeat(" ", release.MaxUnpacked+1)), "more than"},
		"half of a zip":   {base64.StdEncoding.EncodeToString([]byte{0x1f, 0x8b, 0x08, 0}), "unpack it"},
		"without packing": {base64.StdEncoding.EncodeToString([]byte(`{"name":"shop","version":1,"info":{"deleted":""}}`)), ""},
	} {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "market", Name: release.Key("shop", 1)}, Data: map[string][]byte{"release": []byte(c.data)},
		}
		_, err := release.Read(s)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestAReleaseThatIsTooLargeIsRefused(t *testing.T) {
	r := record()
	noise := make([]byte, release.MaxStored)
	_, _ = rand.Read(noise)
	r.Manifest = base64.StdEncoding.EncodeToString(noise)
	if _, err := r.Secret(time.Now()); err == nil || !strings.Contains(err.Error(), ".helmignore") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	s, err := record().Secret(time.Unix(1, 0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(s.Data["release"])
	f.Add([]byte("e30="))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := release.Read(&corev1.Secret{ObjectMeta: s.ObjectMeta, Data: map[string][]byte{"release": data}})
		if err != nil {
			return
		}
		_, err = r.Secret(time.Unix(1, 0))
		if err != nil && !strings.Contains(err.Error(), "bytes") && !strings.Contains(err.Error(), "encode") {
			t.Error(err)
		}
		r.On("pre-install")
	})
}
