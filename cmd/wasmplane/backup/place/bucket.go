// SPDX-License-Identifier: Apache-2.0

package place

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/wasmplane/wasmplane/core/config"
)

// bucket is a Place with the interface of S3. Names of buckets are in the path, as every
// store knows them.
type bucket struct {
	at          *url.URL // of the bucket
	prefix      string
	region      string
	credentials string // the file
	http        *http.Client
}

// largest is what S3 takes in one request, in bytes.
const largest = 5 << 30

// nothing is the digest of an empty body.
const nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func newBucket(c *config.Configuration) (*bucket, error) {
	s := c.Backup.S3
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("backup.s3.endpoint: %w", err)
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CAFile != "" {
		pem, err := os.ReadFile(c.Path(s.CAFile))
		if err != nil {
			return nil, fmt.Errorf("backup.s3.caFile: %w", err)
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("backup.s3.caFile: %s has no certificate", s.CAFile)
		}
	}
	region := s.Region
	if region == "" {
		region = "us-east-1"
	}
	return &bucket{
		at: at.JoinPath(s.Bucket), prefix: s.Prefix, region: region, credentials: c.Path(s.CredentialsFile),
		http: &http.Client{
			Transport: &http.Transport{
				TLSClientConfig: trust, Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: 2 * time.Minute,
				TLSHandshakeTimeout: 30 * time.Second,
			},
			// A signature is for one host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// String implements Place.
func (b *bucket) String() string { return b.at.JoinPath(b.prefix).String() }

// Put implements Place.
func (b *bucket) Put(ctx context.Context, name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	sum, size, err := digest(f)
	if err != nil {
		return err
	}
	if size > largest {
		return fmt.Errorf("%s has %d bytes, and S3 takes %d at once: keep backups in a directory", name, size, int64(largest))
	}
	resp, err := b.do(ctx, http.MethodPut, b.prefix+name, nil, f, size, sum)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Get implements Place.
func (b *bucket) Get(ctx context.Context, name string, w io.Writer) error {
	resp, err := b.do(ctx, http.MethodGet, b.prefix+name, nil, nil, 0, nothing)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// Delete implements Place.
func (b *bucket) Delete(ctx context.Context, name string) error {
	resp, err := b.do(ctx, http.MethodDelete, b.prefix+name, nil, nil, 0, nothing)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// listing is a ListBucketResult.
type listing struct {
	Contents []struct {
		Key          string
		Size         int64
		LastModified time.Time
	}
	IsTruncated           bool
	NextContinuationToken string
}

// List implements Place.
func (b *bucket) List(ctx context.Context, prefix string) ([]Item, error) {
	var found []Item
	query := url.Values{"list-type": {"2"}, "prefix": {b.prefix + prefix}}
	const pages = 100 // of a thousand
	for range pages {
		resp, err := b.do(ctx, http.MethodGet, "", query, nil, 0, nothing)
		if err != nil {
			return nil, err
		}
		var page listing
		const most = 8 << 20
		err = xml.NewDecoder(io.LimitReader(resp.Body, most)).Decode(&page)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return nil, fmt.Errorf("list the backups in %s: %w", b, err)
		}
		for _, o := range page.Contents {
			found = append(found, Item{Name: strings.TrimPrefix(o.Key, b.prefix), Bytes: o.Size, Modified: o.LastModified})
		}
		if !page.IsTruncated || page.NextContinuationToken == "" {
			return found, nil
		}
		query.Set("continuation-token", page.NextContinuationToken)
	}
	return found, fmt.Errorf("%s has more than %d objects under this prefix: give backups one of their own", b, pages*1000)
}

// do sends a signed request. What the store refuses is an error with its code.
func (b *bucket) do(ctx context.Context, method, key string, query url.Values, body io.Reader, size int64, sum string,
) (*http.Response, error) {
	credentials, err := readCredentials(b.credentials)
	if err != nil {
		return nil, err
	}
	at := *b.at
	at.Path = path.Join("/", at.Path, key)
	at.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	req.Header.Set("X-Amz-Content-Sha256", sum)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err := signer.SignHTTP(ctx, credentials, req, sum, "s3", b.region, time.Now()); err != nil {
		return nil, fmt.Errorf("sign a request to %s: %w", b, err)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reach the backups' store: %w", err)
	}
	if resp.StatusCode/100 == 2 || method == http.MethodDelete && resp.StatusCode == http.StatusNotFound {
		return resp, nil
	}
	var refusal struct{ Code, Message string }
	const most = 64 << 10
	_ = xml.NewDecoder(io.LimitReader(resp.Body, most)).Decode(&refusal) // the status says enough
	_ = resp.Body.Close()
	return nil, fmt.Errorf("%s %s: the store answers %s %s %s", method, &at, resp.Status, refusal.Code, refusal.Message)
}

// readCredentials reads a file as the AWS tools have it: the section [default], or lines
// before any section.
func readCredentials(file string) (aws.Credentials, error) {
	f, err := os.Open(file)
	if err != nil {
		return aws.Credentials{}, fmt.Errorf("backup.s3.credentialsFile: %w", err)
	}
	defer func() { _ = f.Close() }()
	var c aws.Credentials
	ours := true
	lines := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			ours = line == "[default]"
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || !ours {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			c.AccessKeyID = value
		case "aws_secret_access_key":
			c.SecretAccessKey = value
		case "aws_session_token":
			c.SessionToken = value
		}
	}
	if err := lines.Err(); err != nil {
		return c, fmt.Errorf("backup.s3.credentialsFile: %w", err)
	}
	if c.AccessKeyID == "" || c.SecretAccessKey == "" {
		return c, fmt.Errorf("backup.s3.credentialsFile: %s lacks aws_access_key_id or aws_secret_access_key in its section [default]", file)
	}
	return c, nil
}
