// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layoutText is the file that says that there is an OCI layout.
const layoutText = `{"imageLayoutVersion":"1.0.0"}`

// Described is an image with its descriptor.
type Described struct {
	Image
	MediaType types.MediaType
	Size      int64 // of its manifest or index
}

// LayoutFiles are the contents of the files that make an OCI layout of blobs, by their paths.
func LayoutFiles(images []Described) (map[string][]byte, error) {
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	for _, i := range images {
		digest, err := v1.NewHash(i.Digest)
		if err != nil {
			return nil, err
		}
		index.Manifests = append(index.Manifests, v1.Descriptor{
			MediaType: i.MediaType, Size: i.Size, Digest: digest,
			Annotations: map[string]string{imageNameNote: i.Name, refNameNote: i.Name},
		})
	}
	text, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{layoutName: []byte(layoutText), indexName: text}, nil
}

// layoutWriter writes a tar file; the first error stays.
type layoutWriter struct {
	w   io.Writer
	err error
}

func (l *layoutWriter) bytes(name string, content []byte) {
	l.file(name, bytes.NewReader(content), int64(len(content)))
}

func (l *layoutWriter) file(name string, content io.Reader, size int64) {
	if l.err != nil {
		return
	}
	var h []byte
	if h, l.err = header(name, size); l.err == nil {
		_, l.err = l.w.Write(h)
	}
	if l.err == nil {
		_, l.err = io.Copy(l.w, content)
	}
	if l.err == nil {
		_, l.err = l.w.Write(make([]byte, padding(size)))
	}
}

func (l *layoutWriter) end() error {
	if l.err == nil {
		_, l.err = l.w.Write(make([]byte, 2*block))
	}
	return l.err
}
