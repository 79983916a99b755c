// SPDX-License-Identifier: Apache-2.0

package body_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/apiserver/body"
	"github.com/wasmplane/wasmplane/core/object"
)

func TestDepthIsBounded(t *testing.T) {
	deep := append(bytes.Repeat([]byte(`{"a":[`), 300), bytes.Repeat([]byte(`]}`), 300)...)
	if err := body.CheckDepth(deep, object.JSON); err == nil {
		t.Error("600 levels passed")
	}
	quoted, err := json.Marshal(map[string]string{"text": string(bytes.Repeat([]byte(`[\"`), 2000))})
	if err != nil {
		t.Fatal(err)
	}
	if err := body.CheckDepth(quoted, object.JSON); err != nil {
		t.Errorf("brackets in a text were counted: %v", err)
	}
}

func TestProtobufDepthIsBounded(t *testing.T) {
	nested := func(levels int) (data []byte) {
		for range levels {
			data = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), data)
		}
		return data
	}
	if err := body.CheckProtobufDepth(nested(900)); err != nil {
		t.Errorf("900 levels: %v", err)
	}
	if err := body.CheckProtobufDepth(nested(1100)); !apierrors.IsBadRequest(err) {
		t.Errorf("1100 levels: %v", err)
	}
}

// request has a body of n bytes, whose length it says or does not say.
func request(t *testing.T, n int, said bool) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(make([]byte, n)))
	if err != nil {
		t.Fatal(err)
	}
	if !said {
		req.ContentLength = -1
	}
	return req
}

func TestSizeIsBounded(t *testing.T) {
	for _, said := range []bool{true, false} {
		data, err := body.Read(request(t, body.Max, said))
		if err != nil || len(data) != body.Max {
			t.Errorf("the most, length known %v: %d bytes, %v", said, len(data), err)
		}
		if _, err := body.Read(request(t, body.Max+1, said)); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("one more, length known %v: %v", said, err)
		}
	}
	cut := request(t, 10, true)
	cut.ContentLength = 11
	if _, err := body.Read(cut); !apierrors.IsBadRequest(err) {
		t.Errorf("a body that ends too soon: %v", err)
	}
}

func TestABodyIsFetchedOnce(t *testing.T) {
	req := request(t, 1000, false)
	if err := body.Fetch(req); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays where it is
		if data, err := body.Read(req); err != nil || len(data) != 1000 {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
	large := request(t, body.Max+5000, false)
	if err := body.Fetch(large); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(large.Body); err != nil || len(data) != body.Max+5000 {
		t.Errorf("who passes a large body on gets %d bytes, %v", len(data), err)
	}
	broken := request(t, 1, false)
	broken.Body = io.NopCloser(iotest.ErrReader(errors.New("reset")))
	if err := body.Fetch(broken); !apierrors.IsBadRequest(err) {
		t.Errorf("a body that breaks off: %v", err)
	}
}

func TestBodiesShareABudget(t *testing.T) {
	var b body.Budget
	const share = 64 << 20
	ann, administrator := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
	done, err := b.Take(ann, share)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(ann, 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("more than a user's share: %v", err)
	}
	if _, err := b.Take(&user.DefaultInfo{Name: "system:serviceaccount:team:one"}, share); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(&user.DefaultInfo{Name: "system:serviceaccount:team:two"}, 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("more than the share of a namespace's accounts: %v", err)
	}
	for _, name := range []string{"b", "c", "d", "e", "f", "g"} {
		if _, err := b.Take(&user.DefaultInfo{Name: name}, share); err != nil {
			t.Errorf("the share of %s: %v", name, err)
		}
	}
	if _, err := b.Take(&user.DefaultInfo{Name: "i"}, 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("more than there is for everybody: %v", err)
	}
	if _, err := b.Take(administrator, share); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	done()
	if _, err := b.Take(ann, 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("an administrator's bytes count for others: %v", err)
	}
}

func TestMediaTypesOfBodies(t *testing.T) {
	for header, want := range map[string]string{
		"": object.JSON, "application/json; charset=utf-8": object.JSON, object.YAML: object.YAML, object.Protobuf: object.Protobuf,
	} {
		req := request(t, 1, true)
		req.Header.Set("Content-Type", header)
		if got, err := body.Type(req); err != nil || got != want {
			t.Errorf("%q: %q, %v", header, got, err)
		}
	}
	req := request(t, 1, true)
	req.Header.Set("Content-Type", "text/html")
	if _, err := body.Type(req); apierrors.ReasonForError(err) != "UnsupportedMediaType" {
		t.Errorf("text/html: %v", err)
	}
}
