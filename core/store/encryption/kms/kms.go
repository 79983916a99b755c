// SPDX-License-Identifier: Apache-2.0

// Package kms is a provider of encryption at rest whose key is held by a KMS v2
// plugin: a process of its own, behind a unix socket, that never gives the key away.
//
// What is stored is upstream's: a value is sealed with a key that is derived from
// a seed, and the seed, sealed by the plugin, stands beside it. The plugin is asked
// once for a seed, not once for a value: writes and reads go on at full speed, and
// for a while without it. Its status is asked for every minute; a new key there
// makes a new seed. When it no longer answers, what was read before stays readable
// and writes go on for three minutes at most, so that a key that was taken away is
// not used for long.
package kms

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/metrics"
	"k8s.io/kms/pkg/service"
)

// Prefix of stored values; the provider's name and a colon follow.
const Prefix = "k8s:enc:kms:v2:"

const (
	// healthyEvery and failingEvery are the pauses between two questions.
	healthyEvery = time.Minute
	failingEvery = 10 * time.Second
	// writableFor is how long a seed is written with after the plugin last said
	// that its key is still the right one.
	writableFor = 3 * time.Minute
	// serverID stands in metrics where upstream has the server's identity.
	serverID = "wasmplane"
)

// Config names a plugin.
type Config struct {
	// Name is part of what is stored.
	Name string
	// Endpoint is unix:///PATH.
	Endpoint string
	// Timeout of one call.
	Timeout time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	Log *slog.Logger // nil: discard
}

// Provider seals and opens values with a plugin's key.
type Provider struct {
	cfg     Config
	service service.Service
	hangUp  context.CancelFunc
	state   atomic.Pointer[kmsv2.State]
	sealed  value.Transformer

	mu      sync.Mutex // held while the plugin is asked
	version string     // of the plugin's protocol, which must not change
	asked   time.Time
	problem error // of the last answer
}

// Open connects to a plugin; whether it answers is seen by the first Poll. The
// connection ends with Close, not with ctx.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	s, err := kmsv2.NewGRPCService(ctx, cfg.Endpoint, cfg.Name, cfg.Timeout)
	if err != nil {
		hangUp()
		return nil, fmt.Errorf("KMS plugin %s: %w", cfg.Name, err)
	}
	p := &Provider{cfg: cfg, service: s, hangUp: hangUp, problem: errors.New("it was not asked yet")}
	p.state.Store(&kmsv2.State{KMSProviderName: cfg.Name})
	p.sealed = kmsv2.NewEnvelopeTransformer(s, cfg.Name, p.current, serverID)
	return p, nil
}

// Close ends the connection. Values whose seed is known are still read.
func (p *Provider) Close() { p.hangUp() }

// Same says whether the provider is the one that cfg describes.
func (p *Provider) Same(cfg Config) bool {
	return p.cfg.Name == cfg.Name && p.cfg.Endpoint == cfg.Endpoint && p.cfg.Timeout == cfg.Timeout
}

// Transformer is what values go through, with its prefix.
func (p *Provider) Transformer() value.PrefixTransformer {
	return value.PrefixTransformer{Prefix: []byte(Prefix + p.cfg.Name + ":"), Transformer: p.sealed}
}

// current is the seed that values are written with.
func (p *Provider) current() (kmsv2.State, error) {
	state := *p.state.Load()
	if state.Transformer == nil {
		return kmsv2.State{}, fmt.Errorf("the KMS plugin %s has never answered", p.cfg.Name)
	}
	return state, nil
}

// Check is nil while the plugin answers as it should.
func (p *Provider) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// Usable says whether a seed is known at all: before that nothing can be read.
func (p *Provider) Usable() bool { return p.state.Load().Transformer != nil }

// Due is when the plugin is to be asked again.
func (p *Provider) Due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.problem != nil {
		return p.asked.Add(failingEvery)
	}
	return p.asked.Add(healthyEvery)
}

// Poll asks the plugin for its status, and for a new seed where its key has changed.
func (p *Provider) Poll(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.poll(ctx)
	if err != nil {
		err = fmt.Errorf("KMS plugin %s at %s: %w", p.cfg.Name, p.cfg.Endpoint, err)
	}
	p.asked, p.problem = p.cfg.Now(), err
	return err
}

func (p *Provider) poll(ctx context.Context) error {
	// Before the question, because the answer holds from then on.
	writable := p.cfg.Now().Add(writableFor)
	status, err := p.service.Status(ctx)
	if err != nil {
		return fmt.Errorf("ask for its status: %w", err)
	}
	if status.Healthz != "ok" {
		return fmt.Errorf("it says that it is not healthy: %q", status.Healthz)
	}
	if status.Version != kmsv2.KMSAPIVersionv2 && status.Version != kmsv2.KMSAPIVersionv2beta1 {
		return fmt.Errorf("it speaks version %q of the protocol, %s is needed", status.Version, kmsv2.KMSAPIVersionv2)
	}
	if p.version != "" && p.version != status.Version {
		return fmt.Errorf("it spoke version %s of the protocol and now speaks %s; restart the server if that is meant", p.version, status.Version)
	}
	p.version = status.Version
	if code, err := kmsv2.ValidateKeyID(status.KeyID); err != nil {
		metrics.RecordInvalidKeyIDFromStatus(p.cfg.Name, string(code))
		return fmt.Errorf("it names no usable key: %w", err)
	}
	metrics.RecordKeyIDFromStatus(p.cfg.Name, status.KeyID, serverID)
	return p.renew(ctx, status.KeyID, writable)
}

// renew goes on with the seed that there is, or makes one under the plugin's new key.
func (p *Provider) renew(ctx context.Context, key string, writable time.Time) error {
	state := *p.state.Load()
	if state.Transformer != nil && state.EncryptedObjectKeyID == key {
		state.ExpirationTimestamp = writable
		p.state.Store(&state)
		return nil
	}
	uid := string(uuid.NewUUID())
	transformer, sealed, cacheKey, err := kmsv2.GenerateTransformer(ctx, uid, p.service, true)
	if err != nil {
		return err
	}
	if sealed.KeyID != key {
		// The plugin is between two keys: the next question finds out which one counts.
		return errors.New("it encrypts with another key than its status names")
	}
	p.state.Store(&kmsv2.State{
		Transformer: transformer, UID: uid, KMSProviderName: p.cfg.Name, CacheKey: cacheKey, ExpirationTimestamp: writable,
		EncryptedObjectKeyID: sealed.KeyID, EncryptedObjectEncryptedDEKSource: sealed.EncryptedDEKSource,
		EncryptedObjectAnnotations:            sealed.Annotations,
		EncryptedObjectEncryptedDEKSourceType: kmstypes.EncryptedDEKSourceType_HKDF_SHA256_XNONCE_AES_GCM_SEED,
	})
	p.cfg.Log.InfoContext(ctx, "a KMS plugin's key is in use", "plugin", p.cfg.Name, "key", kmsv2.GetHashIfNotEmpty(key),
		"before", kmsv2.GetHashIfNotEmpty(state.EncryptedObjectKeyID))
	return nil
}
