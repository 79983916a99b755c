// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/json"
	"testing"
)

// FuzzSealed: neither a machine's request nor a server's answer is more than refused, and no
// answer counts that this request's token has not sealed.
func FuzzSealed(f *testing.F) {
	own, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"name":"a","address":"192.0.2.1:2380"}`), own.PublicKey().Bytes(), []byte("sealed"))
	f.Add([]byte(`{`), make([]byte, 32), []byte(nil))
	f.Fuzz(func(t *testing.T, text, key, data []byte) {
		var r Request
		if json.Unmarshal(text, &r) != nil {
			return
		}
		r.Key = key
		if s, err := Seal(r, "digest", Keys{"ca.crt": data}); err == nil && len(s.Data) == 0 {
			t.Error("nothing was sealed, without an error")
		}
		if _, err := Open(r, own, "digest", Sealed{Key: key, Data: data}); err == nil {
			t.Error("an answer that nobody sealed was opened")
		}
	})
}
