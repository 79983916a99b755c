// SPDX-License-Identifier: Apache-2.0

package place

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
)

func TestCredentialsComeFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	for text, want := range map[string]string{
		"aws_access_key_id = a\naws_secret_access_key=b=c\n":                                                     "a b=c ",
		"[other]\naws_access_key_id=x\n[default]\naws_access_key_id=a\naws_secret_access_key=b\n":                "a b ",
		"[default]\naws_access_key_id=a\naws_secret_access_key=b\naws_session_token=t\n[x]\naws_access_key_id=z": "a b t",
		"[default]\naws_access_key_id=a\n":                                                                       "",
		"[other]\naws_access_key_id=a\naws_secret_access_key=b\n":                                                "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readCredentials(file)
		switch got := c.AccessKeyID + " " + c.SecretAccessKey + " " + c.SessionToken; {
		case want == "" && (err == nil || !strings.Contains(err.Error(), file+" lacks")):
			t.Errorf("%q: %v", text, err)
		case want != "" && (err != nil || got != want):
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestAPlaceIsOneOrNone(t *testing.T) {
	s3 := config.S3{Endpoint: "https://objects.example.com", Bucket: "b", CredentialsFile: "c", Prefix: "p/"}
	for name, c := range map[string]struct {
		backup config.Backup
		no     string
	}{
		"none":       {config.Backup{Keep: 7}, ""},
		"folder":     {config.Backup{Schedule: "@daily", Directory: "/b", Keep: 7}, ""},
		"bucket":     {config.Backup{Schedule: "TZ=Europe/Berlin 30 3 * * *", S3: s3, Keep: 7}, ""},
		"both":       {config.Backup{Schedule: "@daily", Directory: "/b", S3: s3, Keep: 7}, "backup.directory"},
		"neither":    {config.Backup{Schedule: "@daily", Keep: 7}, "backup.directory"},
		"schedule":   {config.Backup{Schedule: "daily", Directory: "/b", Keep: 7}, "backup.schedule"},
		"keep":       {config.Backup{Schedule: "@daily", Directory: "/b"}, "backup.keep"},
		"url":        {config.Backup{S3: config.S3{Endpoint: "objects.example.com", Bucket: "b", CredentialsFile: "c"}, Keep: 7}, "backup.s3.endpoint"},
		"secret":     {config.Backup{S3: config.S3{Endpoint: "https://key:secret@objects", Bucket: "b", CredentialsFile: "c"}, Keep: 7}, "backup.s3.endpoint"},
		"no bucket":  {config.Backup{S3: config.S3{Endpoint: "https://objects", CredentialsFile: "c"}, Keep: 7}, "backup.s3.bucket"},
		"no secrets": {config.Backup{S3: config.S3{Endpoint: "https://objects", Bucket: "b"}, Keep: 7}, "backup.s3.credentialsFile"},
	} {
		all := config.Default()
		all.Backup = c.backup
		err := all.Complete()
		if c.no != "" {
			if err == nil || !strings.Contains(err.Error(), c.no) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if at, err := Of(all); err != nil || (at == nil) != (name == "none") {
			t.Errorf("%s: %v, %v", name, at, err)
		}
	}
}
