// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/url"
	"path/filepath"

	"github.com/robfig/cron/v3"
)

// Backup says when and where to the servers save the store by themselves; one of them does.
type Backup struct {
	// Schedule is that of a CronJob: five fields, or @daily; TZ=... before it chooses the
	// time zone. Empty: no backups are taken.
	Schedule string `yaml:"schedule"`
	// Directory that backups are written to, on the server that takes them. Either this or s3.
	Directory string `yaml:"directory"`
	// S3 is a bucket that backups are written to.
	S3 S3 `yaml:"s3"`
	// Keep is how many backups are kept; older ones are removed.
	Keep int `yaml:"keep"`
}

// S3 is a bucket of Amazon S3, or of another store with its interface.
type S3 struct {
	// Endpoint is the URL of the store: https://s3.eu-central-1.amazonaws.com.
	Endpoint string `yaml:"endpoint"`
	// Bucket, which is there already.
	Bucket string `yaml:"bucket"`
	// Prefix of the objects' names.
	Prefix string `yaml:"prefix"`
	// Region that requests are signed for; empty: us-east-1, which most other stores take.
	Region string `yaml:"region"`
	// CredentialsFile is one as the AWS tools', with aws_access_key_id and
	// aws_secret_access_key (and aws_session_token) in the section [default]. It is read
	// for each backup.
	CredentialsFile string `yaml:"credentialsFile"`
	// CAFile (PEM) is the authority of the store's certificate; empty: the system's.
	CAFile string `yaml:"caFile"`
}

func (c *Configuration) checkBackup() error {
	b := c.Backup
	if b.Schedule == "" && b.Directory == "" && b.S3 == (S3{}) {
		return nil
	}
	if b.Schedule != "" {
		if _, err := cron.ParseStandard(b.Schedule); err != nil {
			return field("backup.schedule", "expected five fields as of a CronJob, or @daily, found %q: %v", b.Schedule, err)
		}
	}
	if b.Keep < 1 {
		return field("backup.keep", "expected at least 1, found %d", b.Keep)
	}
	if (b.Directory == "") == (b.S3 == S3{}) {
		return field("backup.directory", "give either directory or s3: that is where backups go")
	}
	if b.Directory != "" {
		if !filepath.IsAbs(b.Directory) && c.File == "" {
			return field("backup.directory", "expected an absolute path, found %q", b.Directory)
		}
		return nil
	}
	u, err := url.Parse(b.S3.Endpoint)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" ||
		u.User != nil {
		return field("backup.s3.endpoint", "expected https://HOST or https://HOST:PORT, found %q", b.S3.Endpoint)
	}
	if b.S3.Bucket == "" {
		return field("backup.s3.bucket", "name the bucket")
	}
	if b.S3.CredentialsFile == "" {
		return field("backup.s3.credentialsFile", "name the file that has aws_access_key_id and aws_secret_access_key; they are taken from nowhere else")
	}
	return nil
}
