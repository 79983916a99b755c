// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/storage/value"
	encryptaes "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"

	"github.com/wasmplane/wasmplane/core/store/encryption/kms"
)

// Prefixes of stored values; a key's name follows. They are upstream's, and part
// of what is stored.
const (
	prefixGCM       = "k8s:enc:aesgcm:v1:"
	prefixCBC       = "k8s:enc:aescbc:v1:"
	prefixSecretbox = "k8s:enc:secretbox:v1:"
)

// transformers by resource; "*" stands for all resources of a group, and in both
// places for all of all groups.
type transformers map[schema.GroupResource]value.Transformer

var (
	anyResource = "*"
	everything  = schema.GroupResource{Group: "*", Resource: "*"}
)

func (t transformers) of(gr schema.GroupResource) value.Transformer {
	for _, try := range []schema.GroupResource{gr, {Group: gr.Group, Resource: anyResource}, everything} {
		if found, ok := t[try]; ok {
			return found
		}
	}
	return nil
}

// plugins finds the provider of a KMS plugin.
type plugins func(kms.Config) (*kms.Provider, error)

func load(file string, plugins plugins) (transformers, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the encryption configuration: %w", err)
	}
	t, err := parse(data, plugins)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

func parse(data []byte, plugins plugins) (transformers, error) {
	if len(data) == 0 {
		return nil, errors.New("the file is empty: it begins with apiVersion: apiserver.config.k8s.io/v1 and kind: EncryptionConfiguration")
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(apiserver.AddToScheme(scheme), apiserverv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	decoded, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := decoded.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected kind EncryptionConfiguration, found %T", decoded)
	}
	if errs := validation.ValidateEncryptionConfiguration(config, true); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return build(config, plugins)
}

func build(config *apiserver.EncryptionConfiguration, plugins plugins) (transformers, error) {
	lists := map[schema.GroupResource][]value.PrefixTransformer{}
	for i, rule := range config.Resources {
		providers, err := providersOf(rule, plugins)
		if err != nil {
			return nil, fmt.Errorf("resources[%d].%w", i, err)
		}
		for _, name := range rule.Resources {
			gr := schema.ParseGroupResource(name)
			for _, earlier := range []schema.GroupResource{{Group: gr.Group, Resource: anyResource}, everything} {
				if _, masked := lists[earlier]; masked {
					return nil, fmt.Errorf("resources[%d].resources: %q is masked by the earlier rule %q; put the narrower rule first", i, name, earlier.Resource+"."+earlier.Group)
				}
			}
			lists[gr] = append(lists[gr], providers...)
		}
	}
	out := transformers{}
	for gr, list := range lists {
		out[gr] = value.NewPrefixTransformers(errors.New("no matching prefix found"), list...)
	}
	return out, nil
}

func providersOf(rule apiserver.ResourceConfiguration, plugins plugins) ([]value.PrefixTransformer, error) {
	var list []value.PrefixTransformer
	for i, p := range rule.Providers {
		var t value.PrefixTransformer
		var err error
		switch {
		case p.AESGCM != nil:
			t, err = withKeys(prefixGCM, p.AESGCM.Keys, blocks(encryptaes.NewGCMTransformer))
		case p.AESCBC != nil:
			t, err = withKeys(prefixCBC, p.AESCBC.Keys,
				blocks(func(b cipher.Block) (value.Transformer, error) { return encryptaes.NewCBCTransformer(b), nil }))
		case p.Secretbox != nil:
			t, err = withKeys(prefixSecretbox, p.Secretbox.Keys, box)
		case p.Identity != nil:
			t = value.PrefixTransformer{Transformer: identity.NewEncryptCheckTransformer()}
		case p.KMS != nil:
			t, err = withPlugin(p.KMS, plugins)
		default:
			err = errors.New("expected one of kms, aesgcm, aescbc, secretbox and identity")
		}
		if err != nil {
			return nil, fmt.Errorf("providers[%d]: %w", i, err)
		}
		list = append(list, t)
	}
	return list, nil
}

func withPlugin(c *apiserver.KMSConfiguration, plugins plugins) (value.PrefixTransformer, error) {
	if c.APIVersion != "v2" {
		return value.PrefixTransformer{}, fmt.Errorf("kms.apiVersion: %s is not supported: write v2, which the plugin has to speak", c.APIVersion)
	}
	p, err := plugins(kms.Config{Name: c.Name, Endpoint: c.Endpoint, Timeout: c.Timeout.Duration})
	if err != nil {
		return value.PrefixTransformer{}, err
	}
	return p.Transformer(), nil
}

// withKeys writes with the first key and reads with all of them, by their names.
func withKeys(prefix string, keys []apiserver.Key,
	newTransformer func([]byte) (value.Transformer, error),
) (value.PrefixTransformer, error) {
	var list []value.PrefixTransformer
	for _, key := range keys {
		secret, err := base64.StdEncoding.DecodeString(key.Secret)
		if err != nil {
			return value.PrefixTransformer{}, fmt.Errorf("key %s: the secret is not base64", key.Name) // err would quote it
		}
		t, err := newTransformer(secret)
		if err != nil {
			return value.PrefixTransformer{}, fmt.Errorf("key %s: %w", key.Name, err)
		}
		list = append(list, value.PrefixTransformer{Prefix: []byte(key.Name + ":"), Transformer: t})
	}
	return value.PrefixTransformer{
		Prefix:      []byte(prefix),
		Transformer: value.NewPrefixTransformers(errors.New("no matching key was found for the provided transformer"), list...),
	}, nil
}

func blocks(newTransformer func(cipher.Block) (value.Transformer, error)) func([]byte) (value.Transformer, error) {
	return func(secret []byte) (value.Transformer, error) {
		block, err := aes.NewCipher(secret)
		if err != nil {
			return nil, err
		}
		return newTransformer(block)
	}
}

func box(secret []byte) (value.Transformer, error) {
	if len(secret) != 32 {
		return nil, fmt.Errorf("expected 32 bytes, found %d", len(secret))
	}
	return secretbox.NewSecretboxTransformer([32]byte(secret)), nil
}
