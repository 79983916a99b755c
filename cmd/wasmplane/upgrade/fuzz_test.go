// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"
)

// FuzzArchive: whatever a release's archive holds, a program comes out of it or an error.
func FuzzArchive(f *testing.F) {
	for _, packed := range [][]byte{archive(f, "wasmplane-v1/LICENSE", "wasmplane-v1/wasmplane"), archive(f, "a/b/c/wasmplane")} {
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			f.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(plain)
	}
	f.Fuzz(func(t *testing.T, plain []byte) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		from, err := inArchive(&packed)
		if err != nil {
			return
		}
		if n, err := io.Copy(io.Discard, from); err == nil && n > int64(len(plain)) {
			t.Errorf("%d bytes came out of %d", n, len(plain))
		}
	})
}
