package blobs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// partSize is how many bytes of an upload are in memory. An upload has at most 10,000
// parts, so a file has at most 160 GB.
const partSize = 16 << 20

// mostLink is how long S3 lets a link be valid.
const mostLink = 7 * 24 * time.Hour

// Credentials are those of an S3-compatible server.
type Credentials struct{ AccessKey, SecretKey string }

// Bucket is a Store in a bucket of an S3-compatible server.
type Bucket struct {
	client *minio.Client
	core   minio.Core
	bucket string
	prefix string // of all names; empty, or with a slash at its end
}

// OpenURL opens the store of a URL: file:///folder, or s3://bucket/prefix with the
// parameters endpoint (https://host; Amazon S3 by default) and region. It connects to
// nothing.
func OpenURL(text string, c Credentials) (Store, error) {
	u, endpoint, err := parse(text)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme == "file":
		return OpenFolder(u.Path)
	}
	return openBucket(u, endpoint, c, stallAfter)
}

// CheckURL returns why OpenURL would refuse the URL. A valid one has no credentials.
func CheckURL(text string) error {
	_, _, err := parse(text)
	return err
}

// Location identifies the store of a URL among those of all processes, without the parameters
// that do not. It contains no credentials.
func Location(text string) string {
	u, err := url.Parse(text)
	if err != nil || text == "" {
		return ""
	}
	at := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/" + strings.Trim(path.Clean(u.Path), "/")}
	if server, err := url.Parse(u.Query().Get("endpoint")); err == nil && server.Host != "" {
		at.RawQuery = url.Values{"endpoint": {server.Scheme + "://" + server.Host}}.Encode()
	}
	return at.String()
}

var (
	errURL = errors.New("must be a URL such as file:///var/lib/lemma/blobs or " +
		"s3://bucket/folder?endpoint=https://s3.example.com&region=eu-1, without other parameters and without credentials")
	errEndpoint = errors.New("the parameter endpoint must be a URL without a path and credentials, such as https://s3.example.com")
)

// parse returns the URL of a store, and its endpoint, which may be empty.
func parse(text string) (u, endpoint *url.URL, err error) {
	u, err = url.Parse(text)
	if err != nil || u.Opaque != "" || u.User != nil || u.Fragment != "" {
		return nil, nil, errURL
	}
	if u.Scheme == "file" && u.Host == "" && u.Path != "" && u.RawQuery == "" {
		return u, nil, nil
	}
	parameters, err := url.ParseQuery(u.RawQuery)
	if err != nil || u.Scheme != "s3" || u.Host == "" {
		return nil, nil, errURL
	}
	for name, values := range parameters {
		if name != "endpoint" && name != "region" || len(values) > 1 {
			return nil, nil, errURL
		}
	}
	endpoint, err = url.Parse(parameters.Get("endpoint"))
	if err != nil || *endpoint != (url.URL{Scheme: endpoint.Scheme, Host: endpoint.Host}) ||
		*endpoint != (url.URL{}) && (endpoint.Host == "" || endpoint.Scheme != "https" && endpoint.Scheme != "http") {
		return nil, nil, errEndpoint
	}
	return u, endpoint, nil
}

// openBucket opens s3://bucket/prefix. Calls fail when the server stalls for a time.
func openBucket(u, server *url.URL, c Credentials, stall time.Duration) (*Bucket, error) {
	if c.AccessKey == "" || c.SecretKey == "" {
		return nil, errors.New("S3 needs an access key and a secret key")
	}
	host, secure := server.Host, server.Scheme == "https"
	if host == "" {
		host, secure = "s3.amazonaws.com", true
	}
	lookup := minio.BucketLookupPath
	if strings.HasSuffix(host, ".amazonaws.com") {
		lookup = minio.BucketLookupAuto
	}
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fmt.Errorf("open S3: %w", err)
	}
	transport.DialContext = dialing(transport.DialContext, stall)
	core, err := minio.NewCore(host, &minio.Options{Creds: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""), Secure: secure,
		Region: u.Query().Get("region"), BucketLookup: lookup, Transport: transport})
	if err != nil {
		return nil, fmt.Errorf("open S3: %w", err)
	}
	b := &Bucket{client: core.Client, core: *core, bucket: u.Host, prefix: strings.Trim(u.Path, "/")}
	if b.prefix != "" {
		b.prefix += "/"
	}
	return b, nil
}

// Put is part of Store.
func (b *Bucket) Put(ctx context.Context, name string, r io.Reader) error {
	ahead, size := bufio.NewReader(r), int64(-1)
	if _, err := ahead.Peek(1); errors.Is(err, io.EOF) {
		size = 0 // servers refuse an upload whose only part is empty
	}
	_, err := b.client.PutObject(ctx, b.bucket, b.prefix+name, struct{ io.Reader }{ahead}, size, minio.PutObjectOptions{PartSize: partSize})
	return err
}

// Open is part of Store.
func (b *Bucket) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	var o minio.GetObjectOptions
	if offset > 0 {
		if err := o.SetRange(offset, 0); err != nil {
			return nil, err
		}
	}
	body, _, _, err := b.core.GetObject(ctx, b.bucket, b.prefix+name, o)
	return body, missing(err)
}

// Size is part of Store.
func (b *Bucket) Size(ctx context.Context, name string) (int64, error) {
	info, err := b.client.StatObject(ctx, b.bucket, b.prefix+name, minio.StatObjectOptions{})
	return info.Size, missing(err)
}

// missing is fs.ErrNotExist for the error of content that does not exist.
func missing(err error) error {
	if err != nil && minio.ToErrorResponse(err).StatusCode == http.StatusNotFound {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// Delete is part of Store. The parts of an upload that did not end are deleted too.
func (b *Bucket) Delete(ctx context.Context, name string) error {
	err := b.client.RemoveObject(ctx, b.bucket, b.prefix+name, minio.RemoveObjectOptions{})
	parts := b.client.RemoveIncompleteUpload(ctx, b.bucket, b.prefix+name)
	if minio.ToErrorResponse(parts).Code == minio.NoSuchUpload {
		parts = nil
	}
	return errors.Join(err, parts)
}

// Link is part of Signer.
func (b *Bucket) Link(ctx context.Context, name, filename string, valid time.Duration) (*url.URL, error) {
	disposition := mime.FormatMediaType("attachment", map[string]string{"filename": filename})
	return b.client.PresignedGetObject(ctx, b.bucket, b.prefix+name, min(max(valid, time.Second), mostLink),
		url.Values{"response-content-disposition": {disposition}})
}
