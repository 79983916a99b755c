// SPDX-License-Identifier: Apache-2.0

// Package charttest packs charts for tests, good ones and hostile ones.
package charttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"slices"
	"testing"
)

// Chart packs files of a chart, by their paths in it. Without a Chart.yaml it is
// the chart "shop" of version 1.0.0.
func Chart(tb testing.TB, files map[string]string) []byte {
	tb.Helper()
	files = maps.Clone(files)
	if _, ok := files["Chart.yaml"]; !ok {
		files["Chart.yaml"] = "apiVersion: v2\nname: shop\nversion: 1.0.0\nappVersion: \"7\"\n"
	}
	var headers []tar.Header
	var bodies []io.Reader
	for _, name := range slices.Sorted(maps.Keys(files)) {
		headers = append(headers, tar.Header{Name: "shop/" + name, Mode: 0o644, Size: int64(len(files[name]))})
		bodies = append(bodies, bytes.NewReader([]byte(files[name])))
	}
	return Archive(tb, headers, bodies...)
}

// Archive packs whatever its headers say; bodies are those of the first of them.
func Archive(tb testing.TB, headers []tar.Header, bodies ...io.Reader) []byte {
	tb.Helper()
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tw := tar.NewWriter(zw)
	for i := range headers {
		if err := tw.WriteHeader(&headers[i]); err != nil {
			tb.Fatal(err)
		}
		if i < len(bodies) {
			if _, err := io.Copy(tw, bodies[i]); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		tb.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}
